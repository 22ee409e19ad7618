import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import binom

from apportion.errors import InvalidInputError
from apportion.success_distribution import (
    binomial,
    fit_success,
    fit_weights,
    grid,
)


def log_likelihood(chance_KJ, count_K, weight_J):
    return float(count_K @ np.log(chance_KJ @ weight_J))


def constant_share(p, n, weight=None):
    return float(np.average(p**n + (1.0 - p) ** n, weights=weight))


def fitted_share(found, n):
    return constant_share(found.success_J, n, found.weight_J)


def test_grid_is_symmetric_and_holds_both_ends():
    point_J = grid(101)
    assert (point_J[0], point_J[-1]) == (0.0, 1.0)
    assert (np.diff(point_J) > 0).all()
    assert np.allclose(point_J + point_J[::-1], 1.0, atol=1e-15)


def test_binomial_agrees_with_scipy():
    k_K, n_K = np.array([0, 3, 8, 1, 0]), np.array([8, 8, 8, 1, 64])
    point_J = grid(11)
    expected = binom.pmf(k_K[:, None], n_K[:, None], point_J)
    assert np.allclose(binomial(k_K, n_K, point_J), expected, atol=1e-14)


@given(st.lists(st.integers(0, 30), min_size=5, max_size=5).filter(lambda c: sum(c) > 0))
def test_likelihood_never_falls_with_more_steps(counts):
    count_K = np.array(counts, dtype=float)
    chance_KJ = binomial(np.arange(5), np.full(5, 4), grid(21))
    reached = [
        log_likelihood(
            chance_KJ, count_K, fit_weights(chance_KJ, count_K[None], num_steps=steps)[0]
        )
        for steps in (0, 1, 2, 3, 5, 10, 50)
    ]
    assert (np.diff(reached) >= -1e-9 * (1.0 + abs(reached[0]))).all()


@pytest.mark.parametrize("seed", range(4))
def test_fit_is_as_likely_as_what_scipy_finds(seed):
    count_K = np.random.default_rng(seed).integers(1, 60, 5).astype(float)
    point_J = grid(9)
    chance_KJ = binomial(np.arange(5), np.full(5, 4), point_J)

    def loss(x_J):
        weight_J = np.exp(x_J - x_J.max())
        return -log_likelihood(chance_KJ, count_K, weight_J / weight_J.sum())

    best = minimize(loss, np.zeros(9), method="BFGS", options={"gtol": 1e-8, "maxiter": 5000})
    ours = log_likelihood(chance_KJ, count_K, fit_weights(chance_KJ, count_K[None])[0])
    assert ours >= -best.fun - 1e-3
    # No distribution does better than the duality gap allows.
    weight_J = fit_weights(chance_KJ, count_K[None], num_steps=20_000)[0]
    slope_J = (count_K / count_K.sum() / (chance_KJ @ weight_J)) @ chance_KJ
    assert slope_J.max() <= 1.0 + 1e-5


def test_fits_side_by_side_are_those_done_alone():
    rng = np.random.default_rng(0)
    count_DK = rng.integers(0, 40, (6, 9)).astype(float)
    chance_KJ = binomial(np.arange(9), np.full(9, 8), grid(51))
    together = fit_weights(chance_KJ, count_DK, num_steps=25)
    alone = np.stack([fit_weights(chance_KJ, row[None], num_steps=25)[0] for row in count_DK])
    assert np.allclose(together, alone, atol=1e-12)


def test_a_row_of_zeros_stays_uniform():
    chance_KJ = binomial(np.arange(3), np.full(3, 2), grid(5))
    weight_DJ = fit_weights(chance_KJ, np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 1.0]]))
    assert np.allclose(weight_DJ[0], 0.2)
    assert weight_DJ[1].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "weights"),
    [([0.0, 0.5, 1.0], [0.4, 0.4, 0.2]), ([0.1, 0.8], [0.7, 0.3]), ([0.3], [1.0])],
)
def test_known_mixtures_are_recovered(values, weights):
    rng = np.random.default_rng(1)
    success_G = rng.choice(values, 40_000, p=weights)
    found = fit_success(rng.binomial(16, success_G), [16] * 40_000, range(40_000), num_draws=20)
    mean = float(found.weight_J @ found.success_J)
    spread = float(found.weight_J @ (found.success_J - mean) ** 2)
    assert mean == pytest.approx(success_G.mean(), abs=0.005)
    assert spread == pytest.approx(success_G.var(), abs=0.005)
    for value, weight in zip(values, weights, strict=True):
        near = np.abs(found.success_J - value) < 0.12
        assert found.weight_J[near].sum() == pytest.approx(weight, abs=0.06)
    for n in (2, 4, 8, 16):
        assert fitted_share(found, n) == pytest.approx(constant_share(success_G, n), abs=0.01)


def test_own_size_agrees_with_what_was_observed():
    rng = np.random.default_rng(2)
    k = rng.binomial(8, rng.beta(0.5, 0.5, 5_000))
    found = fit_success(k, [8] * 5_000, range(5_000), num_draws=0)
    assert found.all_wrong == pytest.approx((k == 0).mean(), abs=0.003)
    assert found.all_right == pytest.approx((k == 8).mean(), abs=0.003)
    assert found.num_moments == 8


