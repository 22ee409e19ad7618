import numpy as np
import pytest
from audit_helpers import replay_result
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from apportion.audit.configuration_lines import (
    trl_arithmetic,
    trl_lines,
    verl_arithmetic,
    verl_lines,
)
from apportion.audit.neyman import least_variance
from apportion.audit.settings import NEAR, SIZES, recommend, relative_noise
from apportion.errors import InvalidInputError
from apportion.success_distribution import SuccessDistribution, grid


def distribution_of(weight_J):
    weight_J = np.asarray(weight_J, dtype=float) / np.sum(weight_J)
    return SuccessDistribution(
        success_J=grid(len(weight_J)),
        weight_J=weight_J,
        weight_DJ=weight_J[None],
        num_moments=8,
        all_wrong=0.0,
        all_right=0.0,
    )


FLAT = distribution_of([1] * 11)
ENDS = distribution_of([8, 1, 1, 1, 1, 1, 8])


def advised(distribution=FLAT, replayed=None, **changes):
    values = {"mean_rollouts": 8.0, "rollouts_per_step": 512.0, "mean_visits": 6.0}
    return recommend(distribution, replayed, **(values | changes))


@pytest.mark.parametrize(
    ("replayed", "visits", "mode"),
    [
        (None, 6.0, "shadow"),
        (replay_result(), 6.0, "adaptive"),
        (replay_result(), 1.0, "shadow"),
        (replay_result(saving_interval=(-0.05, 0.3)), 6.0, "shadow"),
        (replay_result(saving_interval=(0.15, 0.15)), 6.0, "shadow"),
        (replay_result(saving=-0.02, saving_interval=(-0.1, 0.05)), 6.0, "uniform"),
        (replay_result(saving=0.0, saving_interval=(0.0, 0.0)), 6.0, "uniform"),
    ],
)
def test_mode_follows_the_replay(replayed, visits, mode):
    found = advised(replayed=replayed, mean_visits=visits)
    assert found.mode == mode
    text = "\n".join(found.trl)
    assert ('allocator_mode="shadow"' in text) == (mode == "shadow")
    assert ("from trl import GRPOConfig" in text) == (mode == "uniform")
    assert ("lower=" in text) == (mode != "uniform")


@pytest.mark.parametrize("distribution", [FLAT, ENDS])
def test_noise_agrees_with_the_definition(distribution):
    p_J = distribution.success_J
    v_J, w_J = p_J * (1 - p_J), distribution.weight_J
    for n in (4, 16):
        even = n * (w_J @ v_J) / (n - 1) / (w_J @ v_J)
        assert relative_noise(distribution, n, 2, None, even=True) == pytest.approx(even)
        best = n * least_variance(distribution, n) / (w_J @ np.sqrt(v_J)) ** 2
        assert relative_noise(distribution, n, 2, None, even=False) == pytest.approx(best)
    assert relative_noise(distribution, 10_000, 2, None, even=False) == pytest.approx(1, abs=1e-3)


def test_size_is_the_smallest_near_the_limit_unless_the_run_is_near_it_too():
    assert advised(mean_rollouts=2.0).rollouts_per_prompt == 8
    assert advised(mean_rollouts=8.0).rollouts_per_prompt == 8
    assert advised(mean_rollouts=12.0).rollouts_per_prompt == 12
    assert advised(mean_rollouts=64.0).rollouts_per_prompt == 8
    # Prompts without variance hold two rollouts each, so n must be larger.
    assert advised(ENDS, replay_result(), mean_rollouts=4.0).rollouts_per_prompt == 16
    for distribution in (FLAT, ENDS):
        found = advised(distribution, replay_result(), mean_rollouts=2.0).rollouts_per_prompt
        noise = {n: relative_noise(distribution, n, 2, None, even=False) for n in SIZES}
        assert found == min(n for n in SIZES if n > 2 and noise[n] <= NEAR)


