"""One run of a sweep, made or gone on with: the function that every engine calls."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from apportion.sweep.sweep import SWEEP_FILE
from apportion.training.config import TrainConfig
from apportion.training.processes import reason_of_failure


def make(config: dict[str, Any], folder: str, until: int) -> str:
    """Bring a run to a step, from wherever it stands.

    The embedded model learns in the plain loop, several times faster than in a trainer; models of
    yours, and RLOO with a KL term, in TRL.

    Args:
        config: of the run, see `TrainConfig.to_dict`.
        folder: its run folder; made if need be.
        until: steps that it should have made in all.

    Returns:
        Why it failed; empty if it did not.
    """
    path, told = Path(folder), TrainConfig.from_dict(config)
    if not (path.parent / SWEEP_FILE).exists():
        return (
            f"{path.parent} is not the folder of the sweep on {socket.gethostname()}. Put --out "
            "where all machines see the same files."
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path.mkdir(exist_ok=True)

    def bring() -> None:
        if learns_in_plain_loop(told):
            from apportion.sweep.embedded_run import run_embedded

            run_embedded(told, path, until=until)
            return
        from apportion.training.run import run

        run(told, path, resume=(path / "run.json").exists(), until=until)

    return reason_of_failure(bring, path / "output.txt")


def learns_in_plain_loop(config: TrainConfig) -> bool:
    """Return whether the plain loop does what TRL would.

    TRL's RLOO takes the KL penalty off the reward, unlike the loop.

    >>> learns_in_plain_loop(TrainConfig(kl=0.01, estimator="dr_grpo"))
    True
    >>> learns_in_plain_loop(TrainConfig(kl=0.01, estimator="rloo"))
    False
    """
    return config.is_embedded and not (config.kl and config.estimator == "rloo")
