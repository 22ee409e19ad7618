"""A run of the plain loop, step by step: choose, sample, score, step; saved and gone on with.

It does what a trainer does in one update a batch, and no more: no clipping of ratios, no length
normalisation. Rollouts are weighted such that unequal groups keep the objective of equal
ones (`apportion.advantage.prompt_weight`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion import advantage, validate
from apportion.allocator import RolloutAllocator
from apportion.embedded.policy_gradient import Estimator, estimate_gradient
from apportion.embedded.regularisation import regularisation_gradient
from apportion.embedded.sampler import MAX_TOKENS, Rollouts
from apportion.embedded.step import Policy, Rule, RunSpentError, Step, prompts_of
from apportion.embedded.tasks import Problem
from apportion.errors import InvalidInputError, StateError, first_line
from apportion.prompt_stream import candidates, prompt_stream
from apportion.saved_state import part_of
from apportion.types import Outcomes
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
        outcomes: what every prompt that was sampled brought.
    """

    step: int
    row_B: IntArray
    num_rollouts_B: IntArray
    reward_sum_B: FloatArray
    trained_B: IntArray
    gradient: torch.Tensor | None
    compute: int
    outcomes: Outcomes

    @property
    def gradient_norm(self) -> float:
        """Norm before clipping; 0 if nothing was trained on."""
        return 0.0 if self.gradient is None else float(self.gradient.norm())


class PlainLoop:
    """A run of the loop, made step by step; it can be saved between two and gone on with.

    Attributes:
        number: steps made.
        spent: rollouts sampled in them.
        total: rollouts of the whole run.
    """

    def __init__(
        self,
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
        kl: float = 0.0,
        entropy: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Make a run that has not begun; see `train_loop` for what everything means.

        Beside that, `kl` holds the policy to the one that it begins with and `entropy` rewards its
        entropy, see `apportion.embedded.regularisation`.
        """
        self._size = validate.whole_number("prompts_per_step", prompts_per_step, at_least=1)
        self._group = validate.whole_number("rollouts_per_prompt", rollouts_per_prompt, at_least=1)
        num_steps = validate.whole_number("num_steps", num_steps, at_least=0)
        validate.choice("schedule", schedule, SCHEDULES)
        self._num_candidates = self._size if candidates_per_step is None else candidates_per_step
        self.budget_per_step = self._size * self._group
        self.number, self.spent, self.total = 0, 0, self.budget_per_step * num_steps
        self._rule, self._observers = _rule_of(arm, belief)
        self._belief = belief
        self._estimator, self._weighting, self._seed = estimator, weighting, seed
        self._kl, self._entropy = kl, entropy
        self._reference = deepcopy(model) if kl or entropy else None
        num_warmup = num_warmup_steps * self.budget_per_step
        self._update = _Update(model, learning_rate, schedule, num_warmup, max_gradient_norm)
        self._policy = Policy(model, tokenizer, torch.Generator().manual_seed(seed))
        self._problems, self._everything = problems, prompts_of(problems)
        self._batches = prompt_stream(len(problems), self._size, seed=seed)
        self._rng = np.random.default_rng([seed, self._num_candidates])
        model.train(False)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, or an arm asked for more than was left of it."""
        return self.spent >= self.total

    def step(self, on_step: Callable[[StepRecord], None] | None = None) -> StepRecord | None:
        """Make one step.

        Args:
            on_step: called before the weights move.

        Returns:
            What it did; None if the arm asked for more than was left and drew nothing.
        """
        row_B = candidates(
            next(self._batches),
            len(self._problems),
            self._num_candidates,
            seed=self._seed,
            step=self.number,
        )
        step = Step(
            self._policy,
            [self._problems[q] for q in row_B],
            self._everything.take(row_B),
            number=self.number,
            num_left=self.total - self.spent,
            prompts_per_step=self._size,
            rollouts_per_prompt=self._group,
            rng=self._rng,
            belief=self._belief,
        )
        is_last = _asked(self._rule, step)
        if is_last and not step.num_rollouts_B.sum():
            self.spent = self.total
            return None
        record = self._learnt(step, row_B)
        if on_step is not None:
            on_step(record)
        if record.gradient is not None:
            self._update(-record.gradient, self.spent, self.total, self.budget_per_step)
        self.spent = self.total if is_last else record.compute
        self.number += 1
        return record

    def _learnt(self, step: Step, row_B: IntArray) -> StepRecord:
        """Let the allocators learn from a step, and estimate its gradient."""
        outcomes = step.outcomes()
        for observer in self._observers:
            observer.observe(outcomes)
        gradient = None
        if (kept := step.trained()) is not None:
            gradient = self._gradient(*kept)
        return StepRecord(
            step=self.number,
            row_B=row_B,
            num_rollouts_B=step.num_rollouts_B,
            reward_sum_B=step.num_correct_B.astype(np.float64),
            trained_B=step.trained_B,
            gradient=gradient,
            compute=self.spent + int(step.num_rollouts_B.sum()),
            outcomes=outcomes,
        )

    def _gradient(self, rollouts: Rollouts, reward_N: FloatArray) -> torch.Tensor:
        model = self._policy.model
        gradient = estimate_gradient(
            model, rollouts, reward_N, estimator=self._estimator, weighting=self._weighting
        )
        if self._reference is None:
            return gradient
        return gradient + regularisation_gradient(
            model,
            self._reference,
            rollouts,
            kl=self._kl,
            entropy=self._entropy,
            longest=MAX_TOKENS,
        )

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that the next step depends on, as arrays by name.

        What a rule that is no allocator remembers is not among it.
        """
        state: dict[str, NDArray[Any]] = {
            "counters": np.array([self.number, self.spent], dtype=np.int64),
            "generator": self._policy.generator.get_state().numpy(),
            "rng": np.frombuffer(json.dumps(self._rng.bit_generator.state).encode(), np.uint8),
        }
        for name, weight in self._policy.model.state_dict().items():
            state[f"model.{name}"] = weight.detach().cpu().numpy().copy()
        for name, array in self._update.state_dict().items():
            state[f"optimizer.{name}"] = array
        for i, observer in enumerate(self._observers):
            for name, array in observer.state_dict().items():
                state[f"observer{i}.{name}"] = array
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state_dict` was taken; this run must be as that one was made.

        Raises:
            StateError: something is missing or damaged.
        """
        try:
            self.number, self.spent = (int(value) for value in state["counters"])
            self._policy.generator.set_state(torch.from_numpy(state["generator"].copy()))
            self._rng.bit_generator.state = json.loads(state["rng"].tobytes())
            weights = {
                name: torch.from_numpy(array.copy())
                for name, array in part_of(state, "model").items()
            }
            self._policy.model.load_state_dict(weights)
            self._update.load_state_dict(part_of(state, "optimizer"))
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise StateError(f"The state of the run is damaged: {first_line(error)}.") from error
        for i, observer in enumerate(self._observers):
            observer.load_state_dict(part_of(state, f"observer{i}"))
        stream = prompt_stream(len(self._problems), self._size, seed=self._seed)
        self._batches = islice(stream, self.number, None)


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

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the optimizer's moments by parameter; nothing before the first step."""
        state = self._optimizer.state
        return {
            f"{i}.{name}": value.detach().cpu().numpy().copy()
            for i, p in enumerate(self._parameters)
            for name, value in state.get(p, {}).items()
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned."""
        self._optimizer.state.clear()
        for key, array in state.items():
            i, _, name = key.partition(".")
            self._optimizer.state[self._parameters[int(i)]][name] = torch.from_numpy(array.copy())


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
