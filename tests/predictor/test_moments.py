"""Moments of tilted Gaussians: scipy's adaptive quadrature is the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit, log_expit

from apportion.predictor.moments import QUICK, logistic_moments, sigmoid, tilted_moments


def log_density(f, mean, var, success, count):
    likelihood = success * log_expit(f) + (count - success) * log_expit(-f)
    return likelihood - (f - mean) ** 2 / (2 * var) - 0.5 * np.log(2 * np.pi * var)


def exact_moments(mean, var, success, count):
    """Mean, variance and log integral, by adaptive quadrature between where the density is gone."""
    problem = (mean, var, success, count)

    def slope(f):
        return (f - mean) / var + count * expit(f) - success

    top = brentq(slope, mean - var * count - 1, mean + var * count + 1, xtol=1e-13)
    width = 1 / np.sqrt(1 / var + count * expit(top) * expit(-top))
    height = log_density(top, *problem)

    def edge(sign):
        reach = width
        while log_density(top + sign * reach, *problem) > height - 45.0:
            reach *= 1.3
        return top + sign * reach

    piece = np.linspace(edge(-1), edge(1), 17)

    def moment(power):
        return sum(
            quad(
                lambda f: ((f - top) / width) ** power * np.exp(log_density(f, *problem) - height),
                *piece[i : i + 2],
                epsabs=1e-13 * width,
            )[0]
            for i in range(16)
        )

    zeroth, first, second = moment(0), moment(1), moment(2)
    shift = first / zeroth
    return (
        top + width * shift,
        width**2 * (second / zeroth - shift**2),
        height + np.log(zeroth),
    )


def tilted(mean, var, success, count, *quadrature):
    found = tilted_moments(*np.array([[mean], [var], [success], [count]], dtype=float), *quadrature)
    return tuple(array[0] for array in found)


GROUPS = [
    (0, 0),
    (0, 1),
    (1, 1),
    (0, 8),
    (3, 8),
    (8, 8),
    (0, 64),
    (1, 64),
    (64, 64),
    (0.3, 0.7),
    (0, 1e-3),
    (2.5, 16.2),
]


@pytest.mark.parametrize(
    ("var", "tolerance"),
    [(1e-4, 1e-8), (0.3, 1e-8), (2.0, 1e-6), (4.0, 2e-5), (12.0, 1e-3), (50.0, 0.015)],
)
@pytest.mark.parametrize(("success", "count"), GROUPS)
@pytest.mark.parametrize("mean", [-6.0, 0.0, 1.5])
def test_mean_variance_and_evidence_against_quadrature(mean, var, tolerance, success, count):
    mean_found, var_found, evidence_found = tilted(mean, var, success, count)
    mean_true, var_true, evidence_true = exact_moments(mean, var, success, count)
    assert mean_found == pytest.approx(mean_true, abs=tolerance * np.sqrt(var_true))
    assert var_found == pytest.approx(var_true, rel=tolerance)
    assert evidence_found == pytest.approx(evidence_true, abs=tolerance)


@pytest.mark.parametrize(
    ("mean", "var", "success", "count"),
    [
        (-4.5, 0.1, 256, 256),
        (8.0, 0.3, 0, 1024),
        (7.0, 0.1, 0, 4096),
        (1.5, 0.3, 0, 1e6),
        (5.0, 0.01, 0, 1e6),
        (3.0, 1e-4, 0, 1e6),
        (-3.0, 1e-4, 1e6, 1e6),
        (0.0, 10.0, 5e5, 1e6),
        (14.5, 0.3, 0, 64),
        (-15.0, 0.3, 64, 64),
        (290.0, 20.0, 0, 8),
    ],
)
def test_large_groups_far_from_what_was_expected(mean, var, success, count):
    mean_true, var_true, evidence_true = exact_moments(mean, var, success, count)
    for quadrature in ((), (QUICK,)):
        mean_found, var_found, evidence_found = tilted(mean, var, success, count, *quadrature)
        assert mean_found == pytest.approx(mean_true, abs=0.01 * np.sqrt(var_true))
        assert var_found == pytest.approx(var_true, rel=0.02)
        assert evidence_found == pytest.approx(evidence_true, rel=1e-6, abs=0.01)


@pytest.mark.parametrize(
    ("var", "share"), [(2.0, 5e-5), (12.0, 0.005), (25.0, 0.015), (50.0, 0.035)]
)
def test_few_nodes_come_near_to_many(var, share):
    mean_B = np.linspace(-8.0, 8.0, 33)
    for count in (1.0, 8.0, 64.0):
        for success in np.arange(count + 1.0):
            group = (np.full(33, success), np.full(33, count))
            fine = tilted_moments(mean_B, np.full(33, var), *group)
            quick = tilted_moments(mean_B, np.full(33, var), *group, QUICK)
            assert (np.abs(quick.mean_B - fine.mean_B) < share * np.sqrt(fine.var_B)).all()
            np.testing.assert_allclose(quick.var_B, fine.var_B, rtol=2 * share)
            np.testing.assert_allclose(quick.log_evidence_B, fine.log_evidence_B, atol=share)


def test_no_trials_leave_the_prior():
    assert tilted(1.5, 3.0, 0.0, 0.0) == pytest.approx((1.5, 3.0, 0.0), abs=1e-12)


@given(st.floats(-6, 6), st.floats(0.01, 12), st.integers(1, 16))
def test_the_evidence_of_all_possible_orders_sums_to_one(mean, var, count):
    success = np.arange(count + 1.0)
    size = len(success)
    evidence = tilted_moments(
        np.full(size, mean), np.full(size, var), success, np.full(size, float(count))
    ).log_evidence_B
    orders = np.array([np.prod((count - np.arange(k)) / (1.0 + np.arange(k))) for k in range(size)])
    assert orders @ np.exp(evidence) == pytest.approx(1.0, abs=2e-4)


@given(st.floats(-30, 30), st.floats(1e-8, 1e4), st.floats(0, 64), st.floats(0, 64))
def test_it_stays_finite_and_never_widens(mean, var, success, failure):
    first, second, evidence = tilted(mean, var, success, success + failure)
    assert np.isfinite(first)
    assert 0.0 < second <= var
    assert np.isfinite(evidence)


@given(st.floats(-8, 8), st.floats(1e-4, 30), st.floats(0, 64), st.floats(0, 64))
def test_success_and_failure_mirror_one_another(mean, var, success, failure):
    count = success + failure
    there, back = tilted(mean, var, success, count), tilted(-mean, var, count - success, count)
    np.testing.assert_allclose(there[0], -back[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(there[1:], back[1:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("mean", "var"), [(0.0, 0.1), (-3.0, 2.0), (5.0, 6.0)])
def test_moments_of_the_logistic_against_quadrature(mean, var):
    def expect(power):
        return quad(
            lambda z: expit(mean + np.sqrt(var) * z) ** power * np.exp(-z * z / 2), -12, 12
        )[0] / np.sqrt(2 * np.pi)

    first, second = logistic_moments(np.array([mean]), np.array([var]))
    assert first[0] == pytest.approx(expect(1), abs=1e-6)
    assert second[0] == pytest.approx(expect(2) - expect(1) ** 2, abs=1e-5)


def test_the_logistic_of_a_point_and_of_no_prompt():
    first, second = logistic_moments(np.array([-800.0, 0.0, 800.0]), np.zeros(3))
    np.testing.assert_allclose(first, sigmoid(np.array([-800.0, 0.0, 800.0])))
    np.testing.assert_array_equal(second, np.zeros(3))
    assert [len(array) for array in tilted_moments(*np.zeros((4, 0)))] == [0, 0, 0]
