"""Reading back what a `RolloutAllocator` saved: arrays by name, each checked before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import StateError


def part_of(state: dict[str, NDArray[Any]], owner: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an owner, without its name."""
    return {
        name.removeprefix(f"{owner}."): array
        for name, array in state.items()
        if name.startswith(f"{owner}.")
    }


def saved_keys(state: dict[str, NDArray[Any]]) -> list[str]:
    """Return the keys of the prompts, row by row."""
    content = saved(state, "ids", np.uint8).tobytes()
    size_Q = saved(state, "id_lengths", np.int64)
    if (size_Q < 0).any() or (size_Q > len(content)).any() or size_Q.sum() != len(content):
        raise damaged(f"id_lengths do not sum to the {len(content)} bytes of ids")
    ends = np.cumsum(size_Q).tolist()
    try:
        keys = [
            content[end - size : end].decode(errors="surrogatepass")
            for end, size in zip(ends, size_Q.tolist(), strict=True)
        ]
    except UnicodeDecodeError as error:
        raise damaged("ids are not UTF-8") from error
    if len(set(keys)) != len(keys):
        raise damaged("a prompt stands twice in ids")
    return keys


def saved(
    state: dict[str, NDArray[Any]], name: str, dtype: type[np.generic], size: int | None = None
) -> NDArray[Any]:
    """Return an array of one axis, of the type and the size that it must have."""
    if name not in state:
        raise damaged(f"{name} is missing")
    array = np.asarray(state[name])
    if array.dtype != dtype or array.ndim != 1 or (size is not None and len(array) != size):
        raise damaged(f"{name} has type {array.dtype} and shape {array.shape}")
    return array


def damaged(what: str) -> StateError:
    """Return the error that says what is wrong with a state."""
    return StateError(f"The allocator state is damaged or incomplete: {what}. Start without it.")
