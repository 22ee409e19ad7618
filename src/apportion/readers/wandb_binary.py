"""Reads the binary log of a W&B run (``run-*.wandb``), which offline runs keep as well."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError, MissingExtraError
from apportion.readers import wandb_history
from apportion.readers.scalars import Points, counted
from apportion.readers.text_lines import Row, head_bytes, json_value

_MAGIC = b":W&B"
_HEADER = 7
"""Bytes before the first record, and before each piece: checksum (4), length (2), kind (1)."""
_BLOCK = 2**15
_FULL, _FIRST, _LAST = 1, 2, 4


def is_log(path: Path) -> bool:
    """Tell by the first bytes."""
    return head_bytes(path, 4) == _MAGIC


def read(path: Path) -> Points:
    """Read the history of a run.

    Raises:
        MissingExtraError: wandb, which brings the layout of the records, is not installed.
    """
    try:
        from wandb.proto import wandb_internal_pb2 as proto
    except ImportError as error:
        raise MissingExtraError("wandb", "wandb") from error
    points = Points()
    return wandb_history.read_rows(_rows(path, points, proto), points)


def _rows(path: Path, points: Points, proto: Any) -> Iterator[Row]:
    from google.protobuf.message import DecodeError

    num_bad = 0
    for data in _records(path, points):
        record = proto.Record()
        try:
            record.ParseFromString(data)
        except DecodeError:
            num_bad += 1
            continue
        if record.WhichOneof("record_type") == "history":
            row: Row = {wandb_history.STEP: record.history.step.num}
            for item in record.history.item:
                name = ".".join(item.nested_key) or item.key
                row[name] = json_value(item.value_json)
            yield row
    if num_bad:
        points.note(f"{counted(num_bad, 'unreadable record', 'unreadable records')} left out.")


def _records(path: Path, points: Points) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's layout: blocks of 32 KiB, records in pieces."""
    num_bad = 0
    record: bytes | None = None  # what came so far of one in pieces; a piece may be empty
    for kind, data in _pieces(path):
        begins = kind in (_FULL, _FIRST)
        if data is None or begins != (record is None):
            num_bad += 1
            record = None
        if data is None or (record is None and not begins):
            continue
        record = (record or b"") + data
        if kind in (_FULL, _LAST):
            yield record
            record = None
    num_bad += record is not None
    if num_bad:
        pieces = counted(num_bad, "torn or damaged piece", "torn or damaged pieces")
        points.note(f"{pieces} of the log left out.")


def _pieces(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield each piece with its kind; None in place of one that fails its checksum."""
    with open(path, "rb") as file:
        block = file.read(_BLOCK)
        at = _HEADER
        while block:
            while at < len(block) and any(block[at : at + _HEADER]):
                checksum, length, kind = block[at : at + 4], block[at + 4 : at + 6], block[at + 6 :]
                end = at + _HEADER + int.from_bytes(length, "little")
                data = block[at + _HEADER : end]
                if end > len(block) or _checksum(kind[:1] + data) != checksum:
                    yield 0, None
                    break
                yield kind[0], data
                at = end
            block, at = file.read(_BLOCK), 0


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def find(folder: Path) -> Path | None:
    """Return the history in a run folder, or in the ``wandb`` folder that holds one run.

    Raises:
        InvalidInputError: it holds several runs.
    """
    for place in (folder / "files" / "wandb-history.jsonl", folder / "wandb-history.jsonl"):
        if place.is_file() and place.stat().st_size:
            return place
    log = next(iter(sorted(folder.glob("run-*.wandb"))), None)
    if log is not None:
        return log
    runs = [
        run
        for pattern in ("*run-*", "wandb/*run-*")
        for run in sorted(folder.glob(pattern))
        if run.is_dir() and not run.is_symlink() and any(run.glob("run-*.wandb"))
    ]
    if len(runs) > 1:
        raise InvalidInputError(
            f"{folder} holds {len(runs)} W&B runs. Name one of them, e.g. {runs[-1]}."
        )
    return find(runs[0]) if runs else None
