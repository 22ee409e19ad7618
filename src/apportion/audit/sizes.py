"""Which n and which bounds, from how success is spread.

At a fixed number of rollouts a step, B = (prompts) n, the variance of the step's gradient within
groups is in proportion to ``n E[v / (n_i - 1)]``. It falls with n towards a limit, while prompts
leave the step: the smallest n that comes near the limit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.audit.neyman import least_variance
from apportion.success_distribution import SuccessDistribution

SIZES = (2, 4, 8, 16, 32, 64)
NEAR = 1.2
"""Variance over its limit that counts as near."""
_MOST_TIMES = 2.0
"""n over the run's n: more would leave fewer than half of the prompts a step."""
_UPPER_TIMES = (2, 3, 4, 6, 8)
_NEAR_CUT = 0.95
_WITHIN = "This counts only the noise within groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Fewest and most rollouts a prompt, as far as the user settled them."""

    lower: int | None = None
    upper: int | None = None

    @property
    def least(self) -> int:
        """`lower`, or the smallest group that has an advantage."""
        return 2 if self.lower is None else self.lower

    @property
    def most(self) -> float:
        """`upper`, or no bound."""
        return np.inf if self.upper is None else float(self.upper)


def nothing_to_move(mean: float, bounds: Bounds) -> str | None:
    """Say why no rollout can leave a prompt for another; None where some can.

    Args:
        mean: rollouts a prompt of the run.
        bounds: of the user.

    >>> nothing_to_move(8.0, Bounds(lower=8))
    'Your bounds leave nothing to move: lower = n.'
    """
    for name, bound, is_tight, side in (
        ("lower", bounds.lower, bounds.least >= mean, "above"),
        ("upper", bounds.upper, bounds.most <= mean, "below"),
    ):
        if bound is not None and is_tight:
            rest = "= n" if bound == mean else f"= {bound} is {side} n = {mean:.3g}"
            return f"Your bounds leave nothing to move: {name} {rest}."
    if bounds.least == bounds.most:
        return f"Your bounds leave nothing to move: lower = upper = {bounds.lower}."
    if 1.0 < mean <= bounds.least:
        return "Groups of 2 leave nothing to move: no prompt can do with fewer."
    return None


def relative_variance(
    distribution: SuccessDistribution, size: int, bounds: Bounds, *, even: bool
) -> float:
    """Return the variance of a step at this n over its limit for large n, rollouts being fixed.

    Even split: ``n / (n-1)``. Best split: ``n min E[v / (n_i - 1)] / E[sqrt v]^2``; 1 where no
    reward varies. Without an upper bound if none is settled: `best_upper` then costs little.
    """
    if even:
        return size / (size - 1.0)
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    limit = float(distribution.weight_J @ np.sqrt(v_J)) ** 2
    if limit <= 0.0:
        return 1.0
    return size * least_variance(distribution, size, lower=bounds.least, upper=bounds.most) / limit


def own_size(mean: float, bounds: Bounds) -> int:
    """Return the run's n as a whole number, or what the bounds allow that is nearest."""
    return int(min(max(round(mean), bounds.least), bounds.most))


def kept_size(mean: float, bounds: Bounds, *, has_signal: bool = True) -> tuple[int, str]:
    """Keep the run's n, and say what it costs if the rewards of any group differed."""
    now = own_size(mean, bounds)
    if now != round(mean):
        is_least = bounds.lower is None and mean < 2.0
        why = (
            "the smallest group that has an advantage"
            if is_least
            else "the nearest that your bounds allow"
        )
        return now, f"n = {now} is {why}; the run had {mean:.3g}."
    if not has_signal:
        return now, f"n = {now}, as now: no group had signal, which tells nothing of other n."
    return now, f"n = {now}, as now: at its rollouts a step {_over_limit(now / (now - 1.0))}."


def best_size(
    distribution: SuccessDistribution | None, mean: float, bounds: Bounds, *, even: bool
) -> tuple[int, str]:
    """Return n with its reason: the run's if it is near the limit and not twice too large.

    Args:
        distribution: of success; None where rewards are not of two values.
        mean: rollouts a prompt of the run.
        bounds: of the user.
        even: whether every prompt gets the same.
    """
    now = own_size(mean, bounds)
    if now != round(mean):
        return kept_size(mean, bounds)
    if distribution is None:
        return now, f"n = {now}, as now: rewards of more than two values do not tell a better."
    least = bounds.least if even else bounds.least + 1
    most = min(bounds.most, _MOST_TIMES * mean)
    fits = [size for size in SIZES if least <= size <= most]
    noise = {size: relative_variance(distribution, size, bounds, even=even) for size in fits}
    own = relative_variance(distribution, now, bounds, even=even)
    near = [size for size in fits if noise[size] <= NEAR]
    best = near[0] if near else fits[-1] if fits else now
    if best == now or (now <= 2 * best and own <= NEAR) or (not near and noise[best] >= own):
        return now, f"n = {now}, as now: at its rollouts a step {_over_limit(own)}."
    more = best > now
    rest = "; fewer prompts a step add noise between prompts, which a log of rewards cannot show"
    return best, (
        f"n = {best}, {'more' if more else 'fewer'} than the run's {mean:.3g}: at the same "
        f"rollouts a step {_over_limit(noise[best])} (the run's n: {own - 1.0:.0%}). "
        f"{_WITHIN}{rest if more else ''}."
    )


def best_upper(
    distribution: SuccessDistribution | None, size: int, bounds: Bounds, least: int
) -> tuple[int, str]:
    """Return the least upper bound that costs little, with its reason.

    Args:
        distribution: of success; None where rewards are not of two values.
        size: mean n.
        bounds: of the user.
        least: fewest rollouts a prompt.
    """
    if bounds.upper is not None:
        return bounds.upper, f"upper = {bounds.upper} is yours."
    if distribution is None:
        return 4 * size, f"upper = {4 * size}, four times n, is the trainer's default."
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    even = float(distribution.weight_J @ v_J) / (size - 1.0)
    full = even - least_variance(distribution, size, lower=least)
    for times in _UPPER_TIMES:
        most = times * size
        cut = even - least_variance(distribution, size, lower=least, upper=most)
        if cut >= _NEAR_CUT * full:
            break
    share = cut / full if full > 1e-12 else 1.0
    if share >= 0.995:
        return most, f"upper = {most}: a higher bound would gain nothing."
    return most, f"upper = {most} keeps {share:.0%} of what could be cut without an upper bound."


def _over_limit(variance: float) -> str:
    return f"{variance - 1.0:.0%} more gradient variance within groups than very large ones have"
