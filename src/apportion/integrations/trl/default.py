"""The allocator of a trainer that was given none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apportion.allocator import RolloutAllocator
from apportion.embedding import TextEmbedding
from apportion.predictor import FilterBank
from apportion.prompt_key import prompt_text

from .rows import Row

NUM_SAMPLED = 2000
"""Prompts that features are fitted to and that enter the table first, others when first seen."""


def default_allocator(
    args: Any, dataset: Any
) -> tuple[RolloutAllocator, TextEmbedding | None, list[Row]]:
    """Make the default predictor, over hashed n-grams of the prompts unless they are a stream.

    Args:
        args: a configuration with the fields of `AdaptiveRolloutConfig`.
        dataset: the training set; one without a length cannot be looked at beforehand.

    Returns:
        The allocator, what makes features of prompts (None for a stream), and the rows of the data
        set that fix the kernel's anchors and should enter the allocator's table first.
    """
    options: dict[str, Any] = {
        "variance": "grpo" if getattr(args, "scale_rewards", "none") == "group" else "rloo",
        "lower": args.lower,
        "upper": args.most,
        "reward_range": (args.reward_low, args.reward_high),
        "objective": args.goal,
        "exploration": args.exploration,
    }
    named = (args.prompt_key_column, args.prior_mean_column, args.prior_count_column)
    rows = sampled_rows(dataset, [column for column in named if column is not None])
    texts = [prompt_text(row["prompt"]) for row in rows]
    if len(set(texts)) < 2:
        return RolloutAllocator(FilterBank(), **options), None, []
    return RolloutAllocator(FilterBank(), **options), TextEmbedding().fit(texts), rows


def sampled_rows(
    dataset: Any, columns: Sequence[str] = (), num_sampled: int = NUM_SAMPLED
) -> list[Row]:
    """Return evenly spaced rows with their prompt and these columns; none for a stream.

    >>> sampled_rows([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}], num_sampled=2)
    [{'prompt': 'a'}, {'prompt': 'c'}]
    """
    try:
        size = len(dataset)
    except TypeError:
        return []
    if hasattr(dataset, "select_columns"):
        if "prompt" not in dataset.column_names:
            return []
        dataset = dataset.select_columns(["prompt", *columns])
    index = np.unique(np.linspace(0, size - 1, min(size, num_sampled)).round().astype(int))
    return [dict(dataset[int(i)]) for i in index]
