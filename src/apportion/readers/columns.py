"""Which column holds what: named by the user, or guessed from well-known names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

_PROMPT = (
    "prompt_id",
    "problem_id",
    "prompt_key",
    "prompt",
    "prompts",
    "input",
    "question",
    "problem",
    "query",
    "instruction",
    "messages",
    "id",
    "question_id",
    "qid",
    "task_id",
    "instance_id",
    "example_id",
    "sample_id",
    "index",
)
MERE_IDS = _PROMPT[_PROMPT.index("id") :]
"""Guesses for a prompt that may also number rollouts: the rows have to bear them out."""
INDEX = "index"
_REWARD = (
    "reward",
    "rewards",
    "total_reward",
    "reward_total",
    "score",
    "scores",
    "return",
    "acc",
    "accuracy",
    "is_correct",
    "correct",
    "success",
    "passed",
)
_STEP = ("step", "global_step", "training_step", "train_step", "_step", "iteration", "policy_step")
_GROUP = ("group", "group_id", "group_uid", "uid")
_NUM_SUCCESS = ("num_success", "num_successes", "successes", "num_correct", "k", "correct")
_NUM_ROLLOUTS = ("num_rollouts", "rollouts_per_prompt", "attempts", "num_samples", "n")
_TOKENS = ("num_tokens", "completion_tokens", "completion_length", "response_length")
_TRUNCATED = ("truncated", "is_truncated", "num_truncated")
_TEXT = (
    "prompt_text",
    "prompt",
    "prompts",
    "input",
    "question",
    "problem",
    "query",
    "instruction",
    "messages",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of columns, as a user gives them; None is guessed.

    Attributes:
        prompt: what tells prompts apart: an id, a text or chat messages.
        reward: reward of a rollout, or the list of a group's rewards.
        step: training step.
        group: id of a group within a step; rows of one prompt are one group without it.
        num_success: successes k of a group, for rows that are groups.
        num_rollouts: rollouts n of a group.
        tokens: completion tokens of a rollout (of the group, for rows that are groups).
        truncated: whether it hit the length limit (how many did).
        text: words of the prompt, where `prompt` is an id.
    """

    prompt: str | None = None
    reward: str | None = None
    step: str | None = None
    group: str | None = None
    num_success: str | None = None
    num_rollouts: str | None = None
    tokens: str | None = None
    truncated: str | None = None
    text: str | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The names that are given, in order."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(dict.fromkeys(value for value in values if value is not None))


def choose(names: Sequence[str], columns: Columns) -> Columns | None:
    """Return the columns to read among those that a table has; None if they tell no groups.

    A table tells groups if it has a prompt or a group id, and rewards or counts k of n. Counts win
    over a reward, except where `correct` may be either; a named column wins over everything.

    Args:
        names: columns of the table.
        columns: what the user named; every None is guessed, whatever the case of the letters.

    >>> found = choose(["Prompt", "score", "n"], Columns())
    >>> found.prompt, found.reward, found.num_rollouts
    ('Prompt', 'score', None)
    """
    if not set(columns.named) <= set(names):
        return None
    found = guess(names, columns)
    reward, num_success = found.reward, found.num_success
    if not _counts(columns, reward, num_success, found.num_rollouts):
        num_success = None
    elif columns.reward is None:
        reward = None
    if found.prompt is None or (reward is None and num_success is None):
        return None
    tokens = _TOKENS if num_success is None else ("num_tokens", "completion_tokens")
    return replace(
        found,
        reward=reward,
        num_success=num_success,
        num_rollouts=None if num_success is None else found.num_rollouts,
        tokens=columns.tokens or _first(names, tokens),
        text=None if found.text == found.prompt else found.text,
    )


def guess(names: Sequence[str], columns: Columns) -> Columns:
    """Return what each column may be, whether or not that is enough for groups.

    >>> guess(["qid", "k"], Columns()).named
    ('qid', 'k')
    """
    group = columns.group or _first(names, _GROUP)
    return Columns(
        prompt=columns.prompt or _first(names, _PROMPT) or group,
        reward=columns.reward or _first(names, _REWARD),
        step=columns.step or _first(names, _STEP),
        group=group,
        num_success=columns.num_success or _first(names, _NUM_SUCCESS),
        num_rollouts=columns.num_rollouts or _first(names, _NUM_ROLLOUTS),
        tokens=columns.tokens or _first(names, _TOKENS),
        truncated=columns.truncated or _first(names, _TRUNCATED),
        text=columns.text or _first(names, _TEXT),
    )


def other_prompts(names: Sequence[str], columns: Columns) -> list[str]:
    """Return what else of a table is called like a prompt, in the order of the guesses.

    >>> other_prompts(["prompt", "problem_id", "id", "reward"], Columns(prompt="prompt"))
    ['problem_id']
    """
    known = [name for name in _PROMPT if name not in MERE_IDS]
    found = (_first(names, [name]) for name in known)
    used = replace(columns, text=None).named
    return [name for name in found if name is not None and name not in used]


def is_mere_id(column: str | None, known: Sequence[str] = MERE_IDS) -> bool:
    """Return whether a column is called like one of `MERE_IDS`, whatever the case of its letters.

    >>> is_mere_id("Sample_ID"), is_mere_id("prompt_id")
    (True, False)
    """
    return column is not None and column.strip().lower() in known


def _counts(columns: Columns, reward: str | None, success: str | None, num: str | None) -> bool:
    if success is None or num is None or columns.reward is not None:
        return False
    if columns.num_success is not None or columns.num_rollouts is not None or reward is None:
        return True
    return success.lower() != "correct" or reward.lower() == "correct"


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in known if name in by_lower), None)
