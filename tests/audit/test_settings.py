import numpy as np
import pytest
from audit_helpers import ENDS, FLAT, advised, distribution_of, replay_result
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from apportion.audit.neyman import least_variance
from apportion.audit.sizes import (
    NEAR,
    SIZES,
    Bounds,
    best_size,
    nothing_to_move,
    relative_variance,
)
from apportion.errors import InvalidInputError

LOSING = replay_result(saving=-0.02, saving_interval=(-0.1, 0.05))
UNSURE = replay_result(saving_interval=(-0.05, 0.3))


def said(found, words):
    return any(words in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("replayed", "visits", "mode"),
    [
        (None, 6.0, "shadow"),
        (replay_result(), 6.0, "adaptive"),
        (replay_result(), 1.0, "shadow"),
        (UNSURE, 6.0, "shadow"),
        (replay_result(saving_interval=(0.15, 0.15)), 6.0, "shadow"),
        (LOSING, 6.0, "uniform"),
        (replay_result(saving=0.0, saving_interval=(0.0, 0.0)), 6.0, "uniform"),
    ],
)
def test_mode_follows_the_replay(replayed, visits, mode):
    found = advised(replayed=replayed, mean_visits=visits)
    assert found.mode == mode
    text = "\n".join(found.trl)
    assert ('allocator_mode="shadow"' in text) == (mode == "shadow")
    assert ("from trl import GRPOConfig, GRPOTrainer" in text) == (mode == "uniform")
    assert ("lower=" in text) == (mode != "uniform")


@pytest.mark.parametrize("distribution", [FLAT, ENDS])
def test_variance_agrees_with_the_definition(distribution):
    p_J = distribution.success_J
    v_J, w_J = p_J * (1 - p_J), distribution.weight_J
    for n in (4, 16):
        even = n * (w_J @ v_J) / (n - 1) / (w_J @ v_J)
        assert relative_variance(distribution, n, Bounds(), even=True) == pytest.approx(even)
        best = n * least_variance(distribution, n) / (w_J @ np.sqrt(v_J)) ** 2
        assert relative_variance(distribution, n, Bounds(), even=False) == pytest.approx(best)
    limit = relative_variance(distribution, 10_000, Bounds(), even=False)
    assert limit == pytest.approx(1, abs=1e-3)


def test_size_is_the_smallest_near_the_limit_unless_the_run_is_near_it_too():
    for mean, size in ((4.0, 8), (8.0, 8), (12.0, 12), (64.0, 8)):
        assert advised(replayed=LOSING, mean_rollouts=mean).rollouts_per_prompt == size
    # Prompts without variance hold two rollouts each, so n must be larger.
    assert advised(ENDS, replay_result(), mean_rollouts=8.0).rollouts_per_prompt == 16
    for distribution in (FLAT, ENDS):
        found, _ = best_size(distribution, 64.0, Bounds(), even=False)
        noise = {n: relative_variance(distribution, n, Bounds(), even=False) for n in SIZES}
        assert found == min(n for n in SIZES if n > 2 and noise[n] <= NEAR)


@examples(max_examples=60)
@given(
    st.floats(1.0, 70.0),
    st.floats(64.0, 4000.0),
    st.sampled_from([FLAT, ENDS, None]),
    st.sampled_from([None, replay_result(), LOSING, UNSURE]),
    st.sampled_from(["CSV", "verl rollouts"]),
)
def test_half_of_the_prompts_stay_and_unsure_runs_keep_n(mean, rollouts, fit, replayed, source):
    found = advised(fit, replayed, mean_rollouts=mean, rollouts_per_step=rollouts, source=source)
    assert found.prompts_per_step >= rollouts / mean / 2.0 - 1e-6
    if found.mode == "shadow":
        assert found.rollouts_per_prompt == max(round(mean), 2)
    assert not said(found, "changes nothing")
    if found.rollouts_per_prompt > max(round(mean), 2):
        assert said(found, "noise between prompts, which a log of rewards cannot show")


def test_bounds_of_the_user_do_not_take_more_than_half_of_the_prompts():
    found = advised(replayed=replay_result(), mean_rollouts=8.0, lower=40)
    assert (found.rollouts_per_prompt, found.prompts_per_step) == (40, 32)
    assert said(found, "32 prompts x 40 = 1,280 rollouts a step; the run had 512")


