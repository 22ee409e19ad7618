"""GaussianProcess: a dense Gaussian process is the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictor_helpers import outcomes, prompts
from scipy.special import expit

from apportion.errors import InvalidInputError, StateError
from apportion.predictor import Beta, GaussianProcess, MovingAverage
from apportion.predictor import gaussian_process as module
from apportion.predictor.features import KernelFeatures


def process_of(feature_BD, size=None, **arguments):
    process = GaussianProcess(**arguments)
    process.add(prompts(len(feature_BD) if size is None else size, feature_BD))
    return process


def dense_latent(process, row_B, step):
    """Gaussian process regression over all sites, one target at a time, from the kernel alone."""
    state = process.state_dict()
    tau, nu, last, x = (state[k] for k in ("tau_Q", "nu_Q", "last_Q", "feature_QD"))
    psi = KernelFeatures.of_state(state)(x)
    kernel = process.bias_var + process.feature_var * psi @ psi.T
    seen = np.flatnonzero(tau > 0)
    fade = process.decay ** (step - last[seen]).astype(float)
    result = []
    for q in row_B:
        own = np.where(seen == q, process.residual_var, 0.0)
        others_noise = (process.residual_var + 1 / tau[seen]) / fade
        noise = np.where(seen == q, 1 / (tau[seen] * fade), others_noise)
        gram = kernel[np.ix_(seen, seen)] + np.diag(own + noise)
        cross = kernel[q, seen] + own
        weight = np.linalg.solve(gram, cross)
        variance = kernel[q, q] + process.residual_var - weight @ cross
        result.append((weight @ (nu[seen] / tau[seen]), variance))
    return np.array(result).T


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("residual_var", [0.05, 4.0])
def test_equals_dense_regression_with_the_same_sites(decay, residual_var):
    rng = np.random.default_rng(0)
    size = 60
    process = process_of(
        rng.normal(size=(size, 7)).round(0), decay=decay, residual_var=residual_var
    )
    for step in range(30):
        row_B = rng.choice(size, 9, replace=False)
        count_B = rng.integers(1, 65, 9)
        success_B = rng.binomial(count_B, rng.choice([0.0, 0.3, 1.0], 9))
        late_B = np.maximum(step - rng.integers(0, 3, 9), 0)
        process.update(row_B, outcomes(success_B, count_B, step, late_B))
        latent = np.array(process.latent(np.arange(size), step + 2))
        np.testing.assert_allclose(
            latent, dense_latent(process, np.arange(size), step + 2), rtol=1e-8, atol=1e-8
        )


visits = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 64), st.sampled_from([0.0, 0.3, 1.0])),
    min_size=1,
    max_size=8,
)
table = np.random.default_rng(1).normal(size=(6, 3))


@settings(max_examples=40)
@given(visits, st.sampled_from([0.7, 1.0]))
def test_forecasts_stay_in_range_and_forecasting_keeps_state(history, decay):
    process = process_of(table, decay=decay)
    for step, (row, count, rate) in enumerate(history):
        process.update(np.array([row]), outcomes([rate * count], [count], step))
    before = process.state_dict()
    forecast = process.forecast(np.arange(6), len(history) + 3)
    assert (forecast.mean_B > 0).all()
    assert (forecast.mean_B < 1).all()
    assert (forecast.var_B >= 0).all()
    np.testing.assert_allclose(
        forecast.reward_var_B, forecast.mean_B * (1 - forecast.mean_B) - forecast.var_B, atol=1e-15
    )
    for name, array in process.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@settings(max_examples=40)
@given(visits)
def test_evidence_never_adds_doubt_about_any_logit(history):
    process = process_of(table, decay=1.0)
    _, before = process.latent(np.arange(6), 0)
    for row, count, rate in history:
        process.update(np.array([row]), outcomes([rate * count], [count]))
        _, after = process.latent(np.arange(6), 0)
        assert (after <= before * (1 + 1e-9)).all()
        before = after


@given(st.permutations(range(6)))
@settings(max_examples=20)
def test_the_order_of_prompts_in_a_batch_does_not_matter(order):
    success, count = np.array([0, 4, 8, 64, 0, 3]), np.array([4, 8, 8, 64, 64, 5])
    straight, shuffled = process_of(table), process_of(table)
    straight.update(np.arange(6), outcomes(success, count))
    order = np.array(order)
    shuffled.update(order, outcomes(success[order], count[order]))
    np.testing.assert_allclose(
        straight.latent(np.arange(6), 2), shuffled.latent(np.arange(6), 2), rtol=1e-10, atol=1e-12
    )


def test_no_success_in_4_and_in_64_differ():
    few, many = process_of(None, 1), process_of(None, 1)
    few.update(np.array([0]), outcomes([0], [4]))
    many.update(np.array([0]), outcomes([0], [64]))
    few, many = few.forecast(np.array([0]), 0), many.forecast(np.array([0]), 0)
    assert many.mean_B[0] < few.mean_B[0]
    assert many.var_B[0] < few.var_B[0]


def test_neighbours_learn_and_strangers_learn_less():
    process = process_of([[0.0, 1.0], [0.0, 1.0], [0.0, -1.0]])
    process.update(np.array([0]), outcomes([16], [16]))
    own, twin, stranger = process.forecast(np.arange(3), 0).mean_B
    assert own > twin > stranger


@pytest.mark.parametrize("decay", [1.0, 0.98])
def test_thousands_of_adversarial_updates_leave_it_exact(decay, monkeypatch):
    monkeypatch.setattr(module, "_REBUILD_EVERY", 10**9)
    rng = np.random.default_rng(2)
    feature_BD = np.repeat(rng.normal(size=(4, 5)), 3, axis=0)
    process = process_of(feature_BD, decay=decay, residual_var=1e-3)
    for step in range(5_000):
        row_B = np.array([0]) if step % 3 else rng.choice(12, 3, replace=False)
        count_B = rng.choice([1, 64], len(row_B))
        success_B = count_B * ((step // 50) % 2)
        process.update(row_B, outcomes(success_B, count_B, step))
    latent = np.array(process.latent(np.arange(12), 5_000))
    assert np.isfinite(latent).all()
    assert (latent[1] > 0).all()
    process._rebuild()
    rebuilt = process.latent(np.arange(12), 5_000)
    np.testing.assert_allclose(latent, rebuilt, rtol=1e-7, atol=1e-7)


def test_a_rebuild_does_not_change_the_belief():
    process = process_of(table, decay=0.95)
    for step in range(20):
        process.update(np.array([step % 6]), outcomes([step % 5], [8], step))
    before = process.latent(np.arange(6), 25)
    process._rebuild()
    np.testing.assert_allclose(process.latent(np.arange(6), 25), before, rtol=1e-12)


def test_late_outcomes_count_less_and_do_not_turn_the_clock_back():
    on_time, late = process_of(table, decay=0.9), process_of(table, decay=0.9)
    for process, policy_step in ((on_time, 20), (late, 5)):
        process.update(np.array([1]), outcomes([4], [8], 20))
        process.update(np.array([0]), outcomes([8], [8], 20, [policy_step]))
    fresh, stale = (p.forecast(np.array([0]), 20).mean_B[0] for p in (on_time, late))
    assert fresh > stale > 0.5
    np.testing.assert_array_equal(late.latent([0], 3), late.latent([0], 20))


def test_offline_rates_are_fading_evidence_of_step_0():
    process = GaussianProcess(decay=0.9, max_prior_count=16.0)
    fields = {"prior_mean_B": [0.9, 0.9, 0.1, 0.5], "prior_count_B": [16.0, 999.0, 16.0, 0.0]}
    process.add(prompts(4, **fields))
    mean = process.forecast(np.arange(4), 0).mean_B
    assert mean[0] == pytest.approx(mean[1])
    assert mean[0] > mean[3] > mean[2]
    np.testing.assert_allclose(process.forecast(np.arange(4), 500).mean_B, 0.5, atol=1e-6)
    reference = GaussianProcess(decay=0.9)
    reference.add(prompts(4))
    reference.update(np.arange(3), outcomes([14.4, 14.4, 1.6], [16, 16, 16], 0))
    np.testing.assert_allclose(reference.latent(np.arange(4), 0), process.latent(np.arange(4), 0))


def test_a_restored_state_goes_on_bit_for_bit():
    process = process_of(table)
    process.update(np.array([4, 1]), outcomes([1.0, 2.5], [4, 8], 3))
    other = GaussianProcess()
    other.load_state_dict(process.state_dict())
    for one in (process, other):
        one.add(prompts(2, np.ones((2, 3))))
        one.update(np.array([1, 7]), outcomes([0, 4], [4, 4], 9))
    for name, array in process.state_dict().items():
        assert array.dtype in (np.float64, np.int64)
        np.testing.assert_array_equal(array, other.state_dict()[name])
    np.testing.assert_array_equal(process.latent(np.arange(8), 11), other.latent(np.arange(8), 11))


def test_a_state_that_does_not_fit_is_refused():
    state = process_of(table).state_dict()
    with pytest.raises(StateError, match="Make it with the same"):
        GaussianProcess(decay=0.5).load_state_dict(state)
    with pytest.raises(StateError, match="holds"):
        GaussianProcess().load_state_dict(Beta().state_dict())
    with pytest.raises(StateError, match="tau_Q"):
        GaussianProcess().load_state_dict(state | {"tau_Q": np.zeros(3)})


@pytest.mark.parametrize("feature_BD", [np.zeros((4, 2)), np.full((4, 2), 1e8), None])
def test_features_without_spread_are_a_bias(feature_BD):
    process = process_of(feature_BD, 4)
    process.update(np.arange(2), outcomes([8, 8], [8, 8]))
    mean = process.forecast(np.arange(4), 0).mean_B
    assert mean[2] == mean[3] > 0.5


def test_prompts_without_features_join_a_table_with_features():
    process = process_of(table)
    process.add(prompts(1))
    assert process.forecast(np.array([6]), 0).mean_B[0] == pytest.approx(0.5)
    with pytest.raises(InvalidInputError, match="4 features"):
        process.add(prompts(1, np.ones((1, 4))))


@pytest.mark.parametrize("arguments", [{"decay": 0.0}, {"bias_var": 0.0}, {"residual_var": -1.0}])
def test_arguments_out_of_range_are_named(arguments):
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        GaussianProcess(**arguments)


def squared_error(predictor, feature_QD, logit_TQ, visit_TB, seed):
    rng = np.random.default_rng(seed)
    predictor.add(prompts(len(feature_QD), feature_QD))
    errors = []
    for step, row_B in enumerate(visit_TB):
        success_B = expit(logit_TQ[step, row_B])
        errors.append(((predictor.forecast(row_B, step).mean_B - success_B) ** 2).mean())
        count_B = np.full(len(row_B), 8)
        predictor.update(row_B, outcomes(rng.binomial(8, success_B), count_B, step))
    return np.mean(errors[1:])


@pytest.mark.parametrize("seed", [0, 1])
def test_it_predicts_a_drifting_population_better_than_simpler_beliefs(seed):
    rng = np.random.default_rng(seed)
    size, batch, num_steps = 400, 40, 60
    cluster_Q = rng.integers(0, 10, size)
    feature_QD = np.eye(10)[cluster_Q] + 0.2 * rng.normal(size=(size, 10))
    start_Q = -1.0 + 1.5 * rng.normal(size=10)[cluster_Q] + 0.8 * rng.normal(size=size)
    step_TQ = 0.02 + 0.05 * rng.normal(size=(num_steps, size))
    logit_TQ = start_Q + np.cumsum(step_TQ, axis=0)
    epoch = [rng.permutation(size) for _ in range(num_steps * batch // size)]
    visit_TB = np.concatenate(epoch).reshape(num_steps, batch)
    process, beta, average = (
        squared_error(predictor, feature_QD, logit_TQ, visit_TB, seed)
        for predictor in (GaussianProcess(), Beta(), MovingAverage())
    )
    assert process < 0.9 * beta
    assert process < 0.5 * average


def test_a_damaged_state_is_refused_and_changes_nothing():
    process = process_of(table)
    process.update(np.array([4, 1]), outcomes([1.0, 2.5], [4, 8], 3))
    before = process.state_dict()
    width = len(before["gram_MM"])
    skew = before["gram_MM"].copy()
    skew[0, 1] += 1.0
    for name, array in (
        ("gram_MM", skew),
        ("gram_MM", -np.eye(width)),
        ("gram_MM", before["gram_MM"][:, :-1]),
        ("gram_MM", np.full((width, width), np.nan)),
        ("shift_M", np.full(width, np.inf)),
        ("tau_Q", np.full(len(table), -1.0)),
        ("last_Q", np.full(len(table), 99)),
        ("clock", np.array([-1, 0])),
        ("bandwidth", np.array([np.nan])),
        ("anchor_AD", before["anchor_AD"][:, :-1]),
        ("feature_QD", before["feature_QD"][:-1]),
    ):
        with pytest.raises(StateError):
            process.load_state_dict(before | {name: array})
        for key, value in process.state_dict().items():
            np.testing.assert_array_equal(value, before[key])
