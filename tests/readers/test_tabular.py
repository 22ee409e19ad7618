import contextlib
import gzip
import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import dump_text, read, tabular
from apportion.readers.columns import Columns, choose
from apportion.readers.tabular import open_table
from apportion.readers.tally import Tally

ROWS = [{"prompt": "é 1", "reward": 1}, {"prompt": "é 2", "reward": 0}]


def rows_of(path, wanted=None):
    tally = Tally()
    table = open_table(path)
    wanted = table.names if wanted is None else wanted
    rows = []
    for chunk in table.chunks(wanted, tally):
        rows += [dict(zip(wanted, one, strict=True)) for one in zip(*chunk.values(), strict=True)]
    return rows, tally.sentences()


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["JSON lines", "JSON", "CSV"])
def test_encodings_and_line_ends(tmp_path, encoding, end, form):
    text = {
        "JSON lines": lines(ROWS),
        "JSON": json.dumps(ROWS, ensure_ascii=False, indent=1),
        "CSV": "prompt,reward\né 1,1\né 2,0\n",
    }[form].replace("\n", end)
    content = text.encode(encoding)
    if encoding in ("utf-16-le", "utf-16-be") and form != "CSV":
        content = text.replace("é", "e").encode(encoding)
    (tmp_path / "x").write_bytes(content)
    assert open_table(tmp_path / "x").form == form
    rows, notes = rows_of(tmp_path / "x")
    if encoding == "latin-1" and form == "JSON":
        assert len(rows) == 2
        return
    assert [str(row["prompt"]).replace("e", "é") for row in rows] == ["é 1", "é 2"]
    assert [int(row["reward"]) for row in rows] == [1, 0]
    assert bool(notes) == (encoding == "latin-1")
    if notes:
        assert "are not UTF-8 and were read as Latin-1." in notes[0]


def test_lines_that_are_no_json_are_counted(tmp_path):
    good = lines(ROWS * 598)
    (tmp_path / "dump.jsonl").write_text("[1]\n" + good + "\n{torn\n" + good[:9])
    rows, notes = rows_of(tmp_path / "dump.jsonl")
    assert len(rows) == 1196
    assert notes == ("3 of 1,199 lines of dump.jsonl are not JSON and were left out.",)


def test_nan_and_infinity_are_read(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": NaN, "b": Infinity}\n{"a": 1, "b": -Infinity}\n')
    rows, _ = rows_of(tmp_path / "x.jsonl")
    assert rows[1] == {"a": 1, "b": float("-inf")}


def test_csv_with_quotes_line_breaks_and_short_rows(tmp_path):
    text = 'prompt,reward\n"a ""b""\n\nc, d",1\nshort\n"x",2,3\n\ny,\n"torn, 1'
    (tmp_path / "x.csv").write_text(text)
    rows, notes = rows_of(tmp_path / "x.csv")
    assert rows == [{"prompt": 'a "b"\n\nc, d', "reward": "1"}, {"prompt": "y", "reward": None}]
    assert notes == (
        "3 of 5 rows of x.csv have another number of fields than the header and were left out.",
    )


def test_csv_with_fields_beyond_the_limit_of_the_csv_module(tmp_path):
    (tmp_path / "x.csv").write_text("prompt,completion,reward\na," + "z" * 300_000 + ",1\n")
    rows, notes = rows_of(tmp_path / "x.csv", ("prompt", "reward"))
    assert rows == [{"prompt": "a", "reward": "1"}]
    assert notes == ()


def test_a_json_list_is_never_held_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_text, "_BLOCK", 10)
    monkeypatch.setattr(tabular, "_LONGEST_ITEM", 200)
    rows = [{"a": at, "b": [{"c": "]},{"}] * (at % 3)} for at in range(50)]
    (tmp_path / "x.json").write_text(json.dumps(rows, indent=2))
    assert rows_of(tmp_path / "x.json") == (rows, ())
    (tmp_path / "x.json").write_text(json.dumps([*rows, 1, "two", None, {"a": 1}]))
    assert rows_of(tmp_path / "x.json", ("a",))[1] == (
        "3 items of x.json are no JSON objects and were left out.",
    )
    (tmp_path / "x.json").write_text(json.dumps(rows)[:-40])
    found, notes = rows_of(tmp_path / "x.json")
    assert found == rows[: len(found)]
    assert len(found) > 40
    assert notes == ("1 file is not whole JSON and was read up to there (x.json).",)


