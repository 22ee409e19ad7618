import ast
import inspect
import math

import pytest
from audit_helpers import ENDS, FLAT, advised, replay_result
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from apportion.audit.configuration_lines import (
    frameworks,
    outward,
    trl_arithmetic,
    trl_lines,
    verl_arithmetic,
    verl_lines,
)


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
    if found.mode != "uniform":
        assert 2 <= trl["lower"] <= trl["num_generations"] <= trl["upper"]
    verl = values_of(found.verl)
    n = verl["actor_rollout_ref.rollout.n"]
    assert ("data.train_batch_size" in verl) == (n != round(mean))


def test_arithmetic_is_shown():
    assert "16 x 1 process x steps_per_generation 6 = 96 = 12 prompts x num_generations 8" in (
        trl_arithmetic(8, 12)
    )
    assert "= 8 = 1 prompt x num_generations 8" in trl_arithmetic(8, 1)
    assert "W processes" not in trl_arithmetic(8, 1)
    arithmetic = verl_arithmetic(8, 12)
    assert "12 x n 8 = 96 rows, which divide over 1, 2, 4, 8, 16, 32 GPUs." in arithmetic
    assert "Keep your ppo_mini_batch_size: it counts prompts and must divide" in arithmetic
    assert "divide over 1 GPU." in verl_arithmetic(3, 1)
    assert verl_lines(8, 12)[:2] == (
        "data.train_batch_size=12",
        "actor_rollout_ref.rollout.n=8",
    )
    assert not any("ppo_mini_batch_size" in line for line in verl_lines(8, 12))
    assert "as now" in verl_arithmetic(8, 12, is_kept=True)
    assert "data.train_batch_size=12" not in verl_lines(8, 12, is_kept=True)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("verl rollouts", ("verl",)),
        ("TRL completions", ("TRL",)),
        ("apportion run folder", ("TRL",)),
        ("W&B table", ("TRL", "verl")),
        ("CSV", ("TRL", "verl")),
        ("TRL completions and verl rollouts", ("TRL", "verl")),
    ],
)
def test_lines_are_those_of_the_trainer_that_ran(source, named):
    assert frameworks(source) == named


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ranges_are_rounded_outward_by_little(one, other):
    low, high = min(one, other), max(one, other)
    wide_low, wide_high = outward((low, high))
    assert wide_low <= low
    assert wide_high >= high
    for seen, wide in ((low, wide_low), (high, wide_high)):
        assert abs(wide - seen) <= 0.1 * abs(seen) * 1.000001
        assert float(f"{wide:.2g}") == pytest.approx(wide, rel=1e-12)
        assert wide != 0.0 or math.copysign(1.0, wide) == 1.0


def pasted_range(lines):
    return tuple(
        float(line.split("=")[1].split(",")[0]) for line in lines if line.startswith("    reward_")
    )


@pytest.mark.parametrize("is_range_seen", [True, False])
@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_pasted_ranges_are_never_inside_what_was_seen(is_range_seen, one, other):
    low, high = min(one, other), max(one, other)
    lines = trl_lines(
        "adaptive", 8, 4, bounds=(2, 9), reward_range=(low, high), is_range_seen=is_range_seen
    )
    pasted = pasted_range(lines)
    if pasted:
        assert pasted[0] <= low
        assert pasted[1] >= high
        assert is_range_seen or pasted == (low, high)


def test_large_ranges_keep_their_digits():
    lines = trl_lines("adaptive", 8, 4, bounds=(2, 9), reward_range=(-1.25, 1000123.4))
    assert "    reward_low=-1.25," in lines
    assert "    reward_high=1000123.4," in lines


def test_known_ranges_are_kept_as_they_are():
    lines = trl_lines("adaptive", 8, 4, bounds=(2, 16), reward_range=(0.125, 1.0))
    assert "    reward_low=0.125," in lines
    assert not any("true range" in line for line in lines)
    zero_one = trl_lines("adaptive", 8, 4, bounds=(2, 16), reward_range=(0.0, 1.0))
    assert not any("reward_" in line for line in zero_one[:-3])


@pytest.mark.parametrize("mode", ["adaptive", "shadow", "uniform"])
def test_lines_can_be_pasted_whole_and_are_no_silent_no_op(mode):
    lines = trl_lines(mode, 8, 12, bounds=(2, 24), reward_range=(0.0, 1.0))
    first, args, trainer = ast.parse("\n".join(lines)).body
    imported = {name.name for name in first.names}
    assert {args.value.func.id, trainer.value.func.id} == imported
    assert trainer.targets[0].id == "trainer"
    assert max(map(len, lines)) <= 80
    assert any("keep your other arguments" in line for line in lines)


@pytest.mark.filterwarnings("ignore")  # theirs, about their own settings
@pytest.mark.parametrize("mode", ["adaptive", "shadow", "uniform"])
def test_lines_are_what_the_trainer_takes(mode, tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    lines = trl_lines(mode, 8, 12, bounds=(2, 24), reward_range=(-1.0, 1.0))
    code = "\n".join(lines).replace('    "out",', '    "out", use_cpu=True, bf16=False,')
    *before, trainer = ast.parse(code).body
    names = {}
    exec(compile(ast.Module(body=before, type_ignores=[]), "lines", "exec"), names)
    args = names["args"]
    assert args.generation_batch_size == 96
    assert args.num_generations == 8
    assert getattr(args, "allocator_mode", "uniform") == mode
    if mode != "uniform":
        assert (args.lower, args.most, args.reward_low) == (2, 24, -1.0)
    call = trainer.value
    taken = inspect.signature(names[call.func.id].__init__)
    taken.bind(None, *call.args, **{keyword.arg: None for keyword in call.keywords})
