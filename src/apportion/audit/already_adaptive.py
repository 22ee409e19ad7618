"""Whether a recorded run gave its prompts groups of unequal size on purpose."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from apportion.recording import GroupTable, Recording

_MOST_EVEN = 1
"""Sizes of an even split differ by no more."""


def is_already_adaptive(recording: Recording, groups: GroupTable) -> bool:
    """Return whether the run was adaptive: by its configuration, else by its group sizes.

    Without a configuration, sizes must differ by more than 1 in half of the steps that have two
    groups or more: torn lines and repeated prompts make a few groups odd, not half of the steps.

    Args:
        recording: the run.
        groups: its groups.
    """
    mode = _mode(recording.config)
    if mode is not None:
        return mode not in ("uniform", "shadow")
    if not recording.has_steps:
        return False
    spreads = [
        int(np.ptp(groups.num_requested_G[part]))
        for _, part in groups.steps()
        if part.stop - part.start > 1
    ]
    return bool(spreads) and float(np.mean(np.array(spreads) > _MOST_EVEN)) >= 0.5


def _mode(config: Mapping[str, object]) -> object:
    """Return who decided: the arm of `apportion train`, or the mode of the TRL trainers."""
    train = config.get("train")
    arm = train.get("arm") if isinstance(train, Mapping) else None
    return arm if arm is not None else config.get("allocator_mode")
