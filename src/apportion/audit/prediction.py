"""What the fitted distribution of success says: other n, and the most that could be cut."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.audit.filtering import Filtering, find_filtering
from apportion.audit.neyman import largest_cut
from apportion.audit.size_shares import shares_without_signal
from apportion.audit.sizes import SIZES, Bounds
from apportion.recording import GroupTable
from apportion.success_distribution import (
    Estimate,
    SuccessDistribution,
    fit_success,
)
from apportion.validate import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeShare:
    """Share of groups without signal at another n."""

    rollouts_per_prompt: int
    without_signal: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the fitted distribution of success says.

    Attributes:
        sizes: share of groups without signal at other n.
        observed: share that the record shows, groups of two scored rollouts or more.
        fitted: the same by the fit; the two agree unless counts are no mixture of binomials.
        largest_cut: share of RLOO's variance that the best allocation of the same rollouts would
            cut if success were known.
        filtering: whether groups without signal are missing from the record.
    """

    sizes: tuple[SizeShare, ...]
    observed: float
    fitted: float
    largest_cut: Estimate
    filtering: Filtering


def success_of(
    groups: GroupTable, num_success_G: IntArray, *, num_draws: int
) -> SuccessDistribution | None:
    """Fit the success of the groups of two scored rollouts or more; None without any.

    Args:
        groups: of the run.
        num_success_G: successes of each group.
        num_draws: resampled runs behind the intervals.
    """
    usable_G = groups.num_rollouts_G > 1
    if not usable_G.any():
        return None
    return fit_success(
        num_success_G[usable_G],
        groups.num_rollouts_G[usable_G],
        groups.prompt_G[usable_G],
        num_draws=num_draws,
    )


def predicted(
    groups: GroupTable, num_success_G: IntArray, bounds: Bounds, num_draws: int
) -> tuple[SuccessDistribution | None, Prediction | None]:
    """Return the fit and what it predicts; None without a group of two scored rollouts.

    Args:
        groups: of the run.
        num_success_G: successes of each group.
        bounds: of the user; they bind the largest cut.
        num_draws: resampled runs behind the intervals.
    """
    found = success_of(groups, num_success_G, num_draws=num_draws)
    if found is None:
        return None, None
    usable_G = groups.num_rollouts_G > 1
    success_G, num_G = num_success_G[usable_G], groups.num_rollouts_G[usable_G]
    return found, Prediction(
        sizes=tuple(
            SizeShare(rollouts_per_prompt=size, without_signal=share)
            for size, share in zip(SIZES, shares_without_signal(found, SIZES), strict=True)
        ),
        observed=float(((success_G == 0) | (success_G == num_G)).mean()),
        fitted=found.all_wrong + found.all_right,
        largest_cut=largest_cut(found, float(num_G.mean()), lower=bounds.least, upper=bounds.most),
        filtering=find_filtering(
            success_G, num_G, all_wrong=found.all_wrong, all_right=found.all_right
        ),
    )
