"""A plain training loop on exact ground: allocate, sample, score, step.

It does what a trainer does in one update a batch, and no more: no clipping of ratios, no KL term,
no length normalisation. Rollouts are weighted such that unequal groups keep the objective of equal
ones (`apportion.advantage.prompt_weight`). Success is known exactly, so runs are compared without
the noise of evaluation, and a rule may be given the true success of the current weights, which no
trainer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion import advantage, validate
from apportion.allocator import RolloutAllocator
from apportion.embedded.exact import exact_success
from apportion.embedded.policy_gradient import Estimator, estimate_gradient, reward
from apportion.embedded.sampler import Rollouts, sample
from apportion.embedded.tasks import Problem
from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key
from apportion.prompt_stream import prompt_stream
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

Rule = Callable[[Forecast, int], IntArray]
"""``rule(forecast, budget) -> num_rollouts_B``, given the exact success of the current weights."""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """What one step did; passed to ``on_step``.

    Attributes:
        step: number of the step, from 0.
        row_B: which of the problems were in the batch.
        num_rollouts_B: rollouts of each.
        reward_sum_B: successes of each.
        gradient_norm: before clipping.
    """

    step: int
    row_B: IntArray
    num_rollouts_B: IntArray
    reward_sum_B: FloatArray
    gradient_norm: float


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
    prompts_per_step: int = 64,
    rollouts_per_prompt: int = 8,
    num_steps: int = 100,
    learning_rate: float = 3e-4,
    num_warmup_steps: int = 10,
    max_gradient_norm: float = 1.0,
    estimator: Estimator = "rloo",
    weighting: advantage.Weighting = "prompt",
    seed: int = 0,
    evaluation: Mapping[str, Sequence[Problem]] | None = None,
    evaluate_every: int = 10,
    on_step: Callable[[LoopStep], None] | None = None,
) -> LoopResult:
    """Train the model in place by policy gradient under one rule of allocation.

    Equal seeds give every arm the same batches of problems in the same order, whatever it samples.

    Args:
        model: the policy, changed in place.
        tokenizer: its tokenizer; it must concatenate, see `apportion.embedded.exact`.
        problems: Q training problems with distinct prompts.
        arm: an allocator, which learns from the outcomes, or a rule given the exact success.
        prompts_per_step: B, at most Q.
        rollouts_per_prompt: mean group size; the budget of a step is B times this.
        num_steps: updates.
        learning_rate: of AdamW (betas 0.9 and 0.99, no weight decay), after a linear warm-up.
        num_warmup_steps: steps until the full learning rate.
        max_gradient_norm: larger gradients are scaled down to it.
        estimator: "rloo", "dr_grpo" (no deviation) or "grpo" (deviation of the group).
        weighting: every "prompt" or every "rollout" counts the same.
        seed: of batches and sampling.
        evaluation: problems by split, evaluated exactly; the training problems by default.
        evaluate_every: steps between evaluations; the first and the last state always are.
        on_step: called after each update.

    Returns:
        The learning curves.

    Raises:
        InvalidInputError: a count is out of range, a name unknown or an allocation off budget.
    """
    size = validate.whole_number("prompts_per_step", prompts_per_step, at_least=1)
    group = validate.whole_number("rollouts_per_prompt", rollouts_per_prompt, at_least=1)
    num_steps = validate.whole_number("num_steps", num_steps, at_least=0)
    evaluate_every = validate.whole_number("evaluate_every", evaluate_every, at_least=1)
    splits = {"train": problems} if evaluation is None else evaluation
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0)
    generator = torch.Generator().manual_seed(seed)
    batches = prompt_stream(len(problems), size, seed=seed)
    step_T: list[int] = []
    success_T: dict[str, list[float]] = {name: [] for name in splits}
    model.train(False)

    for step in range(num_steps + 1):
        if step % evaluate_every == 0 or step == num_steps:
            step_T.append(step)
            for name, split in splits.items():
                success_T[name].append(float(_success(model, tokenizer, split).mean()))
        if step == num_steps:
            break
        row_B = next(batches)
        batch = [problems[q] for q in row_B]
        num_rollouts_B = _allocate(arm, model, tokenizer, batch, size * group, step)
        rollouts = sample(
            model, tokenizer, [p.prompt for p in batch], num_rollouts_B, generator=generator
        )
        reward_N = reward(rollouts, batch)
        if isinstance(arm, RolloutAllocator):
            arm.observe(_outcomes(batch, rollouts, reward_N, step))
        gradient = -estimate_gradient(
            model, rollouts, reward_N, estimator=estimator, weighting=weighting
        )
        norm = float(gradient.norm())
        if norm > max_gradient_norm:
            gradient *= max_gradient_norm / norm
        for p, part in zip(
            parameters, gradient.split([p.numel() for p in parameters]), strict=True
        ):
            p.grad = part.view_as(p)
        for param_group in optimizer.param_groups:
            param_group["lr"] = learning_rate * min(1.0, (step + 1) / max(num_warmup_steps, 1))
        optimizer.step()
        optimizer.zero_grad()
        if on_step is not None:
            outcomes = _outcomes(batch, rollouts, reward_N, step)
            on_step(LoopStep(step, row_B, num_rollouts_B, outcomes.reward_sum_B, norm))

    at_T = np.array(step_T, dtype=np.int64)
    return LoopResult(at_T, at_T * size * group, {k: np.array(v) for k, v in success_T.items()})


def _success(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> FloatArray:
    prompts, answers = [p.prompt for p in problems], [p.answer for p in problems]
    return exact_success(model, tokenizer, prompts, answers)


def _allocate(
    arm: RolloutAllocator | Rule,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: Sequence[Problem],
    budget: int,
    step: int,
) -> IntArray:
    if isinstance(arm, RolloutAllocator):
        num_rollouts_B = arm.allocate(_prompts(batch), budget, step=step).num_rollouts_B
    else:
        num_rollouts_B = arm(Forecast.of_success(_success(model, tokenizer, batch)), budget)
    num_rollouts_B = validate.counts("num_rollouts", num_rollouts_B, size=len(batch))
    if num_rollouts_B.sum() != budget:
        raise InvalidInputError(
            f"the arm gave {num_rollouts_B.sum()} rollouts, but the budget is {budget}."
        )
    return num_rollouts_B


def _prompts(batch: Sequence[Problem]) -> Prompts:
    texts = tuple(p.prompt for p in batch)
    return Prompts(id_B=np.array([prompt_key(t) for t in texts]), text_B=texts)


def _outcomes(
    batch: Sequence[Problem], rollouts: Rollouts, reward_N: FloatArray, step: int
) -> Outcomes:
    return Outcomes.of_rewards(
        _prompts(batch).id_B,
        reward_N,
        rollouts.group_N.numpy(),
        step=step,
        num_tokens_N=rollouts.tokens.is_completion_BT.sum(1).numpy(),
        truncated_N=~rollouts.is_finished_N.numpy(),
    )
