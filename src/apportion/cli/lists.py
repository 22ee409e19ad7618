"""Flags that hold several values, separated by commas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from apportion.errors import InvalidInputError

T = TypeVar("T", int, float)


def names(text: str) -> tuple[str, ...]:
    """Return the parts, each once.

    >>> names("uniform, adaptive,uniform")
    ('uniform', 'adaptive')
    """
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def wholes(flag: str, text: str, example: str) -> tuple[int, ...]:
    """Return whole numbers, each once.

    Raises:
        InvalidInputError: one is none, or there are none; the flag is named.

    >>> wholes("--seeds", "4,16", "4,16")
    (4, 16)
    """
    return _parsed(flag, text, int, f"whole numbers, as in {example}")


def numbers(flag: str, text: str, example: str) -> tuple[float, ...]:
    """Return numbers, each once.

    Raises:
        InvalidInputError: one is none, or there are none; the flag is named.
    """
    return _parsed(flag, text, float, f"numbers, as in {example}")


def _parsed(flag: str, text: str, kind: Callable[[str], T], what: str) -> tuple[T, ...]:
    try:
        found = tuple(dict.fromkeys(kind(part) for part in names(text)))
    except (ValueError, OverflowError):
        found = ()
    if not found:
        raise InvalidInputError(f"{flag} is {text!r}, but must be {what}.")
    return found
