"""Whether there is a best n at all, on curves whose answer is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion.plan.learning_curve import fit_curve
from apportion.plan.runs import Run, cells_of
from apportion.plan.ties import why_no_best

COMPUTE_T = np.arange(1.0, 21.0) * 1000.0


def why(rewards):
    cells = cells_of(
        [
            Run(
                name=f"n{n}",
                rollouts_per_prompt=n,
                prompts_per_step=8,
                compute_T=COMPUTE_T,
                reward_T=reward_T,
            )
            for n, reward_T in rewards.items()
        ]
    )
    return why_no_best(cells, [fit_curve(*cell.points(), "isotonic") for cell in cells])


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.4))
def test_what_never_rises_has_no_best(level, fall):
    falling_T = level + fall * (1.0 - COMPUTE_T / COMPUTE_T[-1])
    assert why({8: falling_T, 32: falling_T[::-1][:1].repeat(20)}).startswith("No run improved")


@given(st.floats(0.05, 0.4), st.floats(0.02, 0.4))
def test_rises_without_noise_are_told_apart_and_equal_ones_are_not(rise, gap):
    rising_T = 0.1 + rise * COMPUTE_T / COMPUTE_T[-1]
    assert why({8: rising_T, 32: rising_T + gap}) == ""
    assert why({8: rising_T, 32: rising_T}).startswith("There is no difference")


def test_noise_alone_is_seldom_taken_for_a_rise():
    rng = np.random.default_rng(0)
    said = [why({n: 0.5 + rng.normal(0, 0.01, 20) for n in (8, 32, 128)}) for _ in range(60)]
    assert sum(not text for text in said) <= 6
