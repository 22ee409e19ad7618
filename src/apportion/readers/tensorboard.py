"""Reads TensorBoard event files: scalars as plain values or as tensors, from one folder or more."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from apportion.errors import MissingExtraError
from apportion.readers.scalars import Points, counted
from apportion.readers.text_lines import head_bytes

_LARGEST_EVENT = 2**18
"""Longer events hold pictures or histograms; they are stepped over."""


@dataclass(slots=True)
class _Part:
    """The event files of one folder."""

    points: Points = field(default_factory=Points)
    started: float = 0.0
    ended: float = 0.0


def is_event_file(path: Path) -> bool:
    """Tell by the version that the first event holds."""
    return b"brain.Event:" in head_bytes(path, 64)


def find(folder: Path) -> list[Path]:
    """Return the event files of a folder and of those below it."""
    return [path for path in sorted(folder.rglob("*tfevents*")) if path.is_file()]


def read(paths: list[Path], root: Path) -> Points:
    """Read event files of one run.

    Files of one folder follow each other in time. Folders that hold different names are joined,
    and so are folders of which each starts where the one before it ended (a resumed run); else
    each name carries its folder.

    Args:
        paths: event files below `root`.
        root: the folder that names are relative to.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto import event_pb2 as proto
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard") from error
    part_of: dict[Path, _Part] = {}
    for path in sorted(paths, key=lambda path: _started(path, proto)):
        _add_file(path, part_of.setdefault(path.parent, _Part()), proto)
    parts = {folder: part for folder, part in part_of.items() if len(part.points)}
    return _joined(parts or part_of, root)


def _joined(part_of: dict[Path, _Part], root: Path) -> Points:
    points = Points()
    shared = _shared_names([part.points.names for part in part_of.values()])
    resumed = bool(shared) and _follow_each_other(list(part_of.values()))
    for folder, part in part_of.items():
        name = folder.relative_to(root).as_posix()
        plain = resumed or not shared or name == "."
        points.extend(part.points, "" if plain else f"{name}/")
    if resumed:
        points.note(f"{len(part_of)} folders follow each other as one resumed run and were joined.")
    elif shared:
        points.note(
            f"{len(part_of)} folders hold the same names, so each name carries its folder; "
            "read a folder alone to see one run."
        )
    return points


def _shared_names(names: list[set[str]]) -> set[str]:
    seen: set[str] = set()
    shared: set[str] = set()
    for part in names:
        shared |= seen & part
        seen |= part
    return shared


def _follow_each_other(parts: list[_Part]) -> bool:
    first = parts[0]
    for before, after in pairwise(parts):
        common = first.points.names & after.points.names
        if not common or after.started < before.ended:
            return False
        if after.points.first_step(common) <= first.points.first_step(common):
            return False
    return True


def _started(path: Path, proto: Any) -> tuple[float, str]:
    for event in _events(path, Points(), proto):
        return event.wall_time, path.name
    return 0.0, path.name


def _add_file(path: Path, part: _Part, proto: Any) -> None:
    foreign: set[str] = set()
    for event in _events(path, part.points, proto):
        part.started = part.started or event.wall_time
        part.ended = max(part.ended, event.wall_time)
        for value in event.summary.value:
            # Only the first value of a name says which plugin it is meant for.
            if value.metadata.plugin_data.plugin_name not in ("", "scalars"):
                foreign.add(value.tag)
            number = None if value.tag in foreign else _number(value)
            if number is not None:
                part.points.add_row(event.step, {value.tag: number})


def _number(value: Any) -> float | None:
    """Return a scalar, be it a plain value or a tensor with one number; None for all else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "fiub" else None


def _events(path: Path, points: Points, proto: Any) -> Iterator[Any]:
    """Yield the events of a file up to where it is torn.

    A record is its length (8 bytes), a checksum of these, the event, a checksum of it.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    num_bad, size = 0, path.stat().st_size
    with open(path, "rb") as file:
        while header := file.read(12):
            length = int.from_bytes(header[:8], "little")
            whole = len(header) == 12 and file.tell() + length + 4 <= size
            if not whole or struct.pack("<I", masked_crc32c(header[:8])) != header[8:]:
                points.note(f"{path.name} is torn or damaged; what follows was left out.")
                break
            if length > _LARGEST_EVENT:
                file.seek(length + 4, 1)
                continue
            data, checksum = file.read(length), file.read(4)
            event = proto.Event()
            try:
                event.ParseFromString(data)
            except DecodeError:
                num_bad += 1
                continue
            if struct.pack("<I", masked_crc32c(data)) == checksum:
                yield event
            else:
                num_bad += 1
    if num_bad:
        count = counted(num_bad, "damaged event", "damaged events")
        points.note(f"{count} of {path.name} left out.")
