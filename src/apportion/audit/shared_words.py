"""What all prompts share at their beginning and end: chat templates, system prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CUT = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWords:
    """Numbers of characters that begin and end all texts, whole words alone."""

    num_first: int
    num_last: int

    def cut(self, text: str, longest: int) -> str:
        """Return a text without what all share, and at most so many characters of it.

        >>> shared_words(["Solve 1+1 now", "Solve 2+2 now"]).cut("Solve 1+1 now", 9)
        '...1+1...'
        """
        text = text.strip()
        inner = text[self.num_first : len(text) - self.num_last].strip()
        begin = _CUT if self.num_first else ""
        end = _CUT if self.num_last or len(inner) > longest else ""
        return f"{begin}{inner[:longest]}{end}"


def shared_words(texts: Sequence[str]) -> SharedWords:
    """Find what all texts begin and end with; nothing where fewer than two texts differ."""
    unique = {text.strip() for text in texts}
    if len(unique) < 2:
        return SharedWords(num_first=0, num_last=0)
    first = min(unique)
    num_first = _up_to_blank(first[: _num_same(first, max(unique))])
    shared = first[num_first:]
    for text in unique:
        if not text.endswith(shared, num_first):
            shared = shared[len(shared) - _num_same(shared[::-1], text[num_first:][::-1]) :]
    return SharedWords(num_first=num_first, num_last=_up_to_blank(shared[::-1]))


def _num_same(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _up_to_blank(text: str) -> int:
    """Return how many characters lie up to the last blank."""
    return next((at for at in range(len(text), 0, -1) if text[at - 1].isspace()), 0)
