import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from apportion import controls
from apportion.errors import InfeasibleBudgetError, InvalidInputError

EXAMPLE = [0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99]
probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def _solved(success, budget, lower, upper, bias=0.0, **options):
    """The same problem over real numbers, by SciPy."""
    p = np.clip(np.where(np.array(success) >= 0.8, 1.0, success), 1e-6, 1 - 1e-6)
    shift = 1 if bias else 0
    return minimize(
        lambda n: (p * (1 - p) / (n - shift) + bias * n * np.log(p)).sum(),
        np.full(len(p), budget / len(p)),
        method="SLSQP",
        bounds=[(lower, upper)] * len(p),
        constraints=[{"type": "eq", "fun": lambda n: n.sum() - budget}],
        options=options,
    ).x


def test_example_that_the_released_allocator_was_run_on():
    # sqrt(p(1-p)) is .0995, .3, .4, .49, .5: at the scale that spends 64 the second one and the
    # rest reach 12, the first one stays at 4, and predictions from .8 on are at 4.
    assert controls.vip_code(EXAMPLE, 64, upper=12).tolist() == [4, 12, 12, 12, 12, 4, 4, 4]


def test_the_released_answer_is_where_its_solver_stops_early():
    early = np.floor(_solved(EXAMPLE, 64, 4, 12)).astype(int)
    assert early.tolist() == [5, 10, 12, 12, 12, 4, 4, 4]  # the last one goes to the second
    exact = _solved(EXAMPLE, 64, 4, 12, ftol=1e-14, maxiter=1000)
    np.testing.assert_allclose(exact, controls.vip_code(EXAMPLE, 64, upper=12), atol=1e-3)


@pytest.mark.parametrize("bias", [4e-4, 7e-4])
def test_bias_pays_for_prompts_that_are_predicted_to_fail(bias):
    success = [0.001, 0.2, 0.5, 0.7]
    exact = _solved(success, 48, 4, 16, bias, ftol=1e-14, maxiter=1000)
    num = controls.vip_code(success, 48, bias=bias)
    assert (np.abs(num - exact) < 1.01).all()
    assert num[0] > controls.vip_code(success, 48)[0] == 4


def test_remainder_goes_where_the_objective_falls_most():
    # n ~ (.3, .5) * 21/.8 = 7.9, 13.1; a/(n(n+1)) is .09/56 against .25/182.
    assert controls.vip_code([0.1, 0.5], 21, lower=1).tolist() == [8, 13]


def test_small_numbers_become_zero_and_go_to_the_largest():
    # n ~ (.0995, .3, .5) * 18/.8995 = 2, 6, 10 rounded; the first one loses its 2 to the third.
    assert controls.vip_code([0.01, 0.1, 0.5], 18, lower=1).tolist() == [0, 6, 12]


def test_equal_predictions_share_evenly_or_the_first_ones_are_served():
    assert controls.vip_code([0.0] * 4, 32).tolist() == [8] * 4
    assert controls.vip_code([0.3] * 4, 8, lower=2).tolist() == [8, 0, 0, 0]
    assert controls.vip_code([0.3] * 4, 8, lower=2, upper=4).tolist() == [4, 4, 0, 0]


def test_nothing_moves_at_a_mean_of_four_unless_lower_is_less():
    assert controls.vip_code(EXAMPLE, 32).tolist() == [4] * 8
    assert controls.vip_code(EXAMPLE, 32, lower=2, upper=8, keep=2).tolist() == (
        [2, 4, 6, 7, 7, 2, 2, 2]
    )


@given(success=probabilities, extra=st.integers(0, 40), bias=st.sampled_from([0.0, 7e-4]))
def test_on_budget_within_bounds(success, extra, bias):
    budget = min(4 * len(success) + extra, 16 * len(success))
    num = controls.vip_code(success, budget, bias=bias)
    assert num.dtype == np.int64
    assert num.sum() == budget
    assert ((num >= 4) & (num <= 16)).all()


@given(
    success=st.lists(
        st.floats(0.02, 0.78), min_size=2, max_size=8, unique_by=lambda p: round(p * (1 - p), 3)
    ),
    data=st.data(),
)
def test_prompts_may_come_in_any_order(success, data):
    order = data.draw(st.permutations(range(len(success))))
    num = controls.vip_code(success, 8 * len(success))
    again = controls.vip_code([success[i] for i in order], 8 * len(success))
    assert (np.abs(again - num[order]) <= 1).all()


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="success_B"):
        controls.vip_code([1.5], 8)
    with pytest.raises(InvalidInputError, match="bias is -1"):
        controls.vip_code([0.5], 8, bias=-1.0)
    with pytest.raises(InvalidInputError, match="lower is 1"):
        controls.vip_code([0.5], 8, lower=1, bias=1e-3)
    with pytest.raises(InfeasibleBudgetError):
        controls.vip_code([0.5, 0.5], 7)
