import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.allocation import allocate
from apportion.allocator import NO_DATA, NO_SKILL, RolloutAllocator
from apportion.errors import InfeasibleBudgetError, InvalidInputError, StateError
from apportion.predictor import VIP, Beta, FilterBank, GaussianProcess, MovingAverage, Oracle
from apportion.predictor.skill import SkillMonitor
from apportion.state_file import load_state, save_state
from apportion.types import Outcomes, Prompts

IDS = np.array([f"prompt-{i}" for i in range(24)])
TRUTH = np.linspace(0.02, 0.98, 24)


def batch_of(rows):
    features = np.column_stack([np.linspace(-1, 1, 24), np.ones(24)])
    return Prompts(id_B=IDS[rows], feature_BD=features[rows])


def sampled(rows, num_B, step, seed=0, **kwargs):
    rng = np.random.default_rng([seed, step])
    group_N = np.repeat(np.arange(len(rows)), num_B)
    reward_N = (rng.random(len(group_N)) < TRUTH[rows][group_N]).astype(float)
    return Outcomes.of_rewards(IDS[rows], reward_N, group_N, step=step, **kwargs)


def trained(predictor=None, steps=6, **kwargs):
    allocator = RolloutAllocator(predictor or Beta(), **kwargs)
    rows = np.arange(24)
    for step in range(steps):
        allocation = allocator.allocate(batch_of(rows), 24 * 4)
        allocator.observe(sampled(rows, allocation.num_rollouts_B, step))
    return allocator


def test_without_data_it_is_uniform_and_says_so():
    allocation = RolloutAllocator(GaussianProcess()).allocate(batch_of(np.arange(24)), 100)
    assert allocation.reason == NO_DATA
    assert allocation.num_rollouts_B.tolist() == [5] * 4 + [4] * 20
    assert allocation.variance_ratio == 1.0


def test_a_prior_is_data():
    mean = np.where(np.arange(24) < 12, 0.5, 0.01)
    prompts = Prompts(id_B=IDS, prior_mean_B=mean, prior_count_B=np.full(24, 16.0))
    allocation = RolloutAllocator(Beta()).allocate(prompts, 96)
    assert allocation.reason == ""
    assert allocation.num_rollouts_B[:12].min() > allocation.num_rollouts_B[12:].max()


@pytest.mark.parametrize("predictor", [Beta, FilterBank, GaussianProcess])
def test_it_learns_where_rollouts_buy_most(predictor):
    allocator = trained(predictor(), steps=8)
    allocation = allocator.allocate(batch_of(np.arange(24)), 96)
    assert allocation.reason == ""
    assert allocator.skill > 0.0
    assert allocation.num_rollouts_B.sum() == 96
    assert allocation.num_rollouts_B[10:14].min() > allocation.num_rollouts_B[[0, -1]].max()
    assert allocation.variance < allocation.uniform_variance
    exact = allocate(allocation.forecast, 96)
    np.testing.assert_array_equal(allocation.num_rollouts_B, exact.num_rollouts_B)


def test_without_skill_it_falls_back_and_says_so():
    allocator = RolloutAllocator(Oracle(lambda ids: np.where(ids < "prompt-2", 0.9, 0.1)))
    rows = np.arange(24)
    rng = np.random.default_rng(0)
    for step in range(10):
        rewards = rng.random(96) < 0.5  # nothing to do with the forecast
        allocator.observe(Outcomes.of_rewards(IDS, rewards, np.repeat(rows, 4), step=step))
        allocation = allocator.allocate(batch_of(rows), 96)
    # Unknown prompts taught nothing at first; from the second step on they are in the table.
    assert allocation.reason == NO_SKILL
    assert allocation.num_rollouts_B.tolist() == [4] * 24
    assert allocator.skill < 0.0


def test_a_forecast_that_is_the_global_mean_has_no_skill():
    assert trained(MovingAverage()).allocate(batch_of(np.arange(24)), 96).reason == NO_SKILL


def test_do_no_harm_can_be_switched_off():
    allocator = RolloutAllocator(Oracle(lambda ids: np.full(len(ids), 0.5)), do_no_harm=False)
    assert allocator.allocate(batch_of(np.arange(4)), 16).reason == ""


def test_skill_is_the_difference_of_log_scores():
    monitor = SkillMonitor(window=1e12)
    monitor.observe(np.array([0.8, 0.3]), np.array([3.0, 1.0]), np.array([4.0, 4.0]))
    forecast = 3 * np.log(0.8) + np.log(0.2) + np.log(0.3) + 3 * np.log(0.7)
    assert monitor.gain_per_rollout == pytest.approx((forecast - 8 * np.log(0.5)) / 8)
    # The global mean has now seen 4 of 8 beside its prior of 1 in 2.
    monitor.observe(np.array([0.5]), np.array([1.0]), np.array([1.0]))
    assert monitor.gain_per_rollout == pytest.approx((forecast - 8 * np.log(0.5)) / 9)


