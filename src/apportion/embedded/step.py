"""One step of the plain loop as a rule sees it: candidates, budget, beliefs, rollouts to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion import validate
from apportion.allocator import RolloutAllocator
from apportion.embedded.exact import exact_success
from apportion.embedded.likelihood import TokenBatch, pad_rows
from apportion.embedded.policy_gradient import reward, score_norm
from apportion.embedded.sampler import Rollouts, sample
from apportion.embedded.tasks import Problem
from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray


class RunSpentError(Exception):
    """A draw asked for more rollouts than the run has left; the loop ends there."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that is trained, its tokenizer and its source of randomness."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generator: torch.Generator


class Step:
    """What a rule decides with, and through which it draws.

    Attributes:
        number: of the step, from 0.
        budget: rollouts of an even step.
        num_left: rollouts left in the run.
        prompts_per_step: the first so many candidates are the batch of an even step.
        rollouts_per_prompt: the group size of an even step.
        prompts: the B candidates.
        rng: the rule's own source of randomness.
        num_rollouts_B: drawn so far in this step.
        num_correct_B: of these, correct.
        is_kept_B: candidates to train on; those with at least two rollouts if None.
    """

    def __init__(
        self,
        policy: Policy,
        problems: Sequence[Problem],
        prompts: Prompts,
        *,
        number: int,
        num_left: int,
        prompts_per_step: int,
        rollouts_per_prompt: int,
        rng: np.random.Generator,
        belief: RolloutAllocator | None = None,
    ) -> None:
        self.number, self.num_left, self.rng = number, num_left, rng
        self.prompts_per_step, self.rollouts_per_prompt = prompts_per_step, rollouts_per_prompt
        self.budget = prompts_per_step * rollouts_per_prompt
        self.prompts = prompts
        self.num_rollouts_B: IntArray = np.zeros(len(problems), dtype=np.int64)
        self.num_correct_B: IntArray = np.zeros(len(problems), dtype=np.int64)
        self.is_kept_B: np.ndarray | None = None
        self._policy, self._problems, self._belief = policy, problems, belief
        self._parts: list[tuple[Rollouts, FloatArray]] = []
        self._forecast: Forecast | None = None

    def __len__(self) -> int:
        """Return B, the number of candidates."""
        return len(self.prompts)

    @property
    def forecast(self) -> Forecast:
        """What the loop's allocator believes of the candidates.

        Raises:
            InvalidInputError: the loop was given no ``belief``.
        """
        if self._belief is None:
            raise InvalidInputError(
                "The rule asks for a forecast, but the loop has none. Give train_loop a belief."
            )
        if self._forecast is None:
            self._forecast = self._belief.forecast(self.prompts, step=self.number)
        return self._forecast

    @property
    def success_B(self) -> FloatArray:
        """The exact success of the candidates under the current weights, which no trainer has."""
        prompts, answers = zip(*((p.prompt, p.answer) for p in self._problems), strict=True)
        return exact_success(self._policy.model, self._policy.tokenizer, prompts, answers)

    def draw(self, num_rollouts_B: ArrayLike) -> IntArray:
        """Sample rollouts, which are charged, and return how many of each prompt are correct.

        Args:
            num_rollouts_B: rollouts of each candidate, 0 for those that are not sampled.

        Returns:
            ``correct_B``, of this draw alone; `num_correct_B` counts those of the whole step.

        Raises:
            InvalidInputError: not one whole number a candidate.
            RunSpentError: more than `num_left`; the loop ends the run there, and nothing is drawn.
        """
        num_B = validate.counts("num_rollouts_B", num_rollouts_B, size=len(self))
        total = int(num_B.sum())
        if total > self.num_left:
            raise RunSpentError
        correct_B = np.zeros(len(self), dtype=np.int64)
        if total == 0:
            return correct_B
        at = np.flatnonzero(num_B)
        chosen = [self._problems[b] for b in at.tolist()]
        rollouts = sample(
            self._policy.model,
            self._policy.tokenizer,
            [p.prompt for p in chosen],
            num_B[at],
            generator=self._policy.generator,
        )
        reward_N = reward(rollouts, chosen)
        owner_N = at[rollouts.group_N.numpy()]
        np.add.at(correct_B, owner_N, reward_N.astype(np.int64))
        placed = Rollouts(
            torch.from_numpy(owner_N), rollouts.tokens, rollouts.text_N, rollouts.is_finished_N
        )
        self._parts.append((placed, reward_N))
        self.num_left -= total
        self.num_rollouts_B = self.num_rollouts_B + num_B
        self.num_correct_B = self.num_correct_B + correct_B
        return correct_B

    def keep(self, is_kept_B: ArrayLike) -> None:
        """Train on these candidates only.

        Args:
            is_kept_B: mask of the candidates; others that were drawn are charged and learned from.

        Raises:
            InvalidInputError: not a mask of the candidates.
        """
        kept_B = np.asarray(is_kept_B)
        if kept_B.dtype != bool or kept_B.shape != (len(self),):
            raise InvalidInputError(
                f"is_kept_B has type {kept_B.dtype} and shape {kept_B.shape}, but must be a mask "
                f"of {len(self)} candidates."
            )
        self.is_kept_B = kept_B

    def score_norm_B(self) -> FloatArray:
        """Return each prompt's mean norm of ``d log pi / d theta`` over its rollouts so far."""
        total_B = np.zeros(len(self))
        for rollouts, _ in self._parts:
            norm_N = score_norm(self._policy.model, rollouts)
            np.add.at(total_B, rollouts.group_N.numpy(), norm_N)
        return total_B / np.maximum(self.num_rollouts_B, 1)

    @property
    def trained_B(self) -> IntArray:
        """Candidates that the step trains on: kept, with two rollouts or more."""
        is_trained_B = self.num_rollouts_B >= 2
        if self.is_kept_B is not None:
            is_trained_B &= self.is_kept_B
        return np.flatnonzero(is_trained_B)

    def trained(self) -> tuple[Rollouts, FloatArray] | None:
        """Return the rollouts of the prompts to train on, with rewards; None if there are none."""
        at = self.trained_B
        if not len(at):
            return None
        rollouts, reward_N = _joined(self._parts)
        is_in_N = np.isin(rollouts.group_N.numpy(), at)
        index_N = torch.from_numpy(np.flatnonzero(is_in_N))
        kept = Rollouts(
            rollouts.group_N[index_N],
            rollouts.tokens.rows(index_N),
            tuple(rollouts.text_N[i] for i in index_N.tolist()),
            rollouts.is_finished_N[index_N],
        )
        return kept, reward_N[is_in_N]

    def outcomes(self) -> Outcomes:
        """Return what every prompt that was sampled brought, kept or not."""
        at = np.flatnonzero(self.num_rollouts_B)
        rollouts, reward_N = _joined(self._parts)
        group_N = np.searchsorted(at, rollouts.group_N.numpy())
        return Outcomes.of_rewards(
            self.prompts.id_B[at],
            reward_N,
            group_N,
            step=self.number,
            num_tokens_N=rollouts.tokens.is_completion_BT.sum(1).numpy(),
            truncated_N=~rollouts.is_finished_N.numpy(),
        )


