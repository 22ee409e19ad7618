import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, brentq, minimize

from apportion.allocation import allocate
from apportion.errors import InfeasibleBudgetError, InvalidInputError, NonConvexLawError
from apportion.gradient_variance import DR_GRPO, RLOO
from apportion.relaxation import relax_dr_grpo, relax_rloo, round_greedily
from apportion.types import Forecast

P = np.array([0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99])


def rloo_value(n):
    return 1 / (n - 1)


def rloo_slope(n):
    return 1 / (n - 1) ** 2


def dr_grpo_value(n):
    return (n - 1) / n**2


def dr_grpo_slope(n):
    return (n - 2) / n**3


CASES = [
    (relax_rloo, RLOO, rloo_value, rloo_slope),
    (relax_dr_grpo, DR_GRPO, dr_grpo_value, dr_grpo_slope),
]
IDS = ["rloo", "dr_grpo"]


@st.composite
def problems(draw):
    size = draw(st.integers(1, 12))
    variance_B = np.array(
        draw(
            st.lists(
                st.one_of(st.floats(1e-6, 0.25), st.sampled_from([0.0, 0.25])),
                min_size=size,
                max_size=size,
            )
        )
    )
    lower_B = np.array(draw(st.lists(st.integers(3, 6), min_size=size, max_size=size)))
    width_B = np.array(draw(st.lists(st.integers(0, 40), min_size=size, max_size=size)))
    upper_B = lower_B + width_B
    return variance_B, draw(st.integers(lower_B.sum(), upper_B.sum())), lower_B, upper_B


@pytest.mark.parametrize(("relax", "law", "value", "slope"), CASES, ids=IDS)
@given(problem=problems())
def test_karush_kuhn_tucker_conditions_hold(relax, law, value, slope, problem):
    variance_B, budget, lower_B, upper_B = problem
    found = relax(variance_B, budget, lower=lower_B, upper=upper_B)
    n_B = found.num_rollouts_B
    assert n_B.sum() == pytest.approx(budget, rel=1e-9)
    assert (lower_B <= n_B).all()
    assert (n_B <= upper_B).all()
    marginal_B = variance_B * slope(n_B)
    slack = 1e-6 * found.multiplier + 1e-12
    if np.isfinite(found.multiplier):
        assert (marginal_B[n_B > lower_B] >= found.multiplier - slack).all()
        assert (marginal_B[n_B < upper_B] <= found.multiplier + slack).all()


@pytest.mark.parametrize(("relax", "law", "value", "slope"), CASES, ids=IDS)
@pytest.mark.parametrize("budget", [40, 64, 90])
def test_same_as_a_general_solver(relax, law, value, slope, budget):
    variance_B = P * (1 - P)
    found = relax(variance_B, budget, lower=4, upper=12)
    solved = minimize(
        lambda n_B: (variance_B * value(n_B)).sum(),
        np.full(8, budget / 8),
        jac=lambda n_B: -variance_B * slope(n_B),
        method="SLSQP",
        bounds=[(4, 12)] * 8,
        constraints=[LinearConstraint(np.ones(8), budget, budget)],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert (variance_B * value(found.num_rollouts_B)).sum() <= solved.fun * (1 + 1e-9)
    assert np.allclose(found.num_rollouts_B, solved.x, atol=2e-3)


def test_multiplier_of_rloo_is_the_root_of_the_budget():
    variance_B = P * (1 - P)

    def surplus(multiplier):
        return np.clip(1 + np.sqrt(variance_B / multiplier), 4, 12).sum() - 64

    expected = brentq(surplus, 1e-6, 1.0, xtol=1e-15)
    found = relax_rloo(variance_B, 64, lower=4, upper=12)
    assert found.multiplier == pytest.approx(expected, rel=1e-10)


def test_without_active_bounds_rloo_is_neyman_on_n_minus_one():
    variance_B = np.array([0.25, 0.16, 0.09])
    found = relax_rloo(variance_B, 39)
    assert found.num_rollouts_B == pytest.approx([16, 13, 10])


def test_useless_prompts_share_what_is_left():
    found = relax_rloo([0.25, 0.0, 0.0], 30, lower=2, upper=[8, 20, 20])
    assert found.num_rollouts_B == pytest.approx([8, 11, 11])
    assert found.multiplier == 0.0
    assert relax_dr_grpo([0.0, 0.0], 15, lower=3).num_rollouts_B == pytest.approx([7.5, 7.5])


@pytest.mark.parametrize(
    ("relax", "law", "lower", "upper", "expected"),
    [
        (relax_rloo, RLOO, 4, 12, [4, 7, 10, 11, 12, 10, 6, 4]),
        (relax_dr_grpo, DR_GRPO, 4, 12, [4, 7, 10, 12, 12, 10, 5, 4]),
        (relax_rloo, RLOO, 3, 32, [3, 8, 10, 12, 12, 10, 6, 3]),
        (relax_dr_grpo, DR_GRPO, 3, 32, [3, 7, 10, 13, 13, 10, 5, 3]),
    ],
)
def test_reference_values_after_rounding(relax, law, lower, upper, expected):
    forecast = Forecast.of_success(P)
    relaxed = relax(forecast.reward_var_B, 64, lower=lower, upper=upper)
    rounded = round_greedily(relaxed.num_rollouts_B, law, forecast, 64, upper=upper)
    assert rounded.tolist() == expected


@pytest.mark.parametrize(("relax", "law", "value", "slope"), CASES, ids=IDS)
def test_rounding_reaches_the_exact_optimum_on_random_problems(relax, law, value, slope):
    rng = np.random.default_rng(0)
    for _ in range(100):
        size = int(rng.integers(2, 16))
        forecast = Forecast.of_success(rng.beta(0.5, 0.5, size))
        budget = int(rng.integers(4 * size, 16 * size))
        relaxed = relax(forecast.reward_var_B, budget, lower=4, upper=16)
        rounded = round_greedily(relaxed.num_rollouts_B, law, forecast, budget, upper=16)
        exact = allocate(forecast, budget, variance=law, lower=4, upper=16)
        assert rounded.sum() == budget
        assert rounded.max() <= 16
        assert law(forecast, rounded).sum() == pytest.approx(exact.variance, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([-0.1, 0.2], 8), InvalidInputError, "negative"),
        (([0.1, np.nan], 8), InvalidInputError, "finite"),
        (([0.1, 0.2], 5), InfeasibleBudgetError, "budget is 5"),
        (([], 5), InvalidInputError, "empty"),
    ],
)
def test_malformed_input_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        relax_dr_grpo(*arguments)


def test_lower_bounds_below_the_convex_part_are_refused():
    with pytest.raises(NonConvexLawError, match=r"dr_grpo .*lower = 2; it is from 3"):
        relax_dr_grpo([0.1], 5, lower=2)
    with pytest.raises(NonConvexLawError, match=r"rloo .*lower = 1; it is from 2"):
        relax_rloo([0.1], 5, lower=1)


def test_rounding_refuses_a_budget_below_what_was_rounded_down():
    with pytest.raises(InfeasibleBudgetError):
        round_greedily([4.0, 4.0], RLOO, Forecast.of_success([0.5, 0.5]), 7)
