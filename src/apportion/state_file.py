"""Saved state: arrays in safetensors with a versioned JSON header, replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import MissingExtraError, RunFolderError, StateError

FORMAT = "apportion-state"
VERSION = 1


def save_state(
    path: str | os.PathLike[str],
    state: dict[str, NDArray[Any]],
    header: dict[str, Any] | None = None,
) -> None:
    """Write arrays by name; a reader sees the old file or the new one, never a part.

    Args:
        path: file to replace, by custom ``*.safetensors``.
        state: arrays by name, e.g. from `RolloutAllocator.state_dict`.
        header: anything JSON can hold that should travel with them.

    Raises:
        RunFolderError: the file cannot be written.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise MissingExtraError("safetensors", "train") from error
    metadata = {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header or {})}
    arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
    replace_file(Path(path), save(arrays, metadata=metadata))


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `save_state` wrote: the arrays, bit for bit, and the header.

    Raises:
        StateError: the file is missing, damaged, of another kind or of a newer version.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtraError("safetensors", "train") from error
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"{path} cannot be read as a saved state: {error}") from error
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path} is a safetensors file, but not a saved state of apportion.")
    try:
        version = int(metadata["version"])
    except (KeyError, ValueError) as error:
        raise StateError(f"{path} is damaged: its version is not a whole number.") from error
    if version > VERSION:
        raise StateError(
            f"{path} has version {version}, but this apportion reads up to {VERSION}. "
            "Upgrade apportion."
        )
    try:
        header = json.loads(metadata["header"])
    except (KeyError, ValueError, RecursionError) as error:
        raise StateError(f"{path} is damaged: its header is missing or not JSON.") from error
    if not isinstance(header, dict):
        raise StateError(f"{path} is damaged: its header is not a JSON object.")
    return state, header


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old content or the new, whole.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}. Free space, or choose another "
            "place."
        ) from error