def test_step_keeps_its_rollouts():
    found = advised(mean_rollouts=64.0, rollouts_per_step=512.0)
    assert (found.prompts_per_step, found.rollouts_per_prompt) == (64, 8)
    assert any("64 prompts x 8 = 512" in reason for reason in found.reasons)
    alone = advised(rollouts_per_step=8.0)
    assert alone.prompts_per_step == 1
    assert any("nothing to allocate" in reason for reason in alone.reasons)
    unknown = advised(rollouts_per_step=None)
    assert unknown.prompts_per_step == 64
    assert any("put your own number" in reason for reason in unknown.reasons)


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
    assert any("lower = 4 is yours" in reason for reason in found.reasons)
    narrow = advised(replayed=replay_result(), lower=3, upper=3)
    assert narrow.rollouts_per_prompt == 3


def test_forecasts_that_are_too_sure_raise_the_lower_bound():
    found = advised(ENDS, replay_result(standardised_sq=2.0), mean_rollouts=16.0)
    assert found.lower == found.rollouts_per_prompt // 4


def test_without_a_distribution_the_run_is_kept():
    found = advised(None, replay_result(), mean_rollouts=6.0, reward_range=(0.0, 1.1))
    assert (found.rollouts_per_prompt, found.lower, found.upper) == (6, 2, 24)
    assert "    reward_high=1.1," in found.trl


@pytest.mark.parametrize(
    ("bounds", "message"),
    [({"lower": 1}, "lower is 1"), ({"lower": 4, "upper": 3}, "below lower"), ({"upper": 1}, "1")],
)
def test_bounds_that_leave_no_room_are_refused(bounds, message):
    with pytest.raises(InvalidInputError, match=message):
        advised(**bounds)


def values_of(lines):
    return {
        key.strip(): int(value.strip(" ,"))
        for key, value in (line.split("=") for line in lines if line.count("=") == 1)
        if value.strip(" ,").isdigit()
    }


@examples(max_examples=40)
@given(st.floats(1.0, 40.0), st.floats(1.0, 2000.0), st.sampled_from([FLAT, ENDS, None]))
def test_batches_of_both_frameworks_divide(mean, rollouts, distribution):
    found = advised(distribution, replay_result(), mean_rollouts=mean, rollouts_per_step=rollouts)
    rows = found.prompts_per_step * found.rollouts_per_prompt
    trl = values_of(found.trl)
    assert trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"] == rows
    assert rows % trl["num_generations"] == 0
    assert 2 <= trl["lower"] <= trl["num_generations"] <= trl["upper"]
    verl = values_of(found.verl)
    assert verl["data.train_batch_size"] * verl["actor_rollout_ref.rollout.n"] == rows
    assert verl["data.train_batch_size"] % verl["actor_rollout_ref.actor.ppo_mini_batch_size"] == 0


def test_arithmetic_is_shown():
    assert "16 x 1 process x steps_per_generation 6 = 96 = 12 prompts x num_generations 8" in (
        trl_arithmetic(8, 12)
    )
    assert "12 x n 8 = 96 rows, which divide over 1, 2, 4, 8, 16, 32 GPUs" in verl_arithmetic(8, 12)
    assert verl_lines(8, 12)[:2] == (
        "data.train_batch_size=12",
        "actor_rollout_ref.rollout.n=8",
    )


@pytest.mark.filterwarnings("ignore")  # theirs, about their own settings
@pytest.mark.parametrize("mode", ["adaptive", "shadow", "uniform"])
def test_lines_are_what_the_trainer_takes(mode, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    lines = trl_lines(mode, 8, 12, bounds=(2, 24), reward_range=(-1.0, 1.0))
    code = "\n".join(lines).replace('    "out",', '    "out", use_cpu=True, bf16=False,')
    names = {}
    exec(code, names)
    args = names["args"]
    assert args.generation_batch_size == 96
    assert args.num_generations == 8
    assert getattr(args, "allocator_mode", "uniform") == mode
    if mode != "uniform":
        assert (args.lower, args.most, args.reward_low) == (2, 24, -1.0)
