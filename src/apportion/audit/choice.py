"""Whether a recorded run of ours chose its prompts, and what it was told to choose by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.errors import InvalidInputError
from apportion.recording import Recording

CHOOSING_ARMS = ("adaptive", "oracle")
"""Arms of `apportion train` that follow its objective."""
_UPPER_TIMES = 4
"""Most rollouts over the mean, where a run of `apportion train` was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a run chose prompts, or would have in shadow mode.

    Attributes:
        is_followed: whether it trained on what was chosen, so that its record holds those alone.
        objective: ``progress`` or ``coverage``.
        candidates: prompts to choose from, over those of an even step.
        exploration: share of the rollouts for the candidates not sampled for longest; None where
            the configuration does not tell.
        rollouts_per_prompt: n of an even step.
        prompts_per_step: of an even step.
        lower: fewest rollouts of a chosen prompt.
        upper: most rollouts of one.
        expected_gain: what the run's own forecasts promised over an even step, median of the steps
            in which they decided; None where that is not logged.
        num_decided: those steps.
    """

    is_followed: bool
    objective: str
    candidates: int
    exploration: float | None
    rollouts_per_prompt: int
    prompts_per_step: int
    lower: int
    upper: int
    expected_gain: float | None
    num_decided: int

    def bounds_at(self, size: int, *, lower: int | None, upper: int | None) -> tuple[int, int]:
        """Return fewest and most rollouts at this n: the run's, where the user settled none."""
        return (
            min(self.lower, size) if lower is None else lower,
            max(self.upper, size) if upper is None else upper,
        )


def choice_of(recording: Recording) -> Choice | None:
    """Return how prompts were chosen; None where none were, or the record does not tell.

    Args:
        recording: the run; only our own run folders bring a configuration.

    Raises:
        InvalidInputError: a number of the configuration is missing or damaged.
    """
    train = recording.config.get("train")
    if isinstance(train, Mapping):
        told: Mapping[str, Any] = train
        chooses, is_followed = told.get("arm") in CHOOSING_ARMS, True
    else:
        told = recording.config
        mode = told.get("allocator_mode")
        chooses, is_followed = mode in ("adaptive", "shadow"), mode == "adaptive"
    # Runs of before prompts were chosen name no objective.
    if not chooses or told.get("objective", "variance") == "variance":
        return None
    gain, num_decided = _expected_gain(recording, is_followed=is_followed)
    try:
        size = int(told["rollouts_per_prompt"])
        upper, exploration = told.get("upper"), told.get("exploration")
        return Choice(
            is_followed=is_followed,
            objective=str(told["objective"]),
            candidates=int(told["candidates"]),
            exploration=None if exploration is None else float(exploration),
            rollouts_per_prompt=size,
            prompts_per_step=max(round(float(told["prompts_per_step"])), 1),
            lower=int(told["lower"]),
            upper=_UPPER_TIMES * size if upper is None else int(upper),
            expected_gain=gain,
            num_decided=num_decided,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"The configuration in run.json is damaged: it says that prompts were chosen, but not "
            f"how ({error}). Restore the file, or delete its config to audit without."
        ) from error


def _expected_gain(recording: Recording, *, is_followed: bool) -> tuple[float | None, int]:
    """Return the median gain over an even step, and the steps behind it: none that was even."""
    ratio = recording.curves.get("gain_ratio" if is_followed else "shadow_gain_ratio")
    fallback = recording.curves.get("fallback")
    if ratio is None or fallback is None:
        return None, 0
    decided_T = fallback.step_T[fallback.value_T == 0.0]
    known_T = ratio.value_T[np.isin(ratio.step_T, decided_T) & np.isfinite(ratio.value_T)]
    return (float(np.median(known_T)) if len(known_T) else None), len(known_T)
