"""Which column holds what: named by the user, or guessed from well-known names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

_PROMPT = (
    "prompt_id",
    "problem_id",
    "prompt_key",
    "prompt",
    "input",
    "question",
    "problem",
    "query",
    "instruction",
    "messages",
    "id",
)
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
    group = columns.group or _first(names, _GROUP)
    prompt = columns.prompt or _first(names, _PROMPT) or group
    num_success = columns.num_success or _first(names, _NUM_SUCCESS)
    num_rollouts = columns.num_rollouts or _first(names, _NUM_ROLLOUTS)
    reward = columns.reward or _first(names, _REWARD)
    if not _counts(columns, reward, num_success, num_rollouts):
        num_success = num_rollouts = None
    elif columns.reward is None:
        reward = None
    if prompt is None or (reward is None and num_success is None):
        return None
    tokens = _TOKENS if num_success is None else ("num_tokens", "completion_tokens")
    text = columns.text or _first(names, _TEXT)
    return Columns(
        prompt=prompt,
        reward=reward,
        step=columns.step or _first(names, _STEP),
        group=group,
        num_success=num_success,
        num_rollouts=num_rollouts,
        tokens=columns.tokens or _first(names, tokens),
        truncated=columns.truncated or _first(names, _TRUNCATED),
        text=None if text == prompt else text,
    )


def _counts(columns: Columns, reward: str | None, success: str | None, num: str | None) -> bool:
    if success is None or num is None or columns.reward is not None:
        return False
    if columns.num_success is not None or columns.num_rollouts is not None or reward is None:
        return True
    return success.lower() != "correct" or reward.lower() == "correct"


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in known if name in by_lower), None)
