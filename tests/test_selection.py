"""Selection against exact dynamic programming."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.gain import Coverage, Progress
from apportion.selection import select
from apportion.types import Forecast


def by_dynamic_program(gain, budget, size, lower, upper, required_B):
    """Largest total gain over n in {0} or [lower, upper], -inf if the budget cannot be spent."""
    value_NB = np.array([gain.value(np.full(size, n)) for n in range(budget + 1)])
    best = np.full(budget + 1, -np.inf)
    best[0] = 0.0
    for i in range(size):
        after = np.full(budget + 1, -np.inf) if required_B[i] else best.copy()
        for n in range(lower, min(upper, budget) + 1):
            np.maximum(after[n:], best[: budget + 1 - n] + value_NB[n, i], out=after[n:])
        best = after
    return float(best[budget])


@st.composite
def problems(draw, min_size=1, max_size=9, max_budget=48):
    size = draw(st.integers(min_size, max_size))
    success = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.02, 0.1, 0.5, 0.9, 1.0]))
    mean_B = np.array(draw(st.lists(success, min_size=size, max_size=size)))
    share = st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0])
    share_B = np.array(draw(st.lists(share, min_size=size, max_size=size)))
    forecast = Forecast.of_success(mean_B, share_B * mean_B * (1 - mean_B))
    kappa = draw(st.sampled_from([0.3, 1.0, 3.0]))
    gain = Coverage(forecast) if draw(st.booleans()) else Progress.of(forecast, kappa)
    budget = draw(st.integers(1, max_budget))
    lower = draw(st.integers(2, 4))
    upper = draw(st.one_of(st.none(), st.integers(lower, 16)))
    required_B = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    if draw(st.booleans()):
        required_B[:] = False
    return gain, budget, size, lower, upper, required_B


def solve(problem):
    gain, budget, size, lower, upper, required_B = problem
    return select(gain, budget, size=size, lower=lower, upper=upper, required_B=required_B)


def optimum(problem):
    gain, budget, size, lower, upper, required_B = problem
    return by_dynamic_program(gain, budget, size, lower, upper or budget, required_B)


def check(problem, found, best):
    gain, budget, _, lower, upper, required_B = problem
    num_B = found.num_rollouts_B
    assert num_B.sum() == budget
    is_in_B = num_B > 0
    assert (num_B[is_in_B] >= lower).all()
    assert (num_B <= (upper or budget)).all()
    assert is_in_B[required_B].all()
    assert found.gain == pytest.approx(gain.value(num_B).sum(), rel=1e-12)
    assert found.gain <= best * (1 + 1e-9) + 1e-15
    assert best <= found.bound * (1 + 1e-9) + 1e-15
    assert 0.0 <= found.gap <= 1.0


@given(problems())
@settings(max_examples=200)
def test_within_the_limits_below_the_optimum_and_that_below_the_bound(problem):
    best = optimum(problem)
    if best == -np.inf:
        with pytest.raises(InfeasibleBudgetError):
            solve(problem)
        return
    check(problem, solve(problem), best)


@given(problems(min_size=8, max_size=14, max_budget=64))
@settings(max_examples=100)
def test_near_the_optimum_from_eight_candidates_on(problem):
    best = optimum(problem)
    if best > -np.inf:
        assert solve(problem).gain >= 0.999 * best


def test_three_candidates_that_are_entered_at_once():
    """Two of three must share 17 rollouts, 7 at least: not the two of the largest index."""
    mean_B = np.array([0.5, 0.2, 0.1])
    forecast = Forecast.of_success(mean_B, np.array([0.3, 0.3, 0.0]) * mean_B * (1 - mean_B))
    problem = (Coverage(forecast), 17, 3, 7, None, np.zeros(3, dtype=bool))
    assert solve(problem).gain >= 0.999 * optimum(problem)


@pytest.mark.parametrize("seed", range(4))
def test_near_the_optimum_on_a_step_of_a_run(seed):
    """192 candidates, 256 rollouts: the gap that is shown is all that can be missing."""
    rng = np.random.default_rng(seed)
    mean_B = rng.beta(0.3, 0.6, 192)
    forecast = Forecast.of_success(
        mean_B, rng.choice([0.0, 0.05, 0.4], 192) * mean_B * (1 - mean_B)
    )
    for gain in (Progress.of(forecast), Coverage(forecast)):
        found = select(gain, 256, size=192, upper=32)
        assert found.num_rollouts_B.sum() == 256
        assert found.gap < 1e-3


def test_candidates_of_equal_promise_come_in_by_position():
    gain = Progress.of(Forecast.of_success(np.full(12, 0.5)))
    num_B = select(gain, 12, size=12).num_rollouts_B
    assert num_B.tolist() == [3] * 4 + [0] * 8
    mixed = Progress.of(Forecast.of_success([0.1, 0.5, 0.0, 0.5, 0.5, 0.1]))
    assert select(mixed, 7, size=6).num_rollouts_B.tolist() == [0, 4, 0, 3, 0, 0]


@given(st.permutations(range(10)), st.integers(0, 99), st.booleans())
@settings(max_examples=40)
def test_the_order_of_candidates_of_distinct_promise_does_not_matter(order, seed, covers):
    rng = np.random.default_rng(seed)
    mean_B = rng.uniform(0.02, 0.5, 10)
    forecast = Forecast.of_success(mean_B, rng.uniform(0.0, 0.3, 10) * mean_B * (1 - mean_B))
    gain = Coverage(forecast) if covers else Progress.of(forecast)
    required_B = rng.random(10) < 0.2
    found = select(gain, 31, size=10, required_B=required_B).num_rollouts_B
    again = select(gain.take(np.array(order)), 31, size=10, required_B=required_B[list(order)])
    np.testing.assert_array_equal(again.num_rollouts_B, found[list(order)])


@pytest.mark.parametrize("kind", [Progress.of, Coverage])
@pytest.mark.parametrize("upper", [None, 5])
def test_where_nothing_can_be_gained_the_budget_is_still_spent(kind, upper):
    gain = kind(Forecast.of_success([0.0, 1.0] * 4))
    found = select(gain, 20, size=8, upper=upper, required_B=np.arange(8) == 6)
    assert found.num_rollouts_B.sum() == 20
    assert found.num_rollouts_B[6] >= 2
    assert (found.gain, found.bound, found.gap) == (0.0, 0.0, 0.0)


def test_what_is_required_comes_whatever_it_promises():
    gain = Progress.of(Forecast.of_success([0.5, 0.0, 0.4, 1.0, 0.3]))
    required_B = np.array([False, True, False, True, False])
    found = select(gain, 9, size=5, required_B=required_B)
    assert found.num_rollouts_B.tolist() == [3, 2, 2, 2, 0]
    every = select(gain, 10, size=5, required_B=np.ones(5, dtype=bool))
    assert every.num_rollouts_B.tolist() == [2] * 5


@pytest.mark.parametrize(
    ("budget", "options", "words"),
    [
        (9, {"upper": 4, "size": 2}, "budget is 9"),
        (1, {}, "budget is 1"),
        (7, {"lower": 4, "upper": 5}, "4 to 5 rollouts"),
        (5, {"required_B": np.ones(3, dtype=bool)}, "3 of them required"),
    ],
)
def test_budgets_that_cannot_be_spent_are_refused(budget, options, words):
    size = options.get("size", 3)
    gain = Progress.of(Forecast.of_success(np.full(size, 0.5)))
    with pytest.raises(InfeasibleBudgetError, match=words):
        select(gain, budget, **({"size": size} | options))


@pytest.mark.parametrize(
    ("budget", "options", "words"),
    [
        (0, {}, "budget is 0"),
        (8.5, {}, "budget is 8.5"),
        (8, {"lower": 1}, "lower is 1"),
        (8, {"lower": 4, "upper": 3}, "upper is 3"),
        (8, {"required_B": [1, 0, 0]}, "required_B has type"),
        (8, {"required_B": np.ones(4, dtype=bool)}, "required_B has type"),
        (8, {"size": 0}, "no candidates"),
    ],
)
def test_malformed_input_is_refused(budget, options, words):
    gain = Progress.of(Forecast.of_success(np.full(3, 0.5)))
    with pytest.raises(InvalidInputError, match=words):
        select(gain, budget, **({"size": 3} | options))
