"""The folder of a profile: what was begun there, the samples so far, safe against a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.errors import RunFolderError, StateError
from apportion.run_log import holds_a_run, package_versions
from apportion.state_file import replace_file

FORMAT = "apportion-profile"
VERSION = 1
PROFILE_FILE, SAMPLES_FILE, PRIOR_FILE = "profile.json", "samples.jsonl", "prior.parquet"
_MAY_CHANGE = ("prompts_per_batch", "reward_low", "reward_high")
"""Settings that say nothing about what is already sampled: a later call may give others."""


def begun_profile(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a folder says of its profile; None if nothing is sampled there yet.

    Args:
        folder: that may not exist yet.
        config: settings by name that the profile must have been begun with.

    Raises:
        RunFolderError: it holds a run, or a profile of other settings.
        StateError: its profile is damaged or of a newer version.
    """
    if (folder / "run.json").exists():
        raise holds_a_run(folder)
    if not has_samples(folder):
        return None
    begun = read_described(folder / PROFILE_FILE)
    for name, now in config.items():
        was = begun["config"].get(name)
        if was != now and name not in _MAY_CHANGE:
            raise RunFolderError(
                f"{folder} holds a profile with {_flag(name, was)}, but this command has "
                f"{_flag(name, now)}. Give the same, or another --out."
            )
    return begun


def check_folder(folder: Path) -> None:
    """Raise unless a profile can be kept there.

    Raises:
        RunFolderError: the path, or what it should lie in, is a file.
    """
    for path in (folder, *folder.parents):
        if path.exists():
            if path.is_dir():
                return
            raise RunFolderError(f"--out {folder}: {path} is a file. Name a folder.")


def has_samples(folder: Path) -> bool:
    """Return whether a folder holds a whole batch."""
    path = folder / SAMPLES_FILE
    return path.exists() and b"\n" in path.read_bytes()


def read_described(file: Path) -> dict[str, Any]:
    """Read ``profile.json``.

    Raises:
        StateError: it is missing, damaged, of another kind or of a newer version.
    """
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StateError(
            f"{file} cannot be read as a profile: it does not exist. Name a folder that "
            "`apportion profile` wrote, or choose another --out to sample anew."
        ) from error
    except OSError as error:
        raise StateError(
            f"{file} cannot be read as a profile: {error.strerror or error}. Make "
            "it readable, or profile anew to another --out."
        ) from error
    except ValueError as error:
        raise StateError(
            f"{file} cannot be read as a profile: it is not whole JSON. Profile anew "
            "to another --out."
        ) from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise StateError(f"{file} is not the profile that `apportion profile` writes.")
    version = described.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StateError(
            f"{file} has version {version}, but this apportion reads up to {VERSION}. "
            "Upgrade apportion."
        )
    if not isinstance(version, int) or not isinstance(described.get("config"), dict):
        raise StateError(f"{file} is damaged: it lacks its version or configuration.")
    return described


def write_described(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``profile.json`` whole, with its format and versions, and return it."""
    described = {
        "format": FORMAT,
        "version": VERSION,
        "packages": package_versions(),
        **content,
    }
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    replace_file(folder / PROFILE_FILE, text.encode())
    return described


def read_samples(folder: Path, keys: Sequence[str], num_samples: int) -> list[dict[str, Any]]:
    """Return the batches sampled so far; a last line without an end is cut off.

    Args:
        folder: of the profile.
        keys: of the prompts in the order in which they are sampled.
        num_samples: rewards of each.

    Raises:
        StateError: a line before the last is damaged.
        RunFolderError: the samples are of other prompts.
    """
    path = folder / SAMPLES_FILE
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        replace_file(path, whole)
    batches: list[dict[str, Any]] = []
    num_done = 0
    for number, line in enumerate(whole.splitlines(), start=1):
        batch = _batch(line, num_samples)
        if batch is None:
            raise StateError(f"{path} is damaged in line {number}. Choose another --out.")
        done = num_done + len(batch["prompt"])
        if batch["prompt"] != list(keys[num_done:done]):
            raise RunFolderError(
                f"{folder} holds samples of other prompts: the data set has changed since. "
                "Choose another --out."
            )
        batches.append(batch)
        num_done = done
    return batches


def append_samples(folder: Path, batch: Mapping[str, Any]) -> None:
    """Append one batch; once this returns, no kill and no power cut takes it back."""
    with open(folder / SAMPLES_FILE, "ab") as file:
        file.write(json.dumps(batch).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _batch(line: bytes, num_samples: int) -> dict[str, Any] | None:
    try:
        batch: dict[str, Any] = json.loads(line)
        num = len(batch["prompt"])
        shape = np.array(batch["reward"], dtype=np.float64).shape
        is_whole = shape == (num, num_samples) and len(batch["num_truncated"]) == num
    except (ValueError, KeyError, TypeError):
        return None
    return batch if is_whole else None


def _flag(name: str, value: object) -> str:
    flag = "--samples" if name == "num_samples" else f"--{name.replace('_', '-')}"
    return f"no {flag}" if value is None else f"{flag} {value}"
