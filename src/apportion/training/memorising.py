"""Whether a run learns its own pool by heart: success there rises while held-out success falls."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_RISE, LEAST_FALL = 0.01, 0.005
"""Smaller changes over the last half of the evaluations are taken for noise."""


def memorising(pool_T: Sequence[float], held_out_T: Sequence[float]) -> str | None:
    """Return a sentence with advice if the last half of a run went that way, else None.

    Args:
        pool_T: mean success on the training pool at each evaluation.
        held_out_T: mean success on the held-out problems at the same.

    >>> memorising([0.1, 0.2, 0.25], [0.1, 0.2, 0.25]) is None
    True
    >>> memorising([0.1, 0.2, 0.25], [0.1, 0.2, 0.18]).split(":")[0]
    'memorising a small pool'
    """
    half = (len(pool_T) - 1) // 2
    if half < 1 or len(held_out_T) != len(pool_T):
        return None
    rise, fall = pool_T[-1] - pool_T[half], held_out_T[half] - held_out_T[-1]
    if rise <= LEAST_RISE or fall <= LEAST_FALL:
        return None
    return (
        f"memorising a small pool: over the last half of the run success on the pool rose by "
        f"{rise:.3f} while held-out success fell by {fall:.3f}. Give more prompts, or take fewer "
        "steps or a lower learning rate."
    )
