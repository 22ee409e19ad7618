"""Tables of learning curves, as `apportion simulate --out` and anybody else writes them."""

from __future__ import annotations

import contextlib
import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.cli.simulate_files import COLUMNS
from apportion.errors import ApportionError, InvalidInputError
from apportion.readers.run_tables import NEEDED, OPTIONAL, is_table_of_runs
from apportion.readers.runs import read_runs

GOOD = "run,rollouts_per_prompt,prompts_per_step,compute,reward\na,8,32,256,0.25\na,8,32,512,0.5\n"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def read(path, **options):
    return read_runs([path], **options)


def test_the_columns_that_simulate_writes_are_known():
    assert set(COLUMNS) <= {*NEEDED, *OPTIONAL}


def test_every_column_reaches_its_field(tmp_path):
    text = (
        "\ufeffseed, run ,n,B_p,C,reward,problems,samples,learning_rate,allocator,num_prompts,x\n"
        '3,"my, run",8,32,512,0.5,300,4,1e-6,vip,6000,hello\n'
        "\n"
        '3,"my, run",8.0,32,0,0.25,300,4,0.000001,vip,6000,\n'
        ",other,16,32,512,1,,,,,,\n"
    )
    (one, other), notes = read(write(tmp_path / "a.csv", text))
    assert notes == []
    assert (one.name, one.seed, one.setting) == ("my, run", 3, (8, 32, 1e-6, "vip"))
    assert (one.evaluation, one.num_prompts) == ((300, 4), 6000)
    np.testing.assert_array_equal(one.compute_T, [0, 512])
    np.testing.assert_array_equal(one.reward_T, [0.25, 0.5])
    assert (other.seed, other.setting) == (0, (16, 32, None, "uniform"))
    assert (other.evaluation, other.num_prompts) == (None, None)


def test_a_blank_cell_takes_what_other_rows_of_the_run_say(tmp_path):
    text = "run,n,B_p,C,reward,seed\na,8,32,256,0.25,\na,8,32,512,0.5,7\n"
    assert read(write(tmp_path / "a.csv", text))[0][0].seed == 7


def test_a_metric_is_a_column(tmp_path):
    path = write(tmp_path / "a.csv", "run,n,B_p,C,best@4,reward\na,8,32,256,0.75,0.25\n")
    assert read(path)[0][0].reward_T == [0.25]
    assert read(path, metric="best@4")[0][0].reward_T == [0.75]
    with pytest.raises(InvalidInputError, match="lacks worst@4"):
        read(path, metric="worst@4")


def test_several_files_keep_runs_of_one_name_apart(tmp_path):
    for name, n in (("a.csv", 8), ("b.csv", 16)):
        write(tmp_path / name, GOOD.replace(",8,", f",{n},"))
    runs, notes = read_runs([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert [run.rollouts_per_prompt for run in runs] == [8, 16]
    assert [run.name for run in runs] == [f"a in {tmp_path / name}" for name in ("a.csv", "b.csv")]
    assert notes == []
    again = read_runs([tmp_path, tmp_path / "b.csv"])[0]  # a folder of tables; each counts once
    assert [run.name for run in again] == [run.name for run in runs]


def test_a_copy_is_no_second_seed(tmp_path):
    write(tmp_path / "a.csv", GOOD)
    write(tmp_path / "b.csv", GOOD.replace("a,", "b,"))
    write(tmp_path / "c.csv", GOOD.replace("reward\n", "reward,seed\n").replace("5\n", "5,1\n"))
    runs, notes = read(tmp_path)
    assert [run.seed for run in runs] == [0, 1]
    assert len(notes) == 1
    assert "repeats a in" in notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no runs"),
        ("step,loss\n1,0.5\n", "does not tell its rollouts_per_prompt"),
        (GOOD.splitlines()[0], "has a header but no rows"),
        (GOOD.replace("compute", "tokens"), "lacks compute: its columns are run"),
        (GOOD.replace("reward", "compute"), "lacks reward"),
        (GOOD.replace("reward", "reward,seed,seed"), "has the column seed twice"),
        (GOOD.replace("0.5", "1.5"), r"line 3: reward is '1.5', but must be a number in \[0, 1\]"),
        (GOOD.replace("0.5", "nan"), "line 3: reward is 'nan'"),
        (GOOD.replace("0.5", ""), "line 3: reward is ''"),
        (GOOD.replace("0.5", "0.5,1"), "line 3: there are 6 values, but the header names 5"),
        (GOOD.replace("512", "-1"), "line 3: compute is '-1'"),
        (GOOD.replace("512", "1_000"), "line 3: compute is '1_000'"),
        (GOOD.replace("a,8,32,512", ",8,32,512"), "line 3: run is ''"),
        (GOOD.replace("a,8,32,512", "a,8.5,32,512"), "rollouts_per_prompt is '8.5'"),
        (GOOD.replace("a,8,32,512", "a,8,0,512"), "prompts_per_step is '0'"),
        (GOOD.replace("a,8,32,512", "a,16,32,512"), "line 3: rollouts_per_prompt of run 'a' is 16"),
        (GOOD.replace("512", "256"), "line 3: run 'a' has another reward at compute 256"),
        (GOOD.replace("a,8,32,512", '"a,8,32,512'), "not valid CSV"),
        (
            GOOD.replace("reward\n", "reward,seed\n").replace("5\n", "5,-1\n"),
            "line 2: seed is '-1', but must be a whole number of at least 0",
        ),
        (
            GOOD.replace("reward\n", "reward,learning_rate\n").replace("5\n", "5,0\n"),
            "learning_rate is '0', but must be a number above 0",
        ),
        (
            GOOD.replace("reward\n", "reward,problems\n").replace("5\n", "5,300\n"),
            "line 2: run 'a' has one of problems and samples",
        ),
    ],
)
def test_mistakes_name_the_place(tmp_path, text, message):
    path = write(tmp_path / "mine.csv", text)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_rows_that_stand_there_twice_are_told(tmp_path):
    path = write(tmp_path / "a.csv", GOOD + GOOD.splitlines()[-1] + "\n")
    (run,), notes = read(path)
    assert len(run.compute_T) == 2
    assert notes == [f"{path}: 1 row of 'a' there twice; once counts."]