def test_a_line_without_end_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_text, "_LONGEST_LINE", 64)
    (tmp_path / "x.jsonl").write_text(lines(ROWS) + "z" * 1000 + "\n" + lines(ROWS))
    rows, notes = rows_of(tmp_path / "x.jsonl")
    assert rows == ROWS * 2
    assert "1 of 5 lines of x.jsonl is longer than 128 MB and was left out." in notes


def test_torn_gzip_is_read_up_to_there(tmp_path):
    packed = gzip.compress(
        lines([{"prompt": f"{hash((at, 1))}", "reward": 1} for at in range(30000)]).encode()
    )
    (tmp_path / "x.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    rows, notes = rows_of(tmp_path / "x.jsonl.gz")
    assert 0 < len(rows) < 30000
    assert "1 file is torn and was read up to there (x.jsonl.gz)." in notes


def test_zstandard_needs_a_polars_that_reads_lines(tmp_path, monkeypatch):
    pl.DataFrame(ROWS).write_ndjson(tmp_path / "x.jsonl.zst", compression="zstd")
    assert rows_of(tmp_path / "x.jsonl.zst") == (ROWS, ())
    monkeypatch.delattr(pl, "scan_lines")
    with pytest.raises(InvalidInputError, match="Unpack it first: zstd -d"):
        read([tmp_path / "x.jsonl.zst"])


def test_damaged_parquet_is_named(tmp_path):
    pl.DataFrame({"prompt": ["a"] * 50, "reward": [1.0] * 50}).write_parquet(tmp_path / "x.parquet")
    whole = (tmp_path / "x.parquet").read_bytes()
    for size in range(4, len(whole), 7):
        (tmp_path / "x.parquet").write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match="damaged Parquet"):
            read([tmp_path / "x.parquet"])
    for at in range(4, len(whole), 5):
        (tmp_path / "x.parquet").write_bytes(
            whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
        )
        try:
            read([tmp_path / "x.parquet"])
        except InvalidInputError:
            continue


@given(st.data())
def test_any_type_of_parquet_column(tmp_path_factory, data):
    dtypes = [
        pl.Int8,
        pl.UInt64,
        pl.Float32,
        pl.Boolean,
        pl.String,
        pl.Binary,
        pl.Date,
        pl.Datetime,
        pl.Duration,
        pl.Categorical,
        pl.Decimal(10, 2),
        pl.Null,
        pl.List(pl.Int64),
        pl.Struct({"role": pl.String, "content": pl.String}),
    ]
    from polars.testing.parametric import series

    names = ["prompt", "reward", "step", "uid", "num_tokens", "truncated"]
    size = data.draw(st.integers(0, 4))
    columns = [
        data.draw(
            series(
                name=name, dtype=data.draw(st.sampled_from(dtypes)), min_size=size, max_size=size
            )
        )
        for name in names
    ]
    path = tmp_path_factory.mktemp("types") / "x.parquet"
    pl.DataFrame(columns).write_parquet(path)
    with contextlib.suppress(InvalidInputError):
        read([path])


@pytest.mark.parametrize(
    ("names", "prompt", "reward", "counts"),
    [
        (["prompt", "reward"], "prompt", "reward", None),
        (["PROMPT_ID", "Prompt", "Score"], "PROMPT_ID", "Score", None),
        (["question", "k", "n"], "question", None, ("k", "n")),
        (
            ["question", "reward", "num_success", "attempts"],
            "question",
            None,
            ("num_success", "attempts"),
        ),
        (["question", "reward", "correct", "n"], "question", "reward", None),
        (["question", "correct", "n"], "question", None, ("correct", "n")),
        (["question", "correct"], "question", "correct", None),
        (["uid", "score"], "uid", "score", None),
        (["id", "rewards"], "id", "rewards", None),
    ],
)
def test_columns_are_guessed(names, prompt, reward, counts):
    found = choose(names, Columns())
    assert (found.prompt, found.reward) == (prompt, reward)
    assert (found.num_success, found.num_rollouts) == (counts or (None, None))


@pytest.mark.parametrize("names", [[], ["prompt"], ["reward"], ["step", "loss"], ["prompt", "n"]])
def test_tables_without_groups(names):
    assert choose(names, Columns()) is None
    assert choose(["prompt", "reward"], Columns(step="epoch")) is None


def test_what_the_user_names_wins():
    names = ["prompt", "reward", "k", "n", "mine"]
    assert choose(names, Columns(reward="mine")).num_success is None
    assert choose(names, Columns(num_success="mine")).num_success == "mine"
    assert choose(["prompt", "x", "y"], Columns(num_success="x", num_rollouts="y")).reward is None
