"""Checks at the public door: each common argument is validated in one place.

Every function returns the checked array or raises `InvalidInputError` naming the value, the limit
and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.errors import InvalidInputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LARGEST_COUNT = 2**53
"""Floats above it skip whole numbers."""


def numbers(name: str, values: ArrayLike) -> FloatArray:
    """Return a float array of any shape, finite or not; text, complex and ragged are refused.

    >>> numbers("lower", 2)
    array(2.)
    """
    try:
        array = np.asarray(values)
        text = array.dtype.kind == "O" and any(isinstance(one, str | bytes) for one in array.flat)
        if text or array.dtype.kind not in "biufO":
            raise TypeError
        return array.astype(np.float64, copy=False)
    except OverflowError as error:
        raise InvalidInputError(
            f"{name} must be numbers below 1.8e308, got {_shown(values)}."
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} must be numbers, got {_shown(values)}.") from error


def vector(name: str, values: ArrayLike, *, size: int | None = None) -> FloatArray:
    """Return a one-dimensional float array of finite numbers.

    >>> vector("success", [0.1, 0.2])
    array([0.1, 0.2])
    """
    array = numbers(name, values)
    if array.ndim != 1:
        raise InvalidInputError(
            f"{name} must have one axis (one value a prompt), got shape {array.shape}."
        )
    check_size(name, array, size)
    bad_i = np.flatnonzero(~np.isfinite(array))
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"{name}[{at}] is {array[at]}, but every value must be finite. "
            "Drop such prompts or give them a prior."
        )
    return array


def probability(name: str, values: ArrayLike, *, size: int | None = None) -> FloatArray:
    """Return a vector of probabilities in [0, 1].

    >>> probability("success", [0.0, 1.0])
    array([0., 1.])
    """
    array = vector(name, values, size=size)
    bad_i = np.flatnonzero((array < 0.0) | (array > 1.0))
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"{name}[{at}] is {array[at]:g}, outside [0, 1]. "
            "Give probabilities, not percentages or rewards in [-1, 1]."
        )
    return array


def counts(name: str, values: ArrayLike, *, size: int | None = None, at_least: int = 0) -> IntArray:
    """Return a vector of whole numbers, none below `at_least`.

    >>> counts("num_rollouts", [4, 8])
    array([4, 8])
    """
    array = vector(name, values, size=size)
    bad_i = np.flatnonzero((np.floor(array) != array) | (array < at_least))
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"{name}[{at}] is {array[at]:g}, but must be a whole number of at least {at_least}."
        )
    large_i = np.flatnonzero(array > _LARGEST_COUNT)
    if large_i.size:
        at = int(large_i[0])
        raise InvalidInputError(f"{name}[{at}] is {array[at]:g}, but must be at most 2^53.")
    return array.astype(np.int64)


def number(name: str, value: Any) -> float:
    """Return one finite number.

    >>> number("learning_rate", 1)
    1.0
    """
    array = numbers(name, value)
    if array.ndim:
        raise InvalidInputError(f"{name} must be one number, got shape {array.shape}.")
    scalar = float(array)
    if not np.isfinite(scalar):
        raise InvalidInputError(f"{name} is {scalar}, but must be finite.")
    return scalar


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    """Return one whole number, at least `at_least`.

    >>> whole_number("budget", 64.0, at_least=0)
    64
    """
    scalar = number(name, value)
    if scalar != int(scalar):
        raise InvalidInputError(f"{name} is {scalar:g}, but must be a whole number.")
    if scalar < at_least:
        raise InvalidInputError(f"{name} is {scalar:g}, but must be at least {at_least}.")
    return int(scalar)


def positions(name: str, index: ArrayLike, size: int) -> IntArray:
    """Return positions among `size` rows, given as whole numbers or as a mask of that length.

    >>> positions("index_B", [True, False, True], 3)
    array([0, 2])
    """
    array = np.asarray(index)
    if array.ndim == 1 and not len(array):
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise InvalidInputError(
            f"{name} must be whole numbers or a mask on one axis, got type {array.dtype} and shape "
            f"{array.shape}."
        )
    if array.dtype.kind == "b":
        if len(array) != size:
            raise InvalidInputError(
                f"{name} is a mask of {len(array)}, but there are {size} rows to choose from."
            )
        return np.flatnonzero(array)
    bad_i = np.flatnonzero((array < -size) | (array >= size))
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(f"{name}[{at}] is {array[at]}, but there are {size} rows.")
    return array.astype(np.int64)


def check_size(name: str, array: NDArray[Any], size: int | None) -> None:
    """Raise unless the first axis has `size` entries (None accepts any)."""
    if size is not None and len(array) != size:
        raise InvalidInputError(f"{name} has {len(array)} values, but there are {size} prompts.")


def choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return `value` if it is one of the allowed names.

    >>> choice("variance", "rloo", ["rloo", "grpo"])
    'rloo'
    """
    if value not in allowed:
        raise InvalidInputError(f"{name} is {value!r}, but must be one of {', '.join(allowed)}.")
    return value


def _shown(values: object, limit: int = 60) -> str:
    try:
        text = repr(values)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        text = f"a value of type {type(values).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."