def test_late_partial_unknown_and_nan_outcomes_are_legal():
    allocator = trained()
    before = allocator.forecast(batch_of([3])).mean_B[0]
    late = Outcomes.of_rewards(
        ["prompt-3", "nobody", "prompt-5"],
        [1.0, np.nan, 1.0, 1.0, np.nan, np.nan],
        [0, 0, 0, 1, 2, 2],
        step=6,
        policy_step=1,
    )
    allocator.observe(late)
    assert allocator.num_ignored == 2
    assert allocator.step == 7
    assert allocator.forecast(batch_of([3])).mean_B[0] > before
    poisoned = Outcomes(
        prompt_B=np.array(["prompt-1"]),
        num_requested_B=np.array([4]),
        num_rollouts_B=np.array([4]),
        reward_sum_B=np.array([np.nan]),
        reward_sumsq_B=np.array([np.nan]),
        num_tokens_B=np.array([0]),
        num_truncated_B=np.array([0]),
        step=7,
        policy_step_B=np.array([7]),
    )
    allocator.observe(poisoned)
    assert allocator.num_ignored == 3
    assert np.isfinite(allocator.forecast(batch_of(np.arange(24))).mean_B).all()


def test_late_evidence_weighs_less():
    def after(policy_step):
        allocator = trained()
        allocator.observe(sampled([3], [4], step=6, policy_step=policy_step, seed=9))
        return allocator.forecast(batch_of([3])).mean_B[0]

    start = trained().forecast(batch_of([3])).mean_B[0]
    assert abs(after(0) - start) < abs(after(6) - start)


def test_groups_of_one_prompt_are_merged():
    def learned(ids, groups, rewards):
        allocator = RolloutAllocator(Beta())
        allocator.add(batch_of(np.arange(24)))
        allocator.observe(Outcomes.of_rewards(ids, rewards, groups, step=0))
        return allocator.forecast(batch_of(np.arange(24))).mean_B

    twice = learned(["prompt-1", "prompt-2", "prompt-1"], [0, 0, 1, 2, 2], [1, 0, 1, 1, 1])
    once = learned(["prompt-1", "prompt-2"], [0, 0, 0, 0, 1], [1, 0, 1, 1, 1])
    np.testing.assert_array_equal(twice, once)


def test_the_same_prompt_twice_in_a_batch_gets_two_groups():
    allocator = trained()
    prompts = batch_of([0, 12, 12, 23])
    assert allocator.allocate(prompts, 20).num_rollouts_B.sum() == 20
    new = Prompts(id_B=["x", "x", "y"])
    assert len(allocator.allocate(new, 9).num_rollouts_B) == 3
    assert len(allocator) == 26


def test_other_reward_ranges_are_mapped():
    plain, signed = trained(), RolloutAllocator(Beta(), reward_range=(-1.0, 1.0))
    rows = np.arange(24)
    signed.add(batch_of(rows))
    for step in range(6):
        out = sampled(rows, np.full(24, 4), step)
        group_N = np.repeat(rows, 4)
        rng = np.random.default_rng([0, step])
        reward_N = 2.0 * (rng.random(96) < TRUTH[group_N]) - 1.0
        signed.observe(Outcomes.of_rewards(IDS, reward_N, group_N, step=step))
        assert out.num_rollouts_B.sum() == 96
    assert signed.forecast(batch_of(rows)).mean_B[0] < 0.3
    assert plain.forecast(batch_of(rows)).mean_B[-1] > 0.7
    with pytest.warns(UserWarning, match="outside reward_range"):
        plain.observe(Outcomes.of_rewards(IDS[:1], [3.0, 5.0], [0, 0], step=9))


@pytest.mark.parametrize(
    "reward_range",
    [
        *[(1.0, 1.0), (0.0, np.inf), (-np.inf, 1.0), (np.nan, 1.0), (0.0, 1e200), (0.0, 1e-200)],
        *[(0.0,), (0.0, 1.0, 2.0), 1.0, ("a", "b"), None, (0j, 1.0)],
    ],
)
def test_a_reward_range_without_width_or_end_is_refused(reward_range):
    with pytest.raises(InvalidInputError, match="reward_range"):
        RolloutAllocator(Beta(), reward_range=reward_range)


def test_a_mean_reward_out_of_range_ends_in_an_even_split_for_good():
    allocator, bold = trained(), trained(do_no_harm=False)
    far = Outcomes.of_rewards(IDS[:1], [3.0, 5.0], [0, 0], step=6)
    for one in (allocator, bold):
        with pytest.warns(UserWarning, match="mean reward is 4, outside reward_range"):
            one.observe(far)
    allocator.observe(far)  # the warning comes once
    allocator.observe(sampled(np.arange(24), np.full(24, 4), 7))
    assert allocator.skill > 0.0
    again = RolloutAllocator(Beta())
    again.load_state_dict(allocator.state_dict())
    for one in (allocator, again):
        allocation = one.allocate(batch_of(np.arange(24)), 96)
        assert allocation.num_rollouts_B.tolist() == [4] * 24
        assert "was 4, outside reward_range (0, 1)" in allocation.reason
    assert bold.allocate(batch_of(np.arange(24)), 96).reason == ""


