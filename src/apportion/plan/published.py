"""What the IsoCompute Playbook printed: laws, curves and crossovers, with where each comes from.

Laws are printed in the figures. Curves were digitised from the drawn ones (Qwen2.5-7B-Instruct,
Guru-Math, 32 prompts a step), which an exponential approach meets to a pixel; crossovers are where
consecutive curves cross last. No run of another model, data set or learning rate need follow them:
saturation between 16 and 512 rollouts per prompt was seen.

Source: Cheng et al., IsoCompute Playbook, arXiv 2603.12151.
"""

from __future__ import annotations

from dataclasses import dataclass

from apportion.plan.learning_curve import LearningCurve
from apportion.plan.scaling_law import ScalingLaw, sigmoid_law

LAWS: dict[str, ScalingLaw] = {
    "easy": sigmoid_law(6.09, 4.75, 5.84, 2.73),
    "hard": sigmoid_law(4.47, 7.23, 5.84, 2.79),
    "easy_joint": sigmoid_law(5.67, 8.84, 6.08, 3.08),
    "hard_joint": sigmoid_law(3.97, 50.0, 6.13, 3.04),
}
"""n*(C), at 32 prompts a step and with prompts a step free ("joint")."""

NUM_PROBLEMS = {"easy": 6000, "hard": 5000}
"""Prompts trained on."""
MAX_BATCH = {"easy": 65_536, "hard": 16_384}
"""Most rollouts of a step that were tried."""
SATURATION = {
    ("Qwen2.5-7B-Instruct", "easy"): 512,
    ("Qwen2.5-7B-Instruct", "hard"): 128,
    ("Qwen3-4B-Instruct", "easy"): 64,
    ("Qwen3-4B-Instruct", "hard"): 32,
    ("Llama-3.1-8B-Instruct", "easy"): 16,
}
"""Largest n that paid, by model and difficulty; 32 on the hard set of Qwen3-4B was still rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve:
    """A drawn curve: ``R(C) = ceiling - loss exp(-rate C / 1e6)``, drawn between two C / 1e6."""

    difficulty: str
    rollouts_per_prompt: int
    ceiling: float
    loss: float
    rate: float
    drawn_from: float
    drawn_to: float

    @property
    def curve(self) -> LearningCurve:
        """Return it as a learning curve in rollouts."""
        return LearningCurve.exponential(
            ceiling=self.ceiling,
            loss=self.loss,
            rate=self.rate / 1e6,
            observed_from=self.drawn_from * 1e6,
            observed_to=self.drawn_to * 1e6,
        )


CURVES = tuple(
    PublishedCurve(
        difficulty=difficulty,
        rollouts_per_prompt=n,
        ceiling=ceiling,
        loss=loss,
        rate=rate,
        drawn_from=low,
        drawn_to=high,
    )
    for difficulty, n, ceiling, loss, rate, low, high in [
        ("easy", 8, 0.582, 0.150, 4.57, 0.04, 0.26),
        ("easy", 32, 0.595, 0.188, 4.46, 0.28, 0.83),
        ("easy", 128, 0.618, 0.199, 2.36, 0.84, 1.25),
        ("easy", 256, 0.654, 0.178, 1.07, 1.26, 2.66),
        ("easy", 512, 0.718, 0.254, 0.461, 2.67, 4.09),
        ("hard", 8, 0.0839, 0.0614, 2.12, 0.16, 0.72),
        ("hard", 128, 0.1305, 0.1028, 0.738, 0.74, 6.03),
    ]
)

CROSSOVERS = {
    "easy": ((8, 32, 0.265e6), (32, 128, 0.839e6), (128, 256, 1.262e6), (256, 512, 2.668e6)),
    "hard": ((8, 128, 0.748e6),),
}
"""n that is left, n that is entered, rollouts."""

FRONTIER_POINTS = {
    "easy": {
        8: (0.060, 0.118, 0.187, 0.243, 0.307, 0.394),
        32: (0.394, 0.436, 0.498, 0.561, 0.62, 0.69, 0.77),
        64: (0.77, 0.86, 0.97, 1.05, 1.23, 1.37),
        256: (1.06, 1.10, 1.23, 1.37, 1.56, 1.97, 2.56, 2.95, 3.2, 3.46),
        512: (2.95, 3.1, 3.5, 4.1, 8.0, 9.95),
    },
    "hard": {8: (0.13, 0.62), 16: (0.80, 0.86), 32: (0.86, 1.15), 128: (0.62, 0.75, 1.15, 10.0)},
}
"""Millions of rollouts at which an n attains the frontier, read by eye; hard: ends of segments."""

SCATTER = {"easy": 0.63, "hard": 0.98}
"""Root mean squared residual of the frontier's points about the laws, in log2 n."""

STILL_RISING = frozenset({("Qwen3-4B-Instruct", "hard")})
"""Whose largest n that paid was the largest that was tried: its saturation lies higher."""

OTHER_CROSSOVERS = {
    ("Qwen3-4B-Instruct", "easy"): ((8, 64, 0.055e6),),
    ("Qwen3-4B-Instruct", "hard"): ((8, 16, 0.29e6), (16, 32, 0.47e6)),
    ("Llama-3.1-8B-Instruct", "easy"): ((8, 16, 0.19e6),),
}
"""Crossovers of the other models, read by eye: n that is left, n that is entered, rollouts."""

SMALL_SET = (500, 256, (8, 256, 0.24e6))
"""Easy set cut to so many prompts: where n saturates (512 on all of them), and its crossover."""

METRIC_SHIFT = {
    "mean": {"easy": 0.0, "hard": 0.0},
    "best@4": {"easy": 0.0, "hard": 1.0},
    "worst@4": {"easy": 0.0, "hard": -1.0},
}
"""Doublings of n from the best for the mean to the best for others, at the largest budgets and 32
prompts a step. With more prompts a step the order is the same on easy problems too: best@4 wants
the smaller n there, worst@4 the larger."""

STEPS_OF_BEST = (200, 750)
"""Steps of the runs that the easy law names as best, for budgets of 0.3 to 10 million."""

PASSES_TO_PAY = (0.8, 1.3)
"""Passes over the prompts that a larger n had made when it overtook the smaller one."""

ANCHOR = (1e-6, 1024)
"""Learning rate and the rollouts of a step it was tuned at: AdamW, 10 steps of warm-up, constant.
Twice the rate gained early and ended lower, four times decayed, eight times collapsed."""

STEPS_TO_LEAD = {32: 154, 64: 92, 128: 76, 256: 34, 512: 41, 1024: 40}
"""Fewest steps that an n had taken when it came to lead the easy frontier, by prompts a step; but
for 32 of them, where the frontiers switch is read by eye."""
