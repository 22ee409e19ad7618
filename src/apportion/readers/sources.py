"""What lies at a path: run folders of ours, and files in natural order."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from apportion.errors import InvalidInputError
from apportion.readers.run_folder import is_run_folder
from apportion.readers.tally import Tally

_DIGITS = re.compile(r"(\d+)")
COMPLETIONS = "completions"
"""What TRL calls the folder of its completions, in its output folder."""
_CHECKPOINT = re.compile(r"checkpoint-\d+")


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Sort by numbers as numbers: 2.jsonl before 10.jsonl.

    >>> sorted([Path("10.jsonl"), Path("2.jsonl"), Path("a")], key=natural_key)[0].name
    '2.jsonl'
    """
    parts = _DIGITS.split(str(path))
    return [(0, int(one[:4000]), one) if one.isdecimal() else (1, 0, one) for one in parts if one]


def files_under(folder: Path, tally: Tally) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder in natural order, and the run folders of ours among them.

    Each real folder is entered once, whatever links lead there; hidden ones, checkpoints and the
    inside of run folders (TRL's completions there apart) are not entered.
    """
    files: list[Path] = []
    runs: list[Path] = []
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            status = here.stat()
            entries = [] if (status.st_dev, status.st_ino) in seen else list(os.scandir(here))
        except OSError:
            tally.add("folders", "cannot be read and were left out", here.name)
            continue
        seen.add((status.st_dev, status.st_ino))
        if is_run_folder(here):
            runs.append(here)
            entries = [one for one in entries if one.name == COMPLETIONS]
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                if not _CHECKPOINT.fullmatch(entry.name):
                    waiting.append(here / entry.name)
            elif _is_file(entry):
                files.append(here / entry.name)
            elif _is_there(entry):
                tally.add(
                    "files", "cannot be read twice (pipes or devices) and were left out", entry.name
                )
    return sorted(_once(files), key=natural_key), sorted(runs, key=natural_key)


def check_exists(path: Path) -> None:
    """Raise unless a path leads to a file or a folder.

    Raises:
        InvalidInputError: it does not, or may not be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InvalidInputError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{str(path)!r} cannot be read: {error}.") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidInputError(
            f"{path} is a {_kind(mode)}, which cannot be read twice. Save it to a file first."
        )


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "pipe"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _once(files: list[Path]) -> list[Path]:
    by_place: dict[tuple[int, int], Path] = {}
    for file in sorted(files, key=natural_key):
        status = file.stat()
        by_place.setdefault((status.st_dev, status.st_ino), file)
    return list(by_place.values())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_there(entry: os.DirEntry[str]) -> bool:
    try:
        entry.stat()
    except OSError:
        return False
    return True
