"""FilterBank on one prompt against filters on a grid, and its weights against hand computation."""

import numpy as np
import pytest
from predictor_helpers import (
    bank_of,
    outcomes,
)
from scipy.special import expit, log_expit

from apportion.predictor import filter_bank as module
from apportion.predictor.population import BIAS_VAR

ROW = np.array([0])


# One prompt, one rate, no trend: filters on a dense grid of logits.


class Grid:
    """The exact filter: a density on a grid, a random walk by the Fourier transform."""

    def __init__(self, var):
        self.logit = np.linspace(-60.0, 60.0, 8192, endpoint=False)
        self.frequency = 2 * np.pi * np.fft.rfftfreq(8192, self.logit[1] - self.logit[0])
        self.density = np.exp(-(self.logit**2) / (2 * var))

    def walk(self, var):
        spectrum = np.fft.rfft(self.density) * np.exp(-(self.frequency**2) * var / 2)
        self.density = np.maximum(np.fft.irfft(spectrum, 8192), 0.0)

    def learn(self, success, count):
        log_density = success * log_expit(self.logit) + (count - success) * log_expit(-self.logit)
        self.density = self.density * np.exp(log_density - log_density.max())

    def as_gaussian(self):
        """Keep mean and variance alone, as the bank does after every visit."""
        mean, var = self.expect(self.logit)
        self.density = np.exp(-((self.logit - mean) ** 2) / (2 * var))

    def expect(self, value):
        mean = self.density @ value / self.density.sum()
        return mean, self.density @ (value - mean) ** 2 / self.density.sum()


@pytest.fixture
def one_rate(monkeypatch):
    """Return a maker of banks with one rate, a known spread and one prompt without features."""

    def make(rate):
        monkeypatch.setattr(module, "RATE_K", np.array([rate]))
        monkeypatch.setattr(module, "SPREAD_S", np.array([6.0]))
        monkeypatch.setattr(module, "_SEEN_SPREAD", 1.0)
        return bank_of(None, 1)

    return make


def errors_of(bank, grid, rate, group_V, gap, *, gaussian):
    """Error of the mean, and relative error of the variance, after and before each next visit."""
    found, step = [], 0
    for success, count in group_V:
        bank.update(ROW, outcomes([success], [count], step))
        bank._slope.values[:] = 0.0  # no part in the common trend
        grid.learn(success, count)
        if gaussian:
            grid.as_gaussian()
        for now in (step, step + gap):
            forecast, (mean, var) = bank.forecast(ROW, now), grid.expect(expit(grid.logit))
            found.append((forecast.mean_B[0] - mean, forecast.var_B[0] / var - 1.0))
            grid.walk(rate * gap if now == step else 0.0)
        step += gap
    return np.abs(found)


@pytest.mark.parametrize("gap", [1, 10])
@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize(
    "group_V",
    [
        [(4, 8)] * 6,
        [(0, 8)] * 6,
        [(64, 64)] * 6,
        [(0, 4), (1, 4), (4, 4), (2, 4), (0, 4)],
        [(8, 8), (7, 8), (6, 8), (8, 8), (5, 8)],
        [(0, 1), (60, 64), (2.5, 7), (1, 2), (58, 64)],
    ],
)
def test_it_is_the_filter_that_keeps_mean_and_variance(one_rate, rate, gap, group_V):
    bank, grid = one_rate(rate), Grid(BIAS_VAR + 6.0)
    error_VE = errors_of(bank, grid, rate, group_V, gap, gaussian=True)
    assert error_VE[:, 0].max() < 5e-4
    assert error_VE[:, 1].max() < 0.02


