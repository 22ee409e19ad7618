"""The settings of adaptive rollouts, as fields of TRL's own configuration classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig, RLOOConfig

from apportion import validate
from apportion.allocator import EXPLORATION, OBJECTIVES
from apportion.errors import InvalidInputError

MODES = ("adaptive", "shadow", "uniform")
DEFAULT_UPPER_TIMES = 4


@dataclass
class AdaptiveRolloutConfig:
    """Fields that adaptive rollouts add to a TRL configuration; mix in before it.

    ``num_generations`` keeps its meaning as the mean group size G: the ``B =
    generation_batch_size`` rollouts of a batch belong to ``Q = B / G`` prompts, and the allocator
    splits exactly B among them, or among the best of ``candidates * Q`` prompts.
    """

    allocator_mode: str = field(
        default="adaptive",
        metadata={
            "help": "What the allocator does: 'adaptive' decides, 'shadow' only logs what it would "
            "have decided, 'uniform' trains as stock TRL does and keeps the run log.",
            "choices": list(MODES),
        },
    )
    lower: int = field(
        default=2, metadata={"help": "Least rollouts a prompt of the batch gets; at least 2."}
    )
    upper: int | None = field(
        default=None,
        metadata={
            "help": "Most rollouts a prompt of the batch gets. Defaults to 4 times num_generations."
        },
    )
    candidates: int = field(
        default=1,
        metadata={
            "help": "Prompts to choose from, in multiples of the prompts of an even batch: with 3, "
            "two more for each are drawn from the data set, and rollouts go to the best of them. "
            "Needs a data set with a length."
        },
    )
    objective: str | None = field(
        default=None,
        metadata={
            "help": "'variance' gives every prompt of the batch rollouts, such that the gradient "
            "is least noisy; 'progress' and 'coverage' leave prompts out, see the documentation. "
            "Defaults to 'coverage' if candidates is more than 1, else to 'variance'.",
            "choices": list(OBJECTIVES),
        },
    )
    exploration: float = field(
        default=EXPLORATION,
        metadata={
            "help": "Share of the rollouts that go to the candidates not sampled for longest, "
            "where prompts are chosen."
        },
    )
    weighting: str = field(
        default="prompt",
        metadata={
            "help": "Whether every prompt ('prompt', the objective of equal groups) or every "
            "rollout ('rollout') has the same say in the loss.",
            "choices": ["prompt", "rollout"],
        },
    )
    prompt_key_column: str | None = field(
        default=None,
        metadata={
            "help": "Column with a stable key of each prompt, under which the allocator remembers "
            "it. Defaults to a hash of the prompt."
        },
    )
    prior_mean_column: str | None = field(
        default=None,
        metadata={"help": "Column with the success rate of each prompt before the run, in [0, 1]."},
    )
    prior_count_column: str | None = field(
        default=None,
        metadata={"help": "Column with the number of rollouts behind that rate."},
    )
    reward_low: float = field(
        default=0.0,
        metadata={
            "help": "Lowest possible reward, -1 for rewards of -1 and 1. Beliefs are kept on "
            "[0, 1], to which this and reward_high are mapped."
        },
    )
    reward_high: float = field(default=1.0, metadata={"help": "Highest possible reward."})
    rollout_log_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for the run log: a line a step, and a line a group with its rewards, "
            "tokens and forecast. Not written if unset."
        },
    )

    def __post_init__(self) -> None:
        """Let TRL settle the batch sizes, then check that they leave room for our bounds."""
        super().__post_init__()  # type: ignore[misc]
        validate.choice("allocator_mode", self.allocator_mode, MODES)
        validate.choice("weighting", self.weighting, ("prompt", "rollout"))
        if (self.prior_mean_column is None) != (self.prior_count_column is None):
            raise InvalidInputError(
                "prior_mean_column and prior_count_column come together, or not at all: a rate is "
                "worth as much as the rollouts behind it."
            )
        if not self.reward_low < self.reward_high:
            raise InvalidInputError(
                f"reward_low is {self.reward_low:g} and reward_high {self.reward_high:g}, but the "
                "first must be below the second."
            )
        self._check_choice()
        batch: Any = self
        check_bounds(self.lower, self.most, batch.num_generations, batch.generation_batch_size)
        if self.allocator_mode == "adaptive":
            for sentence in _doubts(self):
                warnings.warn(sentence, UserWarning, stacklevel=4)

    @property
    def most(self) -> int:
        """`upper`, or its default."""
        trl_fields: Any = self
        if self.upper is not None:
            return self.upper
        return DEFAULT_UPPER_TIMES * int(trl_fields.num_generations)

    @property
    def goal(self) -> str:
        """`objective`, or its default."""
        if self.objective is not None:
            return self.objective
        return "coverage" if self.candidates > 1 else "variance"

    def _check_choice(self) -> None:
        """Raise if the settings of choosing prompts are out of range or contradict one another."""
        validate.whole_number("candidates", self.candidates, at_least=1)
        validate.choice("objective", self.goal, OBJECTIVES)
        if not 0.0 <= validate.number("exploration", self.exploration) < 1.0:
            raise InvalidInputError(
                f"exploration is {self.exploration:g}, but must be a share of the rollouts in "
                "[0, 1)."
            )
        if self.candidates > 1 and self.goal == "variance":
            raise InvalidInputError(
                f"candidates is {self.candidates}, but the objective 'variance' gives every prompt "
                "of the batch its share. Choose 'progress' or 'coverage', or set candidates to 1."
            )


@dataclass
class AdaptiveGRPOConfig(AdaptiveRolloutConfig, GRPOConfig):
    """`GRPOConfig` with adaptive rollouts; defaults are TRL's but for `scale_rewards`.

    The deviation of a group of 2 is another thing than that of a group of 30, and no weight makes
    up for it, so rewards are scaled by the batch's deviation unless you choose otherwise.
    """

    scale_rewards: str = field(
        default="batch",
        metadata={
            "help": "Divide advantages by the standard deviation of the 'batch' (default here; "
            "every prompt counts the same), of the 'group' (TRL's default; distorts the objective "
            "with unequal groups), or not at all ('none')."
        },
    )


@dataclass
class AdaptiveRLOOConfig(AdaptiveRolloutConfig, RLOOConfig):
    """`RLOOConfig` with adaptive rollouts; `num_generations` is 8 and `beta` 0 by default.

    With TRL's two generations a prompt there is nothing to move; and the KL penalty is noise in the
    reward that the allocator's forecast of success knows nothing of.
    """

    num_generations: int = field(
        default=8, metadata={"help": "Mean number of generations per prompt."}
    )
    beta: float = field(
        default=0.0,
        metadata={"help": "KL coefficient. The penalty is part of the reward, and so is weighted."},
    )


def check_bounds(lower: int, upper: int, num_generations: int, batch_size: int) -> None:
    """Raise unless the batch can be split within the bounds.

    Raises:
        InvalidInputError: ``lower < 2``, ``Q lower > B`` or ``Q upper < B``.
    """
    num_prompts = batch_size // num_generations
    if lower < 2:
        raise InvalidInputError(
            f"lower is {lower}, but a group of fewer than 2 rollouts has no advantage. "
            "Set lower to 2 or more."
        )
    if lower > num_generations:
        raise InvalidInputError(
            f"lower is {lower}, so {num_prompts} prompts need {num_prompts * lower} rollouts, but "
            f"the generation batch has {batch_size}. Lower it to at most num_generations "
            f"({num_generations}), or raise num_generations."
        )
    if upper < num_generations:
        raise InvalidInputError(
            f"upper is {upper}, so {num_prompts} prompts take at most {num_prompts * upper} "
            f"rollouts, but the generation batch has {batch_size}. Raise it to at least "
            f"num_generations ({num_generations}), or leave it unset."
        )


def _doubts(args: Any) -> list[str]:
    """Name every setting that makes no sense together with unequal groups."""
    num_prompts = args.generation_batch_size // args.num_generations
    said = []
    if num_prompts * args.candidates == 1:
        said.append(
            f"The generation batch of {args.generation_batch_size} rollouts holds one prompt of "
            f"{args.num_generations}: there is nothing to allocate. Raise "
            "per_device_train_batch_size, gradient_accumulation_steps or generation_batch_size."
        )
    elif args.goal == "variance" and args.num_generations in (args.lower, args.most):
        said.append(
            f"With num_generations {args.num_generations} between lower {args.lower} and upper "
            f"{args.most} every prompt gets the same: there is nothing to allocate. Raise "
            "num_generations or widen the bounds."
        )
    if args.weighting == "rollout":
        said.append(
            'weighting="rollout" lets a prompt weigh by its rollouts: the objective is no longer '
            "that of equal groups, and its variance grows where rollouts go."
        )
    if getattr(args, "scale_rewards", "none") in ("group", True):
        said.append(
            'scale_rewards="group" divides by deviations whose expectation depends on the group '
            'size, which no weight undoes. Use scale_rewards="batch" or "none" with unequal groups.'
        )
    if getattr(args, "multi_objective_aggregation", "") == "normalize_then_sum":
        said.append(
            'multi_objective_aggregation="normalize_then_sum" divides by group deviations whose '
            "expectation depends on the group size, which no weight undoes. Use "
            '"sum_then_normalize" with unequal groups.'
        )
    if getattr(args, "entropy_coef", 0.0) or getattr(args, "use_adaptive_entropy", False):
        said.append(
            "The entropy bonus averages over tokens and is not weighted by prompt: prompts with "
            "more rollouts get more of it."
        )
    return said
