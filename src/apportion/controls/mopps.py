"""MoPPS: train on the prompts whose success, drawn from what is believed, is nearest one half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.controls.posterior import BetaPosterior
from apportion.errors import InvalidInputError

PRIOR, DECAY, CANDIDATES = (1.0, 1.0), 1.0, 16
"""Beta prior, share of the counts kept, candidates a prompt taken, as published for MATH."""


def mopps(
    belief: BetaPosterior, num_prompts: int, rng: np.random.Generator, *, target: float = 0.5
) -> NDArray[np.bool_]:
    """Take the `num_prompts` candidates with the least ``(g_i - target)^2``, ``g_i ~ Beta``.

    One draw a candidate (Thompson sampling): prompts that little is known of are tried too.

    Args:
        belief: about each candidate (B).
        num_prompts: how many to take.
        rng: source of the draws.
        target: success at which a prompt is thought to teach most.

    Returns:
        Mask of the candidates (B); ties by position.

    Raises:
        InvalidInputError: more prompts than candidates.

    Source: Qu et al., "Can prompt difficulty be online predicted for accelerating RL finetuning of
    reasoning models?", arXiv:2507.04632, top-B selection.

    >>> belief = BetaPosterior(np.array([1e6, 5e5, 1.0]), np.array([1.0, 5e5, 1e6]))
    >>> mopps(belief, 1, np.random.default_rng(0))
    array([False,  True, False])
    """
    drawn_B = rng.beta(belief.alpha_B, belief.beta_B)
    return nearest(np.abs(drawn_B - validate.number("target", target)), num_prompts)


def nearest(distance_B: NDArray[np.float64], num_prompts: int) -> NDArray[np.bool_]:
    """Mask the `num_prompts` smallest distances, ties by position."""
    size = len(distance_B)
    num = validate.whole_number("num_prompts", num_prompts, at_least=1)
    if num > size:
        raise InvalidInputError(
            f"num_prompts is {num}, but there are {size} candidates. Lower it or give more."
        )
    is_taken_B = np.zeros(size, dtype=bool)
    is_taken_B[np.argsort(distance_B, kind="stable")[:num]] = True
    return is_taken_B
