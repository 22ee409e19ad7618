"""A sweep on disk: what its runs share, what they differ in, and which are done.

``sweep.json`` says what the sweep is; every run has a run folder beside it, which `apportion fit`,
`apportion plan` and `apportion audit` read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError, RunFolderError, StateError, first_line
from apportion.run_log import lock_folder, num_logged_steps
from apportion.state_file import replace_file
from apportion.sweep.settings import Setting, checked
from apportion.training.config import TrainConfig, fitting_micro_batch

FORMAT, VERSION = "apportion-sweep", 1
SWEEP_FILE = "sweep.json"
HELD_OUT = "held_out"
"""Problems that the runs are judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a sweep, as far as it should go.

    Attributes:
        setting: what tells it from the others.
        config: everything that defines the run.
        folder: its run folder.
        until: steps that it should have made.
    """

    setting: Setting
    config: TrainConfig
    folder: Path
    until: int

    @property
    def name(self) -> str:
        """Name for people."""
        return self.setting.name

    @property
    def is_done(self) -> bool:
        """Whether the run was judged after its last step."""
        return self.until in evaluated_steps(self.folder)

    @property
    def arguments(self) -> tuple[dict[str, Any], str, int]:
        """What a worker needs to make it."""
        return self.config.to_dict(), str(self.folder.resolve()), self.until

    @property
    def num_steps(self) -> int:
        """Steps logged so far."""
        return num_logged_steps(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Runs that share a task and differ in their settings.

    Attributes:
        base: what they share.
        settings: what they differ in.
        folder: holds ``sweep.json`` and a folder a run.
        micro_batch: completions in one backward pass at most; the whole step if None.
    """

    base: TrainConfig
    settings: tuple[Setting, ...]
    folder: Path
    micro_batch: int | None = None

    def config_of(self, setting: Setting) -> TrainConfig:
        """Return what defines the run of a setting."""
        return replace(
            self.base,
            arm=setting.allocator,
            rollouts_per_prompt=setting.rollouts_per_prompt,
            prompts_per_step=setting.prompts_per_step,
            learning_rate=setting.learning_rate,
            steps=setting.num_steps,
            seed=setting.seed,
            micro_batch=fitting_micro_batch(self.micro_batch, setting.batch),
        )

    def job(self, setting: Setting, until: int | None = None) -> Job:
        """Return the run of a setting, to its end or for so many steps."""
        return Job(
            setting=setting,
            config=self.config_of(setting),
            folder=self.folder / setting.name,
            until=setting.num_steps if until is None else until,
        )

    @property
    def jobs(self) -> list[Job]:
        """All runs, to their ends."""
        return [self.job(setting) for setting in self.settings]

    @property
    def budget(self) -> int:
        """Rollouts of all runs together."""
        return sum(setting.budget for setting in self.settings)


def start(sweep: Sweep) -> Sweep:
    """Begin a sweep, go on with it, or add runs to it.

    Args:
        sweep: what was asked for.

    Returns:
        The sweep with the runs that its folder had before, if any.

    Raises:
        RunFolderError: the folder holds a sweep of another task, or another process sweeps there.
        InvalidInputError: a run has no valid configuration, or differs from one that is there.
    """
    for setting in sweep.settings:
        sweep.config_of(setting)
    path = sweep.folder / SWEEP_FILE
    if path.exists():
        before = load(sweep.folder)
        _check_alike(before, sweep)
        both = dict.fromkeys((*before.settings, *sweep.settings))
        sweep = replace(sweep, settings=tuple(checked(list(both))))
    elif sweep.folder.is_dir() and any(path.name != "lock" for path in sweep.folder.iterdir()):
        raise RunFolderError(
            f"{sweep.folder} is not empty and holds no sweep. Name another folder with --out."
        )
    lock_folder(sweep.folder).close()
    content = {
        "format": FORMAT,
        "version": VERSION,
        "base": sweep.base.to_dict(),
        "micro_batch": sweep.micro_batch,
        "settings": [asdict(setting) for setting in sweep.settings],
    }
    replace_file(path, json.dumps(content, indent=2).encode() + b"\n")
    return sweep


def check_task(sweep: Sweep) -> None:
    """Raise before hours are spent if the data or the reward is of no use, or nothing judges.

    Raises:
        InvalidInputError: says why.
    """
    from apportion.training.task import load_task

    task = load_task(sweep.config_of(sweep.settings[0]))
    if HELD_OUT not in task.evaluation:
        raise InvalidInputError(
            f"--held-out is {sweep.base.held_out} and at most a fifth of {len(task.rows)} prompts "
            "is kept, so no prompt is left to judge the runs by. Keep some, or give more data."
        )
    most = max(setting.prompts_per_step for setting in sweep.settings)
    if most > len(task.rows):
        raise InvalidInputError(
            f"A run has {most} prompts a step, but there are {len(task.rows)} to train on. Lower "
            "--prompts-per-step."
        )


def load(folder: Path) -> Sweep:
    """Read what `start` wrote.

    Raises:
        RunFolderError: there is no sweep in the folder.
        StateError: it was started by another version.
    """
    path = folder / SWEEP_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError("it has another format")
        settings = tuple(Setting(**one) for one in content["settings"])
        return Sweep(
            base=TrainConfig.from_dict(content["base"]),
            settings=settings,
            folder=folder,
            micro_batch=content.get("micro_batch"),
        )
    except StateError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read as a sweep: {first_line(error)}. Name another folder with "
            "--out."
        ) from error


def evaluated_steps(folder: Path) -> set[int]:
    """Return the steps after which a run was judged; a torn last line counts for nothing."""
    try:
        lines = (folder / "evaluations.jsonl").read_bytes().split(b"\n")
    except OSError:
        return set()
    found = set()
    for line in lines[:-1]:
        try:
            row = json.loads(line)
            if row["split"] == HELD_OUT:
                found.add(int(row["step"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _check_alike(before: Sweep, now: Sweep) -> None:
    """Raise if the runs that are there learn another task or in another way."""
    old = before.base.to_dict() | {"micro_batch": before.micro_batch}
    new = now.base.to_dict() | {"micro_batch": now.micro_batch}
    for name, value in new.items():
        if old[name] != value:
            raise RunFolderError(
                f"{now.folder} holds a sweep with {name} {old[name]!r}, but now {name} is "
                f"{value!r}. Name another folder with --out."
            )
    steps_of = {setting.name: setting.num_steps for setting in before.settings}
    for setting in now.settings:
        if steps_of.get(setting.name, setting.num_steps) != setting.num_steps:
            raise InvalidInputError(
                f"{now.folder} holds a run {setting.name} of {steps_of[setting.name]} steps, but "
                f"now it would have {setting.num_steps}. Keep the budget, or name another folder "
                "with --out."
            )
