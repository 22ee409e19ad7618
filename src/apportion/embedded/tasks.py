"""Problems of the embedded world: drawing, splitting and scoring them with reasoning-gym.

A hash of the prompt decides what it may be used for: one tenth is held out for evaluation, two
tenths are candidates for the reinforcement-learning pools, the rest may be demonstrated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from apportion import validate
from apportion.embedded.cells import CELLS, CHARACTERS, MAX_ANSWER_CHARS, MAX_PROMPT_CHARS, Cell
from apportion.errors import InvalidInputError, MissingExtraError

Split = Literal["held_out", "pool", "demonstration"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt with the only answer that scores 1, and the name of its cell."""

    cell: str
    prompt: str
    answer: str


def split(prompt: str) -> Split:
    """What a prompt may be used for, by a hash of its text.

    Args:
        prompt: the rendered prompt.

    Returns:
        ``"held_out"`` (a tenth of all prompts), ``"pool"`` (two tenths) or ``"demonstration"``.

    >>> split("gcd(12,18)=")
    'demonstration'
    """
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % 10
    if bucket == 0:
        return "held_out"
    return "pool" if bucket <= 2 else "demonstration"


def is_held_out(prompt: str) -> bool:
    """Whether the prompt is kept for evaluation: never demonstrated, never in a training pool.

    >>> is_held_out("gcd(12,18)=")
    False
    """
    return split(prompt) == "held_out"


def generate(cell: Cell, num_draws: int, *, seed: int = 0) -> list[Problem]:
    """The distinct problems among ``num_draws`` draws of a cell, in the order drawn.

    Problems that do not fit the vocabulary or the lengths are left out; where a task gives one
    prompt two answers (a number sequence may go on in two ways), the first one counts.

    Args:
        cell: one of `apportion.embedded.cells.CELLS`.
        num_draws: items drawn from reasoning-gym, at least 1.
        seed: equal seeds give equal problems.

    Returns:
        At most ``num_draws`` problems with distinct prompts.

    Raises:
        InvalidInputError: ``num_draws`` is below 1.
        MissingExtraError: reasoning-gym is not installed.
    """
    num_draws = validate.whole_number("num_draws", num_draws, at_least=1)
    first = int.from_bytes(hashlib.sha256(f"{seed}/{cell.name}".encode()).digest()[:4], "big")
    answer_by_prompt: dict[str, str] = {}
    for item in _dataset(cell, size=num_draws, seed=first):
        prompt, answer = cell.render(item["question"]), str(item["answer"])
        if _fits(prompt, MAX_PROMPT_CHARS) and _fits(answer, MAX_ANSWER_CHARS):
            answer_by_prompt.setdefault(prompt, answer)
    return [Problem(cell.name, prompt, answer) for prompt, answer in answer_by_prompt.items()]


def score(problem: Problem, completion: str) -> int:
    """Reward of a completion: 1 where reasoning-gym's own scorer gives 1.0, else 0.

    Args:
        problem: the problem that was posed.
        completion: decoded text without the end-of-sequence token.

    Returns:
        0 or 1.

    Raises:
        InvalidInputError: the cell of the problem is unknown.
        MissingExtraError: reasoning-gym is not installed.
    """
    cell_name = validate.choice("problem.cell", problem.cell, tuple(CELLS))
    return int(_scorer(cell_name)(completion, {"answer": problem.answer}) == 1.0)


def scores(problems: Sequence[Problem], completions: Sequence[str]) -> list[int]:
    """Rewards of many completions, see `score`.

    Args:
        problems: N problems, one for each completion.
        completions: N decoded texts.

    Returns:
        N rewards, 0 or 1.

    Raises:
        InvalidInputError: the two differ in length, or a cell is unknown.
        MissingExtraError: reasoning-gym is not installed.
    """
    if len(problems) != len(completions):
        raise InvalidInputError(
            f"{len(problems)} problems but {len(completions)} completions; "
            "pass one problem for each completion."
        )
    return [score(p, c) for p, c in zip(problems, completions, strict=True)]


def _fits(text: str, max_chars: int) -> bool:
    return 0 < len(text) <= max_chars and all(c in CHARACTERS for c in text)


def _dataset(cell: Cell, *, size: int, seed: int) -> Any:
    try:
        from reasoning_gym.factory import create_dataset
    except ImportError as error:
        raise MissingExtraError("reasoning-gym", "train") from error
    return create_dataset(cell.dataset, size=size, seed=seed, **cell.config)


@cache
def _scorer(cell_name: str) -> Callable[[str, dict[str, str]], float]:
    scorer: Callable[[str, dict[str, str]], float]
    scorer = _dataset(CELLS[cell_name], size=1, seed=0).score_answer
    return scorer