Rule = Callable[[Step], "IntArray | None"]
"""``rule(step) -> num_rollouts_B`` still to draw, or None if it has drawn all it wants."""


def prompts_of(problems: Sequence[Problem]) -> Prompts:
    """Return problems as prompts, keyed by a hash of their text."""
    texts = tuple(p.prompt for p in problems)
    return Prompts(id_B=np.array([prompt_key(text) for text in texts]), text_B=texts)


def _joined(parts: Sequence[tuple[Rollouts, FloatArray]]) -> tuple[Rollouts, FloatArray]:
    """Put the rollouts of several draws into one batch."""
    if len(parts) == 1:
        return parts[0]
    found = [rollouts for rollouts, _ in parts]
    prompt_ids = [
        ids[shown].tolist()
        for r in found
        for ids, shown in zip(r.tokens.prompt_BP, r.tokens.is_prompt_BP, strict=True)
    ]
    prompt_NP, is_prompt_NP = pad_rows(prompt_ids, 0, left=True)
    return (
        Rollouts(
            torch.cat([r.group_N for r in found]),
            TokenBatch(
                prompt_NP,
                is_prompt_NP,
                torch.cat([r.tokens.completion_BT for r in found]),
                torch.cat([r.tokens.is_completion_BT for r in found]),
            ),
            tuple(text for r in found for text in r.text_N),
            torch.cat([r.is_finished_N for r in found]),
        ),
        np.concatenate([reward_N for _, reward_N in parts]),
    )
