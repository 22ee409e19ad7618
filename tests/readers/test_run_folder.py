import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import read
from apportion.run_log import RunLog, read_groups
from apportion.types import Outcomes

IDS = ("a", "b", "c")


def outcomes(step, seed=0, *, real=False):
    rng = np.random.default_rng(seed + step)
    group_N = np.repeat(np.arange(3), 4)
    reward_N = rng.normal(size=12) if real else rng.integers(0, 2, 12).astype(float)
    reward_N[rng.integers(0, 12)] = np.nan
    return Outcomes.of_rewards(
        IDS,
        reward_N,
        group_N,
        step=step,
        num_tokens_N=rng.integers(1, 9, 12),
        truncated_N=rng.integers(0, 2, 12),
        policy_step=max(step - 1, 0),
    )


def write_run(folder, *, steps=4, real=False, close=True):
    log = RunLog.create(folder, {"pool": "bimodal", "seed": 3})
    for step in range(steps):
        if step == 2:
            log.checkpoint()
        log.log_step(step, {"reward": step / 10})
        log.log_groups(outcomes(step, real=real))
    if close:
        log.close()
    else:
        log._release()


@pytest.mark.parametrize("close", [False, True])
def test_a_run_of_ours(tmp_path, close):
    write_run(tmp_path, close=close)
    recording = read([tmp_path])
    groups = recording.groups
    assert recording.source == "apportion run folder"
    assert recording.config == {"pool": "bimodal", "seed": 3}
    assert recording.curves["reward"].value_T.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert recording.reward_range == (0.0, 1.0)
    assert recording.has_steps
    assert recording.notes == ()
    assert groups.text_Q is None
    assert groups.hidden_G is None
    for step, part in groups.steps():
        for name in Outcomes.__slots__:
            mine, theirs = getattr(groups.outcomes(part), name), getattr(outcomes(step), name)
            np.testing.assert_array_equal(mine, theirs)
    rate_G, scored_G = groups.rate_G, groups.num_rollouts_G > 0
    mixed_G = (rate_G[scored_G] > 0) & (rate_G[scored_G] < 1)
    np.testing.assert_array_equal(groups.signal_G[scored_G], mixed_G)


def test_real_rewards_give_the_range_of_means(tmp_path):
    write_run(tmp_path, real=True)
    recording = read([tmp_path])
    rate_G = recording.groups.rate_G
    assert recording.reward_range == (rate_G.min(), rate_G.max())


def test_a_torn_line_is_a_note_and_no_warning(tmp_path):
    write_run(tmp_path, close=False)
    with open(tmp_path / "groups.jsonl", "a") as file:
        file.write('{"step": 9, "prom')
    recording = read([tmp_path])
    assert recording.groups.step_G.max() == 3
    assert recording.notes == ("groups.jsonl: dropped a torn last line.",)


def test_damaged_groups_are_left_out(tmp_path):
    write_run(tmp_path)
    (part,) = sorted((tmp_path / "groups").glob("*.parquet"))[-1:]
    table = pl.read_parquet(part)
    first = pl.int_range(pl.len()) == 0
    table.with_columns(
        reward_sum=pl.when(first).then(None).otherwise("reward_sum"),
    ).write_parquet(part)
    recording = read([tmp_path])
    assert len(recording.groups) == 11
    assert recording.notes == ("1 of 12 groups are damaged and were left out.",)


def test_several_runs_are_refused_and_one_is_found(tmp_path):
    write_run(tmp_path / "uniform")
    (tmp_path / "notes.txt").write_text("hello")
    assert len(read([tmp_path]).groups) == 12
    write_run(tmp_path / "adaptive")
    with pytest.raises(InvalidInputError, match=r"several runs here: .*adaptive and .*uniform"):
        read([tmp_path])


def test_a_run_without_groups(tmp_path):
    RunLog.create(tmp_path, {}).close()
    with pytest.raises(InvalidInputError, match="without any group yet"):
        read([tmp_path])


def test_a_run_of_a_later_version(tmp_path):
    described = {"format": "apportion-run", "version": 99, "config": {}}
    (tmp_path / "run.json").write_text(json.dumps(described))
    with pytest.raises(InvalidInputError, match="Upgrade apportion"):
        read([tmp_path])


@given(st.data())
def test_a_run_cut_at_any_byte_of_any_file(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, close=False)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    size = data.draw(st.integers(0, len(whole) - 1))
    noise = data.draw(st.binary(max_size=20))
    path.write_bytes(whole[:size] + noise)
    try:
        recording = read([folder])
    except InvalidInputError:
        return
    assert recording.groups is None or len(recording.groups) <= 12


def test_groups_stand_in_the_order_of_the_log(tmp_path):
    write_run(tmp_path, steps=6)
    frame = read_groups(tmp_path)
    groups = read([tmp_path]).groups
    assert groups.id_Q[groups.prompt_G].tolist() == frame["prompt"].to_list()
    assert groups.reward_sum_G.tolist() == frame["reward_sum"].to_list()
    assert groups.policy_step_G.tolist() == frame["policy_step"].to_list()
