import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.comparison import compute_to_level, paired_difference, share_of_compute
from apportion.errors import InvalidInputError


def test_paired_difference_equals_scipy():
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(0)
    base = rng.normal(size=10)
    arm = base + rng.normal(0.1, 0.05, size=10)
    ours = paired_difference(arm, base)
    theirs = ttest_rel(arm, base).confidence_interval(0.95)
    assert ours.low == pytest.approx(theirs.low)
    assert ours.high == pytest.approx(theirs.high)
    assert ours.is_above_zero
    assert not ours.is_below_zero


def test_interval_covers_at_its_level():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        difference = rng.normal(0.3, 1.0, size=5)
        ours = paired_difference(difference, np.zeros(5))
        covered += ours.low <= 0.3 <= ours.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval():
    ours = paired_difference([1.0], [0.5])
    assert ours.mean == 0.5
    assert np.isnan(ours.low)
    assert not ours.is_above_zero


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 1))
def test_compute_to_level_equals_a_fine_scan(reward, level):
    compute = np.arange(len(reward), dtype=float)
    fine = np.linspace(0, len(reward) - 1, 4001)
    reached = fine[np.interp(fine, compute, reward) >= level]
    ours = compute_to_level(compute, reward, level)
    if np.isinf(ours):
        assert max(reward) < level
    elif reached.size:
        assert ours <= reached[0] + 1e-9
        assert np.interp(ours, compute, reward) >= level - 1e-9


def test_share_of_compute():
    compute = [0, 10, 20, 30, 40]
    base = np.array([[0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.2, 0.3, 0.4]])
    twice = np.array([[0.0, 0.2, 0.4, 0.5, 0.6]] * 2)
    assert share_of_compute(compute, twice, base).mean == pytest.approx(0.5)
    assert share_of_compute(compute, twice, base).high == pytest.approx(0.5)
    assert share_of_compute(compute, base, base).mean == 1.0
    assert share_of_compute(compute, base * 0.5, base).mean == np.inf
    mixed = np.stack([twice[0], base[0] * 0.5])
    assert share_of_compute(compute, mixed, base).high == np.inf


def test_errors_name_the_mistake():
    with pytest.raises(InvalidInputError, match="the same seeds"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(InvalidInputError, match="must increase"):
        compute_to_level([0, 0], [1, 1], 1)
    with pytest.raises(InvalidInputError, match="shape"):
        share_of_compute([0, 1], [[1.0]], [[1.0, 2.0]])
    curve = [[0.0, 0.1], [0.1, 0.2]]
    for level in (0.0, 1.0, -1.0, 2.0, np.nan):
        with pytest.raises(InvalidInputError, match="level"):
            paired_difference([1.0, 2.0], [1.0, 2.0], level=level)
        with pytest.raises(InvalidInputError, match="level"):
            share_of_compute([0, 1], curve, curve, level=level)
    with pytest.raises(InvalidInputError, match="must end above 0"):
        share_of_compute([-1, 0], curve, curve)
    with pytest.raises(InvalidInputError, match="must be numbers"):
        share_of_compute([0, 1], [[1.0], [1.0, 2.0]], curve)
    with pytest.raises(InvalidInputError, match=r"base_ST\[1\] is nan"):
        share_of_compute([0, 1], curve, [[0.0, np.nan], [0.0, 0.0]])
    for empty in (np.zeros((0, 2)), np.zeros((2, 0))):
        with pytest.raises(InvalidInputError, match="empty"):
            share_of_compute(np.arange(empty.shape[1]), empty, empty)
    with pytest.raises(InvalidInputError, match="num_resamples"):
        share_of_compute([0, 1], curve, curve, num_resamples=0)