@pytest.mark.parametrize(
    ("count", "num_before", "mean_bound", "var_bound"),
    [(8, 7, 0.04, 0.35), (16, 7, 0.02, 0.25), (64, 0, 0.01, 0.11)],
)
@pytest.mark.parametrize("gap", [1, 10])
@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1e-1])
def test_it_comes_near_the_exact_filter_where_prompts_have_signal(
    one_rate, rate, gap, count, num_before, mean_bound, var_bound
):
    """Mean and variance of a logit do not tell its skew: few rollouts leave an error."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        logit_V = 0.5 * rng.normal() + np.sqrt(rate * gap) * np.cumsum(rng.normal(size=10))
        success_V = rng.binomial(count, expit(np.clip(logit_V, -1.0, 1.0)))
        bank, grid = one_rate(rate), Grid(BIAS_VAR + 6.0)
        group_V = [(success, count) for success in success_V]
        error_VE = errors_of(bank, grid, rate, group_V, gap, gaussian=False)[2 * num_before :]
        assert error_VE[:, 0].max() < mean_bound
        assert error_VE[:, 1].max() < var_bound


def test_where_nothing_or_everything_succeeds_its_doubt_is_never_below_the_exact_one(one_rate):
    for success in (0, 8):
        bank, grid = one_rate(1e-2), Grid(BIAS_VAR + 6.0)
        for step in range(5):
            bank.update(ROW, outcomes([success], [8], step))
            bank._slope.values[:] = 0.0
            grid.learn(success, 8)
            forecast, (mean, var) = bank.forecast(ROW, step), grid.expect(expit(grid.logit))
            assert forecast.mean_B[0] == pytest.approx(mean, abs=0.01)
            assert var <= forecast.var_B[0] < 3.0 * var
            grid.walk(1e-2)


@pytest.mark.parametrize("late", [1, 10, 100])
def test_a_late_site_is_blurred_by_the_walk_since(one_rate, late):
    sites = []
    for policy_step in (200, 200 - late):
        bank = one_rate(1e-2)
        bank._clock = 200  # as other prompts would have set it
        bank.update(ROW, outcomes([3], [8], 200, [policy_step]))
        state = bank.state_dict()
        sites.append((state["tau_QK"][0, 0], state["nu_QK"][0, 0]))
    (tau, nu), (late_tau, late_nu) = sites
    assert late_tau == pytest.approx(1.0 / (1.0 / tau + 1e-2 * late))
    assert late_nu / late_tau == pytest.approx(nu / tau)


# What weighs the filters, the spreads and the regressions.


def log_evidence(mean_B, var_B, success_B, count_B):
    """Sum over prompts of the log probability of their rollouts, by a fine sum over logits."""
    node = np.linspace(-9.0, 9.0, 4_001)
    weight = np.exp(-(node**2) / 2)
    logit_BN = np.asarray(mean_B)[:, None] + np.sqrt(var_B)[:, None] * node
    success, failure = success_B[:, None], (count_B - success_B)[:, None]
    likelihood = np.exp(success * log_expit(logit_BN) + failure * log_expit(-logit_BN))
    return np.log(likelihood @ weight / weight.sum()).sum()


def relative(score):
    return score - score.max()


def test_each_belief_is_weighed_by_what_it_foretold():
    rng = np.random.default_rng(0)
    bank = bank_of(rng.normal(size=(40, 3)))
    for step, row_B in ((0, np.arange(20)), (30, np.arange(10, 30))):
        bank.update(row_B, outcomes(rng.binomial(8, 0.2 + 0.02 * row_B), np.full(20, 8), step))
    bank._slope.values[:] = 0.0  # no part in the common trend
    row_B = np.arange(25, 35)  # five seen, five new
    success_B, count_B = rng.binomial(4, 0.7, 10).astype(float), np.full(10, 4.0)
    bank._latest = None
    belief, others = bank._belief(row_B, 50), bank._belief(row_B, 50).others
    before, spread = bank.state_dict(), bank.spread
    bank.update(row_B, outcomes(success_B, count_B, 50))
    after = bank.state_dict()
    new, seen = np.arange(5, 10), np.arange(5)

    def gain(mean_B, var_B, i):
        return log_evidence(mean_B[i], var_B[i], success_B[i], count_B[i])

    rate_K = [gain(belief.mean_BK[:, k], belief.var_BK[:, k], seen) for k in range(7)]
    spread_S = [gain(others.mean_B, others.var_B + own, new) for own in module.SPREAD_S]
    speed_R = [gain(others.mean_RB[r], others.var_RB[r] + spread, new) for r in range(2)]
    for name, keep, told in (
        ("rate_score_K", 0.98, rate_K),
        ("spread_score_S", 0.995, spread_S),
        ("score_R", 0.98, speed_R),
    ):
        expected = relative(keep * before[name] + told)
        np.testing.assert_allclose(after[name], expected, atol=0.02)
        assert np.ptp(told) > 0.1


def test_the_others_hear_of_a_prompt_less_what_is_its_own(one_rate):
    bank = one_rate(1e-2)
    bank.update(ROW, outcomes([3], [8], 0))
    state = bank.state_dict()
    tau, nu = state["tau_QK"][0, 0], state["nu_QK"][0, 0]
    assert state["omega_Q"][0] == pytest.approx(tau / (1.0 + 6.0 * tau))
    assert state["eta_Q"][0] == pytest.approx(nu / (1.0 + 6.0 * tau))
