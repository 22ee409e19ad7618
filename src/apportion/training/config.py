"""One frozen configuration of a training run, as written to ``run.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from apportion import validate
from apportion.allocator import OBJECTIVES
from apportion.errors import InvalidInputError, StateError

ARMS = ("uniform", "adaptive", "vip", "oracle")
ESTIMATORS = ("dr_grpo", "rloo", "grpo")
POOLS = ("mixed", "hard", "bimodal")
SPACINGS = ("even", "doubling")
CHOOSING_ARMS = ("adaptive", "oracle")
"""Arms that follow the objective of the run; the others give every prompt of the batch rollouts."""
EMBEDDED_LEARNING_RATE = 2e-4
OWN_LEARNING_RATE = 1e-6
OWN_MAX_TOKENS = 512
OWN_EVALUATIONS = 1
K = 8
"""Rollouts of pass@K and worst@K; also those sampled of each held-out prompt of an own data set."""
_LARGEST_SEED = 2**32 - 1
_OWN_DATA = ("reward", "reward_low", "reward_high", "prompt_column", "answer_column", "held_out")
VIP_LOWER = 3
"""The published rule needs at least three rollouts a prompt: its law is not convex below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that defines one run of one arm.

    Attributes:
        arm: who decides: ``uniform``, ``adaptive`` (forecast with doubt), ``vip`` (as published) or
            ``oracle`` (exact success; embedded model only).
        model: path or hub id; the embedded model if None.
        dataset: file, folder or hub id with a prompt column; the embedded pool if None.
        pool: which embedded pool.
        reward: ``exact``, ``math-verify`` or ``package.module:function``.
        reward_low: lowest possible reward.
        reward_high: highest possible reward.
        prompt_column: column of the prompts.
        answer_column: column of the answers that `reward` compares with.
        prior: file of offline success rates, or None.
        estimator: ``dr_grpo``, ``rloo`` or ``grpo``.
        prompts_per_step: B_p, prompts of one step.
        rollouts_per_prompt: n, mean rollouts a prompt; the budget of a step is B_p n.
        objective: of the arms adaptive and oracle: ``variance`` splits the budget over the batch,
            ``progress`` and ``coverage`` choose prompts, see `apportion.gain`.
        candidates: prompts to choose from, in multiples of B_p; read where prompts are chosen.
        lower: least rollouts a prompt.
        upper: most rollouts a prompt; 4 n if None.
        steps: M, update steps.
        learning_rate: of AdamW, constant after ten steps of warm-up.
        kl: weight of the KL term against the starting model.
        entropy: weight of the entropy bonus.
        max_tokens: longest completion, in tokens.
        micro_batch: completions in one forward and backward pass; the whole step if None.
        num_evaluations: evaluations after the first, spread over the run.
        evaluation_spacing: ``even``, or ``doubling``: two for each doubling of compute, as curves
            of runs of different length need.
        held_out: prompts of an own data set kept for evaluation.
        limit: D, train on the first so many prompts; on all if None.
        save_every: steps between checkpoints.
        seed: of prompts, sampling and weights.
    """

    arm: str = "adaptive"
    model: str | None = None
    dataset: str | None = None
    pool: str = "mixed"
    reward: str = "exact"
    reward_low: float = 0.0
    reward_high: float = 1.0
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    prior: str | None = None
    estimator: str = "dr_grpo"
    prompts_per_step: int = 64
    rollouts_per_prompt: int = 4
    objective: str = "coverage"
    candidates: int = 3
    lower: int = 2
    upper: int | None = None
    steps: int = 60
    learning_rate: float = EMBEDDED_LEARNING_RATE
    kl: float = 0.0
    entropy: float = 0.0
    max_tokens: int = 9
    micro_batch: int | None = None
    num_evaluations: int = 6
    evaluation_spacing: str = "even"
    held_out: int = 64
    limit: int | None = None
    save_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value against its limit and against the others."""
        validate.choice("arm", self.arm, ARMS)
        validate.choice("estimator", self.estimator, ESTIMATORS)
        validate.choice("pool", self.pool, POOLS)
        validate.choice("objective", self.objective, OBJECTIVES)
        validate.choice("evaluation_spacing", self.evaluation_spacing, SPACINGS)
        if self.limit is not None:
            validate.whole_number("limit", self.limit, at_least=1)
        for name, least in (
            ("prompts_per_step", 1),
            ("rollouts_per_prompt", 2),
            ("candidates", 1),
            ("lower", 2),
            ("steps", 1),
            ("max_tokens", 1),
            ("num_evaluations", 1),
            ("held_out", 0),
            ("save_every", 1),
            ("seed", 0),
        ):
            validate.whole_number(name, getattr(self, name), at_least=least)
        if self.seed > _LARGEST_SEED:
            raise InvalidInputError(f"seed is {self.seed}, but must be at most {_LARGEST_SEED}.")
        for name in ("learning_rate", "kl", "entropy"):
            value = validate.number(name, getattr(self, name))
            if value < 0.0:
                raise InvalidInputError(f"{name} is {value:g}, but must not be negative.")
        if self.estimator == "rloo" and self.entropy > 0.0:
            raise InvalidInputError(
                f"entropy is {self.entropy:g}, but TRL's RLOO trainer has no entropy bonus. Set it "
                "to 0, or use the estimator dr_grpo."
            )
        for name in ("reward_low", "reward_high"):
            validate.number(name, getattr(self, name))
        if not self.reward_low < self.reward_high:
            raise InvalidInputError(
                f"reward_low is {self.reward_low:g} and reward_high {self.reward_high:g}, but the "
                "first must be below the second."
            )
        self._check_bounds()
        self._check_task()

    @property
    def budget_per_step(self) -> int:
        """Rollouts of one step, B_p n."""
        return self.prompts_per_step * self.rollouts_per_prompt

    @property
    def budget(self) -> int:
        """Rollouts of the whole run, C = B_p n M."""
        return self.budget_per_step * self.steps

    @property
    def is_embedded(self) -> bool:
        """Whether the shipped model learns the shipped problems."""
        return self.model is None and self.dataset is None

    @property
    def goal(self) -> str:
        """The objective of this arm's allocator."""
        return self.objective if self.arm in CHOOSING_ARMS else "variance"

    @property
    def chooses(self) -> bool:
        """Whether this arm leaves prompts out."""
        return self.goal != "variance"

    @property
    def num_candidates(self) -> int:
        """Prompts that a step of this arm chooses from, if the pool has so many."""
        return self.prompts_per_step * (self.candidates if self.chooses else 1)

    @property
    def least(self) -> int:
        """Least rollouts a prompt in this arm."""
        return max(self.lower, VIP_LOWER) if self.arm == "vip" else self.lower

    @property
    def most(self) -> int:
        """Most rollouts a prompt."""
        return 4 * self.rollouts_per_prompt if self.upper is None else self.upper

    @property
    def evaluation_steps(self) -> list[int]:
        """Steps after which the run is evaluated, from 0 to M.

        >>> TrainConfig(steps=64, num_evaluations=4, evaluation_spacing="doubling").evaluation_steps
        [0, 23, 32, 45, 64]
        """
        if self.evaluation_spacing == "even":
            step_T = np.linspace(0, self.steps, self.num_evaluations + 1)
        else:
            halves_T = np.arange(self.num_evaluations - 1, -1, -1) / 2.0
            step_T = np.append(0.0, self.steps * 2.0**-halves_T)
        return sorted(set(np.round(step_T).astype(int).tolist()))

    def with_arm(self, arm: str, seed: int) -> TrainConfig:
        """Return the same run with another arm and seed."""
        return replace(self, arm=arm, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Restore what `to_dict` returned; runs from before there was an objective had "variance".

        Raises:
            StateError: a field is unknown, so the run belongs to another version.
        """
        if not isinstance(values, dict):
            raise StateError("The saved configuration of the run is damaged.")
        values = {"objective": "variance", "candidates": 1, **values}
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise StateError(
                f"The run was started with {', '.join(unknown)}, which this apportion does not "
                "know. Resume it with the version in its run.json."
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise StateError(f"The saved configuration of the run is damaged: {error}") from error

    def _check_bounds(self) -> None:
        n = self.rollouts_per_prompt
        if self.least > n:
            why = f" (the vip arm needs {VIP_LOWER})" if self.least > self.lower else ""
            raise InvalidInputError(
                f"lower is {self.least}{why}, but the mean number of rollouts a prompt is {n}. "
                "Lower the bound or raise --rollouts-per-prompt."
            )
        if self.most < n:
            raise InvalidInputError(
                f"upper is {self.most}, but the mean number of rollouts a prompt is {n}. "
                "Raise the bound or lower --rollouts-per-prompt."
            )
        if self.micro_batch is not None:
            size = validate.whole_number("micro_batch", self.micro_batch, at_least=1)
            if self.budget_per_step % size:
                raise InvalidInputError(
                    f"micro_batch is {size}, but must divide the {self.budget_per_step} rollouts "
                    "of a step."
                )

    def _check_task(self) -> None:
        if (self.model is None) != (self.dataset is None):
            given, missing = ("model", "dataset") if self.dataset is None else ("dataset", "model")
            raise InvalidInputError(
                f"--{given} is given without --{missing}. Give both to train your own model, or "
                "neither to train the embedded one."
            )
        defaults = {field.name: field.default for field in fields(self)}
        for name in _OWN_DATA if self.is_embedded else ():
            if getattr(self, name) != defaults[name]:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)!r}, but the embedded problems bring their own "
                    "data and scorer. Give --model and --dataset to use yours."
                )
        if self.prompt_column == self.answer_column:
            raise InvalidInputError(
                f"prompt_column and answer_column are both {self.prompt_column!r}. "
                "Name the column with the answers."
            )
        if self.arm == "oracle" and not self.is_embedded:
            raise InvalidInputError(
                "The oracle arm needs the exact success of every prompt, which only the embedded "
                "model has. Leave out --model and --dataset, or choose another arm."
            )


def fitting_micro_batch(most: int | None, batch: int) -> int | None:
    """Return the largest size up to `most` that divides the rollouts of a step.

    >>> fitting_micro_batch(8, 20)
    5
    """
    if most is None:
        return None
    return next(size for size in range(min(most, batch), 0, -1) if batch % size == 0)
