import json

import pytest

from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key
from apportion.training.config import TrainConfig
from apportion.training.task import ID_COLUMN, PRIOR_COUNT, PRIOR_MEAN, load_task, read_prior


def own(path, **fields):
    return TrainConfig(model="unused", dataset=str(path), prompts_per_step=2, **fields)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": i % 3} for i in range(20)]


def test_own_data_as_jsonl_csv_and_parquet(tmp_path):
    import polars as pl

    table = pl.DataFrame(ROWS)
    table.write_csv(tmp_path / "a.csv")
    table.write_parquet(tmp_path / "a.parquet")
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    tasks = [load_task(own(tmp_path / name)) for name in ("a.csv", "a.parquet", "a.jsonl")]
    for task in tasks:
        assert len(task.rows) == 16
        assert len(task.evaluation["held_out"]) == 4
        assert {row["prompt"] for row in task.rows} == {row["prompt"] for row in tasks[0].rows}
    trained = {row[ID_COLUMN] for row in tasks[0].rows}
    kept = {row[ID_COLUMN] for row in tasks[0].evaluation["held_out"]}
    assert not trained & kept
    assert load_task(own(tmp_path / "a.csv", held_out=0)).evaluation == {}


def test_a_folder_with_a_data_set_loads(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    assert len(load_task(own(tmp_path, held_out=0)).rows) == 20


def test_other_columns_and_chat_prompts(tmp_path):
    rows = [{"q": [{"role": "user", "content": f"{i}?"}], "gold": i} for i in range(6)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    task = load_task(own(path, prompt_column="q", answer_column="gold", held_out=0))
    row = task.rows[0]
    assert row["prompt"][0]["content"] == "0?"
    assert task.text_of()[row[ID_COLUMN]] == "0?"
    chat = [[{"role": "assistant", "content": "0"}]]
    assert task.reward(completions=chat, gold=[0]) == [1.0]


def test_repeated_prompts_count_once_and_are_told_of(tmp_path):
    other = [{**ROWS[0], "answer": "else"}]
    path = write_jsonl(tmp_path / "a.jsonl", ROWS + ROWS + other)
    task = load_task(own(path, held_out=0))
    assert len(task.rows) == 20
    assert task.notes == (
        "21 of 41 rows repeat a prompt and were left out, 1 of them with another answer than the "
        "row that was kept.",
    )
    assert load_task(own(write_jsonl(tmp_path / "b.jsonl", ROWS))).notes == ()


def test_columns_of_the_data_do_not_meet_ours(tmp_path):
    rows = [{**row, "prior_mean": "x", "prompt_id": 1} for row in ROWS]
    task = load_task(own(write_jsonl(tmp_path / "a.jsonl", rows), held_out=0))
    assert task.rows[0]["prior_mean"] == "x"
    rows = [{**row, "question": "?"} for row in ROWS]
    path = write_jsonl(tmp_path / "b.jsonl", rows)
    with pytest.raises(InvalidInputError, match="column 'prompt'"):
        load_task(own(path, prompt_column="question"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "cannot be loaded|no rows"),
        ("a.jsonl", '{"prompt": "x"}\n', "no column 'answer'"),
        ("a.jsonl", '{"question": "x", "answer": "1"}\n', "no column 'prompt'; it has 'question'"),
        ("a.jsonl", '{"prompt": "", "answer": "1"}\n', "Row 0"),
        ("a.jsonl", '{"prompt": 3, "answer": "1"}\n', "text or a list"),
        ("a.jsonl", '{"prompt": ["x"], "answer": "1"}\n', "text or a list"),
        ("a.jsonl", '{"prompt": "x", "answer": "1", "completions": 2}\n', "column 'completions'"),
        ("a.jsonl", "{nonsense\n", "cannot be loaded"),
        ("a.txt", "x", "ends in '.txt'"),
    ],
)
def test_unusable_data_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        load_task(own(tmp_path / name))


def test_data_that_is_nowhere(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        load_task(own(tmp_path / "none.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="empty"):
        load_task(own(tmp_path / "empty"))
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        load_task(own("someone/some-data"))


def test_prior_reaches_the_rows(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "prior.csv").write_text("prompt,success,num_rollouts\n0+1=,0.25,16\n3+1=,1,16\n")
    task = load_task(own(path, held_out=0, prior=str(tmp_path / "prior.csv")))
    found = {row["prompt"]: (row[PRIOR_MEAN], row[PRIOR_COUNT]) for row in task.rows}
    assert found["0+1="] == (0.25, 16.0)
    assert found["1+1="] == (0.5, 0.0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "prompt,success\nx,1.5\n", "Row 0"),
        ("p.csv", "prompt,rate\nx,1\n", "no column 'success'"),
        ("p.csv", "prompt,success,num_rollouts\nx,1,\n", "num_rollouts None"),
        ("p.csv", "prompt,success,num_rollouts\nx,1,many\n", "num_rollouts 'many'"),
        ("p.csv", "prompt,success,num_rollouts\nx,1,-4\n", "at least 0"),
        ("p.jsonl", "{", "cannot be read"),
        ("p.txt", "", "must end in"),
        ("none.csv", None, "cannot be read"),
    ],
)
def test_unusable_prior_is_one_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        read_prior(tmp_path / name)


def test_prior_of_other_prompts_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "prior.csv").write_text("prompt,success\nother,0.25\n")
    assert read_prior(tmp_path / "prior.csv") == {prompt_key("other"): (0.25, 8.0)}
    with pytest.raises(InvalidInputError, match="None of the 20 prompts"):
        load_task(own(path, held_out=0, prior=str(tmp_path / "prior.csv")))
