import numpy as np
import pytest
from audit_helpers import distribution_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from apportion.audit.neyman import largest_cut, least_variance
from apportion.relaxation import relax_rloo
from apportion.success_distribution import fit_success


def neyman(p):
    v = p * (1.0 - p)
    return 1.0 - np.sqrt(v).mean() ** 2 / v.mean()


@pytest.mark.parametrize(("lower", "upper"), [(2, np.inf), (2, 12), (3, 40), (4, 9)])
def test_least_variance_agrees_with_the_relaxed_allocation(lower, upper):
    weight_J = np.array([3, 1, 2, 0, 4, 1, 2])
    found = distribution_of(weight_J)
    v = np.repeat(found.success_J * (1.0 - found.success_J), weight_J)
    num = relax_rloo(v, 8 * len(v), lower=lower, upper=None if upper == np.inf else upper)
    expected = float((v / (num.num_rollouts_B - 1.0)).mean())
    assert least_variance(found, 8, lower=lower, upper=upper) == pytest.approx(expected, rel=1e-9)


def test_least_variance_agrees_with_scipy():
    found = distribution_of([0, 2, 1, 3, 1, 1, 0])
    v_J, w_J = found.success_J * (1.0 - found.success_J), found.weight_J
    best = minimize(
        lambda x: w_J @ (v_J / x),
        np.full(7, 7.0),
        bounds=[(1.0, 15.0)] * 7,
        constraints={"type": "eq", "fun": lambda x: w_J @ x - 7.0},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert least_variance(found, 8, upper=16) == pytest.approx(best.fun, rel=1e-6)


def test_without_bounds_it_is_the_closed_form():
    found = distribution_of([1, 2, 3, 4, 5])
    v_J, w_J = found.success_J * (1.0 - found.success_J), found.weight_J
    expected = (w_J @ np.sqrt(v_J)) ** 2 / 7.0
    assert least_variance(found, 8, lower=1.0) == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(st.integers(0, 9), min_size=5, max_size=9).filter(lambda w: sum(w[1:-1]) > 0),
    st.integers(3, 20),
    st.integers(1, 5),
)
def test_a_cut_is_a_share_and_falls_with_tighter_bounds(weights, mean, times):
    found = distribution_of(weights)
    v_J = found.success_J * (1.0 - found.success_J)
    even = float(found.weight_J @ v_J) / (mean - 1.0)
    free = least_variance(found, mean)
    tight = least_variance(found, mean, lower=min(3, mean), upper=times * mean)
    assert 0.0 <= free <= even * (1.0 + 1e-9)
    assert free <= tight * (1.0 + 1e-9)
    assert tight <= even * (1.0 + 1e-9)


@pytest.mark.parametrize("shape", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n", [8, 16])
def test_raw_rates_promise_too_much_and_the_fit_does_not(shape, n):
    rng = np.random.default_rng(7)
    success_G = rng.beta(shape, shape, 6_000)
    k = rng.binomial(n, success_G)
    truth, raw = neyman(success_G), neyman(k / n)
    found = largest_cut(fit_success(k, [n] * 6_000, range(6_000), num_draws=40), n, lower=1.0)
    assert raw > 1.4 * truth
    assert abs(found.value - truth) < 0.25 * abs(raw - truth)
    assert found.low <= truth <= found.high
    assert found.high < raw


def test_nothing_to_cut():
    for k in ([0, 0, 0], [8, 8, 0]):
        found = fit_success(k, [8] * 3, range(3), num_draws=0)
        assert largest_cut(found, 8).value == pytest.approx(0.0, abs=0.5)
    even = fit_success([4] * 50, [8] * 50, range(50), num_draws=5)
    assert largest_cut(even, 8).value == pytest.approx(0.0, abs=0.01)
    assert largest_cut(even, 2).value == 0.0
