"""Population: dense Gaussian process regression over prompts is the oracle, one prompt left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import StateError
from apportion.predictor import population as module
from apportion.predictor.population import BIAS_VAR, FADE_R, Population


def features(size, width, seed=0):
    """The constant and some features of about unit length."""
    feature_QM = np.random.default_rng(seed).normal(size=(size, width)) / np.sqrt(max(width, 1))
    return np.hstack([np.ones((size, 1)), feature_QM])


class Sites:
    """A population, and beside it what it was told of each prompt last."""

    def __init__(self, phi_QM):
        self.phi_QM = phi_QM
        self.population = Population()
        self.population.start(phi_QM.shape[1])
        self.population.add(len(phi_QM))
        self.tau_Q, self.nu_Q, self.spread_Q, self.step_Q = np.zeros((4, len(phi_QM)))

    def learn(self, row_B, tau_B, nu_B, spread_B, step):
        self.population.learn(self.phi_QM[row_B], row_B, tau_B, nu_B, spread_B, step)
        self.tau_Q[row_B], self.nu_Q[row_B] = tau_B, nu_B
        self.spread_Q[row_B], self.step_Q[row_B] = spread_B, step

    def learn_at_random(self, rng, batch, step):
        row_B = rng.choice(len(self.phi_QM), batch, replace=False)
        tau_B = rng.choice([0.0, 1e-9, 0.3, 4.0, 900.0], batch)
        nu_B = tau_B * rng.normal(size=batch) * 2.0
        self.learn(row_B, tau_B, nu_B, rng.choice([0.5, 6.0, 30.0], batch), step)

    def forecast(self, step):
        return self.population.forecast(self.phi_QM, np.arange(len(self.phi_QM)), step)

    def dense(self, r, row, step):
        """Regress on the sites of all other prompts with the kernel over prompts alone."""
        kernel_QQ = BIAS_VAR + self.population.strength_R[r] * (
            self.phi_QM[:, 1:] @ self.phi_QM[:, 1:].T
        )
        others = np.flatnonzero((self.tau_Q > 0) & (np.arange(len(self.tau_Q)) != row))
        fade = FADE_R[r] ** (step - self.step_Q[others])
        noise = (self.spread_Q[others] + 1.0 / self.tau_Q[others]) / fade
        gram = kernel_QQ[np.ix_(others, others)] + np.diag(noise)
        weight = np.linalg.solve(gram, kernel_QQ[others, row])
        mean = weight @ (self.nu_Q[others] / self.tau_Q[others])
        return mean, kernel_QQ[row, row] - weight @ kernel_QQ[others, row]


@pytest.mark.parametrize("width", [0, 3, 12])
def test_it_equals_dense_regression_on_the_sites_of_the_others(width):
    rng = np.random.default_rng(width)
    sites = Sites(features(40, width))
    for step in range(0, 60, 3):
        sites.learn_at_random(rng, 7, step)
        for ahead in (0, 25):
            found = sites.forecast(step + ahead)
            for r in range(len(FADE_R)):
                exact = np.array([sites.dense(r, q, step + ahead) for q in range(40)]).T
                np.testing.assert_allclose(found.mean_RB[r], exact[0], rtol=1e-8, atol=1e-8)
                np.testing.assert_allclose(found.var_RB[r], exact[1], rtol=1e-8, atol=1e-8)


def test_the_two_speeds_are_mixed_by_their_weights():
    sites = Sites(features(20, 4))
    sites.learn_at_random(np.random.default_rng(0), 12, 3)
    sites.population.score(np.array([-1.0, -1.7]))
    found, weight_R = sites.forecast(30), sites.population.weight_R
    np.testing.assert_allclose(weight_R, np.exp([0, -0.7]) / np.exp([0, -0.7]).sum())
    mean_B = weight_R @ found.mean_RB
    square_B = weight_R @ (found.var_RB + found.mean_RB**2)
    np.testing.assert_allclose(found.mean_B, mean_B)
    np.testing.assert_allclose(found.var_B, square_B - mean_B**2)


def test_without_evidence_it_is_the_prior():
    sites = Sites(features(5, 3))
    for forecast in (sites.forecast(0), sites.forecast(10_000)):
        np.testing.assert_array_equal(forecast.mean_B, 0.0)
        feature_part = module._STRENGTH * (sites.phi_QM[:, 1:] ** 2).sum(axis=1)
        np.testing.assert_allclose(forecast.var_B, BIAS_VAR + feature_part)


def test_evidence_fades_to_the_prior():
    sites = Sites(features(6, 0))
    sites.learn(np.arange(6), np.full(6, 50.0), np.full(6, 100.0), np.full(6, 1.0), 0)
    mean = [sites.forecast(step).mean_B[0] for step in (0, 100, 1_000, 20_000)]
    assert mean[0] > mean[1] > mean[2] > mean[3]
    assert mean[0] > 1.5
    assert sites.forecast(20_000).var_B[0] == pytest.approx(BIAS_VAR)


def test_a_prompt_never_hears_itself_through_the_others():
    quiet, loud = Sites(features(10, 3)), Sites(features(10, 3))
    for sites, tau in ((quiet, 0.0), (loud, 1e4)):
        sites.learn(np.arange(9), np.ones(9), np.linspace(-1, 1, 9), np.ones(9), 0)
        # The strength is estimated from what came before: both have seen the same.
        sites.learn(np.array([9]), np.array([tau]), np.array([5 * tau]), np.array([0.5]), 1)
    np.testing.assert_allclose(
        quiet.forecast(5).mean_RB[:, 9], loud.forecast(5).mean_RB[:, 9], rtol=1e-9
    )
    assert loud.forecast(5).mean_B[4] != pytest.approx(quiet.forecast(5).mean_B[4])


def test_a_visit_replaces_the_one_before():
    twice, once = Sites(features(8, 3)), Sites(features(8, 3))
    later = (np.arange(8), np.full(8, 2.0), np.linspace(-3, 3, 8), np.full(8, 2.0), 9)
    twice.learn(np.arange(4), np.full(4, 700.0), np.full(4, 1400.0), np.full(4, 0.5), 2)
    for sites in (twice, once):
        sites.learn(*later)
        sites.population._strength_R[:] = 5.0
        sites.population._solved = None
    for found, expected in zip(twice.forecast(12), once.forecast(12), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@given(st.permutations(range(7)))
@settings(max_examples=20)
def test_the_order_of_a_batch_does_not_matter(order):
    order = np.array(order)
    straight, shuffled = Sites(features(12, 4)), Sites(features(12, 4))
    tau_B, nu_B = np.linspace(0.1, 9, 7), np.linspace(-5, 8, 7)
    for step in (1, 4):
        straight.learn(np.arange(7), tau_B, nu_B, np.ones(7), step)
        shuffled.learn(order, tau_B[order], nu_B[order], np.ones(7), step)
    for found, expected in zip(straight.forecast(6), shuffled.forecast(6), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_the_strength_takes_one_step_of_mackay():
    sites = Sites(features(30, 5))
    sites.learn_at_random(np.random.default_rng(4), 25, 2)
    before_R = sites.population.strength_R.copy()
    omega_Q = sites.tau_Q / (1 + sites.spread_Q * sites.tau_Q)
    eta_Q = sites.nu_Q / (1 + sites.spread_Q * sites.tau_Q)
    expected_R = []
    for r, strength in enumerate(before_R):
        fade = FADE_R[r] ** (8 - 2)
        prior_precision = np.diag([1 / BIAS_VAR] + [1 / strength] * 5)
        precision = prior_precision + fade * (sites.phi_QM.T * omega_Q) @ sites.phi_QM
        mean = np.linalg.solve(precision, fade * sites.phi_QM.T @ eta_Q)
        known = 5 - np.trace(np.linalg.inv(precision)[1:, 1:]) / strength
        expected_R.append(((mean[1:] ** 2).sum() + 4 * 8.0) / (known + 4))
    sites.learn_at_random(np.random.default_rng(5), 5, 8)
    np.testing.assert_allclose(sites.population.strength_R, expected_R, rtol=1e-10)
    assert (np.abs(expected_R / before_R - 1) > 0.01).all()


def strength_after(weight, seed=0):
    """The strength found where logits are weights of this size times features, plus their own."""
    rng = np.random.default_rng(seed)
    phi_QM = np.hstack([np.ones((400, 1)), rng.normal(size=(400, 10))])
    logit_Q = phi_QM[:, 1:] @ (weight * rng.normal(size=10)) + 0.5 * rng.normal(size=400)
    sites = Sites(phi_QM)
    for step in range(20):
        row_B = np.arange(20 * step, 20 * step + 20)
        tau_B = np.full(20, 10.0)
        sites.learn(row_B, tau_B, tau_B * logit_Q[row_B], np.full(20, 0.5), step)
    return sites.population.strength_R


def test_the_strength_grows_where_features_explain_much_and_shrinks_where_nothing():
    nothing_R, some_R, much_R = strength_after(0.0), strength_after(1.5), strength_after(8.0)
    assert (nothing_R < 0.5 * module._STRENGTH).all()
    assert (nothing_R < some_R).all()
    assert (much_R > 2.0 * module._STRENGTH).all()
    assert (strength_after(1e3) == module._MOST_STRENGTH).all()
    assert (strength_after(0.0) >= module._LEAST_STRENGTH).all()


@pytest.mark.parametrize(("better", "worse"), [(0, 1), (1, 0)])
def test_the_speed_that_foretells_better_is_trusted(better, worse):
    population = Population()
    assert population.weight_R.tolist() == [0.5, 0.5]
    told_R = np.zeros(2)
    told_R[worse] = -0.3
    for _ in range(100):
        population.score(told_R)
    assert population.weight_R[better] > 0.99
    # What was foretold long ago counts less.
    for _ in range(100):
        population.score(-told_R)
    assert population.weight_R[worse] > 0.9


def test_a_step_before_the_latest_is_forecast_as_the_latest():
    sites = Sites(features(6, 2))
    sites.learn_at_random(np.random.default_rng(1), 5, 10)
    np.testing.assert_array_equal(sites.forecast(3).mean_B, sites.forecast(10).mean_B)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 6), st.lists(st.integers(0, 3_000), max_size=12))
def test_it_stays_finite_and_no_evidence_doubts_more_than_the_prior(seed, batch, gaps):
    rng = np.random.default_rng(seed)
    sites = Sites(features(6, 3))
    step = 0
    for gap in gaps:
        step += gap
        sites.learn_at_random(rng, batch, step)
    forecast = sites.forecast(step + 1)
    prior_R = sites.population.strength_R
    most_RB = BIAS_VAR + prior_R[:, None] * (sites.phi_QM[:, 1:] ** 2).sum(axis=1)
    assert np.isfinite(forecast.mean_RB).all()
    assert ((forecast.var_RB > 0) & (forecast.var_RB <= most_RB * (1 + 1e-9))).all()


def test_thousands_of_replacements_leave_it_exact():
    rng = np.random.default_rng(7)
    sites = Sites(np.repeat(features(6, 3), 2, axis=0))
    for step in range(3_000):
        sites.learn_at_random(rng, 5, step)
    found = sites.forecast(3_000)
    for r in range(len(FADE_R)):
        exact = np.array([sites.dense(r, q, 3_000) for q in range(12)]).T
        np.testing.assert_allclose(found.mean_RB[r], exact[0], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.var_RB[r], exact[1], rtol=1e-8)


def test_a_restored_state_goes_on_bit_for_bit():
    rng = np.random.default_rng(2)
    sites = Sites(features(9, 3))
    for step in range(5):
        sites.learn_at_random(rng, 4, step)
    sites.population.score(np.array([-3.0, -2.0]))
    state = sites.population.state_dict()
    restored = Population.of_state(state, size=9, num_features=4)
    phi_BM, row_B = sites.phi_QM[:3], np.arange(3)
    for one in (sites.population, restored):
        one.add(2)
        one.learn(phi_BM, row_B, np.ones(3), np.arange(3.0), np.ones(3), 11)
    for name, array in sites.population.state_dict().items():
        np.testing.assert_array_equal(array, restored.state_dict()[name])
    before, after = (p.forecast(phi_BM, row_B, 13) for p in (sites.population, restored))
    for found, expected in zip(after, before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_saved_state_is_a_copy():
    sites = Sites(features(9, 3))
    sites.learn_at_random(np.random.default_rng(2), 4, 1)
    before = sites.forecast(2)
    for array in sites.population.state_dict().values():
        array[...] = 0
    sites.population._solved = None
    for found, expected in zip(sites.forecast(2), before, strict=True):
        np.testing.assert_array_equal(found, expected)


SKEW = np.zeros((2, 4, 4))
SKEW[0, 0, 1] = 1.0


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("omega_Q", np.full(9, -1.0)),
        ("omega_Q", np.zeros(8)),
        ("eta_Q", np.full(9, np.nan)),
        ("eta_Q", np.zeros(9, dtype=np.int64)),
        ("share_step_Q", np.full(9, 99)),
        ("share_step_Q", np.full(9, -1)),
        ("share_step_Q", np.zeros(9)),
        ("gram_RMM", SKEW),
        ("gram_RMM", -np.stack([np.eye(4)] * 2)),
        ("gram_RMM", np.zeros((2, 3, 3))),
        ("gram_RMM", np.full((2, 4, 4), np.nan)),
        ("shift_RM", np.zeros((2, 3))),
        ("shift_RM", np.zeros(4)),
        ("strength_R", np.array([0.0, 8.0])),
        ("strength_R", np.array([8.0, 1e9])),
        ("score_R", np.array([0.0, 1.0])),
        ("share_clock", np.array([-1])),
        ("share_clock", np.array([1.0])),
    ],
)
def test_a_damaged_state_is_refused(name, array):
    sites = Sites(features(9, 3))
    sites.learn_at_random(np.random.default_rng(2), 9, 1)
    state = sites.population.state_dict()
    with pytest.raises(StateError, match="share" if "clock" in name else name):
        Population.of_state(state | {name: array}, size=9, num_features=4)
