"""A run folder of ours, and what TRL wrote of the same run around it."""

import json

import numpy as np
import polars as pl
import pytest

from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key
from apportion.readers import read
from apportion.run_log import RunLog
from apportion.types import Outcomes

TEXTS = ("2 + 2 =", "3 + 3 =", [{"role": "user", "content": "4 + 4 ="}])
SAID = ("2 + 2 =", "3 + 3 =", "4 + 4 =")


def log_run(folder, keys, *, steps=3):
    with RunLog.create(folder, {"seed": 1}) as log:
        for step in range(steps):
            reward_N = np.array([0, 1, 1, 1, 0, 0], dtype=float)
            log.log_groups(Outcomes.of_rewards(keys, reward_N, np.repeat([0, 1, 2], 2), step=step))
            log.log_step(step, {"reward": step / 10})


def complete(folder, texts, *, steps=3):
    """Write completions as TRL does: a file a step; messages have the fields of all messages."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        prompts = [text for text in texts for _ in range(2)]
        rows = {"step": [step] * len(prompts), "prompt": prompts}
        rows |= {"completion": ["x"] * len(prompts), "accuracy": [0.0, 1.0] * len(texts)}
        rows |= {"advantage": [-0.7, 0.7] * len(texts)}
        pl.DataFrame(rows).write_parquet(folder / f"completions_{step:05d}.parquet")


def keys_of(texts):
    return tuple(map(prompt_key, texts))


def test_the_folder_that_trl_and_we_write_is_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_run(tmp_path / "out" / "rollouts", keys_of(SAID))
    complete(tmp_path / "out" / "completions", SAID, steps=60)
    state = {"global_step": 3, "log_history": [{"step": 1, "entropy": 0.5, "reward": 9.0}]}
    (tmp_path / "out" / "checkpoint-3").mkdir()
    (tmp_path / "out" / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "out" / "README.md").write_text("A model.\n")
    for paths in (["out"], ["."], ["out/rollouts", "out"], ["out/rollouts", "out/completions"]):
        recording = read(paths)
        groups = recording.groups
        assert recording.source == "apportion run folder"
        assert recording.config == {"seed": 1}
        assert len(groups) == 9
        assert int(groups.num_rollouts_G.sum()) == 18
        assert dict(zip(groups.id_Q.tolist(), groups.text_Q, strict=True)) == dict(
            zip(keys_of(SAID), SAID, strict=True)
        )
        assert recording.notes == (
            "out/completions records the same run and was not counted again.",
        )
        assert recording.curves["reward"].value_T.tolist() == [0.0, 0.1, 0.2]
        assert ("entropy" in recording.curves) == (paths[-1] in ("out", "."))


def test_chats_are_found_by_their_key_whatever_fields_a_table_adds(tmp_path):
    chats = [[{"role": "user", "content": text}] for text in SAID]
    log_run(tmp_path / "rollouts", keys_of(chats))
    filled = [[{"role": "user", "content": text, "tool_calls": None}] for text in SAID]
    complete(tmp_path / "completions", filled)
    assert sorted(read([tmp_path]).groups.text_Q) == sorted(SAID)


@pytest.mark.parametrize("keys", [("17", "18", "19"), (prompt_key(SAID[0]), "18", "19")])
def test_texts_stay_unknown_where_keys_are_of_a_column(tmp_path, keys):
    log_run(tmp_path / "rollouts", keys)
    complete(tmp_path / "completions", SAID)
    groups = read([tmp_path]).groups
    expected = {prompt_key(SAID[0]): SAID[0]}
    if keys[0] == "17":
        assert groups.text_Q is None
    else:
        assert list(groups.text_Q) == [expected.get(key, "") for key in groups.id_Q.tolist()]


def test_a_run_folder_that_is_the_output_folder_too(tmp_path):
    log_run(tmp_path, keys_of(SAID))
    complete(tmp_path / "completions", SAID)
    state = {"global_step": 3, "log_history": [{"step": 1, "entropy": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    recording = read([tmp_path])
    assert set(recording.groups.text_Q) == set(SAID)
    assert set(recording.curves) == {"reward", "entropy"}
    assert recording.notes == (
        f"{tmp_path}/completions records the same run and was not counted again.",
    )


def test_curves_alone_lie_around_the_run(tmp_path):
    log_run(tmp_path / "rollouts", keys_of(SAID))
    state = {"global_step": 3, "log_history": [{"step": 1, "entropy": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    recording = read([tmp_path])
    assert set(recording.curves) == {"reward", "entropy"}
    assert recording.notes == ()


def test_tensorboard_and_wandb_around_the_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    out = tmp_path / "out"
    log_run(out / "rollouts", keys_of(SAID))
    with SummaryWriter(str(out / "runs" / "host")) as writer:
        writer.add_scalar("train/entropy", 0.5, 1)
    media = out / "wandb" / "run-20260101_120000-abcd1234" / "files" / "media" / "table"
    media.mkdir(parents=True)
    columns = ["step", "prompt", "completion", "f", "advantage"]
    table = {"columns": columns, "data": [[1, SAID[0], "x", 1.0, 0.0]] * 2}
    (media / "completions_1_0f3a9c11aa55ee77.table.json").write_text(json.dumps(table))
    for path in (out, tmp_path):
        recording = read([path])
        assert "train/entropy" in recording.curves
        assert len(recording.groups) == 9
        assert SAID[0] in recording.groups.text_Q
        assert len(recording.notes) == 1
        assert recording.notes[0].endswith(" records the same run and was not counted again.")


def test_other_runs_are_refused_and_named_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_run(tmp_path / "a" / "rollouts", keys_of(SAID))
    complete(tmp_path / "b" / "completions", SAID, steps=60)
    with pytest.raises(InvalidInputError) as caught:
        read(["."])
    assert str(caught.value) == (
        "There are several runs here: a/rollouts and b/completions. Give one of them at a time."
    )
    for name in "cdefgh":
        log_run(tmp_path / name, keys_of(SAID))
    with pytest.raises(InvalidInputError, match=r"a/rollouts, c, d and 5 more\. Give one"):
        read(["."])


def test_dumps_of_another_trainer_are_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_run(tmp_path / "out" / "rollouts", keys_of(SAID))
    for step in range(1, 9):
        row = {"input": "q", "output": "o", "score": 1.0, "step": step}
        (tmp_path / "out" / "dump").mkdir(exist_ok=True)
        (tmp_path / "out" / "dump" / f"{step}.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    with pytest.raises(InvalidInputError, match=r"here: out/rollouts and out/dump\. Give one"):
        read(["out"])


def test_empty_files_of_a_run_are_no_oddity(tmp_path):
    log_run(tmp_path / "rollouts", keys_of(SAID))
    for name in ("groups.jsonl", "evaluations.jsonl", "batches.jsonl"):
        assert (tmp_path / "rollouts" / name).read_bytes() == b""
    for path in (tmp_path, tmp_path / "rollouts"):
        assert read([path]).notes == ()


def features(folder, keys, rows, kind=None):
    kind = pl.List(pl.Float32) if kind is None else kind
    frame = pl.DataFrame({"prompt": keys, "feature": rows}, schema={"prompt": str, "feature": kind})
    frame.write_parquet(folder / "prompts.parquet")


@pytest.mark.parametrize("kind", [pl.List(pl.Float32), pl.Array(pl.Float32, 2)])
def test_features_of_prompts(tmp_path, kind):
    log_run(tmp_path, ("a", "b", "c"))
    assert read([tmp_path]).groups.feature_QD is None
    features(tmp_path, ["c", "z", "a"], [[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]], kind)
    recording = read([tmp_path])
    feature_QD = recording.groups.feature_QD
    assert recording.groups.id_Q.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(feature_QD, [[3.0, 4.0], [np.nan, np.nan], [1.0, 2.0]])
    assert feature_QD.dtype == np.float64
    assert recording.notes == ()
    features(tmp_path, ["y", "z"], [[1.0, 2.0], [9.0, 9.0]], kind)
    assert read([tmp_path]).groups.feature_QD is None
    features(tmp_path, ["a", "b"], [[np.nan, 2.0], [1.0, 1.0]], kind)
    assert np.isnan(read([tmp_path]).groups.feature_QD).all(axis=1).tolist() == [True, False, True]
    features(tmp_path, [], [], kind)
    assert read([tmp_path]).groups.feature_QD is None
    assert read([tmp_path]).notes == ()


def test_features_that_the_run_log_wrote(tmp_path):
    from apportion.types import Prompts

    feature_BD = np.arange(6.0).reshape(3, 2)
    with RunLog.create(tmp_path, {}) as log:
        log.log_prompts(Prompts(id_B=np.array(["a", "b", "c"]), feature_BD=feature_BD))
        reward_N = np.array([0, 1, 1, 1, 0, 0], dtype=float)
        groups = np.repeat([0, 1, 2], 2)
        log.log_groups(Outcomes.of_rewards(("a", "b", "c"), reward_N, groups, step=0))
    np.testing.assert_array_equal(read([tmp_path]).groups.feature_QD, feature_BD)


def test_damaged_features_are_left_out_with_a_note(tmp_path):
    log_run(tmp_path, ("a", "b", "c"))
    path = tmp_path / "prompts.parquet"
    said = ("prompts.parquet is damaged: the features of prompts were left out.",)
    features(tmp_path, ["a", "b"], [[1.0, 2.0], [3.0, 4.0]])
    whole = path.read_bytes()
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        recording = read([tmp_path])
        assert (recording.groups.feature_QD, recording.notes) == (None, said)
    for rows in ([[1.0], [1.0, 2.0]], [None, [1.0]], [[1.0, None], [1.0]]):
        features(tmp_path, ["a", "b"], rows)
        assert read([tmp_path]).notes == said
    pl.DataFrame({"prompt": ["a"], "other": [1.0]}).write_parquet(path)
    assert read([tmp_path]).notes == said
    pl.DataFrame({"prompt": ["a"], "feature": ["x"]}).write_parquet(path)
    assert read([tmp_path]).notes == said
