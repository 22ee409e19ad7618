"""The allocator that chooses prompts: fallbacks, state, and that nothing is left out for ever."""

import math
import warnings
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocator import NO_DATA, NO_SKILL, RolloutAllocator
from apportion.errors import InfeasibleBudgetError, InvalidInputError, StateError
from apportion.gain import KAPPA_RANGE, Progress
from apportion.predictor import Beta, Oracle
from apportion.prompt_stream import candidates, prompt_stream
from apportion.selection import select
from apportion.types import Outcomes, Prompts

IDS = np.array([f"prompt-{i:03d}" for i in range(60)])
TRUTH = np.where(np.arange(60) % 3 == 0, np.linspace(0.1, 0.9, 60), 0.001)
OBJECTIVES = ("progress", "coverage")


def prompts_of(rows):
    return Prompts(id_B=IDS[rows])


def drawn(rows, num_B, step, success=TRUTH):
    """Outcomes of all candidates, also of those without rollouts."""
    rng = np.random.default_rng([7, step])
    group_N = np.repeat(np.arange(len(rows)), num_B)
    reward_N = (rng.random(len(group_N)) < success[rows][group_N]).astype(float)
    return Outcomes.of_rewards(IDS[rows], reward_N, group_N, step=step)


def trained(objective="progress", steps=6, **options):
    allocator = RolloutAllocator(Beta(), objective=objective, **options)
    rows = np.arange(60)
    for step in range(steps):
        allocator.allocate(prompts_of(rows), 240)
        allocator.observe(drawn(rows, np.full(60, 4), step))
    return allocator


def even(allocation, num_even, budget):
    """Whether the first ones share the budget and the others have nothing."""
    first, rest = np.split(allocation.num_rollouts_B, [num_even])
    assert not rest.any()
    assert first.sum() == budget
    assert first.max() - first.min() <= 1
    assert (np.diff(first) <= 0).all()
    assert allocation.price == 0.0
    assert allocation.gain == allocation.uniform_gain
    assert math.isnan(allocation.gain_bound)
    return True


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_data_the_batch_gets_an_even_split(objective):
    allocator = RolloutAllocator(Beta(), objective=objective)
    allocation = allocator.allocate(prompts_of(np.arange(30)), 43, prompts_per_step=10)
    assert allocation.reason == NO_DATA
    assert even(allocation, 10, 43)
    assert even(allocator.allocate(prompts_of(np.arange(30)), 70), 30, 70)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_skill_the_batch_gets_an_even_split(objective):
    allocator = RolloutAllocator(
        Oracle(lambda ids: np.where(ids < "prompt-030", 0.9, 0.1)), objective=objective
    )
    rows = np.arange(60)
    allocator.add(prompts_of(rows))
    for step in range(10):
        allocator.observe(drawn(rows, np.full(60, 4), step, np.full(60, 0.5)))
    allocation = allocator.allocate(prompts_of(rows), 80, prompts_per_step=20)
    assert allocation.reason == NO_SKILL
    assert even(allocation, 20, 80)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rewards_out_of_range_give_an_even_split(objective):
    allocator = trained(objective)
    rows = np.arange(4)
    with pytest.warns(UserWarning, match="outside reward_range"):
        allocator.observe(
            Outcomes.of_rewards(IDS[rows], np.full(8, 3.0), np.repeat(rows, 2), step=9)
        )
    allocation = allocator.allocate(prompts_of(np.arange(60)), 64, prompts_per_step=16)
    assert "outside reward_range" in allocation.reason
    assert even(allocation, 16, 64)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_chooses_what_teaches(objective):
    allocator = trained(objective, exploration=0.0)
    allocation = allocator.allocate(prompts_of(np.arange(60)), 60, prompts_per_step=15)
    num_B = allocation.num_rollouts_B
    assert allocation.reason == ""
    assert num_B.sum() == 60
    assert num_B[np.arange(60) % 3 == 0].sum() > 50
    assert allocation.gain_ratio > 1.5
    assert allocation.gain <= allocation.gain_bound
    assert math.isnan(allocation.variance)
    assert np.bincount(allocation.group_N, minlength=60).tolist() == num_B.tolist()


