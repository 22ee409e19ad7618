"""Draws of n against the printed laws, the published crossovers, and under hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan import published
from apportion.plan.prior import (
    DIFFICULTIES,
    EVIDENCE,
    METRICS,
    draw_log2_rollouts,
    evidence_of,
    one_pass_rollouts,
    saturation_drop,
)

BARE = {
    name: replace(seen, scatter=0.0, saturation=((99.0, 99.0),), delay=(0.0,))
    for name, seen in EVIDENCE.items()
}
"""Evidence of one model that never saturates and lies on its law."""


@pytest.mark.parametrize("difficulty", ["easy", "hard"])
@pytest.mark.parametrize("compute", [4e5, 7e5, 1e6, 2e6])
def test_without_scatter_and_saturation_it_is_the_printed_law(difficulty, compute):
    draws = draw_log2_rollouts(compute, difficulty, evidence=BARE)
    expected = published.LAWS[difficulty](compute)
    np.testing.assert_allclose(draws, max(np.log2(expected), 3.0))


def test_scatter_alone_leaves_the_median_on_the_law_and_spreads_as_stated():
    evidence = {"easy": replace(BARE["easy"], scatter=EVIDENCE["easy"].scatter)}
    draws = draw_log2_rollouts(1e6, "easy", evidence=evidence)
    assert np.median(draws) == pytest.approx(np.log2(published.LAWS["easy"](1e6)), abs=0.04)
    assert draws.std() == pytest.approx(0.63 * np.sqrt(1 + 4 / 35), rel=0.03)


def test_the_scatter_is_that_of_the_digitised_points():
    """Hard has the ends of its segments alone, which scatter more than all its points."""
    found = published.FRONTIER_POINTS["easy"]
    compute = np.array([c * 1e6 for group in found.values() for c in group])
    n = np.repeat(list(found), [len(group) for group in found.values()])
    miss = np.log2(n) - np.log2(published.LAWS["easy"](compute))
    assert np.sqrt(np.mean(miss**2)) == pytest.approx(published.SCATTER["easy"], abs=0.05)


def test_half_of_the_draws_follow_one_useful_pass_where_prompts_are_known():
    draws = draw_log2_rollouts(1e6, "easy", num_prompts=3000, evidence=BARE)
    law = np.log2(published.LAWS["easy"](1e6))
    passes = np.log2([one_pass_rollouts(1e6, 3000, v) for v in EVIDENCE["easy"].visits])
    is_law = np.isclose(draws, law)
    assert is_law.mean() == pytest.approx(0.5, abs=0.03)
    nearest = np.abs(draws[~is_law, None] - passes).min(axis=1)
    assert nearest.max() < 1e-9


def test_a_pass_comes_back_from_its_own_crossover():
    """At C(n1 -> n2) one useful pass is at the middle of n1 and n2."""
    for name, seen in EVIDENCE.items():
        for v, (left, entered, compute) in zip(
            seen.visits, published.CROSSOVERS[name], strict=True
        ):
            n = one_pass_rollouts(compute, published.NUM_PROBLEMS[name], v)
            assert n == pytest.approx(np.sqrt(left * entered))


def test_the_switch_of_the_small_set_lies_between_the_two_laws():
    """500 prompts: n = 8 gave way to 256 at 0.24 million."""
    num, _, (left, entered, compute) = published.SMALL_SET
    middle = np.sqrt(left * entered)
    few = min(one_pass_rollouts(compute, num, v) for v in EVIDENCE["easy"].visits)
    assert float(published.LAWS["easy"](compute)) < middle < few


def test_saturations_are_those_of_the_models():
    """Far along every law, n is within half a doubling of where a model saturated."""
    draws = draw_log2_rollouts(1e9, "easy", evidence=EVIDENCE | {"easy": _no_scatter("easy")})
    assert set(np.round(2.0 ** np.round(draws)).tolist()) <= {8.0, 16.0, 32.0, 64.0, 512.0, 256.0}
    for n in (16, 64, 512):
        near = np.abs(draws - np.log2(n)) <= 0.5 + 1e-9
        assert near.mean() == pytest.approx(1 / 3, abs=0.03)
    hard = draw_log2_rollouts(1e9, "hard", evidence=EVIDENCE | {"hard": _no_scatter("hard")})
    assert (hard >= 5.0).all()
    assert (hard <= 7.5).all()


def _no_scatter(name):
    return replace(evidence_of(name), scatter=0.0)


def test_the_main_model_alone_saturates_lower_with_few_prompts():
    main = {
        name: replace(seen, saturation=seen.saturation[:1], delay=seen.delay[:1])
        for name, seen in EVIDENCE.items()
    }
    far = [
        np.median(draw_log2_rollouts(1e9, "easy", num_prompts=num, evidence=main))
        for num in (500, 6000)
    ]
    assert far[1] - far[0] == pytest.approx(1.0, abs=0.3)
    assert saturation_drop(500, 6000) == pytest.approx(1.0)


def test_metrics_move_hard_sets_by_a_doubling_and_easy_ones_not():
    at = {m: np.median(draw_log2_rollouts(5e6, "hard", metric=m)) for m in METRICS}
    assert at["best@4"] - at["mean"] == pytest.approx(1.0)
    assert at["worst@4"] - at["mean"] == pytest.approx(-1.0)
    easy = [draw_log2_rollouts(5e6, "easy", metric=m) for m in METRICS]
    np.testing.assert_array_equal(easy[0], easy[1])
    np.testing.assert_array_equal(easy[0], easy[2])


def test_another_model_that_switched_earlier_counts():
    """Qwen3-4B passed from 8 to 64 at 55,000 rollouts, where the main law is at 7."""
    draws = draw_log2_rollouts(1e5, "easy")
    assert np.median(draws) < np.log2(16)
    assert np.quantile(draws, 0.95) > np.log2(45)


@given(
    difficulty=st.sampled_from(DIFFICULTIES),
    metric=st.sampled_from(METRICS),
    num_prompts=st.none() | st.integers(1, 10**6),
    compute=st.floats(1.0, 1e12),
    factor=st.floats(1.0, 100.0),
)
def test_more_compute_never_lowers_a_draw(difficulty, metric, num_prompts, compute, factor):
    few, many = (
        draw_log2_rollouts(c, difficulty, metric=metric, num_prompts=num_prompts, num_draws=64)
        for c in (compute, compute * factor)
    )
    assert (many >= few).all()
    assert (few >= 3.0).all()
    assert (many <= np.log2(1024)).all()


@given(st.floats(1e4, 1e8), st.integers(1, 10**5), st.integers(1, 10**5))
def test_mixed_draws_are_of_easy_and_hard(compute, seed, num_prompts):
    mixed, easy, hard = (
        draw_log2_rollouts(
            compute, name, num_prompts=num_prompts, num_draws=256, seed=seed, evidence=BARE
        )
        for name in ("mixed", "easy", "hard")
    )
    assert set(mixed.round(6)) <= set(easy.round(6)) | set(hard.round(6))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"compute": 0.0, "difficulty": "easy"}, "at least 1"),
        ({"compute": 1e6, "difficulty": "simple"}, "easy, hard, mixed"),
        ({"compute": 1e6, "difficulty": "easy", "metric": "best@8"}, "best@4"),
        ({"compute": 1e6, "difficulty": "easy", "num_prompts": 0}, "at least 1"),
    ],
)
def test_mistakes_are_named(arguments, told):
    with pytest.raises(InvalidInputError, match=told):
        draw_log2_rollouts(**arguments)