def test_sizes_given_by_difficulty_do_not_mislead():
    rng = np.random.default_rng(3)
    success_G = rng.beta(0.5, 0.5, 30_000)
    num_G = np.where(np.abs(success_G - 0.5) < 0.3, 16, 4)
    k = rng.binomial(num_G, success_G)
    found = fit_success(k, num_G, range(30_000), num_draws=0)
    assert found.all_wrong == pytest.approx((k == 0).mean(), abs=0.005)
    assert found.all_right == pytest.approx((k == num_G).mean(), abs=0.005)
    assert fitted_share(found, 4) == pytest.approx(constant_share(success_G, 4), abs=0.01)


def test_what_counts_cannot_tell_is_in_the_range():
    # Groups of two tell E[p] = 1/2 and E[p^2] = 1/3 and no more. Two points at distance sqrt(1/12)
    # have these moments, and so have a sixth each at 0 and 1 with the rest at one half.
    found = fit_success([0, 1, 2] * 500, [2] * 1500, range(1500), num_draws=0)
    assert found.num_moments == 2
    low, high = found.range_of(found.success_J**8 + (1.0 - found.success_J) ** 8)
    assert low <= (0.5 + 12**-0.5) ** 8 + (0.5 - 12**-0.5) ** 8 + 1e-3
    assert high >= 1 / 3 + 2 / 3 * 2 * 0.5**8 - 1e-3
    assert fitted_share(found, 2) == pytest.approx(2 / 3, abs=1e-3)
    known = found.range_of(found.success_J**2)
    assert known == pytest.approx((1 / 3, 1 / 3), abs=1e-3)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=30))
def test_weights_are_shares_and_order_does_not_matter(groups):
    k, prompt = [group[0] for group in groups], [group[1] for group in groups]
    found = fit_success(k, [4] * len(k), prompt, num_draws=3)
    assert (found.weight_J >= 0.0).all()
    assert found.weight_J.sum() == pytest.approx(1.0)
    assert np.allclose(found.weight_DJ.sum(axis=1), 1.0)
    turned = fit_success(k[::-1], [4] * len(k), prompt[::-1], num_draws=3)
    assert np.allclose(found.weight_J, turned.weight_J, atol=1e-9)
    shares = [fitted_share(found, n) for n in (2, 4, 8)]
    assert 1.0 + 1e-9 >= shares[0] >= shares[1] >= shares[2] >= 0.0
    mirrored = fit_success([4 - one for one in k], [4] * len(k), prompt, num_draws=3)
    assert mirrored.all_wrong == pytest.approx(found.all_right, abs=1e-4)


@pytest.mark.parametrize(
    ("k", "n", "message"),
    [([], [], "no groups"), ([3], [2], "above 2"), ([1.5], [2], "whole"), ([0], [0], "at least 1")],
)
def test_mistakes_are_named(k, n, message):
    with pytest.raises(InvalidInputError, match=message):
        fit_success(k, n, range(len(k)))


def test_a_million_groups_are_counted_not_stored():
    rng = np.random.default_rng(4)
    k = rng.binomial(8, rng.beta(0.5, 0.5, 1_000_000))
    found = fit_success(k, np.full(1_000_000, 8), np.arange(1_000_000) // 20, num_draws=10)
    assert fitted_share(found, 8) == pytest.approx(((k == 0) | (k == 8)).mean(), abs=1e-3)


def test_large_groups_do_not_underflow():
    found = fit_success([0, 3000, 5000], [5000] * 3, range(3), num_draws=0)
    assert found.weight_J.sum() == pytest.approx(1.0)
    assert float(found.weight_J @ found.success_J) == pytest.approx(8000 / 15000, abs=0.01)


def test_groups_of_one_prompt_count_for_less():
    rng = np.random.default_rng(5)
    success_Q = rng.choice([0.0, 0.5], 200)
    k_QV = rng.binomial(4, np.repeat(success_Q[:, None], 5, axis=1))
    prompt_G = np.repeat(np.arange(200), 5)

    def independent(k_G, prompt_G):
        return fit_success(k_G, [4] * len(k_G), prompt_G, num_draws=0).num_independent

    assert independent(k_QV.ravel(), np.arange(1000)) == pytest.approx(1000, rel=1e-9)
    alike = independent(np.repeat(k_QV[:, 0], 5), prompt_G)
    assert alike == pytest.approx(200, rel=1e-9)
    share_Q = np.isin(k_QV, (0, 4)).mean(axis=1)
    share = share_Q.mean()
    expected = share * (1.0 - share) / (share_Q.var() / 200)
    assert 200 < expected < 1000
    assert independent(k_QV.ravel(), prompt_G) == pytest.approx(expected, rel=1e-9)
    assert independent([0, 0, 0, 0], [0, 0, 1, 1]) == 2
    assert independent([0, 2, 0, 0], [0, 0, 0, 0]) == 1