def test_the_choice_is_that_of_select():
    allocator = trained(exploration=0.25, kappa=0.5)
    rows = np.arange(60)
    seen_B = np.where(rows < 20, 5, rows % 5)  # the last step of each
    allocator._last_step_Q = seen_B.astype(np.int64)
    allocation = allocator.allocate(prompts_of(rows), 64, upper=9, prompts_per_step=16)
    required_B = np.zeros(60, dtype=bool)
    required_B[[20, 25, 30, 35, 40, 45, 50, 55]] = True  # 64 / 4 / 2 of step 0
    expected = select(
        Progress.of(allocation.forecast, 0.5), 64, size=60, upper=9, required_B=required_B
    )
    np.testing.assert_array_equal(allocation.num_rollouts_B, expected.num_rollouts_B)


def test_variance_takes_no_candidates():
    allocator = RolloutAllocator(Beta())
    with pytest.raises(InvalidInputError, match="prompts_per_step 10"):
        allocator.allocate(prompts_of(np.arange(30)), 64, prompts_per_step=10)
    same = allocator.allocate(prompts_of(np.arange(10)), 64, prompts_per_step=10)
    assert same.num_rollouts_B.sum() == 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "gain"}, "objective is 'gain'"),
        ({"exploration": 1.0}, "exploration is 1"),
        ({"exploration": -0.1}, "exploration is -0.1"),
        ({"exploration": math.nan}, "exploration"),
        ({"kappa": math.inf}, "kappa"),
        ({"objective": "progress", "lower": 1}, "lower is 1, but where prompts are chosen"),
        ({"objective": "coverage", "lower": 0}, "lower is 0, but where prompts are chosen"),
    ],
)
def test_malformed_options_are_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        RolloutAllocator(Beta(), **options)


def test_kappa_is_kept_within_its_range():
    assert RolloutAllocator(Beta(), kappa=100.0).kappa == KAPPA_RANGE[1]
    assert RolloutAllocator(Beta(), kappa=0.0).kappa == KAPPA_RANGE[0]


def test_prompts_per_step_is_a_whole_number():
    allocator = RolloutAllocator(Beta(), objective="progress")
    for bad in (0, -1, 2.5):
        with pytest.raises(InvalidInputError, match="prompts_per_step"):
            allocator.allocate(prompts_of(np.arange(30)), 64, prompts_per_step=bad)


@pytest.mark.parametrize("objective", ["variance", *OBJECTIVES])
@pytest.mark.parametrize("num_even", [10, 40, 40.0])
def test_an_even_split_takes_no_more_prompts_than_there_are(objective, num_even):
    words = f"prompts_per_step is {num_even:g}, but there are 9 prompts"
    for allocator in (
        RolloutAllocator(Beta(), objective=objective),
        trained(objective, do_no_harm=False),
    ):
        with pytest.raises(InvalidInputError, match=words):
            allocator.allocate(prompts_of(np.arange(9)), 64, prompts_per_step=num_even)
        whole = allocator.allocate(prompts_of(np.arange(9)), 64, prompts_per_step=9)
        assert whole.num_rollouts_B.sum() == 64


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_left_out_it_is_as_many_as_there_are_or_fit(objective):
    allocator = RolloutAllocator(Beta(), objective=objective)
    assert even(allocator.allocate(prompts_of(np.arange(9)), 64), 9, 64)
    assert even(allocator.allocate(prompts_of(np.arange(9)), 12), 6, 12)


def test_prompts_per_step_may_be_a_whole_float():
    allocator = RolloutAllocator(Beta(), objective="progress")
    assert even(allocator.allocate(prompts_of(np.arange(9)), 64.0, prompts_per_step=8.0), 8, 64)


@pytest.mark.parametrize("lower", [0, 1, 2.5])
@pytest.mark.parametrize("exploration", [0.0, 0.1])
def test_groups_without_an_advantage_are_refused(lower, exploration):
    allocator = trained(lower=2, exploration=exploration)
    allocator.lower = lower
    with pytest.raises(InvalidInputError, match="lower"):
        allocator.allocate(prompts_of(np.arange(60)), 64, prompts_per_step=16)