@pytest.mark.parametrize("torn", ["a,8", "a,8,32,1024", "a,8,32,1024,", "a,8,32,1024,0."])
def test_a_torn_last_line_is_left_out_with_a_note(tmp_path, torn):
    path = write(tmp_path / "a.csv", GOOD + torn)
    (run,), notes = read(path)
    assert len(run.compute_T) == 2
    assert notes == [f"{path}: the last line is torn and was left out."]


def test_a_wrong_or_whole_last_line_without_an_end_is_not_torn(tmp_path):
    path = write(tmp_path / "a.csv", GOOD + "a,8,32,1024,0.6")
    (run,), notes = read(path)
    assert (len(run.compute_T), notes) == (3, [])
    with pytest.raises(InvalidInputError, match="reward is"):
        read(write(path, GOOD + "a,8,32,1024,6"))


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_named(tmp_path, sign, name):
    with pytest.raises(InvalidInputError, match=f"separated by {name}"):
        read(write(tmp_path / "a.csv", GOOD.replace(",", sign)))


def test_repeated_runs_are_told_in_one_note(tmp_path):
    for name in "abcd":
        write(tmp_path / f"{name}.csv", GOOD)
    runs, notes = read(tmp_path)
    assert len(runs) == 1
    assert len(notes) == 1
    assert notes[0].endswith("So it is with 2 more.")


def test_other_encodings_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(GOOD.replace("a,", "ä,").encode("latin-1"))
    with pytest.raises(InvalidInputError, match="not UTF-8 text"):
        read(path)


UNIT = st.floats(0.0, 1.0)
RUNS = st.lists(
    st.fixed_dictionaries(
        {
            "rollouts_per_prompt": st.integers(1, 4096),
            "prompts_per_step": st.integers(1, 4096),
            "curve": st.dictionaries(st.floats(0, 1e12), UNIT, min_size=1, max_size=6),
            "seed": st.none() | st.integers(0, 2**32),
            "learning_rate": st.none() | st.floats(1e-9, 1.0),
            "allocator": st.none() | st.sampled_from(["uniform", "vip", 'a "b", c']),
            "num_prompts": st.none() | st.integers(1, 10**6),
            "size": st.none() | st.tuples(st.integers(1, 1000), st.integers(1, 64)),
        }
    ),
    min_size=1,
    max_size=5,
)


def rows_of(runs, random_):
    """Write each run's rows, with blanks where another row of the run says the same."""
    rows = []
    for number, run in enumerate(runs):
        problems, samples = run["size"] or (None, None)
        told = {**run, "problems": problems, "samples": samples, "run": f"run {number}"}
        first = True
        for compute, reward in run["curve"].items():
            row = {**told, "compute": compute, "reward": reward}
            for name in OPTIONAL:
                if row[name] is None or (not first and random_.random() < 0.5):
                    row[name] = ""
            rows.append(row)
            first = False
    return rows


@given(RUNS, st.randoms(use_true_random=False), st.booleans())
def test_what_is_written_is_read_whatever_the_order(tmp_path_factory, runs, random_, in_letters):
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    rows = rows_of(runs, random_)
    random_.shuffle(rows)
    columns = [*NEEDED, *OPTIONAL]
    random_.shuffle(columns)
    letter_of = {"rollouts_per_prompt": "n", "prompts_per_step": "B_p", "compute": "C"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n" if in_letters else "\r\n")
    writer.writerow([letter_of.get(name, name) if in_letters else name for name in columns])
    writer.writerows([[row[name] for name in columns] for row in rows])
    write(path, text.getvalue())
    assert is_table_of_runs(path)
    read_back, notes = read(path)
    by_name = {run.name: run for run in read_back}
    for number, told in enumerate(runs):
        if f"run {number}" not in by_name:
            assert any("repeats" in note for note in notes)
            continue
        run = by_name[f"run {number}"]
        curve = sorted(told["curve"].items())
        assert list(zip(run.compute_T, run.reward_T, strict=True)) == curve
        assert run.setting == (
            told["rollouts_per_prompt"],
            told["prompts_per_step"],
            told["learning_rate"],
            told["allocator"] or "uniform",
        )
        assert run.seed == (told["seed"] or 0)
        assert (run.num_prompts, run.evaluation) == (told["num_prompts"], told["size"])


@given(st.binary(max_size=200), st.integers(0, len(GOOD)))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, at):
    path = tmp_path_factory.mktemp("bytes") / "runs.csv"
    for whole in (content, GOOD.encode()[:at] + content, GOOD.encode() + content):
        path.write_bytes(whole)
        with contextlib.suppress(ApportionError):
            read(path)
