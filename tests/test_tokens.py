"""Allocation by tokens against dynamic programming, and against allocation by rollouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocation import allocate
from apportion.errors import InfeasibleBudgetError, InvalidInputError, NonConvexLawError
from apportion.gradient_variance import LAWS, law_for
from apportion.tokens import allocate_tokens
from apportion.types import Forecast


def by_dynamic_program(law, forecast, budget, cost_B, lower, upper):
    """Least variance for every whole number of tokens, then for at most the budget."""
    best = np.full(budget + 1, np.inf)
    best[0] = 0.0
    for i, cost in enumerate(cost_B.tolist()):
        after = np.full(budget + 1, np.inf)
        for n in range(lower, min(upper, budget // cost) + 1):
            value = float(law(forecast.take([i]), [n])[0])
            np.minimum(
                after[n * cost :], best[: budget + 1 - n * cost] + value, out=after[n * cost :]
            )
        best = after
    return float(best.min())


@st.composite
def problems(draw, min_size=1, max_size=6, max_cost=9, max_spare=60):
    law = LAWS[draw(st.sampled_from(sorted(LAWS)))]
    size = draw(st.integers(min_size, max_size))
    success = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    mean_B = np.array(draw(st.lists(success, min_size=size, max_size=size)))
    share = st.sampled_from([0.0, 0.1, 0.5])
    share_B = np.array(draw(st.lists(share, min_size=size, max_size=size)))
    forecast = Forecast.of_success(mean_B, share_B * mean_B * (1 - mean_B))
    cost_B = np.array(draw(st.lists(st.integers(1, max_cost), min_size=size, max_size=size)))
    lower = law.convex_from + draw(st.integers(0, 1))
    upper = draw(st.one_of(st.none(), st.integers(lower, 12)))
    budget = int(cost_B.sum()) * lower + draw(st.integers(0, max_spare))
    return law, forecast, budget, cost_B, lower, upper


def solve(problem):
    law, forecast, budget, cost_B, lower, upper = problem
    return allocate_tokens(forecast, budget, cost_B, variance=law.name, lower=lower, upper=upper)


def optimum(problem):
    law, forecast, budget, cost_B, lower, upper = problem
    return by_dynamic_program(law, forecast, budget, cost_B, lower, upper or budget)


@given(problems())
@settings(max_examples=150)
def test_within_the_limits_and_the_optimum_of_small_batches(problem):
    law, forecast, budget, cost_B, lower, upper = problem
    found, best = solve(problem), optimum(problem)
    num_B = found.num_rollouts_B
    assert (num_B >= lower).all()
    assert (num_B <= (upper or budget)).all()
    assert found.num_tokens == cost_B @ num_B <= budget
    assert found.unspent == budget - found.num_tokens
    assert found.variance == pytest.approx(law(forecast, num_B).sum(), rel=1e-12)
    assert found.bound <= best * (1 + 1e-9) + 1e-300
    assert best <= found.variance * (1 + 1e-9)
    assert found.variance <= best * (1 + 1e-9) + 1e-300


@given(problems(min_size=8, max_size=12, max_spare=150))
@settings(max_examples=25)
def test_near_the_optimum_of_larger_ones(problem):
    found, best = solve(problem), optimum(problem)
    assert found.bound <= best * (1 + 1e-9) + 1e-300
    assert found.variance <= best * (1 + 1e-3) + 1e-300


@given(st.integers(1, 30), st.integers(0, 200), st.integers(0, 99), st.sampled_from([1, 3, 0.1]))
def test_with_equal_tokens_it_is_the_split_of_rollouts(size, spare, seed, cost):
    success_B = np.random.default_rng(seed).uniform(0.01, 0.99, size)
    budget = 2 * size + spare
    by_rollouts = allocate(success_B, budget)
    found = allocate_tokens(success_B, budget * cost, np.full(size, cost))
    np.testing.assert_array_equal(found.num_rollouts_B, by_rollouts.num_rollouts_B)
    assert found.gap == pytest.approx(0.0, abs=1e-9)
    assert found.unspent == pytest.approx(0.0, abs=1e-9 * budget)


def test_equal_prompts_are_served_by_position():
    found = allocate_tokens(np.full(5, 0.5), 13 * 7 + 3, np.full(5, 7.0))
    assert found.num_rollouts_B.tolist() == [3, 3, 3, 2, 2]
    assert found.unspent == 3.0


def test_short_rollouts_get_more_and_the_gap_is_small_on_a_batch():
    rng = np.random.default_rng(0)
    success_B, cost_B = rng.beta(0.4, 0.6, 256), rng.lognormal(6.0, 0.8, 256)
    found = allocate_tokens(success_B, 8.0 * cost_B.sum(), cost_B)
    assert found.gap < 1e-5
    assert 0.0 <= found.unspent < cost_B.min()
    same = allocate_tokens(np.full(256, 0.5), 8.0 * cost_B.sum(), cost_B)
    by_cost_B = same.num_rollouts_B[np.argsort(cost_B)]
    assert (np.diff(by_cost_B) <= 1).all()
    assert by_cost_B[0] > 3 * by_cost_B[-1]


def test_the_price_is_what_one_more_token_buys():
    rng = np.random.default_rng(1)
    success_B, cost_B = rng.uniform(0.1, 0.9, 400), rng.lognormal(4.0, 0.5, 400)
    budget, more = 9.0 * cost_B.sum(), 200.0
    found = allocate_tokens(success_B, budget, cost_B)
    richer = allocate_tokens(success_B, budget + more, cost_B)
    assert (found.variance - richer.variance) / more == pytest.approx(found.price, rel=0.1)


@pytest.mark.parametrize("variance", ["rloo", "grpo"])
def test_what_lowers_no_variance_stays_unspent(variance):
    found = allocate_tokens([0.0, 0.5, 1.0], 1000, [10, 10, 10], variance=variance, upper=8)
    assert found.num_rollouts_B.tolist() == [2, 8, 2]
    assert (found.unspent, found.price, found.gap) == (880.0, 0.0, 0.0)
    hopeless = allocate_tokens([0.0, 1.0], 1000, [10, 10], variance=variance)
    assert hopeless.num_rollouts_B.tolist() == [2, 2]
    assert (hopeless.variance, hopeless.gap) == (0.0, 0.0)


def test_a_law_may_be_given():
    law = law_for("dr_grpo")
    one = allocate_tokens([0.1, 0.5], 300, [5, 9], variance=law)
    assert (
        one.num_rollouts_B.tolist()
        == allocate_tokens([0.1, 0.5], 300, [5, 9]).num_rollouts_B.tolist()
    )


def test_the_order_of_magnitude_of_tokens_does_not_matter():
    success_B, cost_B = np.array([0.1, 0.4, 0.5, 0.9]), np.array([3.0, 5.0, 11.0, 2.0])
    expected = allocate_tokens(success_B, 200.0, cost_B).num_rollouts_B
    for scale in (2.0**-30, 2.0**30):
        found = allocate_tokens(success_B, 200.0 * scale, cost_B * scale)
        np.testing.assert_array_equal(found.num_rollouts_B, expected)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (([0.5, 0.5], 39, [10, 10]), {}, InfeasibleBudgetError, "need 40 tokens"),
        (([0.5], -1, [10]), {}, InfeasibleBudgetError, "token_budget is -1"),
        (([0.5], np.inf, [10]), {}, InvalidInputError, "token_budget"),
        (([0.5, 0.5], 100, [10]), {}, InvalidInputError, "tokens_B has 1 values"),
        (([0.5, 0.5], 100, [10, 0]), {}, InvalidInputError, r"tokens_B\[1\] is 0"),
        (([0.5, 0.5], 1e308, [10, 1e308]), {}, InvalidInputError, r"tokens_B\[1\] is 1e\+308"),
        (([0.5, 0.5], 1e6, [2.0**53] * 2), {}, InfeasibleBudgetError, "need 3.6"),
        (([0.5, 0.5], 100, [10, np.nan]), {}, InvalidInputError, r"tokens_B\[1\] is nan"),
        (([], 100, []), {}, InvalidInputError, "batch is empty"),
        (([0.5], 100, [10]), {"lower": 1}, NonConvexLawError, "lower to 2"),
        (([0.5], 100, [10]), {"variance": "dr_grpo"}, NonConvexLawError, "lower to 3"),
        (([0.5], 100, [10]), {"variance": "ppo"}, InvalidInputError, "variance is 'ppo'"),
        (([0.5], 100, [10]), {"lower": 4, "upper": 3}, InvalidInputError, "upper is 3"),
        (([1.5], 100, [10]), {}, InvalidInputError, "outside"),
    ],
)
def test_mistakes_are_named(arguments, options, error, words):
    with pytest.raises(error, match=words):
        allocate_tokens(*arguments, **options)
