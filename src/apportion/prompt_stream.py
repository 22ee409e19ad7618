"""Which prompts each step draws: pass after pass over all of them, the same for every arm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import IntArray


def prompt_stream(num_prompts: int, prompts_per_step: int, *, seed: int) -> Iterator[IntArray]:
    """Yield batches of distinct rows without end, each pass in a new order, rests left out.

    Args:
        num_prompts: Q.
        prompts_per_step: B, at most Q.
        seed: of the order.

    Yields:
        ``row_B``.

    Raises:
        InvalidInputError: a step needs no prompts, or more than there are.

    >>> sorted(next(prompt_stream(2, 2, seed=0)).tolist())
    [0, 1]
    """
    validate.whole_number("prompts_per_step", prompts_per_step, at_least=1)
    if prompts_per_step > num_prompts:
        raise InvalidInputError(
            f"prompts_per_step is {prompts_per_step}, but there are {num_prompts} prompts to train "
            "on. Lower it or give more prompts."
        )
    rng = np.random.default_rng(seed)
    while True:
        order_Q = rng.permutation(num_prompts)
        for start in range(0, num_prompts - prompts_per_step + 1, prompts_per_step):
            yield order_Q[start : start + prompts_per_step]


def candidates(batch_B: IntArray, num_prompts: int, num: int, *, seed: int, step: int) -> IntArray:
    """Return the rows of a batch, followed by others of the pool to choose from.

    Drawn without replacement and from the seed and the step alone, so that every arm, and a run
    that was resumed, has the same.

    Args:
        batch_B: distinct rows that an even split would take.
        num_prompts: Q.
        num: candidates in all, the batch included.
        seed: of the draw.
        step: of the run.

    Raises:
        InvalidInputError: fewer candidates than the batch, or more than there are prompts.

    >>> candidates(np.array([3, 1]), 5, 4, seed=0, step=0).tolist()[:2]
    [3, 1]
    """
    validate.whole_number("num", num, at_least=1)
    if not len(batch_B) <= num <= num_prompts:
        raise InvalidInputError(
            f"{num} candidates are asked for a batch of {len(batch_B)}, but there are "
            f"{num_prompts} prompts. Ask for a number between the two, or give more prompts."
        )
    rest_Q = np.setdiff1d(np.arange(num_prompts), batch_B)
    rng = np.random.default_rng([seed, step])
    extra = rng.choice(rest_Q, num - len(batch_B), replace=False)
    return np.concatenate([batch_B, extra])
