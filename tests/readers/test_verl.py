"""verl is not installed here: the dump is written as its trainer writes it.

``RayPPOTrainer._dump_generations``: fields `input`, `output`, `gts`, `score`, `step` in this order,
then each list of the reward's extra information that has one entry a row, a line a row, one file a
step; verl 0.9 adds `uid` as ``{uid}_{session}_{output}``.
"""

import json
import uuid

import numpy as np
import pytest
from group_helpers import as_dict, oracle
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import Columns, read


def dump_generations(folder, step, inputs, outputs, gts, scores, extra):
    folder.mkdir(parents=True, exist_ok=True)
    base = {
        "input": inputs,
        "output": outputs,
        "gts": gts,
        "score": scores,
        "step": [step] * len(inputs),
    }
    base |= {name: values for name, values in extra.items() if len(values) == len(inputs)}
    lines = [
        json.dumps({name: values[i] for name, values in base.items()}, ensure_ascii=False)
        for i in range(len(inputs))
    ]
    (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


def run(folder, seed=0, *, steps=12, uids=False, padding=0, same=False):
    """A run of `steps` steps; return its rollouts. Rows are reordered, as verl balances them."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        batch = []
        for prompt in rng.permutation(6)[:3].tolist():
            uid = str(uuid.UUID(int=int(rng.integers(1, 2**62))))
            words = "user\nSame?" if same else f"user\nWhat is {prompt} + 1?\nassistant\n"
            for session in range(rng.integers(1, 5)):
                reward = float(rng.integers(0, 2))
                batch.append((words, f"{uid}_{session}_0", reward))
        order = rng.permutation(len(batch))
        batch = [batch[at] for at in order]
        padded = batch + [("pad", f"pad{at}_0_0", 0.0) for at in range(padding)]
        extra = {"acc": [r == 1.0 for *_, r in padded], "request_id": list(range(len(padded)))}
        if uids:
            extra["uid"] = [uid for _, uid, _ in padded]
        extra["short"] = [1]
        inputs, scores = [w for w, *_ in padded], [r for *_, r in padded]
        outputs = ["out"] * len(padded)
        dump_generations(folder, step, inputs, outputs, ["gt"] * len(padded), scores, extra)
        for words, uid, reward in batch:
            group = uid.split("_")[0] if uids and same else words
            rows.append({"step": step, "prompt": words, "group": group, "reward": reward})
    return rows


@pytest.mark.parametrize("uids", [False, True])
def test_a_folder_of_steps(tmp_path, uids):
    rows = run(tmp_path, uids=uids)
    recording = read([tmp_path])
    assert recording.source == "verl rollouts"
    assert as_dict(recording.groups, by_text=True) == oracle(rows)
    assert recording.groups.hidden_G is None
    assert recording.notes == ()
    assert np.unique(recording.groups.step_G).tolist() == list(range(1, 13))


def test_a_uid_tells_groups_of_the_same_prompt_apart(tmp_path):
    rows = run(tmp_path, uids=True, same=True)
    groups = read([tmp_path]).groups
    wanted = oracle([row | {"prompt": row["group"]} for row in rows])
    assert len(groups) == len(wanted) == 36
    assert sorted(groups.reward_sum_G.tolist()) == sorted(one["sum"] for one in wanted.values())
    assert len(groups.id_Q) == 1


def test_rows_of_padding_are_left_out(tmp_path):
    rows = run(tmp_path, uids=True, padding=2)
    recording = read([tmp_path])
    assert as_dict(recording.groups, by_text=True) == oracle(rows)
    assert any("are padding of verl and were left out" in note for note in recording.notes)


def test_validation_is_not_mixed_in(tmp_path):
    rows = run(tmp_path / "rollouts")
    run(tmp_path / "val_rollouts", seed=1)
    recording = read([tmp_path])
    assert as_dict(recording.groups, by_text=True) == oracle(rows)
    assert any("12 files hold validation, by their names" in note for note in recording.notes)
    assert len(read([tmp_path / "val_rollouts"]).groups) == 36
    (tmp_path / "val_rollouts").rename(tmp_path / "other")
    with pytest.raises(InvalidInputError, match=r"in other and rollouts\. Give the one to read"):
        read([tmp_path])


def test_the_users_columns_win(tmp_path):
    run(tmp_path)
    groups = read([tmp_path], Columns(reward="acc", prompt="gts")).groups
    assert groups.id_Q.tolist() == ["gt"]
    assert len(groups) == 12


@given(st.integers(0, 10_000))
def test_a_kill_at_any_byte_loses_the_last_line_alone(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("verl")
    rows = run(folder, seed, steps=2)
    path = folder / "2.jsonl"
    whole = path.read_bytes()
    size = int(np.random.default_rng(seed).integers(0, len(whole)))
    path.write_bytes(whole[:size])
    num_kept = whole[:size].count(b"\n") + sum(row["step"] == 1 for row in rows)
    recording = read([folder])
    assert recording.groups.num_rollouts_G.sum() - num_kept in (0, 1)
