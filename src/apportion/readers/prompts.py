"""The prompts of a record: a stable key each, and its words as far as memory allows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from apportion.prompt_key import prompt_key, prompt_text
from apportion.types import StrArray
from apportion.validate import IntArray

_LONGEST_KEY = 64
_LARGEST_TEXT = 2**28
_ID = re.compile(r"[\w.:/#-]{1,64}")


class PromptTable:
    """Numbers prompts in the order they are met.

    A short value is its own key, any other is hashed; a chat is hashed without its empty fields.

    >>> prompts = PromptTable()
    >>> prompts.numbers(["p1", "p2", None, "p1"])
    array([ 0,  1, -1,  0])
    >>> prompts.id_Q, prompts.text_Q
    (array(['p1', 'p2'], dtype='<U2'), None)
    """

    def __init__(self, largest_text: int = _LARGEST_TEXT) -> None:
        """Start without prompts; keep at most `largest_text` bytes of their words."""
        self._number_of: dict[str, int] = {}
        self._text: list[str] = []
        self._room = largest_text
        self._has_words = False
        self.num_without_text = 0

    @property
    def id_Q(self) -> StrArray:
        """The keys."""
        return np.array(list(self._number_of), dtype=np.str_)

    @property
    def text_Q(self) -> tuple[str, ...] | None:
        """The words; None if every prompt is a mere id."""
        return tuple(self._text) if self._has_words else None

    def numbers(self, values: Sequence[Any], texts: Sequence[Any] | None = None) -> IntArray:
        """Return the number of each prompt; -1 where there is none.

        Args:
            values: what tells prompts apart: text, numbers, chat messages; None where missing.
            texts: words of each, if they stand apart.
        """
        if texts is not None:
            pairs = zip(values, texts, strict=True)
            return np.array([self._number(one, text) for one, text in pairs], dtype=np.int64)
        # Rows of one prompt repeat it: hash its words once a chunk.
        memo: dict[str, int] = {}
        number_R = np.empty(len(values), dtype=np.int64)
        for at, value in enumerate(values):
            if type(value) is str:
                number = memo.get(value)
                if number is None:
                    number = memo[value] = self._number(value, value)
            else:
                number = self._number(value, value)
            number_R[at] = number
        return number_R

    def _number(self, value: Any, text: Any) -> int:
        key = _key(value)
        if key is None:
            return -1
        number = self._number_of.get(key)
        if number is None:
            number = self._number_of[key] = len(self._text)
            self._text.append(self._kept(value, text))
        return number

    def _kept(self, value: Any, text: Any) -> str:
        words = _words(text)
        if text is not value or not _ID.fullmatch(words):
            self._has_words |= bool(words) and not isinstance(text, int | float)
        size = len(words.encode("utf-8"))
        if size > self._room:
            self.num_without_text += 1
            return ""
        self._room -= size
        return words


def _key(value: Any) -> str | None:
    if isinstance(value, str):
        key = value
    elif value is None or value != value:
        return None
    elif isinstance(value, list | tuple | dict):
        return _chat_key(value) if value else None
    elif isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        key = str(int(value))
    else:
        key = str(value)
    if not key:
        return None
    if len(key) > _LONGEST_KEY or "\0" in key or (not key.isascii() and _is_broken(key)):
        return prompt_key(key)
    return key


def _chat_key(messages: Any) -> str | None:
    try:
        return prompt_key(without_empty(messages))
    except RecursionError:
        return None


def without_empty(value: Any) -> Any:
    """Drop the fields of messages that are None: a table fills in those that other rows have."""
    if isinstance(value, dict):
        return {name: without_empty(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [without_empty(one) for one in value]
    return value


def _words(value: Any) -> str:
    try:
        text = prompt_text(value)
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        text = _shown(value)
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, default=str)
    return str(value)


def _is_broken(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
