"""The baselines: each against a plain computation of what it is said to be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictor_helpers import prompts, rewards
from scipy.optimize import minimize

from apportion.errors import InvalidInputError, StateError
from apportion.predictor import MovingAverage, Oracle, Ridge
from apportion.types import Prompts

rates = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=9)


@given(rates, st.integers(1, 4))
def test_moving_average_is_the_mean_group_of_the_last_steps(rate_TB, window):
    average = MovingAverage(window=window)
    average.add(prompts(4))
    for step, rate_B in enumerate(rate_TB):
        average.update(np.arange(len(rate_B)), rewards(rate_B, step))
    forecast = average.forecast(np.array([0, 3]), len(rate_TB))
    expected = np.mean(np.concatenate(rate_TB[-window:]))
    np.testing.assert_allclose(forecast.mean_B, expected, atol=1e-12)
    np.testing.assert_array_equal(forecast.var_B, 0.0)


def test_moving_average_puts_late_outcomes_where_they_belong():
    average = MovingAverage(window=2)
    average.add(prompts(3))
    average.update(np.arange(2), rewards([0.0, 1.0], 5, [4, 5]))
    average.update(np.array([2]), rewards([0.5], 6, [3]))
    assert average.forecast(np.array([0]), 6).mean_B[0] == 0.5
    average.update(np.array([2]), rewards([0.25], 6, [4]))
    assert average.forecast(np.array([0]), 6).mean_B[0] == pytest.approx(1.25 / 3)


@pytest.mark.parametrize("predictor", [MovingAverage(), Ridge()])
def test_one_half_before_the_first_outcome(predictor):
    predictor.add(prompts(2, np.ones((2, 1))))
    np.testing.assert_array_equal(predictor.forecast(np.arange(2), 0).mean_B, 0.5)


def test_ridge_minimises_its_objective():
    rng = np.random.default_rng(0)
    feature_BD, rate_B = rng.normal(size=(20, 3)), rng.uniform(0.3, 0.7, 20)
    ridge = Ridge(alpha=2.0, window=15)
    ridge.add(prompts(20, feature_BD))
    ridge.update(np.arange(20), rewards(rate_B))
    x, y = feature_BD[5:], rate_B[5:]
    center, spread = x.mean(axis=0), x.std(axis=0)
    x = (x - center) / spread

    def loss(w):
        return ((y - w[0] - x @ w[1:]) ** 2).sum() + 2.0 * (w[1:] ** 2).sum()

    weight = minimize(loss, np.zeros(4), tol=1e-12).x
    expected = weight[0] + (feature_BD - center) / spread @ weight[1:]
    np.testing.assert_allclose(ridge.forecast(np.arange(20), 0).mean_B, expected, atol=1e-5)


@given(rates)
def test_ridge_stays_in_range_with_duplicates_and_constant_columns(rate_TB):
    ridge = Ridge(alpha=0.01, window=5)
    ridge.add(prompts(4, [[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [9.0, 1.0]]))
    for step, rate_B in enumerate(rate_TB):
        ridge.update(np.arange(len(rate_B)), rewards(rate_B, step))
    mean_B = ridge.forecast(np.arange(4), 0).mean_B
    assert ((mean_B >= 0) & (mean_B <= 1)).all()
    assert mean_B[0] == mean_B[1]


def test_ridge_without_features_is_the_mean_of_its_window():
    ridge = Ridge(window=3)
    ridge.add(prompts(4))
    ridge.update(np.arange(4), rewards([1.0, 0.0, 0.5, 0.1]))
    np.testing.assert_allclose(ridge.forecast(np.arange(4), 0).mean_B, 0.2)


def test_oracle_asks_the_function_by_key_each_time():
    truth = {"a": 0.1, "ü-long": 0.9}
    oracle = Oracle(lambda id_B: [truth[key] for key in id_B])
    oracle.add(Prompts(id_B=["a"]))
    oracle.add(Prompts(id_B=["ü-long"]))
    np.testing.assert_array_equal(oracle.forecast(np.array([1, 0]), 0).mean_B, [0.9, 0.1])
    truth["a"] = 0.4
    other = Oracle(lambda id_B: [truth[key] for key in id_B])
    other.load_state_dict(oracle.state_dict())
    np.testing.assert_array_equal(other.forecast(np.array([0, 1]), 1).mean_B, [0.4, 0.9])


def test_oracle_refuses_what_is_not_a_probability():
    oracle = Oracle(lambda id_B: np.full(len(id_B), 1.5))
    oracle.add(prompts(2))
    with pytest.raises(InvalidInputError, match="success_of"):
        oracle.forecast(np.arange(2), 0)


@pytest.mark.parametrize("kind", [MovingAverage, Ridge])
def test_a_restored_state_goes_on_bit_for_bit(kind):
    one, other = kind(window=3), kind(window=3)
    one.add(prompts(5, np.random.default_rng(0).normal(size=(5, 2))))
    one.update(np.arange(4), rewards([0.0, 0.5, 1.0, 0.3], 2))
    state = one.state_dict()
    one.forecast(np.arange(5), 3)
    other.load_state_dict(state)
    for predictor in (one, other):
        predictor.update(np.array([4]), rewards([0.7], 3))
    for name, array in one.state_dict().items():
        assert array.dtype in (np.float64, np.int64)
        np.testing.assert_array_equal(array, other.state_dict()[name])
    np.testing.assert_array_equal(
        one.forecast(np.arange(5), 4).mean_B, other.forecast(np.arange(5), 4).mean_B
    )
    with pytest.raises(StateError, match="lacks"):
        kind().load_state_dict({})


def test_a_damaged_state_is_refused():
    average, ridge = MovingAverage(window=3), Ridge(window=3)
    for predictor in (average, ridge):
        predictor.add(prompts(5, np.ones((5, 2))))
        predictor.update(np.arange(4), rewards([0.0, 0.5, 1.0, 0.3], 2))
    for predictor, damage in (
        (average, {"rate_sum_W": np.array([np.nan])}),
        (average, {"num_groups_W": np.array([-1.0])}),
        (ridge, {"feature_QD": np.ones((2, 2))}),
        (ridge, {"row_W": np.array([0, 1, -1])}),
        (ridge, {"rate_W": np.array([0.0, 0.5, 1.5])}),
        (ridge, {"feature_QD": np.array([[np.nan, 1.0]] * 5)}),
        (Oracle(lambda id_B: np.ones(len(id_B))), {"code_QC": np.array([[-1]])}),
        (Oracle(lambda id_B: np.ones(len(id_B))), {"code_QC": np.array([[2**31]])}),
    ):
        before = predictor.state_dict()
        with pytest.raises(StateError, match="The saved"):
            predictor.load_state_dict(before | damage)
        for name, array in predictor.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
