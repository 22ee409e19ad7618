import numpy as np
import pytest

from apportion.audit.filtering import find_filtering
from apportion.success_distribution import fit_success

SPREADS = {
    "flat": lambda rng, size: rng.uniform(0.1, 0.9, size),
    "ends": lambda rng, size: rng.beta(0.5, 0.5, size),
    "easy": lambda rng, size: rng.beta(5, 2, size),
}


def filtering_of(k, n):
    fit = fit_success(k, [n] * len(k), range(len(k)), num_draws=0)
    return find_filtering(k, [n] * len(k), all_wrong=fit.all_wrong, all_right=fit.all_right)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("n", [4, 8])
def test_filtered_records_are_found_and_whole_ones_are_not(spread, n):
    rng = np.random.default_rng(0)
    k = rng.binomial(n, SPREADS[spread](rng, 4_000))
    assert not filtering_of(k, n).found
    kept = k[(k > 0) & (k < n)]
    found = filtering_of(kept, n)
    assert found.found
    assert found.share_before == pytest.approx(1.0 - len(kept) / len(k), abs=0.25)
    if spread == "flat":  # little of it never has signal, so the share can be turned around
        assert found.share_before == pytest.approx(1.0 - len(kept) / len(k), abs=0.05)


@pytest.mark.parametrize("keep", [lambda k: k > 0, lambda k: k < 8])
def test_one_missing_side_is_enough(keep):
    rng = np.random.default_rng(1)
    k = rng.binomial(8, rng.beta(0.6, 0.6, 3_000))
    assert filtering_of(k[keep(k)], 8).found


def test_whole_records_are_hardly_ever_accused():
    rng = np.random.default_rng(2)
    draws = [rng.binomial(8, rng.beta(*rng.uniform(0.3, 4, 2), 300)) for _ in range(80)]
    assert sum(filtering_of(k, 8).found for k in draws) <= 1


def test_groups_that_chance_would_keep_are_not_accused():
    # At one half 16 rollouts are all equal once in 30,000 groups.
    k = np.random.default_rng(3).binomial(16, 0.5, 1_000)
    assert not filtering_of(k[(k > 0) & (k < 16)], 16).found
