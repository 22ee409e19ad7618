"""Errors that say what was found, what is missing, and the way out."""

import pytest

from apportion.errors import InvalidInputError
from apportion.readers import Columns, read
from apportion.readers.columns import choose


def refused(path, columns=None):
    with pytest.raises(InvalidInputError) as caught:
        read([path], columns or Columns())
    return str(caught.value)


def write(path, header, *rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


COUNTS = [f"{at % 2},{1 + at // 4},3,8" for at in range(8)]


def test_a_column_that_is_not_there(tmp_path):
    path = write(tmp_path / "kn.csv", "qid,step,k,n", *COUNTS)
    said = "kn.csv has no column nope; it has qid, step, k, n."
    assert refused(path, Columns(prompt="nope")) == said
    assert refused(tmp_path, Columns(prompt="nope", step="step")) == said
    both = refused(path, Columns(prompt="nope", text="words"))
    assert both == "kn.csv has no columns nope and words; it has qid, step, k, n."
    wide = write(tmp_path / "kn.csv", ",".join(f"c{at}" for at in range(99)))
    assert refused(wide, Columns(prompt="nope")).endswith("c10, c11 and 87 more.")


def test_a_named_column_is_not_passed_over_where_the_file_has_curves(tmp_path):
    path = write(tmp_path / "h.csv", "step,reward,loss", "1,0.5,2", "2,0.25,1")
    assert read([path]).groups is None
    assert refused(path, Columns(prompt="nope")) == (
        "h.csv has no column nope; it has step, reward, loss."
    )
    assert refused(path, Columns(reward="loss")) == (
        "h.csv: found rewards (loss) and steps (step), but no prompt. Name its column with "
        "--prompt-column; candidates: reward."
    )


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            "who,step,k,n",
            "found counts (k of n) and steps (step), but no prompt. Name its column with "
            "--prompt-column; candidates: who.",
        ),
        (
            "who,what,reward,step",
            "found rewards (reward) and steps (step), but no prompt. Name its column with "
            "--prompt-column; candidates: who, what.",
        ),
        ("step,k,n", "found counts (k of n) and steps (step), but no prompt. Name its column "),
        (
            "prompt,step,k,of",
            "found prompts (prompt), successes (k) and steps (step), but not of how many "
            "rollouts. Name that column with --num-rollouts-column; candidates: of.",
        ),
        (
            "prompt,good,n",
            "found prompts (prompt) and numbers of rollouts (n), but no successes. Name their "
            "column with --num-success-column; candidates: good.",
        ),
        (
            "question,mark",
            "found prompts (question), but no rewards. Name their column with --reward-column, or "
            "counts with --num-success-column and --num-rollouts-column; candidates: mark.",
        ),
        ("step,a", "found steps (step), but neither prompts nor rewards. It has the columns step"),
        ("a,b", "found neither prompts nor rewards. It has the columns a, b. Name columns with"),
    ],
)
def test_what_was_recognised_and_what_is_missing(tmp_path, header, said):
    row = ",".join(["1"] * len(header.split(",")))
    path = write(tmp_path / "t.csv", header, row, row, row, row)
    assert refused(path).startswith(f"t.csv: {said}")


def test_every_flag_is_listed(tmp_path):
    said = refused(write(tmp_path / "t.csv", "a,b", "1,2"))
    for name in ("prompt", "reward", "step", "group", "num-success", "num-rollouts", "tokens"):
        assert f"--{name}-column" in said
    assert "or --text-column." in said


@pytest.mark.parametrize(
    "name",
    ["qid", "question_id", "problem_id", "task_id", "example_id", "sample_id", "instance_id", "id"],
)
def test_ids_are_guessed(tmp_path, name):
    recording = read([write(tmp_path / "kn.csv", f"{name},step,k,n", *COUNTS)])
    assert recording.groups.id_Q.tolist() == ["0", "1"]
    rows = [f"{at // 4 % 2},1,{at % 2}" for at in range(8)]
    recording = read([write(tmp_path / "r.csv", f"{name},step,reward", *rows)])
    assert recording.groups.num_rollouts_G.tolist() == [4, 4]
    assert recording.notes == ()
    assert choose([name, "prompt", "reward"], Columns()).prompt == (
        name if name == "problem_id" else "prompt"
    )


@pytest.mark.parametrize("name", ["sample_id", "index", "id"])
def test_ids_of_rollouts_are_no_prompts_where_a_group_is_known(tmp_path, name):
    rows = [f"{at},u{at // 4},1,{at % 2}" for at in range(8)]
    groups = read([write(tmp_path / "r.csv", f"{name},uid,step,reward", *rows)]).groups
    assert groups.id_Q.tolist() == ["u0", "u1"]
    rows = [f"{at // 4},u{at // 4},1,{at % 2}" for at in range(8)]
    groups = read([write(tmp_path / "r.csv", f"{name},uid,step,reward", *rows)]).groups
    assert groups.id_Q.tolist() == ["0", "1"]
    # A group's number may be used anew at each step, by another prompt.
    rows = [f"{at // 4},{at // 4 % 2},{at // 8},{at % 2}" for at in range(16)]
    groups = read([write(tmp_path / "r.csv", f"{name},group,step,reward", *rows)]).groups
    assert groups.id_Q.tolist() == ["0", "1", "2", "3"]


def test_an_index_is_a_prompt_only_if_it_comes_again(tmp_path):
    taken = (
        "index was taken for the prompt, since it comes again; if it is not, name another column "
        "with --prompt-column.",
    )
    rows = [f"{at // 4},1,{at % 2}" for at in range(8)]
    recording = read([write(tmp_path / "r.csv", "index,step,reward", *rows)])
    assert len(recording.groups) == 2
    assert recording.notes == taken
    lists = ['0,1,"[0, 1]"', '1,1,"[1, 1]"', '0,2,"[1, 1]"']
    for header, body in (("index,step,k,n", COUNTS), ("index,step,rewards", lists)):
        assert read([write(tmp_path / "g.csv", header, *body)]).notes == taken
    assert read([tmp_path / "r.csv"], Columns(prompt="index")).notes == ()
    # Numbers of rows, and of the rollouts of a step, are no prompts.
    for number in (lambda at: at, lambda at: at % 4):
        rows = [f"{number(at)},{at // 4},{at % 2}" for at in range(8)]
        path = write(tmp_path / "r.csv", "index,step,reward", *rows)
        assert refused(path) == (
            "r.csv: found rewards (reward) and steps (step), but no prompt. Name its column with "
            "--prompt-column; candidates: index."
        )


def test_a_chart_of_several_runs(tmp_path):
    def chart(*runs):
        return write(
            tmp_path / "two_runs.csv",
            ",".join(
                ["Step", *(f"{run} - {m}" for run in runs for m in ("reward", "reward__MIN"))]
            ),
            ",".join(["1", *["0.5"] * 2 * len(runs)]),
        )

    said = "two_runs.csv has curves of two runs, run-a and run-b: export one."
    assert refused(chart("run-a", "run-b")) == said
    assert refused(tmp_path) == said
    many = refused(chart(*"abcdefgh"))
    assert many == "two_runs.csv has curves of 8 runs, a, b, c and 5 more: export one."
    (tmp_path / "r.jsonl").write_text('{"prompt": "a", "step": 1, "reward": 1}\n' * 2)
    chart("run-a", "run-b")
    recording = read([tmp_path])
    assert len(recording.groups) == 1
    assert said in recording.notes
