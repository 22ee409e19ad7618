"""Counts of successes against brute force, exact expectations, known distributions."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from apportion import metrics
from apportion.difficulty import (
    BANDS,
    Profile,
    band_of,
    graded_summary,
    mean_over_prompts,
    verdict_of,
)
from apportion.embedded.pools import pool
from apportion.errors import InvalidInputError
from apportion.success_distribution import Estimate

PLAYBOOK_EASY = {5: 1380, 6: 1270, 7: 1150, 8: 1120, 9: 1060}
PLAYBOOK_HARD = {0: 4240, 1: 760}


def sampled(success_Q, num_samples, seed):
    rng = np.random.default_rng(seed)
    return Profile(num_success_Q=rng.binomial(num_samples, success_Q), num_samples=num_samples)


def histogram_of(counts, num_samples=16):
    return [counts.get(s, 0) for s in range(num_samples + 1)]


def estimate(value, low=None, high=None):
    return Estimate(
        value=value, low=value if low is None else low, high=value if high is None else high
    )


@st.composite
def profiles(draw):
    num_samples = draw(st.integers(1, 7))
    counts = draw(st.lists(st.integers(0, num_samples), min_size=1, max_size=6))
    return Profile(num_success_Q=np.array(counts), num_samples=num_samples)


@given(profiles(), st.integers(1, 7))
def test_shares_of_k_draws_are_those_of_all_subsets(profile, k):
    if k > profile.num_samples:
        for share in (profile.pass_at, profile.worst_at, profile.no_signal_at):
            with pytest.raises(InvalidInputError, match=f"k is {k}"):
                share(k)
        return
    best, worst, alike = [], [], []
    for right in profile.num_success_Q:
        rewards = [1] * right + [0] * (profile.num_samples - right)
        subsets = list(combinations(rewards, k))
        best.append(np.mean([max(subset) for subset in subsets]))
        worst.append(np.mean([min(subset) for subset in subsets]))
        alike.append(np.mean([min(subset) == max(subset) for subset in subsets]))
    assert profile.pass_at(k).value == pytest.approx(np.mean(best))
    assert profile.worst_at(k).value == pytest.approx(np.mean(worst))
    assert profile.no_signal_at(k).value == pytest.approx(np.mean(alike))


@given(st.floats(0.0, 1.0), st.integers(1, 12), st.integers(1, 12))
def test_shares_are_unbiased(p, num_samples, n):
    n = min(n, num_samples)
    chance_s = stats.binom.pmf(np.arange(num_samples + 1), num_samples, p)
    counts = [Profile(num_success_Q=[s], num_samples=num_samples) for s in range(num_samples + 1)]

    def expected(share):
        return sum(chance * share(one) for chance, one in zip(chance_s, counts, strict=True))

    assert expected(lambda one: one.no_signal_at(n).value) == pytest.approx(p**n + (1 - p) ** n)
    assert expected(lambda one: one.worst_at(n).value) == pytest.approx(p**n)
    assert expected(lambda one: one.pass_at(n).value) == pytest.approx(1 - (1 - p) ** n)


@given(profiles())
def test_a_histogram_holds_all_but_the_order(profile):
    again = Profile.of_histogram(profile.histogram)
    assert again.num_samples == profile.num_samples
    assert sorted(again.num_success_Q) == sorted(profile.num_success_Q)
    assert again.mean.value == pytest.approx(profile.mean.value)
    assert profile.mean.value == pytest.approx(profile.pass_at(1).value)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    st.integers(1, 16),
)
def test_an_interval_holds_its_mean_and_stays_a_share(values, num_samples):
    found = mean_over_prompts(values, num_samples)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.value == pytest.approx(np.mean(values))


@pytest.mark.parametrize("num_right", [0, 3, 10, 12])
def test_the_interval_is_wilsons(num_right):
    value_Q = np.repeat([1.0, 0.0], [num_right, 12 - num_right])
    found = mean_over_prompts(value_Q)
    if num_right in (0, 12):
        ends = stats.binomtest(num_right, 12).proportion_ci(method="wilson")
        assert [found.low, found.high] == pytest.approx([ends.low, ends.high])
    else:  # the score equation at the ends, the variance of the mean being m (1 - m) / 11
        for end in (found.low, found.high):
            z = (found.value - end) / np.sqrt(end * (1 - end) / 11)
            assert abs(z) == pytest.approx(stats.norm.ppf(0.975))


@pytest.mark.parametrize("name", ["mixed", "hard", "bimodal"])
def test_the_interval_of_the_mean_is_calibrated(name):
    success_Q, hits = pool(name).success_Q, 0
    for seed in range(400):
        some_Q = np.random.default_rng(seed).choice(success_Q, 100)
        found = sampled(some_Q, 16, seed).mean
        hits += found.low <= success_Q.mean() <= found.high
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize("name", ["mixed", "hard", "bimodal"])
def test_bands_are_those_of_the_true_success_not_of_the_counts(name):
    success_Q = pool(name).success_Q
    true = np.bincount(band_of(success_Q), minlength=5) / len(success_Q)
    error, blurred, hits = [], [], 0
    for seed in range(4):
        profile = sampled(success_Q, 16, seed)
        bands = profile.bands
        assert list(bands) == list(BANDS)
        value = np.array([share.value for share in bands.values()])
        assert value.sum() == pytest.approx(1.0)
        assert sum(profile.counted.values()) == pytest.approx(1.0)
        error.append(np.abs(value - true).sum())
        blurred.append(np.abs(np.array(list(profile.counted.values())) - true).sum())
        hits += sum(
            share.low - 0.01 <= p <= share.high + 0.01
            for share, p in zip(bands.values(), true, strict=True)
        )
    assert np.mean(error) < 0.8 * np.mean(blurred) or np.mean(error) < 0.1
    assert hits >= 18  # of 20


def test_the_bands_are_the_playbooks():
    rate_s = np.arange(17) / 16
    names = np.array(list(BANDS))[band_of(rate_s)]
    assert {s for s in range(17) if names[s] == "easy"} == set(PLAYBOOK_EASY)
    assert {s for s in range(17) if names[s] == "hard"} == set(PLAYBOOK_HARD)
    assert list(band_of(1.0 - rate_s) == 4) == list(band_of(rate_s) == 0)


@pytest.mark.parametrize(("counts", "name"), [(PLAYBOOK_EASY, "easy"), (PLAYBOOK_HARD, "hard")])
def test_the_playbooks_own_sets_have_their_names(counts, name):
    verdict = Profile.of_histogram(histogram_of(counts)).verdict
    assert verdict.name == name
    assert BANDS[name] in verdict.reason


def test_an_easy_set_is_easy_though_a_third_of_its_counts_are_not():
    success_Q = np.random.default_rng(0).uniform(0.3, 0.6, 2000)
    profile = sampled(success_Q, 16, seed=1)
    assert profile.counted["easy"] < 0.7
    assert profile.bands["easy"].value > 0.9
    assert profile.verdict.name == "easy"


@pytest.mark.parametrize(
    ("shares", "name", "words"),
    [
        ({"hard": estimate(0.9)}, "hard", "90% [90%, 90%] of the prompts have a success in [0,"),
        ({"easy": estimate(0.7, 0.5, 0.8)}, "easy", "(perhaps fewer than two thirds)"),
        ({"hard": estimate(0.6, 0.5, 0.7)}, "mixed", "perhaps, but not surely, two thirds"),
        ({"easy": estimate(0.4, 0.3, 0.5)}, "mixed", "largest band is easy"),
        ({"solved": estimate(0.8)}, "mixed", "neither easy nor hard"),
        ({"between": estimate(0.5)}, "mixed", "not two thirds"),
    ],
)
def test_the_verdict_and_its_reason(shares, name, words):
    found = verdict_of({**dict.fromkeys(BANDS, estimate(0.0)), **shares})
    assert found.name == name
    assert words in found.reason


def test_few_prompts_leave_much_open():
    bands = Profile(num_success_Q=[0, 0, 0, 0], num_samples=16).bands
    assert bands["hard"].value > 0.9
    assert bands["hard"].low < 0.6
    assert bands["easy"].high > 0.4


def test_a_summary_is_ready_for_json_and_says_no_more_than_the_samples():
    import json

    summary = Profile.of_histogram([3, 1, 0, 0, 2, 1]).summary()
    json.dumps(summary, allow_nan=False)
    assert list(summary["pass_at_k"]) == list(summary["worst_at_k"]) == ["1", "2", "4"]
    assert list(summary["no_signal_at_n"]) == ["4"]
    assert summary["bands"]["hard"]["counted"] == pytest.approx(3 / 7)


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=5, max_size=5), min_size=1))
def test_graded_rewards_have_no_counts(value_QK):
    summary = graded_summary(value_QK)
    assert summary["verdict"] is None
    assert "pass_at_k" not in summary
    reward_N, group_N = np.ravel(value_QK), np.repeat(np.arange(len(value_QK)), 5)
    alike = [np.mean([min(s) == max(s) for s in combinations(v, 4)]) for v in value_QK]
    assert summary["no_signal_at_n"]["4"]["value"] == pytest.approx(np.mean(alike))
    assert summary["mean"]["value"] == pytest.approx(np.mean(value_QK))
    for k in (1, 2, 4):
        best, worst = (f(reward_N, group_N, k) for f in (metrics.best_at_k, metrics.worst_at_k))
        assert summary["best_at_k"][str(k)]["value"] == pytest.approx(best.mean())
        assert summary["worst_at_k"][str(k)]["value"] == pytest.approx(worst.mean())


def test_rewards_of_two_values_are_the_same_either_way():
    value_QK = np.random.default_rng(0).binomial(1, [[0.2], [0.5], [0.9]], (3, 8)).astype(float)
    graded = graded_summary(value_QK)
    counted = Profile(num_success_Q=value_QK.sum(axis=1), num_samples=8).summary()
    for name in ("best_at_k", "worst_at_k", "no_signal_at_n"):
        for k, found in counted[name].items():
            assert graded[name][k] == pytest.approx(found)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Profile(num_success_Q=[], num_samples=4), "at least one prompt"),
        (lambda: Profile(num_success_Q=[1, 5], num_samples=4), r"num_success_Q\[1\] is 5, above"),
        (lambda: Profile(num_success_Q=[0.5], num_samples=4), "whole number"),
        (lambda: Profile(num_success_Q=[0], num_samples=0), "num_samples is 0"),
        (lambda: Profile.of_histogram([0, 0]), "at least one prompt"),
        (lambda: Profile.of_histogram([3]), "num_samples is 0"),
        (lambda: mean_over_prompts([]), "at least one prompt"),
        (lambda: mean_over_prompts([1.5]), "outside"),
        (lambda: graded_summary([0.5]), "K rewards a prompt"),
        (lambda: graded_summary([[0.5, 2.0]]), "outside"),
    ],
)
def test_what_cannot_be_counted_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