def test_an_even_split_that_does_not_fit_is_refused():
    with pytest.raises(InfeasibleBudgetError):
        trained().allocate(prompts_of(np.arange(60)), 64, prompts_per_step=40)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_do_no_harm_the_even_split_need_not_fit(objective):
    allocator = trained(objective, do_no_harm=False)
    for options in ({"prompts_per_step": 1, "upper": 2}, {"prompts_per_step": 40}):
        allocation = allocator.allocate(prompts_of(np.arange(60)), 64, **options)
        assert allocation.num_rollouts_B.sum() == 64
        assert math.isfinite(allocation.gain)
        assert math.isnan(allocation.uniform_gain)
        assert math.isnan(allocation.gain_ratio)
    with pytest.raises(InfeasibleBudgetError):
        allocator.allocate(prompts_of(np.arange(5)), 64, upper=4)


def test_a_restored_allocator_goes_on_as_the_saved_one():
    allocator = trained()
    allocator.observe(drawn(np.arange(5), np.full(5, 2), 20))
    other = RolloutAllocator(Beta(), objective="progress")
    other.load_state_dict(allocator.state_dict())
    np.testing.assert_array_equal(other._last_step_Q, allocator._last_step_Q)
    assert other._last_step_Q.tolist() == [20] * 5 + [5] * 55
    assert other.share_touched == allocator.share_touched == 1.0
    batch = prompts_of(np.arange(60))
    np.testing.assert_array_equal(
        *(one.allocate(batch, 64, prompts_per_step=16).num_rollouts_B for one in (other, allocator))
    )
    other.observe(drawn(np.arange(5, 9), np.full(4, 2), 21))
    assert allocator._last_step_Q[5] == 5  # the arrays are not shared


def test_a_state_of_before_last_step_takes_all_prompts_for_unseen():
    state = trained().state_dict()
    del state["last_step"]
    allocator = RolloutAllocator(Beta(), objective="progress")
    allocator.load_state_dict(state)
    assert allocator.share_touched == 0.0
    allocation = allocator.allocate(prompts_of(np.arange(60)), 64, prompts_per_step=16)
    assert allocation.reason == ""
    assert allocation.num_rollouts_B.sum() == 64


@pytest.mark.parametrize(
    "last_step", [np.zeros(59, dtype=np.int64), np.zeros(60), np.full(60, -2, dtype=np.int64)]
)
def test_a_damaged_last_step_is_refused(last_step):
    allocator = trained()
    before = allocator.state_dict()["last_step"]
    with pytest.raises(StateError, match="last_step"):
        allocator.load_state_dict(allocator.state_dict() | {"last_step": last_step})
    np.testing.assert_array_equal(allocator.state_dict()["last_step"], before)


def longest_wait(allocator, num_prompts, num_steps, *, size, num, budget, seed, success=TRUTH):
    """Most times in a row that a prompt was a candidate and got nothing, and the last ones."""
    waits_Q, longest = np.zeros(num_prompts, dtype=int), 0
    batches = prompt_stream(num_prompts, size, seed=seed)
    for step, batch in enumerate(islice(batches, num_steps)):
        rows = candidates(batch, num_prompts, num, seed=seed, step=step)
        num_B = allocator.allocate(prompts_of(rows), budget, prompts_per_step=size).num_rollouts_B
        allocator.observe(drawn(rows, num_B, step, success))
        waits_Q[rows] += 1
        longest = max(longest, int(waits_Q.max()))
        waits_Q[rows[num_B > 0]] = 0
    return longest


def adverse(exploration, **options):
    """An allocator that is sure that two thirds of the prompts are hopeless."""
    is_hopeless = dict(zip(IDS.tolist(), (np.arange(60) % 3 != 0).tolist(), strict=True))
    allocator = RolloutAllocator(
        Oracle(lambda ids: np.array([0.0 if is_hopeless[key] else 0.5 for key in ids.tolist()])),
        objective="progress",
        exploration=exploration,
        do_no_harm=False,
        **options,
    )
    allocator.add(prompts_of(np.arange(60)))
    return allocator


