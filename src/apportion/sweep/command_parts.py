"""What the commands of every framework share: flags, how often to evaluate, what they refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping

from apportion.errors import InvalidInputError
from apportion.sweep.sweep import Sweep

KINDS = ("apportion", "trl", "verl")
"""Whose command line a run can be printed for."""
EXTRA = "$APPORTION_EXTRA"
"""Where the user's own recipe goes, split into words by the shell."""
GPUS = "${APPORTION_GPUS:-1}"
_MOST_EVALUATIONS = 16


def flags(values: Mapping[str, object]) -> list[str]:
    """Return each name with its value as words of a command line.

    >>> flags({"--model": "Qwen/Qwen2.5-0.5B", "--reward-low": -1.0})
    ['--model', 'Qwen/Qwen2.5-0.5B', '--reward-low=-1.0']
    """
    words: list[str] = []
    for name, value in values.items():
        text = str(value)
        words += [f"{name}={text}"] if text.startswith("-") else [name, text]
    return words


def evaluation_interval(num_steps: int) -> int:
    """Return the steps between evaluations: a 16th of the run or a little more.

    Of the intervals from a 16th to an 8th, the one whose last evaluation is nearest to the end.

    >>> [evaluation_interval(num_steps) for num_steps in (20, 39, 97, 1000)]
    [2, 3, 8, 100]
    """
    least = math.ceil(num_steps / _MOST_EVALUATIONS)
    intervals = range(least, max(num_steps // (_MOST_EVALUATIONS // 2), least) + 1)
    return min(intervals, key=lambda every: (num_steps % every, every))


def check_plain(sweep: Sweep, kind: str) -> None:
    """Raise where a framework's own command line cannot make the runs of a sweep.

    Raises:
        InvalidInputError: the model is the embedded one, group sizes are not even, or a setting
            has no counterpart there.
    """
    base = sweep.base
    if base.is_embedded:
        raise InvalidInputError(
            f"The embedded model cannot be trained by {kind}. Give --model and --dataset, or print "
            "commands of the kind apportion."
        )
    others = sorted({one.allocator for one in sweep.settings} - {"uniform"})
    if others:
        raise InvalidInputError(
            f"--allocator is {', '.join(others)}, but the command line of {kind} gives every "
            "prompt as many rollouts. Sweep uniform, or print commands of the kind apportion."
        )
    if (base.reward_low, base.reward_high) != (0.0, 1.0):
        raise InvalidInputError(
            f"Rewards go from {base.reward_low:g} to {base.reward_high:g}, but logs of {kind} do "
            "not tell the range and are read as rewards from 0 to 1. Let the reward function "
            "return those, or print commands of the kind apportion."
        )
    if base.limit is not None:
        raise InvalidInputError(
            f"--limit is {base.limit}, but {kind} has no such option that keeps the same prompts "
            "under every seed. Cut the data set, or print commands of the kind apportion."
        )
