"""Reward functions by name: exact match, math-verify, or the user's own by dotted path."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from apportion.errors import InvalidInputError, MissingExtraError

RewardFunction = Callable[..., list[float | None]]


def completion_text(completion: Any) -> str:
    """Return the text of a completion, plain or a list of chat messages.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    return str(completion[-1]["content"])


def exact(answer_column: str = "answer") -> RewardFunction:
    """Reward 1 where the completion equals the answer, spaces at the ends aside.

    >>> exact()(completions=["7 ", "8"], answer=["7", "7"])
    [1.0, 0.0]
    """

    def exact_match(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        answers = columns[answer_column]
        return [
            float(completion_text(completion).strip() == str(answer).strip())
            for completion, answer in zip(completions, answers, strict=True)
        ]

    return exact_match


def math_verify(answer_column: str = "answer") -> RewardFunction:
    """Reward 1 where math-verify finds the completion equal to the answer as mathematics.

    Raises:
        MissingExtraError: math-verify is not installed.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise MissingExtraError("math-verify", "math") from error

    def math_verified(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rewards: list[float | None] = []
        for completion, answer in zip(completions, columns[answer_column], strict=True):
            text = str(answer)
            gold = parse(text if "$" in text or "\\" in text else f"${text}$")
            rewards.append(float(verify(gold, parse(completion_text(completion)))))
        return rewards

    return math_verified


def load_reward(name: str, answer_column: str = "answer") -> RewardFunction:
    """Find a reward function by the name that ``--reward`` takes.

    Args:
        name: ``exact``, ``math-verify`` or ``package.module:function``; the function is called as
            TRL calls it, ``function(completions=..., prompts=..., **columns) -> list``.
        answer_column: column that the first two compare with.

    Raises:
        InvalidInputError: the name has another form, or leads to nothing that can be called.
        MissingExtraError: math-verify is not installed.
    """
    if name == "exact":
        return exact(answer_column)
    if name == "math-verify":
        return math_verify(answer_column)
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InvalidInputError(
            f"reward is {name!r}, but must be exact, math-verify or package.module:function."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's own module raises while it is imported
        raise InvalidInputError(
            f"The reward module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}). Run from the folder it lies in, or install it."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InvalidInputError(
            f"{module_name} has no function {function_name!r} that could serve as reward."
        )
    return checked(function, name)


def checked(function: Callable[..., Any], name: str) -> RewardFunction:
    """Wrap a user's reward so that a wrong answer is named, not discovered later as a crash.

    Raises (when called):
        InvalidInputError: it raised, or did not return one number or None a completion.
    """

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        try:
            values = list(function(completions=completions, **columns))
        except Exception as error:  # whatever the user's function raises
            raise InvalidInputError(
                f"The reward {name} failed: {type(error).__name__}: {error}"
            ) from error
        if len(values) != len(completions):
            raise InvalidInputError(
                f"The reward {name} returned {len(values)} values for {len(completions)} "
                "completions; it must return one each."
            )
        try:
            numbers = [None if value is None else float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"The reward {name} returned something that is no number: {error}"
            ) from error
        infinite = next((n for n in numbers if n is not None and math.isinf(n)), None)
        if infinite is not None:
            raise InvalidInputError(
                f"The reward {name} returned {infinite}, but a reward must be finite. "
                "Return None for a completion that cannot be scored."
            )
        return numbers

    reward.__name__ = getattr(function, "__name__", "reward")
    return reward
