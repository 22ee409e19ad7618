from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import controls
from apportion.errors import InfeasibleBudgetError, InvalidInputError


def _mixed(p, n):
    """Chance of a mixed group, counted outcome by outcome."""
    return sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(1, n))


def test_value_by_hand():
    # p = .5, n = 3: 6 of 8 outcomes are mixed, times .5 * .25; InfoGain is largest at 1/3.
    assert controls.knapsack_value([0.5], [3]).tolist() == [0.75 * 0.125]
    grid = np.linspace(0.0, 1.0, 301)
    assert grid[controls.knapsack_value(grid, np.full(301, 10**6)).argmax()] == pytest.approx(1 / 3)


@given(success=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4), extra=st.integers(0, 9))
def test_greedy_is_the_optimum_of_all_splits(success, extra):
    size, budget = len(success), 2 * len(success) + extra
    num = controls.knapsack(success, budget)
    best = max(
        sum(_mixed(p, n) * p * (1 - p) ** 2 for p, n in zip(success, split, strict=True))
        for split in product(range(2, 3 + extra), repeat=size)
        if sum(split) == budget
    )
    assert controls.knapsack_value(success, num).sum() == pytest.approx(best, rel=1e-12)


def test_what_is_not_needed_goes_to_the_never_solved():
    # .5 needs floor(log .1/log .5) = 3 over its 2; of 16, 6 are lower bounds, so 7 are spare.
    # The never solved gets them; the other 3 go to the one in between.
    assert controls.knapsack([0.5, 0.0, 1.0], 16).tolist() == [5, 9, 2]
    # .9 needs floor(log .1/log .9) = 21: nothing is spare.
    assert controls.knapsack([0.9, 0.0, 1.0], 16).tolist() == [12, 2, 2]


def test_spare_rollouts_go_to_the_solved_if_nothing_else_is_left():
    assert controls.knapsack([0.5, 1.0, 1.0], 16).tolist() == [5, 6, 5]
    assert controls.knapsack([1.0, 1.0, 1.0], 16).tolist() == [6, 5, 5]
    assert controls.knapsack([0.0, 0.0, 1.0], 16).tolist() == [7, 7, 2]


def test_upper_bound_sends_the_rest_on():
    assert controls.knapsack([0.5, 0.0, 1.0], 16, upper=6).tolist() == [6, 6, 4]


@given(
    success=st.lists(
        st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=1, max_size=15
    ),
    extra=st.integers(0, 200),
    upper=st.integers(2, 40),
)
def test_on_budget_and_within_bounds(success, extra, upper):
    budget = min(2 * len(success) + extra, upper * len(success))
    num = controls.knapsack(success, budget, upper=upper)
    assert num.dtype == np.int64
    assert num.sum() == budget
    assert ((num >= 2) & (num <= upper)).all()


@given(success=st.lists(st.floats(0.05, 0.95), min_size=2, max_size=8, unique=True), data=st.data())
def test_prompts_may_come_in_any_order(success, data):
    order = data.draw(st.permutations(range(len(success))))
    num = controls.knapsack(success, 64)
    again = controls.knapsack([success[i] for i in order], 64)
    worth = controls.knapsack_value(success, num).sum()
    assert controls.knapsack_value(np.array(success)[order], again).sum() == pytest.approx(worth)


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="outside"):
        controls.knapsack([-0.1], 4)
    with pytest.raises(InfeasibleBudgetError):
        controls.knapsack([0.5, 0.5], 3)
    with pytest.raises(InvalidInputError, match="lower is 0"):
        controls.knapsack([0.5], 3, lower=0)
