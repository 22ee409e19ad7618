"""Small words that sentences share: plurals, and how often."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "prompt"), counted(1200, "prompt")
    ('1 prompt', '1,200 prompts')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(number: float) -> str:
    """Return how often.

    >>> times(1.0), times(1.04), times(1.3)
    ('once', 'once', '1.3 times')
    """
    text = f"{number:.2g}"
    return "once" if text == "1" else f"{text} times"
