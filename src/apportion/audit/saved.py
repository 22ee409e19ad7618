"""What the replayed saving is worth, in the units of the waste."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.audit.waste import Rates, Waste
from apportion.replay import ReplayResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What adaptive allocation would have saved, as if every rollout cost the run's mean.

    Attributes:
        num_rollouts: rollouts that could have been left out.
        gpu_hours: their hours; None without a total.
        cost: in the currency of the price; None without one.
    """

    num_rollouts: int
    gpu_hours: float | None
    cost: float | None


def saved_of(replayed: ReplayResult, waste: Waste, rates: Rates) -> Saved | None:
    """Price the saving; None where there is none.

    Args:
        replayed: says which share of the rollouts.
        waste: knows the totals of the run.
        rates: what sampling costs.
    """
    share = replayed.saving
    if not share > 0.0:
        return None
    hours = None if rates.gpu_hours is None else share * rates.gpu_hours
    cost = None
    if hours is not None and rates.price_per_gpu_hour is not None:
        cost = hours * rates.price_per_gpu_hour
    elif rates.price_per_million_tokens is not None and waste.total_tokens is not None:
        cost = share * waste.total_tokens / 1e6 * rates.price_per_million_tokens
    return Saved(num_rollouts=round(share * waste.total_rollouts), gpu_hours=hours, cost=cost)
