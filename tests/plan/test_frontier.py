"""Frontiers against brute force over points and against the published crossovers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan import published
from apportion.plan.frontier import frontier, record_points
from apportion.plan.learning_curve import LearningCurve, fit_curve

POINTS = st.lists(
    st.tuples(st.integers(1, 30).map(float), st.integers(0, 10).map(lambda i: i / 10)), max_size=30
)


def curve(ceiling, loss, rate, low=1e3, high=1e7):
    return LearningCurve.exponential(
        ceiling=ceiling, loss=loss, rate=rate, observed_from=low, observed_to=high
    )


@given(POINTS)
def test_record_points_are_those_above_all_before_them(points):
    compute_N = np.array([c for c, _ in points])
    reward_N = np.array([r for _, r in points])
    expected = {
        (c, r)
        for c, r in points
        if all(other < r for at, other in points if at < c)
        and all(other <= r for at, other in points if at == c)
    }
    index = record_points(compute_N, reward_N)
    assert {(compute_N[i], reward_N[i]) for i in index} == expected
    assert len(index) == len(expected)


@given(POINTS)
def test_points_that_break_no_record_never_attain_the_frontier(points):
    compute_N, reward_N = (np.array([p[i] for p in points]) for i in (0, 1))
    index = record_points(compute_N, reward_N)
    for at in compute_N:
        best = reward_N[compute_N <= at].max()
        assert best == reward_N[index][compute_N[index] <= at].max()


@given(POINTS, st.sampled_from([0.1, 0.25]))
def test_bins_keep_the_first_point_of_each_new_bin(points, width):
    compute_N, reward_N = (np.array([p[i] for p in points]) for i in (0, 1))
    index = record_points(compute_N, reward_N, bin_width=width)
    level = np.floor(np.round(reward_N[index] / width, 6))
    assert np.all(np.diff(level) > 0)
    if len(points):
        assert level.max() == np.floor(np.round(reward_N.max() / width, 6))


@pytest.mark.parametrize("difficulty", ["easy", "hard"])
def test_the_published_crossovers_come_back(difficulty):
    """Within 1% of the crossovers, with each curve counting from where it was drawn or crossed."""
    drawn = [c for c in published.CURVES if c.difficulty == difficulty]
    size_S = [c.rollouts_per_prompt for c in drawn]
    found = frontier([c.curve for c in drawn], size_S, high=1e7).crossovers
    expected = published.CROSSOVERS[difficulty]
    assert [(size_S[x.leaving], size_S[x.entering]) for x in found] == [x[:2] for x in expected]
    np.testing.assert_allclose([x.compute for x in found], [x[2] for x in expected], rtol=0.01)


@pytest.mark.parametrize("difficulty", ["easy", "hard"])
def test_the_published_crossovers_come_back_from_points(difficulty):
    """Points read off the drawn parts are fitted again; the form is chosen by the data."""
    drawn = [c for c in published.CURVES if c.difficulty == difficulty]
    fitted = []
    for c in drawn:
        compute_T = np.linspace(c.drawn_from, c.drawn_to, 30) * 1e6
        fitted.append(fit_curve(compute_T, c.curve(compute_T)))
        assert fitted[-1].form == "exponential"
    size_S = [c.rollouts_per_prompt for c in drawn]
    found = frontier(fitted, size_S, high=1e7).crossovers
    expected = [x[2] for x in published.CROSSOVERS[difficulty]]
    np.testing.assert_allclose([x.compute for x in found], expected, rtol=0.03)


def test_the_early_crossing_of_a_late_curve_does_not_count():
    small = curve(0.582, 0.15, 4.57e-6, 4e4, 2.6e5)
    large = curve(0.718, 0.254, 0.461e-6, 2.67e6, 4.09e6)
    assert large(5e4) > small(5e4)  # extrapolated below all that was seen
    found = frontier([small, large], [8, 512])
    assert found.curve_K[0] == 0
    assert len(found.crossovers) == 1
    at = found.crossovers[0].compute
    assert float(large(at)) == pytest.approx(float(small(at)), abs=2e-3)  # to a level of compute


CURVES = st.lists(
    st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(-16.0, -9.0)),
    min_size=1,
    max_size=6,
)


@given(CURVES, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_where_all_were_observed_the_frontier_is_the_largest(parts, random):
    curves = [curve(a, a * share, np.exp(log_rate)) for a, share, log_rate in parts]
    size_S = [2.0**i for i in range(len(curves))]
    found = frontier(curves, size_S)
    expected = np.max([c(found.compute_K) for c in curves], axis=0)
    np.testing.assert_allclose(found.reward_K, expected)
    assert found.is_observed_K.all()
    for crossing in found.crossovers:
        old, new = curves[crossing.leaving], curves[crossing.entering]
        assert float(old(crossing.compute)) == pytest.approx(float(new(crossing.compute)), abs=1e-6)
    order = list(range(len(curves)))
    random.shuffle(order)
    shuffled = frontier([curves[i] for i in order], [size_S[i] for i in order])
    np.testing.assert_allclose(shuffled.reward_K, found.reward_K)
    assert [x.compute for x in shuffled.crossovers] == [x.compute for x in found.crossovers]


def test_a_run_that_ended_keeps_what_it_attained_and_no_more():
    ended = curve(0.9, 0.8, 1e-6, 1e3, 1e5)
    other = curve(0.3, 0.2, 1e-6, 1e3, 1e7)
    found = frontier([ended, other], [8, 64])
    held = float(ended(1.25e5))
    np.testing.assert_allclose(
        found.reward_K,
        np.maximum(ended(np.minimum(found.compute_K, 1.25e5)), other(found.compute_K)),
    )
    (crossing,) = found.crossovers
    assert float(other(crossing.compute)) == pytest.approx(held)
    beyond = frontier([ended, other], [8, 64], extrapolate=True)
    assert not beyond.crossovers
    assert beyond.reward_K[-1] == pytest.approx(0.9, abs=1e-3)


def test_what_lies_beyond_a_run_is_marked():
    found = frontier([curve(0.5, 0.4, 1e-5, 1e3, 1e5)], [8], high=1e6)
    np.testing.assert_array_equal(found.is_observed_K, found.compute_K <= 1e5)


def test_bad_calls_are_refused():
    with pytest.raises(InvalidInputError, match="at least one curve"):
        frontier([], [])
    with pytest.raises(InvalidInputError, match="0 < low <= high"):
        frontier([curve(0.5, 0.4, 1e-5)], [8], low=1e6, high=1e5)
    with pytest.raises(InvalidInputError, match="bin_width"):
        record_points([1.0], [0.5], bin_width=-1.0)
