"""Replay: the past alone decides, the record alone scores, and known savings come out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.errors import InvalidInputError
from apportion.predictor import Beta, FilterBank, Oracle
from apportion.recording import GroupTable, table_of_counts
from apportion.replay import ReplayStep, replay, replay_of, walk
from apportion.types import Forecast


def record(
    seed: int = 0, *, num_prompts: int = 40, num_steps: int = 12, size: int = 8
) -> tuple[GroupTable, np.ndarray]:
    """A run of fixed success rates; the rate of each prompt by its number."""
    random = np.random.default_rng(seed)
    success_Q = random.choice([0.02, 0.3, 0.5, 0.98], size=num_prompts)
    rows = [
        (f"q{q:03d}", step, int(random.binomial(size, success_Q[q])))
        for step in range(num_steps)
        for q in random.permutation(num_prompts)[: num_prompts // 2]
    ]
    keys, steps, solved = zip(*rows, strict=True)
    return table_of_counts(keys, steps, solved, size), success_Q


def changed(groups: GroupTable, **values: np.ndarray) -> GroupTable:
    kept = {name: getattr(groups, name) for name in GroupTable.__slots__}
    return GroupTable(**(kept | values))


def decisions(steps: list[ReplayStep]) -> list[list[int]]:
    return [step.allocation.num_rollouts_B.tolist() for step in steps]


@settings(max_examples=20)
@given(st.integers(1, 11), st.integers(0, 10_000))
def test_the_future_never_decides(cut, seed):
    groups, _ = record(1)
    later = groups.step_G >= cut
    shuffled = groups.reward_sum_G.copy()
    shuffled[later] = np.random.default_rng(seed).permutation(shuffled[later])
    other = changed(groups, reward_sum_G=shuffled, reward_sumsq_G=shuffled)
    for make in (Beta, FilterBank):
        a = list(walk(groups, RolloutAllocator(make(), upper=32)))
        b = list(walk(other, RolloutAllocator(make(), upper=32)))
        known = sum(step.step <= cut for step in a)
        assert decisions(a)[:known] == decisions(b)[:known]


def test_a_changed_past_does_decide():
    """The test above can fail: the past is looked at."""
    groups, _ = record(1)
    flipped = np.where(groups.step_G < 6, 8 - groups.reward_sum_G, groups.reward_sum_G)
    flipped = np.where(groups.step_G < 6, np.where(flipped > 4, 4, flipped), flipped)
    other = changed(groups, reward_sum_G=flipped, reward_sumsq_G=flipped)
    a = list(walk(groups, RolloutAllocator(Beta(), do_no_harm=False)))
    b = list(walk(other, RolloutAllocator(Beta(), do_no_harm=False)))
    assert decisions(a)[:1] == decisions(b)[:1]
    assert decisions(a) != decisions(b)


def test_every_step_is_on_budget_and_within_bounds():
    groups, _ = record(2)
    for size in (None, 4.0, 5.5, 16.0):
        steps = walk(groups, RolloutAllocator(Beta(), lower=2, upper=32), rollouts_per_prompt=size)
        for step in steps:
            n_B = step.allocation.num_rollouts_B
            assert n_B.sum() == step.budget
            wanted = len(n_B) * (8.0 if size is None else size)
            assert step.budget == round(wanted)
            assert (n_B >= 2).all()
            assert (n_B <= 32).all()


def test_scores_are_the_sums_by_hand():
    groups, success_Q = record(3)
    rate_of = dict(zip([f"q{q:03d}" for q in range(40)], success_Q, strict=True))
    oracle = Oracle(lambda keys: np.array([rate_of[str(key)] for key in keys]))
    result = replay(groups, RolloutAllocator(oracle, upper=32, do_no_harm=False))
    even = ours = 0.0
    for _, part in groups.steps():
        k = groups.reward_sum_G[part]
        sample = k * (8 - k) / (8 * 7)
        forecast = Forecast.of_success(success_Q[groups.prompt_G[part]])
        n_B = allocate(forecast, 8 * len(k), upper=32).num_rollouts_B
        even += float((sample / 7).sum())
        ours += float((sample / (n_B - 1)).sum())
    assert result.uniform_variance == pytest.approx(even)
    assert result.variance == pytest.approx(ours)
    assert result.num_groups == len(groups)
    assert result.num_uniform_steps == 0


def test_the_saving_of_the_truth_is_the_one_that_was_built_in():
    """Half the prompts are sure, half even: RLOO's variance is then met with 0.63 of the budget."""
    visit = np.repeat(np.arange(200), 20)
    key = np.tile([f"q{i:02d}" for i in range(20)], 200)
    random = np.random.default_rng(4)
    solved = np.where(np.tile(np.arange(20), 200) < 10, 8, random.binomial(8, 0.5, len(key)))
    groups = table_of_counts(key, visit, solved, 8)
    oracle = Oracle(lambda keys: np.where([int(k[1:]) < 10 for k in keys], 1.0, 0.5))
    result = replay(groups, RolloutAllocator(oracle, upper=64, do_no_harm=False))
    # 10 sure prompts take 2 each, 10 even ones 8: 100 of 160 rollouts.
    assert result.saving == pytest.approx(1.0 - 100 / 160, abs=0.02)
    low, high = result.saving_interval
    assert low <= result.saving <= high
    assert result.oracle_saving == pytest.approx(result.saving, abs=0.03)


