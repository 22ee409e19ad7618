"""Saved state: arrays in safetensors with a versioned JSON header, replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import MissingExtraError, StateError

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
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read as a saved state: {error}") from error
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path} is a safetensors file, but not a saved state of apportion.")
    if int(metadata.get("version", "0")) > VERSION:
        raise StateError(
            f"{path} has version {metadata['version']}, but this apportion reads up to {VERSION}. "
            "Upgrade apportion."
        )
    return state, json.loads(metadata["header"])


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old content or the new, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
