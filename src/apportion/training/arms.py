"""Who decides in each arm of a run: the allocator, and whether its decision is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from apportion.allocator import EXPLORATION, RolloutAllocator
from apportion.embedding import TextEmbedding
from apportion.gradient_variance import law_for
from apportion.predictor import VIP, FilterBank, Oracle, Predictor
from apportion.prompt_key import prompt_text
from apportion.training.config import TrainConfig
from apportion.training.task import ID_COLUMN, PRIOR_COUNT, PRIOR_MEAN
from apportion.types import Prompts
from apportion.validate import FloatArray

SuccessOf = Callable[[Any], FloatArray]


def allocator_of(
    config: TrainConfig, prompts: Prompts, success_of: SuccessOf | None
) -> RolloutAllocator:
    """Make the allocator of an arm, with all prompts in its table.

    ``uniform`` carries the allocator that ``adaptive`` has for the objective "variance", which then
    only watches.

    Args:
        config: the run.
        prompts: every training prompt, with features.
        success_of: exact success by key; needed by the oracle alone.
    """
    predictor: Predictor
    variance: Any = law_for(config.estimator, weighting="prompt")
    if config.arm == "oracle":
        assert success_of is not None
        predictor = Oracle(success_of)
    elif config.arm == "vip":
        predictor, variance = VIP(), "dr_grpo"
    else:
        predictor = FilterBank()
    allocator = RolloutAllocator(
        predictor,
        variance=variance,
        lower=config.least,
        upper=config.most,
        reward_range=(config.reward_low, config.reward_high),
        do_no_harm=config.arm in ("uniform", "adaptive"),
        objective=config.goal,
        exploration=0.0 if config.arm == "oracle" else EXPLORATION,
    )
    allocator.add(prompts)
    return allocator


def mode_of(config: TrainConfig) -> str:
    """Return the trainer's ``allocator_mode`` for an arm."""
    return "shadow" if config.arm == "uniform" else "adaptive"


def prompts_of(rows: list[dict[str, Any]], embedding: TextEmbedding) -> Prompts:
    """Return the training prompts with their features and offline success rates."""
    has_prior = PRIOR_MEAN in rows[0]
    return Prompts(
        id_B=np.array([row[ID_COLUMN] for row in rows]),
        feature_BD=embedding.transform([prompt_text(row["prompt"]) for row in rows]),
        prior_mean_B=np.array([row[PRIOR_MEAN] for row in rows]) if has_prior else None,
        prior_count_B=np.array([row[PRIOR_COUNT] for row in rows]) if has_prior else None,
    )
