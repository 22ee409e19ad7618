import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, fisher_exact

from apportion.audit.forgetting import benjamini_hochberg, fall_p_values, forgotten
from apportion.errors import InvalidInputError

COUNTS = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))


@given(st.lists(COUNTS, min_size=1, max_size=20))
def test_p_values_agree_with_scipy(tables):
    early_success, early_failure, late_success, late_failure = np.array(tables).T
    p_value, least = fall_p_values(
        early_success, early_success + early_failure, late_success, late_success + late_failure
    )
    for at, (a, b, c, d) in enumerate(tables):
        expected = fisher_exact([[a, b], [c, d]], alternative="greater").pvalue
        assert p_value[at] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        total, num = a + c, a + b
        most = min(total, num)
        extreme = [[most, num - most], [total - most, c + d - total + most]]
        best = fisher_exact(extreme, alternative="greater").pvalue
        assert least[at] == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert least[at] <= p_value[at] * (1.0 + 1e-9)


def test_p_values_of_large_counts_agree_with_scipy():
    p_value, _ = fall_p_values(*(np.array([n]) for n in (5200, 10_000, 5000, 10_000)))
    expected = fisher_exact([[5200, 4800], [5000, 5000]], alternative="greater").pvalue
    assert p_value[0] == pytest.approx(expected, rel=1e-7)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.floats(0.01, 0.5))
def test_procedure_agrees_with_scipy(p_values, q):
    p_value = np.array(p_values)
    adjusted = false_discovery_control(p_value)
    rejected = benjamini_hochberg(p_value, q)
    sure = np.abs(adjusted - q) > 1e-12
    assert (rejected[sure] == (adjusted <= q)[sure]).all()


def run_of(success_VQ, n, rng):
    visits, size = success_VQ.shape
    prompt_G = np.tile(np.arange(size), visits)
    return prompt_G, rng.binomial(n, success_VQ.ravel()), np.full(visits * size, n)


def test_rates_agree_with_plain_python():
    rng = np.random.default_rng(0)
    success_VQ = np.linspace(0.9, 0.1, 7)[:, None] * np.ones(5)
    prompt, k, n = run_of(success_VQ, 8, rng)
    found = forgotten(prompt, k, n)
    assert len(found.prompt_F) > 0
    for row, early, late in zip(found.prompt_F, found.early_F, found.late_F, strict=True):
        mine = [int(one) for one, at in zip(k, prompt, strict=True) if at == row]
        assert early == pytest.approx(sum(mine[:3]) / 24)
        assert late == pytest.approx(sum(mine[-3:]) / 24)
    assert (np.diff(found.p_value_F) >= 0).all()
    assert found.num_revisited == 5


@pytest.mark.parametrize("visits", [2, 3, 12])
def test_hardly_anything_is_forgotten_where_nothing_falls(visits):
    rng = np.random.default_rng(1)
    alarms = []
    for _ in range(60):
        start = rng.beta(0.5, 0.5, 300)
        rise = np.linspace(0.0, rng.choice([0.0, 0.2]), visits)[:, None]
        found = forgotten(*run_of(np.clip(start + rise, 0, 1), 8, rng))
        alarms.append(len(found.prompt_F) > 0)
    # With nothing to find every finding is false, so the share of runs with any is bounded.
    assert np.mean(alarms) <= 0.05 + 3 * (0.05 * 0.95 / 60) ** 0.5


@pytest.mark.parametrize("falling", [0.05, 0.3])
def test_false_share_is_kept_in_mixtures(falling):
    rng = np.random.default_rng(2)
    false, power = [], []
    for _ in range(60):
        start = rng.uniform(0.6, 1.0, 400)
        falls = rng.random(400) < falling
        drop = np.linspace(0.0, 0.6, 12)[:, None] * falls
        found = forgotten(*run_of(start - drop, 8, rng))
        wrong = (~falls[found.prompt_F]).sum()
        false.append(wrong / max(len(found.prompt_F), 1))
        power.append(falls[found.prompt_F].sum() / max(falls.sum(), 1))
    assert np.mean(false) <= 0.05 + 2 * np.std(false) / 60**0.5
    assert np.mean(power) > 0.2


def test_outer_thirds_find_more_than_halves():
    rng = np.random.default_rng(3)
    size, visits, n = 8_000, 12, 8
    time_V1 = (np.arange(visits)[:, None] + 0.5) / visits
    start = rng.uniform(0.4, 0.95, size)
    at = rng.uniform(0.15, 0.85, size)
    for success_VQ in (start - 0.3 * (time_V1 > at), start - 0.3 * time_V1):
        k_VQ = rng.binomial(n, success_VQ)

        def power(share, k_VQ=k_VQ):
            num = np.full(size, share * n)
            early, late = k_VQ[:share].sum(axis=0), k_VQ[-share:].sum(axis=0)
            return (fall_p_values(early, num, late, num)[0] < 0.01).mean()

        assert power(4) > power(6) + 0.01


def test_prompts_seen_once_or_never_varying_are_not_tested():
    found = forgotten([0, 1, 1, 2, 2], [4, 8, 8, 0, 0], [8, 8, 8, 8, 8])
    assert (found.num_tested, found.num_revisited, len(found.prompt_F)) == (0, 2, 0)
    empty = forgotten([], [], [])
    assert (empty.num_tested, empty.num_revisited, empty.num_lost_tenth) == (0, 0, 0)


def test_observed_falls_are_counted():
    found = forgotten([0, 1, 0, 1], [8, 4, 7, 4], [8, 8, 8, 8])
    assert found.num_lost_tenth == 1
    assert len(found.prompt_F) == 0


@given(st.integers(0, 1000))
def test_order_of_prompts_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    prompt, k, n = run_of(rng.random((6, 8)), 8, rng)
    name = rng.permutation(8)
    found, renamed = forgotten(prompt, k, n), forgotten(name[prompt], k, n)
    assert set(name[found.prompt_F]) == set(renamed.prompt_F)
    assert found.num_tested == renamed.num_tested


def test_mistakes_are_named():
    with pytest.raises(InvalidInputError, match="more successes"):
        forgotten([0], [3], [2])
    with pytest.raises(InvalidInputError, match="false_share is 1"):
        forgotten([0], [1], [2], false_share=1.0)


def test_a_million_prompts():
    rng = np.random.default_rng(4)
    found = forgotten(*run_of(rng.random(250_000) * np.ones((4, 1)), 4, rng))
    assert found.num_revisited == 250_000
    assert len(found.prompt_F) < 50
