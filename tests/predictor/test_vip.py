"""VIP: the recursion against a plain computation with the whole kernel matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictor_helpers import rewards
from scipy.spatial.distance import pdist, squareform
from scipy.special import expit, logit

from apportion.errors import InvalidInputError, StateError
from apportion.predictor import VIP, Beta, GaussianProcess, Ridge
from apportion.predictor import vip as module
from apportion.predictor.features import median_distance, squared_distance
from apportion.types import Prompts


def vip_of(feature_BD, **arguments):
    vip = VIP(**arguments)
    vip.add(Prompts(id_B=np.arange(len(feature_BD)).astype(np.str_), feature_BD=feature_BD))
    return vip


@pytest.mark.parametrize("eps", [1e-6, 0.05])
def test_the_recursion_against_the_whole_kernel(eps, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 7)
    rng = np.random.default_rng(0)
    feature_BD = rng.normal(size=(30, 4))
    vip = vip_of(feature_BD, eps=eps)
    distance = pdist(feature_BD)
    kernel = np.exp(-(squareform(distance) ** 2) / (2 * np.median(distance) ** 2))
    mean = np.zeros(30)
    for step in range(6):
        batch = rng.choice(30, 5, replace=False)
        rest = np.setdiff1d(np.arange(30), batch)
        rate = rng.choice([0.0, 0.25, 0.5, 1.0], 5)
        observed = logit(np.clip(rate, eps, 1 - eps))
        within = kernel[np.ix_(batch, batch)] + 1e-4 * np.eye(5)
        mean[rest] += kernel[np.ix_(rest, batch)] @ np.linalg.solve(within, observed - mean[batch])
        mean[batch] = observed
        vip.update(batch, rewards(rate, step=step))
        forecast = vip.forecast(np.arange(30), step)
        np.testing.assert_allclose(vip.state_dict()["mean_Q"], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(forecast.mean_B, expit(mean), atol=1e-9)
        np.testing.assert_array_equal(forecast.var_B, 0.0)


def test_starts_at_one_half_and_takes_a_reward_as_exact_whatever_the_count():
    few, many = (vip_of([[0.0], [1.0]]) for _ in range(2))
    np.testing.assert_array_equal(few.forecast(np.arange(2), 0).mean_B, 0.5)
    few.update(np.array([0]), rewards([0.0], count=1))
    many.update(np.array([0]), rewards([0.0], count=64))
    for vip in (few, many):
        assert vip.forecast(np.array([0]), 0).mean_B[0] == pytest.approx(1e-6)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6), st.integers(1, 60))
def test_duplicates_neither_crash_nor_leave_the_range(rate_B, num_steps):
    vip = vip_of(np.repeat([[0.0], [1e-9], [1.0]], 2, axis=0))
    for step in range(num_steps):
        turn = np.roll(rate_B, step)
        vip.update(
            np.arange(6) if step % 2 else np.array([0, 1, 2]), rewards(turn[: 6 if step % 2 else 3])
        )
    mean_B = vip.forecast(np.arange(6), num_steps).mean_B
    assert ((mean_B >= 0) & (mean_B <= 1)).all()


def test_a_table_of_one_point_and_later_rows():
    vip = vip_of(np.ones((3, 2)))
    vip.update(np.array([0]), rewards([1.0]))
    vip.add(Prompts(id_B=["d"], feature_BD=np.ones((1, 2))))
    assert vip.forecast(np.array([3]), 0).mean_B[0] == 0.5
    vip.update(np.array([1]), rewards([0.25]))
    assert vip.forecast(np.array([3]), 0).mean_B[0] < 0.5


@given(st.permutations(range(5)))
@settings(max_examples=20)
def test_the_order_of_prompts_in_a_batch_does_not_matter(order):
    feature_BD = np.random.default_rng(3).normal(size=(8, 3))
    rate_B = np.array([0.0, 0.2, 0.5, 1.0, 0.7])
    straight, shuffled = vip_of(feature_BD), vip_of(feature_BD)
    straight.update(np.arange(5), rewards(rate_B))
    shuffled.update(np.array(order), rewards(rate_B[list(order)]))
    np.testing.assert_allclose(
        straight.state_dict()["mean_Q"], shuffled.state_dict()["mean_Q"], atol=1e-8
    )


def test_forecast_keeps_state_and_a_restored_state_goes_on_bit_for_bit():
    rng = np.random.default_rng(1)
    vip = vip_of(rng.normal(size=(9, 3)))
    vip.update(np.array([4, 1]), rewards([0.5, 1.0]))
    before = vip.state_dict()
    vip.forecast(np.arange(9), 2)
    other = VIP()
    other.load_state_dict(before)
    for one in (vip, other):
        one.update(np.array([1, 7]), rewards([0.25, 0.0]))
    for name, array in vip.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])
    with pytest.raises(StateError, match="holds"):
        VIP().load_state_dict(Beta().state_dict())


def test_needs_features():
    with pytest.raises(InvalidInputError, match="feature_BD is None"):
        VIP().add(Prompts(id_B=["a"]))


@pytest.mark.parametrize("base", [0.0, 1e8, -1e8])
def test_features_far_from_zero_are_told_apart(base):
    rng = np.random.default_rng(2)
    feature_QD = rng.normal(size=(40, 5))
    near, far = vip_of(feature_QD), vip_of(base + feature_QD)
    for vip in (near, far):
        vip.update(np.arange(12), rewards(np.arange(12) / 12))
    np.testing.assert_allclose(
        far.forecast(np.arange(40), 1).mean_B, near.forecast(np.arange(40), 1).mean_B, atol=1e-4
    )
    squared = squared_distance(base + feature_QD, base + feature_QD)
    np.testing.assert_allclose(squared, squareform(pdist(feature_QD)) ** 2, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-160, 1e-101, 1e-50, 1e50, 9e99])
@pytest.mark.parametrize("kind", [VIP, GaussianProcess, Ridge])
def test_features_of_any_legal_scale_work(kind, scale):
    feature_QD = scale * np.clip(np.random.default_rng(4).normal(size=(20, 3)) / 4, -1, 1)
    predictor = kind()
    predictor.add(Prompts(id_B=np.arange(20).astype(np.str_), feature_BD=feature_QD))
    for step in range(3):
        predictor.update(np.arange(8), rewards(np.arange(8) / 8, step=step))
    assert np.isfinite(predictor.forecast(np.arange(20), 3).mean_B).all()


def test_one_prompt_far_from_all_others_does_no_harm():
    feature_QD = np.vstack([np.random.default_rng(5).normal(size=(30, 3)), np.full((1, 3), 9e99)])
    vip = vip_of(feature_QD)
    vip.update(np.array([0, 1, 2, 30]), rewards([0.1, 0.5, 0.9, 1.0]))
    assert np.isfinite(vip.forecast(np.arange(31), 1).mean_B).all()


def test_a_kernel_that_rounding_spoils_gets_more_jitter():
    kernel = np.full((3, 3), 1.0)
    kernel[0, 1] = kernel[1, 0] = 0.9  # not positive definite with the first jitter
    half = module._half(kernel.copy())
    again = half @ half.T
    assert 1e-4 < again[0, 0] - 1.0 < 1.0
    np.testing.assert_allclose(again - np.diag(np.diag(again)), kernel - np.eye(3), atol=1e-12)


@pytest.mark.parametrize("size", [2, 7, 1000])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8 + 0.1])
def test_equal_rows_have_no_scale(size, value):
    assert median_distance(np.full((size, 11), value)) == 1.0
    rows = np.full((size, 11), value)
    rows[0] += 1.0
    assert median_distance(rows) > 1e-3


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("bandwidth", np.array([np.nan])),
        ("bandwidth", np.array([-1.0])),
        ("bandwidth", np.array([1e-300])),
        ("mean_Q", np.full(9, np.inf)),
        ("feature_QD", np.full((9, 3), np.nan)),
        ("feature_QD", np.ones((8, 3))),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(name, array):
    vip = vip_of(np.random.default_rng(1).normal(size=(9, 3)))
    vip.update(np.array([4, 1]), rewards([0.5, 1.0]))
    before = vip.state_dict()
    with pytest.raises(StateError):
        vip.load_state_dict(before | {name: array})
    for key, value in vip.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
