"""Interference against the truth of populations, where naive counting is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.interference import interference


def found_for(before_Q, after_Q, num, seed):
    rng = np.random.default_rng(seed)
    return interference(rng.binomial(num, before_Q), num, rng.binomial(num, after_Q), num)


@pytest.mark.parametrize("num", [8, 16, 64])
def test_noise_alone_is_no_interference(num):
    success_Q = np.random.default_rng(0).beta(0.6, 0.8, 600)
    found = found_for(success_Q, success_Q, num, 1)
    assert found.seen_worsened > (0.15 if num < 20 else 0.05)
    assert found.worsened.value < 0.06
    assert found.improved.value < 0.06
    assert found.change_sd < 0.06
    assert abs(found.mean_change) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_a_share_that_worsens_is_recovered(seed):
    rng = np.random.default_rng(seed)
    before_Q = rng.beta(0.6, 0.8, 800)
    falls_Q = rng.random(800) < 0.2
    after_Q = np.where(falls_Q, before_Q - 0.4, before_Q + 0.3).clip(0, 1)
    change_Q = after_Q - before_Q
    found = found_for(before_Q, after_Q, 32, seed)
    assert found.worsened.value == pytest.approx(np.mean(change_Q < -0.1), abs=0.035)
    assert found.improved.value == pytest.approx(np.mean(change_Q > 0.1), abs=0.12)
    assert found.mean_change == pytest.approx(change_Q.mean(), abs=0.02)
    assert found.change_sd == pytest.approx(change_Q.std(), abs=0.03)
    assert found.worsened.low <= np.mean(change_Q < -0.1) <= found.worsened.high + 0.02


def test_never_solved_is_not_never_seen_to_be_solved():
    """Of problems at 0.05, 44% show 0 of 16."""
    success_Q = np.repeat([0.0, 0.05], 500)
    found = found_for(success_Q, success_Q, 16, 0)
    assert found.never_solved.value == pytest.approx(0.5, abs=0.12)
    hidden = found_for(np.full(1000, 0.05), np.full(1000, 0.05), 16, 0)
    assert hidden.never_solved.value < 0.1


@given(st.integers(1, 40), st.integers(2, 12), st.integers(2, 12), st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_looking_back_swaps_the_shares(num_problems, k, m, seed):
    rng = np.random.default_rng(seed)
    before, after = rng.integers(0, k + 1, num_problems), rng.integers(0, m + 1, num_problems)
    one, other = interference(before, k, after, m), interference(after, m, before, k)
    assert one.improved.value == pytest.approx(other.worsened.value, abs=1e-6)
    assert one.never_solved.value == pytest.approx(other.never_solved.value, abs=1e-6)
    assert one.mean_change == pytest.approx(-other.mean_change)
    for share in (one.improved, one.worsened, one.never_solved):
        assert -1e-9 <= share.low <= share.value <= share.high <= 1 + 1e-9
    order = rng.permutation(num_problems)
    again = interference(before[order], k, after[order], m)
    assert again.improved.value == pytest.approx(one.improved.value, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (([], 4, [], 4), "no problems"),
        (([1], 4, [1, 2], 4), "num_success_after_Q"),
        (([5], 4, [1], 4), "num_success_before_Q holds 5"),
        (([1], 1, [1], 4), "num_samples_before"),
    ],
)
def test_bad_counts_are_refused(values, match):
    with pytest.raises(InvalidInputError, match=match):
        interference(*values)