@given(
    st.sampled_from([0.05, 0.1, 0.2, 0.5]), st.integers(6, 20), st.integers(0, 9), st.integers(2, 3)
)
@settings(max_examples=6)
def test_no_prompt_waits_longer_than_promised(exploration, size, seed, lower):
    """Looked at the ceil(Q/E)-th time that it is a candidate at the latest."""
    budget = 4 * size
    num_explored = int(exploration * budget) // lower
    if num_explored == 0:
        return
    allocator = adverse(exploration, lower=lower)
    found = longest_wait(
        allocator, 60, 90, size=size, num=min(3 * size, 60), budget=budget, seed=seed
    )
    assert found <= -(-60 // num_explored)


@pytest.mark.parametrize(("num_prompts", "num_explored"), [(12, 4), (12, 5), (12, 7), (14, 3)])
def test_the_promise_is_tight(num_prompts, num_explored):
    """All others may come first: the last is looked at the ceil(Q/E)-th time, not before."""
    rows = np.arange(num_prompts)
    star = IDS[num_prompts - 1]  # takes all that exploration leaves
    allocator = RolloutAllocator(
        Oracle(lambda ids: np.where(ids == star, 0.5, 0.0)),
        objective="progress",
        exploration=0.5,
        do_no_harm=False,
    )
    first_Q = np.zeros(num_prompts, dtype=int)
    for step in range(1, num_prompts + 1):
        num_B = allocator.allocate(
            prompts_of(rows), 4 * num_explored, prompts_per_step=1
        ).num_rollouts_B
        first_Q = np.where((first_Q == 0) & (num_B > 0), step, first_Q)
        allocator.observe(drawn(rows, num_B, step))
    assert first_Q.max() == -(-num_prompts // num_explored)


def test_without_exploration_what_is_thought_hopeless_is_left_out():
    allocator = adverse(0.0)
    longest = longest_wait(allocator, 60, 30, size=12, num=36, budget=48, seed=0)
    assert longest > 10
    assert allocator.share_touched < 0.5


def test_a_prompt_whose_rollouts_always_fail_does_not_keep_others_from_being_looked_at():
    """Rewards of one prompt are never scorable; the slots for exploration must not stay with it."""
    allocator = adverse(0.1)
    rows = np.arange(60)
    looked_Q = np.zeros(60, dtype=bool)
    for step in range(80):
        num_B = allocator.allocate(prompts_of(rows), 20, prompts_per_step=10).num_rollouts_B
        looked_Q |= num_B > 0
        group_N = np.repeat(rows, num_B)
        reward_N = np.where(group_N == 1, np.nan, 0.0)
        allocator.observe(Outcomes.of_rewards(IDS, reward_N, group_N, step=step))
    assert looked_Q.all()


def warned_of(objective, rewards, reward_range=(0.0, 1.0), *, times=1):
    allocator = RolloutAllocator(Beta(), objective=objective, reward_range=reward_range)
    allocator.add(Prompts(id_B=["a"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(times):
            allocator.observe(Outcomes.of_rewards(["a"], rewards, [0] * len(rewards), step=step))
    return [str(one.message) for one in caught]


def test_coverage_warns_once_of_rewards_that_are_no_success_or_failure():
    (said,) = warned_of("coverage", [0.0, 0.5, 1.0], times=3)
    assert "rewards other than the two ends of reward_range (0, 1)" in said
    assert 'Choose "progress"' in said
    assert "range (-1, 1)" in warned_of("coverage", [0.0, 1.0], (-1.0, 1.0))[0]
    for objective in ("progress", "variance"):
        assert warned_of(objective, [0.0, 0.5, 1.0]) == []
    # Of rewards beyond the range there is a warning of its own.
    (said,) = warned_of("coverage", [3.0, 3.5])
    assert "outside reward_range" in said


@given(
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.one_of(st.none(), st.floats(0.01, 0.99)),
)
def test_coverage_is_content_with_two_values_whatever_they_are(is_right, low, width, share):
    rewards = [low + width * right for right in is_right]
    if share is not None:
        rewards[0] = low + width * share
    said = warned_of("coverage", rewards, (low, low + width))
    assert len(said) == (share is not None)


def test_candidates_that_were_not_chosen_are_not_counted_as_ignored():
    allocator = trained(steps=3)
    rows = np.arange(60)
    allocation = allocator.allocate(prompts_of(rows), 40, prompts_per_step=10)
    allocator.observe(drawn(rows, allocation.num_rollouts_B, 3))
    assert allocator.num_ignored == 0
