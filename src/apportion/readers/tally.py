"""What was left out or assumed while reading, counted, one sentence a kind."""

from __future__ import annotations

from collections import Counter

_ONE = {"are": "is", "were": "was", "have": "has", "hold": "holds", "repeat": "repeats"}
_MOST_FILES = 3


class Tally:
    """Counts anomalies over files, and says them as sentences.

    >>> tally = Tally()
    >>> tally.seen("lines", "dump.jsonl", 1200)
    >>> tally.add("lines", "are not JSON and were left out", "dump.jsonl", 3)
    >>> tally.sentences()
    ('3 of 1,200 lines of dump.jsonl are not JSON and were left out.',)
    """

    def __init__(self) -> None:
        """Start with nothing counted."""
        self._seen: Counter[tuple[str, str]] = Counter()
        self._odd: dict[tuple[str, str], Counter[str]] = {}
        self._said: dict[str, None] = {}

    def seen(self, unit: str, file: str, count: int) -> None:
        """Count what a file holds (lines, rows), odd or not."""
        self._seen[unit, file] += count

    def add(self, unit: str, what: str, file: str, count: int = 1) -> None:
        """Count what is odd; `what` follows the plural of the unit."""
        if count:
            self._odd.setdefault((unit, what), Counter())[file] += count

    def say(self, sentence: str) -> None:
        """Keep a whole sentence, once."""
        self._said[sentence] = None

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence a kind."""
        return (*self.counted(), *self._said)

    def counted(self) -> list[str]:
        """Return the sentences about what was counted alone."""
        return [self._sentence(unit, what, of) for (unit, what), of in self._odd.items()]

    def _sentence(self, unit: str, what: str, count_of: Counter[str]) -> str:
        count = sum(count_of.values())
        total = sum(self._seen[unit, file] for file in count_of)
        words = what.split(" ")
        if count == 1:
            words = [_ONE.get(word, word) for word in words]
        if unit == "files":
            return f"{_plural(count, 'file')} {' '.join(words)} ({listed(list(count_of))})."
        amount = f"{count:,} of {total:,} {unit}" if total else _plural(count, unit[:-1])
        return f"{amount} of {listed(list(count_of))} {' '.join(words)}."


def listed(names: list[str]) -> str:
    """Return names in words, the first few of many.

    >>> listed(["a", "b"]), listed(list("abcde"))
    ('a and b', 'a, b, c and 2 more')
    """
    shown = names[:_MOST_FILES] if len(names) > _MOST_FILES + 1 else names
    if len(shown) < len(names):
        return f"{', '.join(shown)} and {len(names) - len(shown):,} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