def test_step_keeps_its_rollouts():
    found = advised(replayed=LOSING, mean_rollouts=64.0, rollouts_per_step=512.0)
    assert (found.prompts_per_step, found.rollouts_per_prompt) == (64, 8)
    assert said(found, "64 prompts x 8 = 512 rollouts a step, as now")
    alone = advised(rollouts_per_step=8.0)
    assert alone.prompts_per_step == 1
    assert said(alone, "1 prompt x 8 = 8")
    assert said(alone, "nothing to allocate")
    unknown = advised(rollouts_per_step=None)
    assert unknown.prompts_per_step == 64
    assert said(unknown, "put your own number")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"lower": 8}, "lower = n."),
        ({"lower": 9}, "lower = 9 is above n = 8."),
        ({"upper": 8}, "upper = n."),
        ({"upper": 4}, "upper = 4 is below n = 8."),
        ({"lower": 3, "upper": 3}, "upper = 3 is below"),
    ],
)
def test_bounds_that_leave_nothing_to_move_are_said(bounds, words):
    found = advised(replayed=replay_result(), **bounds)
    assert found.mode == "uniform"
    assert found.nothing_to_move.startswith("Your bounds leave nothing to move: ")
    assert words in found.nothing_to_move
    n = found.rollouts_per_prompt
    assert bounds.get("lower", 2) <= n <= bounds.get("upper", n)


def test_groups_of_two_have_nothing_to_move_and_larger_ones_do():
    assert nothing_to_move(2.0, Bounds()).startswith("Groups of 2")
    assert nothing_to_move(3.0, Bounds()) is None
    assert nothing_to_move(8.0, Bounds(lower=2, upper=9)) is None
    assert advised(mean_rollouts=2.0).rollouts_per_prompt == 4


def test_too_few_prompts_are_not_told_from_chance():
    found = advised(replayed=replay_result(), num_prompts=20)
    assert found.mode == "shadow"
    assert said(found, "So few prompts")


def test_an_adaptive_run_is_not_told_to_begin():
    assert advised(replayed=None, is_adaptive=True).mode == "adaptive"
    found = advised(ENDS, replay_result(), mean_rollouts=4.0, is_adaptive=True)
    assert (found.mode, found.rollouts_per_prompt) == ("adaptive", 4)
    assert said(found, "adaptive already")
    assert advised(replayed=LOSING, is_adaptive=True).mode == "uniform"


def test_verl_gets_one_n_for_all_prompts_and_no_words_on_bounds():
    found = advised(ENDS, replay_result(), source="verl rollouts")
    assert found.mode == "adaptive"
    assert found.rollouts_per_prompt == 8  # 16 where groups may differ
    assert found.verl == ("actor_rollout_ref.rollout.n=8", "trainer.rollout_data_dir=rollouts")
    assert said(found, "RolloutAllocator")
    assert not said(found, "upper =")
    both = advised(ENDS, replay_result())
    assert both.rollouts_per_prompt == 16
    assert "actor_rollout_ref.rollout.n=8" in both.verl


def test_bounds_other_than_the_replayed_ones_are_said():
    same = advised(replayed=replay_result(), bounds=(2, advised().upper))
    assert not said(same, "The replay had")
    other = advised(replayed=replay_result(), bounds=(2, 99))
    assert said(other, "The replay had 2 to 99 rollouts a prompt at the run's n = 8")


def test_a_bound_that_costs_nothing_says_so():
    flat = distribution_of([0, 0, 0, 1, 0, 0, 0])
    assert said(advised(flat, replay_result()), "a higher bound would gain nothing")
    assert not said(advised(ENDS, replay_result()), "100%")


def test_upper_bound_keeps_nearly_all_of_the_cut():
    for distribution in (FLAT, ENDS):
        found = advised(distribution, replay_result())
        n = found.rollouts_per_prompt
        p_J = distribution.success_J
        even = distribution.weight_J @ (p_J * (1 - p_J)) / (n - 1)
        cut = even - least_variance(distribution, n, upper=found.upper)
        assert cut >= 0.95 * (even - least_variance(distribution, n))


def test_bounds_of_the_user_stay():
    found = advised(replayed=replay_result(), lower=4, upper=10)
    assert (found.lower, found.upper) == (4, 10)
    assert 4 <= found.rollouts_per_prompt <= 10
    assert said(found, "lower = 4 is yours")


def test_forecasts_that_are_too_sure_raise_the_lower_bound():
    found = advised(ENDS, replay_result(standardised_sq=2.0), mean_rollouts=16.0)
    assert found.lower == found.rollouts_per_prompt // 4


def test_without_a_distribution_the_run_is_kept():
    found = advised(
        None, replay_result(), mean_rollouts=6.0, reward_range=(0.0, 1.1), is_range_seen=True
    )
    assert (found.rollouts_per_prompt, found.lower, found.upper) == (6, 2, 24)
    hint = "seen; give your reward's true range"
    assert f"    reward_low=0,  # lowest {hint}" in found.trl
    assert f"    reward_high=1.1,  # highest {hint}" in found.trl


@pytest.mark.parametrize(
    ("bounds", "message"),
    [({"lower": 1}, "lower is 1"), ({"lower": 4, "upper": 3}, "below lower"), ({"upper": 1}, "1")],
)
def test_bounds_that_leave_no_room_are_refused(bounds, message):
    with pytest.raises(InvalidInputError, match=message):
        advised(**bounds)
