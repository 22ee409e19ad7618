"""The rewards that apportion knows by name as functions that TRL's command line finds by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apportion.training.rewards import exact, math_verify


def exact_match(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Reward 1 where the completion equals the column ``answer``, spaces at the ends aside.

    >>> exact_match(completions=["7 ", "8"], answer=["7", "7"])
    [1.0, 0.0]
    """
    return exact()(completions=completions, **columns)


def math_verified(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Reward 1 where math-verify finds the completion equal to the column ``answer``.

    Raises:
        MissingExtraError: math-verify is not installed.
    """
    return math_verify()(completions=completions, **columns)
