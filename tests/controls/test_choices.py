"""Rules that say which prompts are worth their rollouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import controls
from apportion.controls import BetaPosterior
from apportion.errors import InfeasibleBudgetError, InvalidInputError

groups = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=20,
)
variances = st.lists(st.floats(0, 0.25), min_size=1, max_size=20)


def test_posterior_forgets_by_hand():
    # .5 * 7 + .5 * 1 + 2 = 6 and .5 * 3 + .5 * 1 + 6 = 8.
    belief = BetaPosterior(np.array([7.0]), np.array([3.0])).update([2], [8], decay=0.5)
    assert (belief.alpha_B[0], belief.beta_B[0]) == (6.0, 8.0)
    assert belief.mean_B[0] == 6 / 14


def test_posterior_without_forgetting_counts():
    belief = (
        BetaPosterior.of_prior(2, prior=(1.0, 1.0)).update([3, 0], [4, 0]).update([1, 0], [8, 8])
    )
    assert belief.alpha_B.tolist() == [5.0, 1.0]
    assert belief.beta_B.tolist() == [9.0, 9.0]


def test_mopps_takes_the_draws_nearest_to_the_target():
    belief = BetaPosterior(np.array([2.0, 9.0, 1.0, 5.0]), np.array([2.0, 1.0, 1.0, 5.0]))
    drawn = np.random.default_rng(3).beta(belief.alpha_B, belief.beta_B)
    nearest = sorted(range(4), key=lambda i: (drawn[i] - 0.3) ** 2)[:2]
    taken = controls.mopps(belief, 2, np.random.default_rng(3), target=0.3)
    assert np.flatnonzero(taken).tolist() == sorted(nearest)


def test_mopps_tries_the_unknown_and_leaves_the_solved():
    # A fresh Beta(1, 1) draw is nearer to .5 than a known success of .9 with chance .8.
    belief = BetaPosterior(np.array([1.0, 9e5]), np.array([1.0, 1e5]))
    rng = np.random.default_rng(0)
    share = np.mean([controls.mopps(belief, 1, rng)[0] for _ in range(2000)])
    assert share == pytest.approx(0.8, abs=0.03)


def test_pilot_commit_by_hand():
    # Of 8: 0 and 1 are below .25, 2 to 6 stay, 7 is above .75, 8 is solved.
    triage = controls.pilot_commit(range(9), [8] * 9)
    assert triage.is_kept_B.tolist() == [False, False] + [True] * 5 + [False, False]
    assert triage.is_evicted_B.tolist() == [False] * 8 + [True]
    assert triage.is_deferred_B.tolist() == [True, True] + [False] * 5 + [True, False]
    assert controls.pilot_commit([1], [8], lower=0.125).is_kept_B.all()


@given(groups=groups)
def test_pilot_commit_does_exactly_one_thing_with_each_prompt(groups):
    triage = controls.pilot_commit(*zip(*groups, strict=True))
    parts = np.stack([triage.is_kept_B, triage.is_evicted_B, triage.is_deferred_B])
    assert (parts.sum(axis=0) == 1).all()


def test_dapo_by_hand():
    kept = controls.dapo([0, 3, 4, 1, 2], [4, 4, 4, 4, 4], 2)
    assert kept.tolist() == [False, True, False, True, False]


@given(groups=groups, num=st.integers(1, 8))
def test_dapo_keeps_the_first_mixed_groups(groups, num):
    kept = controls.dapo(*zip(*groups, strict=True), num)
    mixed = [i for i, (correct, total) in enumerate(groups) if 0 < correct < total]
    assert np.flatnonzero(kept).tolist() == mixed[:num]


def test_equal_n_by_hand():
    assert controls.equal_n([0.1, 0.25, 0.2, 0.25], 3, 10).tolist() == [0, 4, 3, 3]


@given(variance=variances, data=st.data(), budget=st.integers(0, 200))
def test_equal_n_is_even_over_the_largest(variance, data, budget):
    num_prompts = data.draw(st.integers(1, len(variance)))
    num = controls.equal_n(variance, num_prompts, budget)
    assert num.sum() == budget
    best = sorted(range(len(variance)), key=lambda i: (-variance[i], i))[:num_prompts]
    assert num[best].sum() == budget
    assert np.ptp(num[best]) <= 1


def test_proportional_by_hand():
    # .25, .25, .01, .2 of 20: all four would give .3 to the third; without it 7.1, 7.1, 5.7.
    assert controls.proportional([0.25, 0.25, 0.01, 0.2], 20).tolist() == [7, 7, 0, 6]
    # Equal candidates: as many as 2 each allow.
    assert controls.proportional([0.2] * 5, 7).tolist() == [3, 2, 2, 0, 0]
    assert controls.proportional([0.0] * 5, 4).tolist() == [2, 2, 0, 0, 0]
    assert controls.proportional([0.25, 0.0, 0.0], 9, upper=5).tolist() == [5, 4, 0]


@given(variance=variances, extra=st.integers(0, 200), lower=st.integers(1, 4))
def test_proportional_is_on_budget_with_none_in_between(variance, extra, lower):
    budget = lower + extra
    num = controls.proportional(variance, budget, lower=lower)
    assert num.sum() == budget
    assert ((num == 0) | (num >= lower)).all()
    order = np.argsort(-np.array(variance), kind="stable")
    assert (np.diff(num[order]) <= 0).all()


@given(variance=variances, lower=st.integers(1, 4))
def test_proportional_leaves_out_only_shares_that_are_too_small(variance, lower):
    num = controls.proportional(variance, 40, lower=lower)
    taken = np.flatnonzero(num)
    left = [i for i in range(len(variance)) if num[i] == 0 and variance[i] > 0]
    for i in left:
        total = sum(variance[j] for j in taken) + variance[i]
        assert 40 * variance[i] / total < lower * (1 + 1e-9)


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="more than the 2 rollouts"):
        controls.dapo([3], [2], 1)
    with pytest.raises(InvalidInputError, match="at least 1"):
        controls.pilot_commit([0], [0])
    with pytest.raises(InvalidInputError, match="must not fall"):
        controls.pilot_commit([0], [4], lower=0.8)
    with pytest.raises(InvalidInputError, match="num_prompts is 3"):
        controls.equal_n([0.1, 0.2], 3, 8)
    with pytest.raises(InvalidInputError, match="must not be negative"):
        controls.proportional([-0.1], 8)
    with pytest.raises(InfeasibleBudgetError, match="below lower"):
        controls.proportional([0.1], 1)
    with pytest.raises(InvalidInputError, match="above 0"):
        BetaPosterior(np.array([0.0]), np.array([1.0]))
    with pytest.raises(InvalidInputError, match="decay"):
        BetaPosterior.of_prior(1, prior=(1.0, 1.0)).update([0], [1], decay=1.5)