def test_forecasts_that_know_nothing_save_nothing():
    random = np.random.default_rng(5)
    solved = random.binomial(8, 0.4, size=2_000)
    groups = table_of_counts(np.arange(2_000).astype(str), np.arange(2_000) // 50, solved, 8)
    result = replay(groups, RolloutAllocator(FilterBank(), upper=32))
    assert abs(result.saving) < 0.02
    assert "visited 1.0 times" in " ".join(result.notes)


def test_the_allocator_is_left_as_it_is():
    groups, _ = record(6)
    allocator = RolloutAllocator(Beta(), upper=32)
    first = replay(groups, allocator)
    assert len(allocator) == 0
    assert allocator.step == 0
    assert replay(groups, allocator).saving == first.saving


def test_it_learns_only_what_it_asked_for():
    groups, _ = record(7)
    asked = {}

    class Watched(Beta):
        def update(self, row_B, outcomes):
            asked.setdefault("num", []).append(outcomes.num_rollouts_B.copy())
            assert (outcomes.reward_sum_B <= outcomes.num_rollouts_B).all()
            assert (outcomes.reward_sum_B == np.rint(outcomes.reward_sum_B)).all()
            super().update(row_B, outcomes)

    steps = list(walk(groups, RolloutAllocator(Watched(), upper=32)))
    for step, seen in zip(steps, asked["num"], strict=True):
        wanted = np.minimum(step.allocation.num_rollouts_B, 8)
        assert sorted(seen.tolist()) == sorted(wanted.tolist())


def test_real_valued_and_signed_rewards():
    groups, _ = record(8)
    signed = changed(
        groups,
        reward_sum_G=2.0 * groups.reward_sum_G - groups.num_rollouts_G,
        reward_sumsq_G=groups.num_rollouts_G.astype(float),
    )
    plain = replay(groups, RolloutAllocator(Beta(), upper=32))
    found = replay(signed, RolloutAllocator(Beta(), upper=32, reward_range=(-1.0, 1.0)))
    assert found.saving == pytest.approx(plain.saving)
    assert found.uniform_variance == pytest.approx(4.0 * plain.uniform_variance)
    real = changed(
        groups,
        reward_sum_G=0.3 + 0.9 * groups.reward_sum_G,
        reward_sumsq_G=0.1 + 0.8 * groups.reward_sum_G,
    )
    assert np.isfinite(replay(real, RolloutAllocator(FilterBank(), upper=32)).saving)


def test_small_groups_are_decided_on_but_not_scored():
    groups = table_of_counts(["a", "b"] * 5, np.repeat(np.arange(5), 2), [1, 1] * 5, [1, 4] * 5)
    result = replay(groups, RolloutAllocator(Beta(), upper=8))
    assert result.num_groups == 5
    alone = table_of_counts(["a"] * 4, range(4), [1, 0, 1, 0], 1)
    with pytest.raises(InvalidInputError, match="at least two rollouts"):
        replay(alone, RolloutAllocator(Beta()))


def test_progress_reaches_the_end():
    groups, _ = record(9)
    calls: list[tuple[int, int]] = []
    replay_of(groups, progress=lambda done, total: calls.append((done, total)))
    done, total = zip(*calls, strict=True)
    assert done[-1] == total[-1]
    assert list(done) == sorted(done)


def test_texts_help_on_first_visits():
    random = np.random.default_rng(10)
    hard = random.random(600) < 0.5
    texts = {
        f"q{i:03d}": ("factor the large number " if hard[i] else "add one and ") + str(i)
        for i in range(600)
    }
    solved = random.binomial(8, np.where(hard, 0.02, 0.5))
    groups = table_of_counts(sorted(texts), np.arange(600) // 30, solved, 8, text_of=texts)
    without = replay_of(changed(groups, text_Q=None))
    assert replay_of(groups).saving > without.saving + 0.1


def test_steps_that_count_tokens_do_no_harm():
    """A step of a million leaves an old prompt no better known than its like, and no worse."""
    groups, _ = record(11, num_steps=30)
    apart = changed(groups, step_G=1_000_000 * groups.step_G, policy_step_G=10**6 * groups.step_G)
    result = replay(apart, RolloutAllocator(FilterBank(), upper=32))
    assert result.variance < 1.05 * result.uniform_variance


@pytest.mark.parametrize("upper", [2, 3, 6, 8])
def test_bounds_that_leave_nothing_to_move_save_nothing(upper):
    groups, _ = record(12)
    result = replay(groups, RolloutAllocator(Beta(), upper=upper))
    assert abs(result.saving) < 0.01 or upper == 6
    assert result.saving_interval[1] - result.saving_interval[0] < 0.2
    assert not np.signbit(result.saving) or result.saving < 0.0


def test_hindsight_helps_real_valued_rewards_too():
    random = np.random.default_rng(13)
    spread_Q = np.where(np.arange(60) < 30, 0.02, 0.4)
    keys, steps, sums, squares = [], [], [], []
    for step in range(30):
        for q in range(60):
            reward_N = np.clip(0.5 + spread_Q[q] * random.standard_normal(8), 0.0, 1.0)
            keys.append(f"q{q:02d}")
            steps.append(step)
            sums.append(reward_N.sum())
            squares.append((reward_N**2).sum())
    plain = table_of_counts(keys, steps, np.zeros(len(keys), int), 8)
    real = changed(
        plain,
        reward_sum_G=np.array(sums),
        reward_sumsq_G=np.array(squares),
        signal_G=np.ones(len(keys), bool),
    )
    # The skill that do_no_harm looks at is that of the mean, which is the same for all here.
    result = replay(real, RolloutAllocator(FilterBank(), upper=32, do_no_harm=False))
    assert result.saving > 0.2
    assert result.oracle_saving > result.saving - 0.02
