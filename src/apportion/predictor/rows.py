"""Tables of what a predictor keeps about each prompt: columns that grow, features, saved arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidInputError, StateError
from apportion.types import Prompts
from apportion.validate import FloatArray

State = dict[str, NDArray[Any]]


class Column:
    """An array that grows at its end, in constant time a row on average.

    >>> column = Column(np.float64)
    >>> column.append(np.array([1.0, 2.0]))
    >>> column.values[1] = 3.0
    >>> column.values
    array([1., 3.])
    """

    def __init__(self, dtype: type[np.generic], width: int | None = None) -> None:
        shape = (0,) if width is None else (0, width)
        self._buffer: NDArray[Any] = np.zeros(shape, dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._size

    @property
    def values(self) -> NDArray[Any]:
        """The rows, as a view that may be written to until the next `append`."""
        return self._buffer[: self._size]

    def append(self, rows: NDArray[Any]) -> None:
        """Put rows at the end."""
        size = self._size + len(rows)
        if size > len(self._buffer):
            capacity = size if self._size == 0 else max(size, 2 * len(self._buffer))
            buffer = np.zeros((capacity, *self._buffer.shape[1:]), dtype=self._buffer.dtype)
            buffer[: self._size] = self.values
            self._buffer = buffer
        self._buffer[self._size : size] = rows
        self._size = size

    def replace(self, rows: NDArray[Any]) -> None:
        """Take a copy of `rows` in place of all rows."""
        self._buffer = np.array(rows, dtype=self._buffer.dtype)
        self._size = len(rows)


class FeatureTable:
    """The features of all known prompts, (Q, D); NaN where a prompt brought none."""

    def __init__(self) -> None:
        self._row = Column(np.float64, 0)

    def __len__(self) -> int:
        """Return Q."""
        return len(self._row)

    @property
    def num_features(self) -> int:
        """D; 0 if the first prompts came without features."""
        return int(self._row.values.shape[1])

    @property
    def values(self) -> FloatArray:
        """The table, (Q, D)."""
        return self._row.values

    def add(self, prompts: Prompts) -> None:
        """Append the features of new prompts.

        Raises:
            InvalidInputError: D differs from that of the first prompts.
        """
        feature_BD = prompts.feature_BD
        if len(self) == 0 and len(prompts):
            self._row = Column(np.float64, 0 if feature_BD is None else feature_BD.shape[1])
        if feature_BD is None:
            self._row.append(np.full((len(prompts), self.num_features), np.nan))
            return
        if feature_BD.shape[1] != self.num_features:
            raise InvalidInputError(
                f"feature_BD has {feature_BD.shape[1]} features, but the first prompts had "
                f"{self.num_features}. Embed all prompts in the same way."
            )
        self._row.append(feature_BD)

    def state_dict(self) -> State:
        """Return the table."""
        return {"feature_QD": self.values.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]], *, complete: bool = False) -> None:
        """Restore what `state_dict` returned; rows of NaN are legal unless it is `complete`."""
        feature_QD = saved(state, "feature_QD", num_axes=2, finite=False)
        bad_Q = ~np.isfinite(feature_QD).all(axis=1)
        if not complete:
            bad_Q &= ~np.isnan(feature_QD).all(axis=1)
        if bad_Q.any():
            raise StateError(
                f"The saved feature_QD holds {feature_QD[bad_Q][0]} in row {int(bad_Q.argmax())}, "
                "but must be finite. Start without the state."
            )
        self._row = Column(np.float64, feature_QD.shape[1])
        self._row.replace(feature_QD)


def within(
    name: str,
    value: float,
    *,
    above: float = -np.inf,
    at_least: float = -np.inf,
    below: float = np.inf,
    at_most: float = np.inf,
) -> float:
    """Return a finite number within these limits, or raise `InvalidInputError`.

    >>> within("decay", 0.5, above=0.0, at_most=1.0)
    0.5
    """
    number = validate.number(name, value)
    limits = [
        (f"above {above:g}", np.isinf(above) or number > above),
        (f"at least {at_least:g}", number >= at_least),
        (f"below {below:g}", np.isinf(below) or number < below),
        (f"at most {at_most:g}", number <= at_most),
    ]
    for limit, holds in limits:
        if not holds:
            raise InvalidInputError(f"{name} is {number:g}, but must be {limit}.")
    return number


def check_names(state: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
    """Raise `StateError` unless the state holds exactly these arrays."""
    expected = set(names)
    missing, unknown = sorted(expected - set(state)), sorted(set(state) - expected)
    if missing or unknown:
        raise StateError(
            f"The state is another predictor's: it lacks {_some(missing)} and holds "
            f"{_some(unknown)} beside. Load it into the kind and version of predictor that saved "
            "it, or start a new run."
        )


def _some(names: list[str]) -> str:
    return (
        ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        or "nothing"
    )


def saved(
    state: Mapping[str, NDArray[Any]],
    name: str,
    *,
    size: int | None = None,
    dtype: type[np.generic] = np.float64,
    num_axes: int = 1,
    finite: bool = True,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> NDArray[Any]:
    """Return a copy of one saved array.

    Raises:
        StateError: its kind or length is wrong, or a value is not finite or beyond a limit.
    """
    array = np.array(state[name])
    if array.dtype != dtype or array.ndim != num_axes or (size is not None and len(array) != size):
        raise StateError(
            f"The saved {name} has type {array.dtype} and shape {array.shape}, but must have type "
            f"{np.dtype(dtype)}, {num_axes} axes"
            + ("." if size is None else f" and length {size}.")
        )
    if finite:
        bad = ~np.isfinite(array) | (array < at_least) | (array > at_most)
        if bad.any():
            raise StateError(
                f"The saved {name} holds {array[bad][0]}, but must be finite and within "
                f"[{at_least:g}, {at_most:g}]. Start without the state."
            )
    return array
