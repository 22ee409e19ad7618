"""What scalar curves tell of waste, where single rollouts were not recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apportion.audit.waste import NUM_PARTS, Rates
from apportion.recording import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFindings:
    """What scalar curves tell where there are no groups; None where a curve is missing.

    Attributes:
        without_signal: mean share of groups without signal.
        parts: (first step, last step, mean share) by fifths of the curve.
        first_reward, last_reward: mean reward of the first and of the last fifth.
        num_steps: distinct steps of the two curves.
        gpu_hours: hours that went into groups without signal, if all groups cost the same.
        cost: their price.
    """

    without_signal: float | None
    parts: tuple[tuple[int, int, float], ...]
    first_reward: float | None
    last_reward: float | None
    num_steps: int
    gpu_hours: float | None
    cost: float | None


def curve_findings(curves: Mapping[str, Curve], rates: Rates) -> CurveFindings | None:
    """Summarise the curves of the reward and of the share without signal; None without either.

    Args:
        curves: by meaning: `share_without_signal`, `reward`.
        rates: what sampling costs; a price a token needs rollouts.

    >>> curve = Curve(step_T=np.arange(4), value_T=np.array([0.5, np.nan, 0.4, 0.6]))
    >>> found = curve_findings({"share_without_signal": curve}, Rates(gpu_hours=10.0))
    >>> found.without_signal, found.gpu_hours, found.parts[-1]
    (0.5, 5.0, (3, 3, 0.6))
    """
    share, reward = _known(curves, "share_without_signal"), _known(curves, "reward")
    if share is None and reward is None:
        return None
    rewards = [value for _, _, value in _parts(reward)]
    mean = None if share is None else float(share.value_T.mean())
    hours = None if mean is None or rates.gpu_hours is None else mean * rates.gpu_hours
    price = rates.price_per_gpu_hour
    step_T = np.concatenate([curve.step_T for curve in (share, reward) if curve is not None])
    return CurveFindings(
        without_signal=mean,
        parts=_parts(share),
        first_reward=rewards[0] if rewards else None,
        last_reward=rewards[-1] if rewards else None,
        num_steps=len(np.unique(step_T)),
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
    )


def _known(curves: Mapping[str, Curve], name: str) -> Curve | None:
    """Return the finite points of a curve; None if there are none."""
    curve = curves.get(name)
    if curve is None or not np.isfinite(curve.value_T).any():
        return None
    known_T = np.isfinite(curve.value_T)
    return Curve(step_T=curve.step_T[known_T], value_T=curve.value_T[known_T])


def _parts(curve: Curve | None) -> tuple[tuple[int, int, float], ...]:
    if curve is None:
        return ()
    return tuple(
        (int(step_t[0]), int(step_t[-1]), float(value_t.mean()))
        for step_t, value_t in zip(
            np.array_split(curve.step_T, NUM_PARTS),
            np.array_split(curve.value_T, NUM_PARTS),
            strict=True,
        )
        if len(step_t)
    )
