"""What ``apportion simulate`` reads and writes: counts of success, and learning curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apportion import validate
from apportion.cli.allocate import read_columns
from apportion.difficulty import Profile
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.simulation import SimulatedRun

COLUMNS = (
    "run",
    "rollouts_per_prompt",
    "prompts_per_step",
    "compute",
    "reward",
    "seed",
    "problems",
    "samples",
    "learning_rate",
    "allocator",
    "num_prompts",
)
"""Of the table of learning curves."""


def curves_csv(
    runs_of: Sequence[Sequence[SimulatedRun]], *, allocator: str, num_prompts: int
) -> str:
    """Return the curves; problems and samples are empty where the reward is exact."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in (run for runs in runs_of for run in runs):
        n, batch = run.training.rollouts_per_prompt, run.training.prompts_per_step
        measured = run.measured
        reward_T = run.success_T if measured is None else measured.success_T
        size = ("", "") if measured is None else (measured.problems, measured.samples)
        for compute, reward in zip(run.compute_T.tolist(), reward_T.tolist(), strict=True):
            name, rate = f"n{n}-seed{run.seed}", run.training.rate_at(batch * n)
            values = [name, n, batch, compute, reward, run.seed, *size, rate]
            writer.writerow([*values, allocator, num_prompts])
    return text.getvalue()


def profile_at(path: Path) -> Profile:
    """Read the counts of a profile, or of a table of them."""
    if path.is_dir() or path.suffix == ".json":
        from apportion.training.profile import read_profile

        return read_profile(path)
    try:
        columns = read_columns(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"--difficulty is {str(path)!r}, which is neither easy nor hard nor a file that can be "
            "read. Name a profile or a CSV with num_success and num_rollouts."
        ) from error
    if not {"num_success", "num_rollouts"} <= columns.keys():
        raise InvalidInputError(
            f"{path} has {', '.join(columns)}, but difficulty is counted: it needs num_success and "
            "num_rollouts."
        )
    num_Q = validate.counts("num_rollouts", columns["num_rollouts"], at_least=1)
    if len(np.unique(num_Q)) > 1:
        raise InvalidInputError(
            f"{path} holds prompts of {num_Q.min()} to {num_Q.max()} rollouts, but a profile has "
            "equally many of each. Keep those that have."
        )
    success_Q = validate.counts("num_success", columns["num_success"], size=len(num_Q))
    return Profile(num_success_Q=success_Q, num_samples=int(num_Q.max(initial=1)))


def check_out(out: Path) -> None:
    """Raise before the runs unless what is written over is a table of earlier ones."""
    if out.is_dir():
        raise InvalidInputError(f"--out {out} is a folder. Name a file in it.")
    if not out.exists():
        return
    try:
        with open(out, encoding="utf-8") as file:
            is_ours = out.is_file() and file.readline().strip() == ",".join(COLUMNS)
    except (OSError, UnicodeDecodeError):
        is_ours = False
    if not is_ours:
        raise InvalidInputError(
            f"--out {out} would overwrite a file that is no such table. Name another."
        )
