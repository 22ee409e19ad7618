import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.difficulty import Profile
from apportion.errors import InvalidInputError
from apportion.simulation import Population, Problems, ProblemSet
from apportion.simulation.base_success import PUBLISHED, profiled_success


def drawn(size=4000, **options):
    return Population(num_train=size, num_held_out=1, **options).problems().train


@pytest.mark.parametrize("name", ["easy", "hard"])
def test_base_success_has_the_mean_of_the_posterior(name):
    num_of, (right, wrong) = PUBLISHED[name]
    total = sum(num_of.values())
    means = {count: (right + count) / (right + wrong + 16) for count in num_of}
    mean = sum(num * means[count] for count, num in num_of.items()) / total
    success_Q = drawn(20_000, difficulty=name).base_success_Q
    assert abs(success_Q.mean() - mean) < 4 * success_Q.std() / np.sqrt(20_000)
    assert mean == pytest.approx({"easy": 0.437, "hard": 0.016}[name], abs=5e-4)


def test_the_prior_of_the_hard_set_gives_the_published_share_with_one_success():
    from scipy.stats import betabinom

    num_of, (right, wrong) = PUBLISHED["hard"]
    chance = betabinom(16, right, wrong).pmf([0, 1])
    assert chance[1] / chance.sum() == pytest.approx(num_of[1] / sum(num_of.values()), abs=0.002)


@given(
    success_Q=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    num_modes=st.integers(2, 9),
    num_features=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_base_success_is_what_was_drawn(success_Q, num_modes, num_features, seed):
    profile = Profile(num_success_Q=success_Q, num_samples=8)
    options = {"num_modes": num_modes, "num_features": num_features, "seed": seed}
    problems = drawn(40, difficulty=profile, **options)
    # The draw of success comes after features, teacher and labels.
    rng = np.random.default_rng(seed)
    rng.normal(size=(41, num_features))
    rng.normal(size=(num_features, num_modes))
    rng.gumbel(size=(41, num_modes))
    expected_Q = np.clip(profiled_success(rng, profile, 41), 1e-5, 1 - 1e-5)[:40]
    np.testing.assert_allclose(problems.base_success_Q, expected_Q, rtol=1e-9)


@pytest.mark.parametrize("success_Q", [[0], [0] * 5, [16] * 5, [0, 0, 0, 1], [3, 8, 16]])
def test_a_profile_keeps_its_mean(success_Q):
    profile = Profile(num_success_Q=success_Q, num_samples=16)
    drawn_Q = profiled_success(np.random.default_rng(0), profile, 40_000)
    half = 0.5 / (16 * len(success_Q))
    pooled = np.mean(success_Q) / 16
    expected = (16 * pooled + 2 * np.clip(pooled, half, 1 - half)) / 18
    assert abs(drawn_Q.mean() - expected) < 4 * drawn_Q.std() / np.sqrt(40_000)
    assert expected == pytest.approx(pooled, abs=0.12 * half)


def test_the_prior_is_flat_where_half_of_all_samples_are_right():
    profile = Profile(num_success_Q=[0, 4], num_samples=4)
    drawn_Q = profiled_success(np.random.default_rng(3), profile, 50)
    rng = np.random.default_rng(3)
    success_Q = rng.choice([0, 4], size=50)
    np.testing.assert_array_equal(drawn_Q, rng.beta(1 + success_Q, 5 - success_Q))


@pytest.mark.parametrize("spectrum", [0.0, 1.0])
def test_features_have_the_variances_asked_for(spectrum):
    feature_QD = drawn(20_000, num_features=8, spectrum=spectrum).feature_QD
    share_D = np.arange(1, 9) ** -spectrum
    share_D /= share_D.sum()
    np.testing.assert_allclose(feature_QD.var(axis=0), share_D, rtol=0.06)
    assert (feature_QD**2).sum(axis=1).mean() == pytest.approx(1.0, rel=0.02)


def test_labels_are_drawn_from_the_softmax_of_the_teacher():
    options = {"num_modes": 4, "num_features": 16}
    signal = 2.0
    problems = drawn(20_000, signal=signal, **options)
    rng = np.random.default_rng(0)
    rng.normal(size=(20_001, 16))
    logit_QK = signal * problems.feature_QD @ rng.normal(size=(16, 4))
    chance_QK = np.exp(logit_QK) / np.exp(logit_QK).sum(axis=1, keepdims=True)
    hit_QK = np.eye(4)[problems.correct_Q]
    score_K = ((hit_QK - chance_QK) * logit_QK).mean(axis=0)
    error_K = ((hit_QK - chance_QK) * logit_QK).std(axis=0) / np.sqrt(20_000)
    assert (np.abs(score_K) < 4 * error_K).all()
    blind = np.bincount(drawn(20_000, signal=0.0, **options).correct_Q) / 20_000
    np.testing.assert_allclose(blind, 0.25, atol=0.015)


def test_the_same_population_gives_the_same_problems():
    first, again = (drawn(50, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.base_logit_QK, again.base_logit_QK)
    assert (drawn(50, seed=5).feature_QD != first.feature_QD).all()
    assert Population(seed=4) == Population(seed=4)


def test_problems_are_prompts_to_an_allocator():
    problems = drawn(5)
    prompts = problems.prompts()
    assert prompts.id_B.tolist() == ["0", "1", "2", "3", "4"]
    np.testing.assert_array_equal(prompts.feature_BD, problems.feature_QD)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Population(difficulty="medium"), "difficulty is 'medium'"),
        (lambda: Population(num_modes=1), "num_modes is 1"),
        (lambda: Population(num_train=0), "num_train is 0"),
        (lambda: Population(signal=-1), "signal is -1"),
        (lambda: Population(spectrum=np.inf), "must be finite"),
        (lambda: some_problems(correct_Q=[0, 3]), "holds 3"),
        (lambda: some_problems(feature_QD=np.ones((3, 2))), "3 values"),
        (lambda: some_problems(feature_QD=np.ones(2)), "must be tables"),
        (lambda: some_problems(base_logit_QK=np.full((2, 3), np.inf)), "must be finite"),
        (
            lambda: Problems(
                train=some_problems(), held_out=some_problems(feature_QD=np.ones((2, 5)))
            ),
            "5 for held-out",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def some_problems(**changes):
    arrays = {
        "feature_QD": np.ones((2, 2)),
        "base_logit_QK": np.zeros((2, 3)),
        "correct_Q": [0, 1],
    }
    return ProblemSet(**{**arrays, **changes})
