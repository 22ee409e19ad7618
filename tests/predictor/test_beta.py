"""Beta: fading counts against a sum over all outcomes, and what every belief must satisfy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictor_helpers import outcomes, prompts

from apportion.errors import InvalidInputError, StateError
from apportion.predictor import Beta

ROW = np.array([0])


def beta_of(success, count, **arguments):
    beta = Beta(**arguments)
    beta.add(prompts(1))
    beta.update(ROW, outcomes([success], [count]))
    return beta


groups = st.lists(
    st.tuples(st.integers(1, 64), st.floats(0.0, 1.0), st.integers(0, 40)), min_size=1, max_size=8
)


@given(groups, st.floats(0.5, 1.0), st.integers(40, 60))
def test_counts_fade_with_the_age_of_the_policy_in_any_order_of_arrival(visits, decay, now):
    beta = Beta(prior_mean=0.4, prior_count=2.0, decay=decay)
    beta.add(prompts(1))
    for count, rate, step in visits:
        beta.update(ROW, outcomes([rate * count], [count], step=step))
    weight = np.array([decay ** (now - step) for _, _, step in visits])
    success = sum(w * rate * count for w, (count, rate, _) in zip(weight, visits, strict=True))
    total = sum(w * count for w, (count, _, _) in zip(weight, visits, strict=True))
    a, b = 0.8 + success, 1.2 + total - success
    forecast = beta.forecast(ROW, now)
    assert forecast.mean_B[0] == pytest.approx(a / (a + b), rel=1e-9)
    assert forecast.var_B[0] == pytest.approx(a * b / (a + b) ** 2 / (a + b + 1), rel=1e-9)
    assert forecast.reward_var_B[0] + forecast.var_B[0] == pytest.approx(
        forecast.mean_B[0] * (1 - forecast.mean_B[0])
    )


@given(st.integers(1, 10**6), st.booleans())
def test_never_certain(count, solved):
    mean = beta_of(count * solved, count).forecast(ROW, 0).mean_B[0]
    assert 0.0 < mean < 1.0


@given(st.floats(0.05, 0.95), st.integers(1, 100))
def test_more_evidence_for_the_same_rate_leaves_less_doubt(rate, count):
    few = beta_of(rate * count, count, prior_mean=rate).forecast(ROW, 0)
    many = beta_of(2 * rate * count, 2 * count, prior_mean=rate).forecast(ROW, 0)
    assert many.var_B[0] < few.var_B[0]


def test_no_success_in_4_and_in_64_differ():
    few, many = (beta_of(0, count).forecast(ROW, 0) for count in (4, 64))
    assert many.mean_B[0] < few.mean_B[0]
    assert many.var_B[0] < few.var_B[0]


def test_an_offline_rate_is_a_prior_that_stays():
    beta = Beta(prior_mean=0.5, prior_count=2.0, max_prior_count=8.0)
    beta.add(prompts(3, prior_mean_B=[1.0, 1.0, 0.3], prior_count_B=[4.0, 128.0, 0.0]))
    expected = [5 / 6, 9 / 10, 0.5]
    np.testing.assert_allclose(beta.forecast(np.arange(3), 0).mean_B, expected)
    np.testing.assert_allclose(beta.forecast(np.arange(3), 10_000).mean_B, expected)


def test_evidence_fades_to_the_prior():
    beta = beta_of(8, 8, decay=0.9)
    means = [beta.forecast(ROW, step).mean_B[0] for step in (0, 10, 1000)]
    assert means[0] > means[1] > means[2] == pytest.approx(0.5)


def test_forecast_keeps_state_and_a_restored_state_goes_on_bit_for_bit():
    beta = Beta()
    beta.add(prompts(5, prior_mean_B=[0.1] * 5, prior_count_B=[3.0] * 5))
    beta.update(np.array([3, 1]), outcomes([1.0, 2.5], [4, 8], step=3))
    before = beta.state_dict()
    beta.forecast(np.arange(5), 9)
    other = Beta()
    other.load_state_dict(before)
    for one in (beta, other):
        one.add(prompts(2))
        one.update(np.array([3, 6]), outcomes([0.0, 1.0], [4, 4], step=8))
    for name, array in beta.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])
    np.testing.assert_array_equal(
        beta.forecast(np.arange(7), 9).mean_B, other.forecast(np.arange(7), 9).mean_B
    )


def test_a_state_that_does_not_fit_is_refused():
    state = beta_of(1, 4).state_dict()
    with pytest.raises(StateError, match="lacks"):
        Beta().load_state_dict({})
    with pytest.raises(StateError, match="success_Q"):
        Beta().load_state_dict(state | {"success_Q": np.zeros(3)})


@pytest.mark.parametrize(
    "arguments",
    [{"decay": 0.0}, {"decay": 1.1}, {"prior_mean": 1.0}, {"prior_count": 0.0}],
)
def test_arguments_out_of_range_are_named(arguments):
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        Beta(**arguments)


@pytest.mark.parametrize("name", ["success_Q", "prior_failure_Q", "last_Q"])
@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_a_damaged_state_is_refused(name, value):
    beta = beta_of(1, 4)
    state = beta.state_dict()
    damaged = np.full(len(state[name]), value if name != "last_Q" else -1).astype(state[name].dtype)
    with pytest.raises(StateError, match=name):
        beta.load_state_dict(state | {name: damaged})
    empty = {key: np.zeros(len(state[key])) for key in ("prior_success_Q", "prior_failure_Q")}
    with pytest.raises(StateError, match="both 0"):
        beta.load_state_dict(state | empty)