def test_a_state_of_before_the_range_was_kept_still_loads():
    state = trained().state_dict()
    del state["mean_outside_range"]
    again = RolloutAllocator(Beta())
    again.load_state_dict(state)
    assert again.allocate(batch_of(np.arange(24)), 96).reason == ""


def test_infeasible_bounds_name_the_way_out():
    with pytest.raises(InfeasibleBudgetError):
        RolloutAllocator(Beta(), lower=4).allocate(batch_of(np.arange(24)), 60)


@pytest.mark.parametrize("make", [Beta, FilterBank, GaussianProcess, VIP, MovingAverage])
def test_state_round_trips_through_a_file_bit_for_bit(make, tmp_path):
    allocator = trained(make())
    save_state(tmp_path / "a.safetensors", allocator.state_dict())
    again = RolloutAllocator(make())
    again.load_state_dict(load_state(tmp_path / "a.safetensors")[0])
    for step in range(6, 9):
        one = allocator.allocate(batch_of(np.arange(24)), 96)
        two = again.allocate(batch_of(np.arange(24)), 96)
        np.testing.assert_array_equal(one.num_rollouts_B, two.num_rollouts_B)
        np.testing.assert_array_equal(one.forecast.mean_B, two.forecast.mean_B)
        assert one.reason == two.reason
        out = sampled(np.arange(24), one.num_rollouts_B, step)
        allocator.observe(out)
        again.observe(out)
    state, other = allocator.state_dict(), again.state_dict()
    assert state.keys() == other.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, other[name])


def test_ids_of_any_kind_survive():
    ids = ["", "a\nb", "ü", "日本", "x" * 300, "\ud800"]
    allocator = RolloutAllocator(Beta())
    allocator.add(Prompts(id_B=ids))
    again = RolloutAllocator(Beta())
    again.load_state_dict(allocator.state_dict())
    assert len(again) == 6
    again.add(Prompts(id_B=ids))
    assert len(again) == 6


def test_damaged_state_is_refused():
    state = trained().state_dict()
    with pytest.raises(StateError):
        RolloutAllocator(Beta()).load_state_dict({})
    with pytest.raises(StateError):
        RolloutAllocator(GaussianProcess()).load_state_dict(state)
    broken = {name: array for name, array in state.items() if not name.startswith("skill")}
    with pytest.raises(StateError):
        RolloutAllocator(Beta()).load_state_dict(broken)


def damages(state):
    longer = np.concatenate([state["id_lengths"], [0]])
    yield {"id_lengths": state["id_lengths"].astype(float)}
    yield {"id_lengths": state["id_lengths"][:, None]}
    yield {"id_lengths": state["id_lengths"][:-1]}
    yield {"id_lengths": longer}
    yield {"id_lengths": np.concatenate([[-1, 9], state["id_lengths"][1:]])}
    yield {"ids": state["ids"].astype(np.int64)}
    yield {"ids": np.full(len(state["ids"]), 255, dtype=np.uint8)}
    yield {"ids": np.full(len(state["ids"]), 65, dtype=np.uint8)}  # the same id many times
    yield {"counters": state["counters"][None]}
    yield {"counters": state["counters"].astype(float)}
    yield {"counters": state["counters"][:3]}
    yield {"counters": -state["counters"] - 1}
    yield {"mean_outside_range": np.array([np.nan])}
    yield {"mean_outside_range": np.zeros(2)}
    yield {"skill.sums": np.array([np.nan, 1.0, 1.0, 1.0])}
    yield {"skill.sums": np.array(["a"] * 4)}
    yield {"skill.sums": np.array([0.0, -1.0, 1.0, 1.0])}
    yield {"skill.extra": np.zeros(1)}
    yield {"predictor.extra": np.zeros(1)}
    one_less = {name: array[:-1] for name, array in state.items() if name.endswith(("_Q", "_QD"))}
    yield one_less


@pytest.mark.parametrize("make", [Beta, FilterBank, GaussianProcess, VIP])
def test_a_state_that_is_refused_leaves_the_allocator_as_it_was(make):
    state = trained(make()).state_dict()
    allocator = trained(make(), steps=3)
    before = allocator.state_dict()
    for damage in damages(state):
        with pytest.raises(StateError):
            allocator.load_state_dict(state | damage)
        after = allocator.state_dict()
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(array, after[name])


@given(st.permutations(range(24)))
def test_the_order_of_the_batch_does_not_matter(order):
    allocator = trained()
    rows = np.array(order)
    plain = allocator.allocate(batch_of(np.arange(24)), 150)
    mixed = allocator.allocate(batch_of(rows), 150)
    assert mixed.variance == pytest.approx(plain.variance, rel=1e-12)
    np.testing.assert_allclose(mixed.forecast.mean_B, plain.forecast.mean_B[rows])


def test_the_same_call_gives_the_same_answer_in_every_process():
    script = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        from test_allocator import *
        n = trained(GaussianProcess()).allocate(batch_of(np.arange(24)), 96).num_rollouts_B
        print(n.tolist())
        """
    )
    folder = __file__.rpartition("/")[0]
    answers = {
        subprocess.run(
            [sys.executable, "-c", script, folder],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "HF_HUB_OFFLINE": "1"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
