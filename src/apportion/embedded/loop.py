"""A plain training loop on exact ground: choose, sample, score, step.

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
from apportion.embedded.policy_gradient import Estimator, estimate_gradient
from apportion.embedded.step import Policy, Rule, RunSpentError, Step, prompts_of
from apportion.embedded.tasks import Problem
from apportion.errors import InvalidInputError
from apportion.prompt_stream import candidates, prompt_stream
from apportion.validate import FloatArray, IntArray

SCHEDULES = ("constant", "linear")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did; passed to ``on_step``.

    Attributes:
        step: number of the step, from 0.
        row_B: which of the problems were candidates; the first are the batch of even rollouts.
        num_rollouts_B: rollouts of each.
        reward_sum_B: successes of each.
        trained_B: positions of those that the gradient is made of.
        gradient: its estimate, flat, before clipping; None if nothing was trained on.
        compute: rollouts spent so far, this step's included.
    """

    step: int
    row_B: IntArray
    num_rollouts_B: IntArray
    reward_sum_B: FloatArray
    trained_B: IntArray
    gradient: torch.Tensor | None
    compute: int

    @property
    def gradient_norm(self) -> float:
        """Norm before clipping; 0 if nothing was trained on."""
        return 0.0 if self.gradient is None else float(self.gradient.norm())


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
    size = validate.whole_number("prompts_per_step", prompts_per_step, at_least=1)
    group = validate.whole_number("rollouts_per_prompt", rollouts_per_prompt, at_least=1)
    num_steps = validate.whole_number("num_steps", num_steps, at_least=0)
    evaluate_every = validate.whole_number("evaluate_every", evaluate_every, at_least=1)
    validate.choice("schedule", schedule, SCHEDULES)
    num_candidates = size if candidates_per_step is None else candidates_per_step
    budget, total = size * group, size * group * num_steps
    rule, observers = _rule_of(arm, belief)
    curves = _Curves(model, tokenizer, {"train": problems} if evaluation is None else evaluation)
    update = _Update(model, learning_rate, schedule, num_warmup_steps * budget, max_gradient_norm)
    policy = Policy(model, tokenizer, torch.Generator().manual_seed(seed))
    everything = prompts_of(problems)
    batches = prompt_stream(len(problems), size, seed=seed)
    rng = np.random.default_rng([seed, num_candidates])
    model.train(False)

    number, spent, due = 0, 0, 0
    while True:
        if spent >= due or spent >= total:
            curves.measure(number, spent)
            due = (spent // (evaluate_every * budget) + 1) * evaluate_every * budget
        if spent >= total:
            break
        row_B = candidates(next(batches), len(problems), num_candidates, seed=seed, step=number)
        step = Step(
            policy,
            [problems[q] for q in row_B],
            everything.take(row_B),
            number=number,
            num_left=total - spent,
            prompts_per_step=size,
            rollouts_per_prompt=group,
            rng=rng,
            belief=belief,
        )
        is_last = _asked(rule, step)
        if is_last and not step.num_rollouts_B.sum():
            spent = total
            continue
        for observer in observers:
            observer.observe(step.outcomes())
        gradient = None
        if (kept := step.trained()) is not None:
            gradient = estimate_gradient(model, *kept, estimator=estimator, weighting=weighting)
        before, spent = spent, spent + int(step.num_rollouts_B.sum())
        if on_step is not None:
            correct_B = step.num_correct_B.astype(np.float64)
            shown = (row_B, step.num_rollouts_B, correct_B, step.trained_B, gradient, spent)
            on_step(StepRecord(number, *shown))
        if gradient is not None:
            update(-gradient, before, total, budget)
        spent = total if is_last else spent
        number += 1
    return curves.result()


def _asked(rule: Rule, step: Step) -> bool:
    """Let a rule draw a step; return whether the run ends with it, for it asked for more than left.

    What it drew before is kept; a first step that cannot be paid for is the rule's mistake.
    """
    try:
        wanted_B = rule(step)
        if wanted_B is not None:
            step.draw(wanted_B)
    except RunSpentError as error:
        if step.number == 0:
            raise InvalidInputError(
                f"The arm asked for more rollouts in its first step than the {step.num_left} left "
                f"of the whole run. A step is meant to take {step.budget}."
            ) from error
        return True
    if not step.num_rollouts_B.sum():
        raise InvalidInputError(f"The arm drew no rollout at all in step {step.number}.")
    return False


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


class _Update:
    """AdamW with a warm-up and a schedule in rollouts, so that dear steps do not stretch them."""

    def __init__(
        self,
        model: PreTrainedModel,
        learning_rate: float,
        schedule: str,
        num_warmup: int,
        max_gradient_norm: float,
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0
        )
        self._learning_rate, self._num_warmup = learning_rate, num_warmup
        self._decays, self._most = schedule == "linear", max_gradient_norm

    def __call__(self, gradient: torch.Tensor, spent: int, total: int, budget: int) -> None:
        """Descend along a flat gradient, after `spent` of the run's `total` rollouts."""
        norm = float(gradient.norm())
        scaled = gradient * min(1.0, self._most / norm) if norm > 0.0 else gradient
        sizes = [p.numel() for p in self._parameters]
        for p, part in zip(self._parameters, scaled.split(sizes), strict=True):
            p.grad = part.view_as(p)
        rate = self._learning_rate * min(1.0, (spent + budget) / max(self._num_warmup, 1))
        if self._decays:
            rate *= 1.0 - spent / total
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()


def _rule_of(
    arm: RolloutAllocator | Rule, belief: RolloutAllocator | None
) -> tuple[Rule, list[RolloutAllocator]]:
    """Return the rule of an arm, and who learns from what is drawn."""
    watching = [] if belief is None else [belief]
    if not isinstance(arm, RolloutAllocator):
        return arm, watching
    allocator = arm

    def rule(step: Step) -> IntArray:
        return allocator.allocate(
            step.prompts, step.budget, step=step.number, prompts_per_step=step.prompts_per_step
        ).num_rollouts_B

    return rule, [allocator, *watching]
