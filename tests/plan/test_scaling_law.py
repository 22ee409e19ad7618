"""Laws against SciPy's fits, against the paper's printed parameters, and under hypothesis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from apportion.errors import InvalidInputError
from apportion.plan import published
from apportion.plan.law_search import LAWS
from apportion.plan.scaling_law import fit_law, held_out_error, sigmoid_law


def points(difficulty):
    found = published.FRONTIER_POINTS[difficulty]
    compute = [c * 1e6 for group in found.values() for c in group]
    return np.array(compute), np.repeat(list(found), [len(g) for g in found.values()])


def sigmoid(log10_compute, rise, k, middle, b):
    return rise / (1 + np.exp(-k * (log10_compute - middle))) + b


def test_the_easy_law_is_the_printed_one():
    """Within two standard errors of every printed parameter, and the same fit as SciPy's."""
    compute_K, n_K = points("easy")
    law = fit_law(compute_K, n_K)
    printed = published.LAWS["easy"]
    for parameter in law.parameters:
        assert parameter.is_identified
        assert abs(parameter.value - printed[parameter.name].value) < 2 * parameter.error
    expected, covariance = curve_fit(
        sigmoid, np.log10(compute_K), np.log2(n_K), p0=(6, 5, 5.8, 2.7)
    )
    np.testing.assert_allclose([p.value for p in law.parameters], expected, rtol=1e-3)
    np.testing.assert_allclose(
        [p.error for p in law.parameters], np.sqrt(np.diag(covariance)), rtol=1e-2
    )
    np.testing.assert_allclose(expected, [6.22, 4.45, 5.90, 2.73], atol=0.006)


def test_the_hard_slope_is_not_identified():
    law = fit_law(*points("hard"))
    assert not law["k"].is_identified
    assert "k" in law.advice


def test_a_step_is_known_to_be_steep_but_not_how_steep():
    """The paper's k = 50 on its hard set is where its search ended."""
    compute_K = np.geomspace(1e5, 1e7, 30)
    law = fit_law(compute_K, np.where(compute_K < 1.35e6, 8, 128))
    assert not law["k"].is_identified
    assert law["k"].high == pytest.approx(100)
    assert law["k"].low > 10
    assert law["L"].is_identified
    assert law["L"].value == pytest.approx(4, abs=0.05)


@given(
    st.floats(2.0, 8.0),
    st.floats(2.0, 10.0),
    st.floats(5.5, 6.5),
    st.floats(1.0, 4.0),
    st.integers(0, 1000),
)
@settings(max_examples=10, deadline=None)
def test_a_sigmoid_comes_back(rise, k, middle, b, seed):
    compute_K = np.geomspace(1e4, 1e8, 60)
    truth = sigmoid_law(rise, k, middle, b)
    noise_K = np.random.default_rng(seed).normal(0.0, 0.01, 60)
    law = fit_law(compute_K, truth(compute_K) * np.exp2(noise_K))
    np.testing.assert_allclose(
        [p.value for p in law.parameters], [rise, k, middle, b], rtol=0.05, atol=0.02
    )
    for parameter in law.parameters:
        assert parameter.low <= parameter.value <= parameter.high
        assert parameter.is_identified


def test_intervals_cover():
    """Each profile interval of 90% holds the truth in about 27 of 30 repetitions."""
    rng = np.random.default_rng(0)
    compute_K = np.geomspace(1e5, 1e7, 25)
    truth = sigmoid_law(5.0, 4.0, 6.0, 3.0)
    hits = np.zeros(4)
    for _ in range(30):
        law = fit_law(compute_K, truth(compute_K) * np.exp2(rng.normal(0, 0.3, 25)))
        for i, (parameter, right) in enumerate(zip(law.parameters, truth.parameters, strict=True)):
            hits[i] += parameter.low <= right.value <= parameter.high
    assert np.all(hits >= 22)


def test_the_power_law_is_a_line():
    compute_K = np.array([1e5, 3e5, 1e6, 2e6, 7e6])
    n_K = np.array([8.0, 16.0, 64.0, 64.0, 512.0])
    slope, base = np.polyfit(np.log10(compute_K), np.log2(n_K), 1)
    law = fit_law(compute_K, n_K, "power")
    assert law["s"].value == pytest.approx(slope)
    assert law["log10_C0"].value == pytest.approx(-base / slope)
    np.testing.assert_allclose(np.log2(law(compute_K)), slope * np.log10(compute_K) + base)


@given(st.floats(2e3, 2e4), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_one_useful_pass_comes_back(volume, seed):
    """n* doubles with C from 8 to 256; V is the compute over n*."""
    compute_K = np.geomspace(volume, volume * 3000, 40)
    n_K = np.clip(compute_K / volume, 8, 256)
    noise_K = np.random.default_rng(seed).normal(0, 0.05, 40)
    law = fit_law(compute_K, n_K * np.exp2(noise_K), "one_pass")
    assert law["log2_V"].value == pytest.approx(np.log2(volume), abs=0.1)
    assert law["log2_n_high"].value == pytest.approx(8, abs=0.1)
    assert law["log2_n_low"].value == pytest.approx(3, abs=0.1)


def test_a_ceiling_that_was_not_met_is_not_believed():
    compute_K = np.geomspace(1e5, 1e6, 12)
    law = fit_law(compute_K, compute_K / 1e4, "one_pass")
    assert not law["log2_n_high"].is_identified
    assert float(law(3e6)) == pytest.approx(300, rel=0.02)


@pytest.mark.parametrize("form", LAWS)
def test_rivals_are_judged_on_points_they_did_not_see(form):
    compute_K = np.geomspace(1e5, 1e7, 20)
    truths = {
        "constant": np.full(20, 32.0),
        "power": 8 * (compute_K / 1e5) ** 0.5,
        "one_pass": np.maximum(compute_K / 1e5, 16.0),
        "sigmoid": sigmoid_law(5.0, 4.0, 5.6, 3.0)(compute_K),
    }
    errors = {other: held_out_error(compute_K, truths[form], other) for other in LAWS}
    assert errors[form] <= min(errors.values()) + 0.05
    if form != "constant":
        assert errors["constant"] > 1


def test_few_points_are_said():
    law = fit_law([1e5, 1e6], [8, 64])
    assert "2 of the 5 points" in law.advice
    assert not any(p.is_identified for p in law.parameters)
    assert held_out_error([1e5, 1e6], [8, 64], "power") == np.inf


def test_published_ends():
    """2^b and 2^(L + b), the paper's smallest and largest n."""
    for name, low, high in [("easy", 6.6, 452), ("hard", 6.9, 153), ("hard_joint", 8.2, 129)]:
        law = published.LAWS[name]
        assert float(law(1.0)) == pytest.approx(low, rel=0.01)
        assert float(law(1e12)) == pytest.approx(high, rel=0.01)


@pytest.mark.parametrize(
    ("compute", "n", "match"),
    [([], [], "at least one point"), ([0.0], [8], "above 0"), ([1.0], [8, 16], "rollouts_K")],
)
def test_bad_points_are_refused(compute, n, match):
    with pytest.raises(InvalidInputError, match=match):
        fit_law(compute, n)
    with pytest.raises(InvalidInputError, match=match):
        held_out_error(compute, n, "power")
