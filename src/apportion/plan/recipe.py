"""The settings that go with n: learning rate, KL and entropy terms, prompts per step.

Each stands with its evidence, which is one study of a 7B model on mathematics (IsoCompute Playbook,
arXiv 2603.12151, sections 3 and 4). The sizes of the loss terms, which it does not give, are from
an ablation of our own on a language model of half a million parameters (research/LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan import published
from apportion.plan.prior import DIFFICULTIES
from apportion.words import counted

WARMUP_STEPS = 10
FEWEST_STEPS = WARMUP_STEPS + 2
"""Of a run that is to tell anything."""
MOST_RATE = 0.1
"""Above, no language model was ever trained."""
MOST_TIMES = 1024
"""Times its batch, up or down, that a rate of yours is carried to."""
_TESTED_AT = 8.0
"""The rule was tried against others at one batch: so many times the one of the anchor."""
_DECAYED_AT = 4.0
"""Times the anchor's rate at which, at the anchor's batch, the reward decayed."""
_KL, _ENTROPY = 0.01, 0.001
"""A hundredth of the sizes that did harm on easy problems in our ablation."""
_LEAST_PROMPTS = {"easy": 32, "hard": 64, "mixed": 64}
_PASSES_OF_BEST = {
    name: max(
        compute * 1e6 / (n * published.NUM_PROBLEMS[name])
        for n, computes in published.FRONTIER_POINTS[name].items()
        for compute in computes
    )
    for name in published.FRONTIER_POINTS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a setting is what it is.

    Attributes:
        about: name of the setting.
        text: one or two sentences.
        source: where that was seen.
    """

    about: str
    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A tuned learning rate, and the batch it was tuned at: ``eta(B) = eta0 sqrt(B / B0)``.

    Attributes:
        learning_rate: eta0.
        batch: B0, rollouts of a step.

    Raises:
        InvalidInputError: the rate is not above 0, the batch not a whole number from 1.

    >>> Anchor().rate_at(4096)
    2e-06

    Source: IsoCompute Playbook, section 3.
    """

    learning_rate: float = published.ANCHOR[0]
    batch: int = published.ANCHOR[1]

    def __post_init__(self) -> None:
        """Check both."""
        if validate.number("learning_rate", self.learning_rate) <= 0.0:
            raise InvalidInputError(
                f"learning_rate is {self.learning_rate:g}, but must be above 0."
            )
        batch = validate.whole_number("tuned_at", self.batch, at_least=1)
        object.__setattr__(self, "batch", batch)

    def rate_at(self, batch: int) -> float:
        """Return the learning rate for a batch of so many rollouts.

        Raises:
            InvalidInputError: it is above 0.1, or a rate of yours was tuned at a batch more than
                1,024 times larger or smaller.
        """
        rate = self._carried_to(batch)
        if rate > MOST_RATE:
            raise InvalidInputError(
                f"learning_rate {self.learning_rate:g}, tuned at {counted(self.batch, 'rollout')} "
                f"a step, becomes {rate:.3g} at {batch:,}, but {MOST_RATE:g} is the most. Give "
                "the rate and the rollouts of a whole step (n times prompts) that it was tuned at."
            )
        if not self.reaches(batch):
            raise InvalidInputError(
                f"tuned_at is {self.batch:,}, but a step has {batch:,} rollouts, and the rule is "
                f"not carried further than {MOST_TIMES:,} times up or down. Tune the rate at a "
                "batch nearer to the run's."
            )
        return rate

    def reaches(self, batch: int) -> bool:
        """Return whether the rule may be carried to such a batch."""
        is_near = self.is_published or 1 / MOST_TIMES <= batch / self.batch <= MOST_TIMES
        return is_near and self._carried_to(batch) <= MOST_RATE

    def _carried_to(self, batch: int) -> float:
        return float(self.learning_rate * np.sqrt(batch / self.batch))

    @property
    def is_published(self) -> bool:
        """Whether it is the one of the playbook's model, not one of the user's."""
        return (self.learning_rate, self.batch) == published.ANCHOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Regularisation:
    """Terms of the loss that hold the policy back.

    Attributes:
        kl_term: whether to penalise the distance to the base model.
        entropy_term: whether to reward entropy; never without the KL term.
        kl_coefficient: its size, as TRL's GRPO trainer takes it; None without the term.
        entropy_coefficient: its size, likewise.
    """

    kl_term: bool
    entropy_term: bool
    kl_coefficient: float | None = None
    entropy_coefficient: float | None = None


def regularisation_of(difficulty: str) -> Regularisation:
    """Return both terms for easy problems, neither for hard and mixed ones.

    >>> regularisation_of("mixed").kl_term
    False

    Source: IsoCompute Playbook, section 3; sizes: `research/regularisation.py`.
    """
    if validate.choice("difficulty", difficulty, DIFFICULTIES) != "easy":
        return Regularisation(kl_term=False, entropy_term=False)
    return Regularisation(
        kl_term=True, entropy_term=True, kl_coefficient=_KL, entropy_coefficient=_ENTROPY
    )


def least_prompts(difficulty: str) -> int:
    """Return the fewest prompts of a step to plan with, where no limit asks for fewer.

    Source: IsoCompute Playbook, section 4.2: nothing depended on 32 to 1,024 on easy problems; hard
    and skewed sets were thought to need more than 32, the frontier there had 64 at small budgets.
    """
    return _LEAST_PROMPTS[validate.choice("difficulty", difficulty, DIFFICULTIES)]


def passes_of_best(difficulty: str) -> float:
    """Return the most passes over its prompts that a run on the published frontier had made.

    >>> round(passes_of_best("easy"), 1), round(passes_of_best("hard"), 1)
    (8.2, 15.6)
    """
    if validate.choice("difficulty", difficulty, DIFFICULTIES) == "mixed":
        return min(_PASSES_OF_BEST.values())
    return _PASSES_OF_BEST[difficulty]


def regularisation_reason(difficulty: str) -> Reason:
    """Say why there are such terms or none."""
    text = (
        "easy problems reached 0.61 with both terms, 0.59 without; sizes were not published: these "
        "are from a model of half a million parameters, where both together gained 0.006, and a "
        "hundred times either cost 0.16 and 0.60"
        if difficulty == "easy"
        else "with both terms hard problems fell to 0 within 325 steps; mixtures were trained "
        "without"
    )
    source = "IsoCompute 3; sizes: own ablation" if difficulty == "easy" else "IsoCompute 3"
    return Reason(about="regularisation", text=text, source=source)


def rate_reason(anchor: Anchor) -> Reason:
    """Say where the learning rate comes from."""
    whose = "of a 7B model with AdamW" if anchor.is_published else "yours"
    return Reason(
        about="learning_rate",
        text=f"{rate_text(anchor.learning_rate)} sqrt(B / {anchor.batch:,}), {whose}; the rule was "
        f"tested at one batch, {_TESTED_AT:.0f} times the one tuned at, on easy problems",
        source="IsoCompute 3",
    )


def prompts_reason(difficulty: str, *, is_fixed: bool) -> Reason:
    """Say why so many prompts a step."""
    text = "32 to 1,024 differed by 2 points, as much as evaluation noise may"
    if difficulty != "easy":
        text += "; hard and mixed sets are thought to need more than 32"
    chosen = "as given" if is_fixed else "moderate"
    return Reason(about="prompts_per_step", text=f"{chosen}: {text}", source="IsoCompute 4.2")


def rate_text(rate: float) -> str:
    """Return a learning rate as it is written.

    >>> rate_text(1.4142e-6)
    '1.41e-6'
    """
    return f"{rate:.3g}".replace("e-0", "e-")


def rate_warnings(anchor: Anchor, batch: int) -> list[str]:
    """Return what stands against the rule at a batch: it is outside of what was tested.

    Twice the tuned rate ended lower at the anchor's batch, four times decayed, eight collapsed; the
    rule asks for as much at 4, 16 and 64 times that batch.
    """
    times = batch / anchor.batch
    rate = anchor.rate_at(batch)
    if times < 1.0:
        return [
            f"The learning rate {rate_text(rate)} is the rule's below the batch it was tuned at, "
            f"{batch:,} rollouts against {anchor.batch:,}, which nobody tested."
        ]
    if times <= _TESTED_AT:
        return []
    found = (
        f"The learning rate {rate_text(rate)} is the rule's at {times:.3g} times the batch it was "
        f"tuned at; the rule was tested up to {_TESTED_AT:.0f} times."
    )
    if np.sqrt(times) >= _DECAYED_AT:
        found += (
            f" {_DECAYED_AT:.0f} times the tuned rate decayed at the tuned batch, 8 times "
            "collapsed: watch entropy, and stop at the first fall of the held-out reward."
        )
    return [found]
