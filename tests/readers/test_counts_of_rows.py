"""Notes name how many rows a file has: each counts once, whatever form the file has."""

import csv
import gzip
import json

import polars as pl
import pytest

from apportion.readers import Columns, read

NUM_ROWS = 600


def rows():
    return [
        {"prompt": f"p{at // 4}", "step": 1 + at // 100, "reward": None if at % 10 == 0 else at % 2}
        for at in range(NUM_ROWS)
    ]


def separated(delimiter):
    def text(rows):
        header = delimiter.join(rows[0])
        lines = [
            delimiter.join("" if one is None else str(one) for one in row.values()) for row in rows
        ]
        return "\n".join([header, *lines, ""])

    return text


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def wandb(rows):
    return json.dumps({"columns": list(rows[0]), "data": [list(row.values()) for row in rows]})


TEXTS = {
    "r.jsonl": json_lines,
    "r.json": json.dumps,
    "r.csv": separated(","),
    "semicolon.csv": separated(";"),
    "r.tsv": separated("\t"),
    "r.table.json": wandb,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_rows_of_texts(tmp_path, name, packed, monkeypatch):
    from apportion.readers import tabular

    monkeypatch.setattr(tabular, "_CHUNK_ROWS", 256)  # several chunks, a preview among them
    path = tmp_path / (f"{name}.gz" if packed else name)
    content = TEXTS[name](rows()).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    check(path)


def test_rows_of_parquet(tmp_path, monkeypatch):
    from apportion.readers import tabular

    monkeypatch.setattr(tabular, "_PARQUET_ROWS", 256)
    pl.DataFrame(rows()).write_parquet(tmp_path / "r.parquet")
    check(tmp_path / "r.parquet")


def check(path):
    said = (
        f"60 of 600 rows of {path.name} have no finite reward and count as asked for, not as "
        "scored.",
    )
    assert read([path]).notes == said
    assert read([path.parent]).notes == said
    assert read([path], Columns(prompt="prompt", reward="reward", step="step")).notes == said


def test_rows_left_out_are_rows_of_the_file(tmp_path):
    with open(tmp_path / "r.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "reward"])
        writer.writerows([["a", 1]] * 7 + [["a"]] * 2 + [["a", ""]] * 1)
    assert read([tmp_path / "r.csv"]).notes[:2] == (
        "2 of 10 rows of r.csv have another number of fields than the header and were left out.",
        "1 of 10 rows of r.csv has no finite reward and count as asked for, not as scored.",
    )
    data = [["a", 1]] * 7 + [["a"]] * 2 + [["a", None]]
    document = {"columns": ["prompt", "reward"], "data": data}
    (tmp_path / "r.table.json").write_text(json.dumps(document))
    assert [note[:12] for note in read([tmp_path / "r.table.json"]).notes[:2]] == [
        "2 of 10 rows",
        "1 of 10 rows",
    ]


def test_rows_of_padding_count_as_rows(tmp_path):
    row = {"input": "q", "output": "o", "score": 1.0, "step": 1, "uid": "u_0_0"}
    lines = [row] * 6 + [row | {"uid": "pad0_0_0"}] * 2
    (tmp_path / "1.jsonl").write_text(json_lines(lines))
    assert read([tmp_path]).notes == (
        "2 of 8 rows of 1.jsonl are padding of verl and were left out.",
    )
