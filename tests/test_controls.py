import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import controls
from apportion.allocation import allocate
from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.types import Forecast

RULES = [
    controls.uniform,
    controls.proportional_variance,
    controls.proportional_std,
    controls.inverse_accuracy,
    controls.inverse_variance,
]


@st.composite
def problems(draw):
    size = draw(st.integers(1, 15))
    success = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    forecast = Forecast.of_success(draw(st.lists(success, min_size=size, max_size=size)))
    lower_B = np.array(draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)))
    width_B = np.array(draw(st.lists(st.integers(0, 30), min_size=size, max_size=size)))
    budget = draw(st.integers(lower_B.sum(), (lower_B + width_B).sum()))
    return forecast, budget, lower_B, lower_B + width_B


@pytest.mark.parametrize("rule", RULES)
@given(problem=problems())
def test_rules_are_whole_on_budget_within_bounds_and_repeatable(rule, problem):
    forecast, budget, lower_B, upper_B = problem
    num_B = rule(forecast, budget, lower=lower_B, upper=upper_B)
    assert num_B.dtype == np.int64
    assert num_B.sum() == budget
    assert (lower_B <= num_B).all()
    assert (num_B <= upper_B).all()
    assert num_B.tolist() == rule(forecast, budget, lower=lower_B, upper=upper_B).tolist()


@pytest.mark.parametrize("rule", RULES)
@given(success=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=20), extra=st.integers(0, 99))
def test_no_rule_beats_the_optimum(rule, success, extra):
    forecast, budget = Forecast.of_success(success), 2 * len(success) + extra
    num_B = rule(forecast, budget)
    noise = (forecast.reward_var_B / (num_B - 1)).sum()
    assert allocate(forecast, budget).variance <= noise * (1 + 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_equal_prompts_share_evenly(rule):
    assert rule(Forecast.of_success([0.3] * 5), 33).tolist() == [7, 7, 7, 6, 6]


@given(problem=problems())
def test_proportional_shares_are_within_one_of_the_quota(problem):
    forecast, budget, lower_B, upper_B = problem
    num_B = controls.proportional_variance(forecast, budget, lower=lower_B, upper=upper_B)
    weight_B = forecast.reward_var_B
    if weight_B.sum() > 0:
        quota_B = budget * weight_B / weight_B.sum()
        if ((lower_B <= quota_B) & (quota_B <= upper_B)).all():
            assert (np.abs(num_B - quota_B) < 1 + 1e-6).all()


def test_largest_remainder_wins_the_last_rollout():
    # Quotas 10 * (.16, .25, .25)/.66 = 2.42, 3.79, 3.79.
    forecast = Forecast.of_success([0.2, 0.5, 0.5])
    assert controls.proportional_variance(forecast, 10, lower=0).tolist() == [2, 4, 4]


def test_inverse_rules_fill_from_the_bottom_and_share_ties():
    forecast = Forecast.of_success([0.9, 0.1, 0.5, 0.5])
    assert controls.inverse_accuracy(forecast, 21, upper=8).tolist() == [2, 8, 6, 5]
    assert controls.inverse_variance(forecast, 21, upper=8).tolist() == [8, 8, 3, 2]


@pytest.mark.parametrize("rule", RULES)
def test_infeasible_input_is_refused(rule):
    with pytest.raises(InfeasibleBudgetError, match="budget is 3"):
        rule(Forecast.of_success([0.5, 0.5]), 3)
    with pytest.raises(InvalidInputError, match="empty"):
        rule(Forecast.of_success([]), 3)
