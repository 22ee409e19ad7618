"""Sentences and tables on a page: wrapped on a terminal, one line each where they go elsewhere."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_GAP = "  "
_CUT = "..."
_LEAST_WIDTH, _WIDTH = 20, 80
_STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need."""


def visible(text: str) -> str:
    r"""Return a text with escapes for the characters that steer a terminal; tabs become blanks.

    >>> print(visible("a\x1b[31mb"))
    a\x1b[31mb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter == "\t":
        return " "
    if unicodedata.category(letter) not in _STEERING or letter in _JOINERS:
        return letter
    return letter.encode("unicode_escape").decode("ascii")


class Page:
    """Prints to a console; no line ends in blanks."""

    def __init__(self, console: Console) -> None:
        """Take the width of a terminal; anything else gets whole lines."""
        if console.width < _LEAST_WIDTH:  # COLUMNS=0 would print nothing
            console.width = _WIDTH
        self._console = console
        self._width = console.width if console.is_terminal else None

    def head(self, title: str) -> None:
        """Print a blank line and a title."""
        self.line()
        self.line(title, "bold")

    def say(self, sentence: str, style: str | None = None) -> None:
        """Print a sentence or more."""
        self._wrapped(sentence, "", style)

    def bullets(self, sentences: Sequence[str]) -> None:
        """Print a list."""
        for sentence in sentences:
            self._wrapped(sentence, "- ")

    def labelled(self, sentence_of: Mapping[str, str]) -> None:
        """Print sentences with a label each, their text in line."""
        size = max(map(len, sentence_of))
        for label, sentence in sentence_of.items():
            self._wrapped(sentence, f"{label:<{size}}{_GAP}")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, bold: int | None = None
    ) -> None:
        """Print numbers to the right; a last column `prompt` takes what the line leaves.

        Args:
            columns: titles.
            rows: cells.
            bold: row that stands out.
        """
        is_long = columns[-1] == "prompt"
        num = len(columns) - is_long
        size = [max(len(row[at]) for row in (columns, *rows)) for at in range(num)]
        left = sum(size) + len(_GAP) * num
        room = None if self._width is None else max(self._width - left, len(_CUT) + 1)
        lines = []
        for row in (columns, *rows):
            cells = [cell.rjust(width) for cell, width in zip(row[:num], size, strict=True)]
            lines.append(_GAP.join([*cells, *(_fitted(visible(cell), room) for cell in row[num:])]))
        self.line()
        self.line(lines[0])
        self.line("-" * (left - len(_GAP) if not is_long else left + len("prompt")))
        for at, line in enumerate(lines[1:]):
            self.line(line, "bold" if at == bold else None)
        self.line()

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line as it is, escapes apart."""
        self._console.print(
            visible(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True
        )

    def _wrapped(self, sentence: str, begin: str, style: str | None = None) -> None:
        sentence = visible(sentence)
        if self._width is None:
            self.line(f"{begin}{sentence}", style)
            return
        for line in textwrap.wrap(
            sentence,
            self._width,
            initial_indent=begin,
            subsequent_indent=" " * len(begin),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.line(line, style)


def _fitted(text: str, room: int | None) -> str:
    from rich.cells import cell_len, set_cell_size

    if room is None or cell_len(text) <= room:
        return text
    return set_cell_size(text, room - len(_CUT)).rstrip() + _CUT
