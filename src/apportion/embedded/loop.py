"""Train on exact ground: the plain loop from its start to its end, with its learning curves.

Success is known exactly, so runs are compared without the noise of evaluation, and a rule may be
given the true success of the current weights, which no trainer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion import advantage, validate
from apportion.allocator import RolloutAllocator
from apportion.embedded.exact import exact_success
from apportion.embedded.plain_loop import PlainLoop, StepRecord
from apportion.embedded.policy_gradient import Estimator
from apportion.embedded.step import Rule
from apportion.embedded.tasks import Problem
from apportion.validate import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class LoopResult:
    """Exact mean success along a run, at T evaluations.

    Attributes:
        step_T: updates made before each evaluation.
        compute_T: rollouts sampled before each evaluation.
        success_T: exact mean success by split.
    """

    step_T: IntArray
    compute_T: IntArray
    success_T: Mapping[str, FloatArray]


def train_loop(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    arm: RolloutAllocator | Rule,
    *,
    belief: RolloutAllocator | None = None,
    prompts_per_step: int = 64,
    rollouts_per_prompt: int = 8,
    candidates_per_step: int | None = None,
    num_steps: int = 100,
    learning_rate: float = 3e-4,
    schedule: str = "constant",
    num_warmup_steps: int = 10,
    max_gradient_norm: float = 1.0,
    estimator: Estimator = "rloo",
    weighting: advantage.Weighting = "prompt",
    seed: int = 0,
    evaluation: Mapping[str, Sequence[Problem]] | None = None,
    evaluate_every: int = 10,
    on_step: Callable[[StepRecord], None] | None = None,
) -> LoopResult:
    """Train the model in place by policy gradient under one rule of allocation.

    Equal seeds give every arm the same candidates in the same order, whatever it samples.

    Args:
        model: the policy, changed in place.
        tokenizer: its tokenizer; it must concatenate, see `apportion.embedded.exact`.
        problems: Q training problems with distinct prompts.
        arm: an allocator, which learns from the outcomes, or a rule, see
            `apportion.embedded.step.Rule`. Prompts that it gives no rollouts are left out of the
            step; the others weigh the same.
        belief: an allocator that watches, for the forecasts that a rule asks for.
        prompts_per_step: B_p, prompts of an even step, at most Q.
        rollouts_per_prompt: mean group size; the budget of a step is B_p times this.
        candidates_per_step: prompts to choose from, at least B_p; the same as B_p if None.
        num_steps: steps of that budget. A rule that draws more in one step makes fewer of them.
        learning_rate: of AdamW (betas 0.9 and 0.99, no weight decay), after a linear warm-up.
        schedule: "constant", or "linear" decay to 0 over the rollouts of the run.
        num_warmup_steps: steps' worth of rollouts until the full learning rate.
        max_gradient_norm: larger gradients are scaled down to it.
        estimator: "rloo", "dr_grpo" (no deviation) or "grpo" (deviation of the group).
        weighting: every "prompt" or every "rollout" counts the same.
        seed: of candidates and sampling.
        evaluation: problems by split, evaluated exactly; the training problems by default.
        evaluate_every: steps' worth of rollouts between evaluations; the first and the last state
            always are.
        on_step: called once a step, before the weights move.

    Returns:
        The learning curves.

    Raises:
        InvalidInputError: a count is out of range, a name unknown or an allocation off budget.
    """
    evaluate_every = validate.whole_number("evaluate_every", evaluate_every, at_least=1)
    loop = PlainLoop(
        model,
        tokenizer,
        problems,
        arm,
        belief=belief,
        prompts_per_step=prompts_per_step,
        rollouts_per_prompt=rollouts_per_prompt,
        candidates_per_step=candidates_per_step,
        num_steps=num_steps,
        learning_rate=learning_rate,
        schedule=schedule,
        num_warmup_steps=num_warmup_steps,
        max_gradient_norm=max_gradient_norm,
        estimator=estimator,
        weighting=weighting,
        seed=seed,
    )
    curves = _Curves(model, tokenizer, {"train": problems} if evaluation is None else evaluation)
    every, due = evaluate_every * loop.budget_per_step, 0
    while True:
        if loop.spent >= due or loop.is_over:
            curves.measure(loop.number, loop.spent)
            due = (loop.spent // every + 1) * every
        if loop.is_over:
            return curves.result()
        loop.step(on_step)


class _Curves:
    """Exact success of each split along the run."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        splits: Mapping[str, Sequence[Problem]],
    ) -> None:
        self._model, self._tokenizer, self._splits = model, tokenizer, splits
        self._step_T: list[int] = []
        self._compute_T: list[int] = []
        self._success_T: dict[str, list[float]] = {name: [] for name in splits}

    def measure(self, step: int, spent: int) -> None:
        self._step_T.append(step)
        self._compute_T.append(spent)
        for name, split in self._splits.items():
            prompts, answers = [p.prompt for p in split], [p.answer for p in split]
            success_Q = exact_success(self._model, self._tokenizer, prompts, answers)
            self._success_T[name].append(float(success_Q.mean()))

    def result(self) -> LoopResult:
        return LoopResult(
            np.array(self._step_T, dtype=np.int64),
            np.array(self._compute_T, dtype=np.int64),
            {name: np.array(values) for name, values in self._success_T.items()},
        )
