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
