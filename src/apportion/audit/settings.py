"""Which n and bounds to use.

At a fixed number of rollouts a step, B = (prompts) n, the noise of the step's gradient is in
proportion to ``n E[v / (n_i - 1)]``. It falls with n towards a limit, while prompts leave the step:
the smallest n that comes near the limit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.audit.configuration_lines import (
    trl_arithmetic,
    trl_lines,
    verl_arithmetic,
    verl_lines,
)
from apportion.audit.neyman import least_variance
from apportion.errors import InvalidInputError
from apportion.replay import ReplayResult
from apportion.success_distribution import SuccessDistribution

SIZES = (2, 4, 8, 16, 32, 64)
NEAR = 1.2
"""Noise over its limit that counts as near."""
TOO_SURE = 1.5
"""Mean squared standardised error from which the forecasts claim more than they know."""
_UPPER_TIMES = (2, 3, 4, 6, 8)
_NEAR_CUT = 0.95
_ASSUMED_PROMPTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to set, why, and the lines to paste.

    Attributes:
        mode: `adaptive` groups, `shadow` (train evenly, log what would be decided), or `uniform`.
        rollouts_per_prompt: n; the mean where groups differ.
        prompts_per_step: such that a step keeps its number of rollouts, as far as that divides.
        lower: fewest rollouts a prompt.
        upper: most rollouts a prompt.
        reasons: a sentence each.
        trl: lines of Python.
        trl_arithmetic: how TRL's batch comes about.
        verl: settings for verl's command line.
        verl_arithmetic: how verl's batch comes about, and what verl cannot do.
    """

    mode: str
    rollouts_per_prompt: int
    prompts_per_step: int
    lower: int
    upper: int
    reasons: tuple[str, ...]
    trl: tuple[str, ...]
    trl_arithmetic: str
    verl: tuple[str, ...]
    verl_arithmetic: str


def recommend(
    distribution: SuccessDistribution | None,
    replayed: ReplayResult | None,
    *,
    mean_rollouts: float,
    rollouts_per_step: float | None,
    mean_visits: float,
    reward_range: tuple[float, float] = (0.0, 1.0),
    lower: int | None = None,
    upper: int | None = None,
) -> Settings:
    """Recommend n and bounds.

    Args:
        distribution: of success; None where rewards are not of two values.
        replayed: what the allocator would have saved; None if it was not replayed.
        mean_rollouts: n of the recorded run.
        rollouts_per_step: B of the recorded run; None where steps are unknown.
        mean_visits: how often a prompt came, on average.
        reward_range: lowest and highest reward.
        lower: fewest rollouts a prompt, if that is settled.
        upper: most rollouts a prompt, if that is settled.

    Raises:
        InvalidInputError: bounds below 2, or that cross.
    """
    check_bounds(lower, upper)
    mode, why_mode = _mode(replayed, mean_visits)
    size, why_size = _size(distribution, mean_rollouts, lower or 2, upper, even=mode == "uniform")
    least, why_lower = _lower(replayed, size, lower, upper)
    most, why_upper = _upper(distribution, size, least, upper)
    if rollouts_per_step is None:
        prompts = _ASSUMED_PROMPTS
        why_batch = (
            f"Steps are not recorded, so {prompts} prompts a step are assumed: put your own number."
        )
    else:
        prompts = max(round(rollouts_per_step / size), 1)
        why_batch = (
            f"{prompts:,} prompts x {size} = {prompts * size:,} rollouts a step; the run had "
            f"{rollouts_per_step:,.0f}."
        )
        if prompts == 1:
            why_batch += " With one prompt a step there is nothing to allocate: take more."
    bounds_why = (why_lower, why_upper) if mode != "uniform" else ()
    return Settings(
        mode=mode,
        rollouts_per_prompt=size,
        prompts_per_step=prompts,
        lower=least,
        upper=most,
        reasons=(why_mode, why_size, *bounds_why, why_batch),
        trl=trl_lines(mode, size, prompts, bounds=(least, most), reward_range=reward_range),
        trl_arithmetic=trl_arithmetic(size, prompts),
        verl=verl_lines(size, prompts),
        verl_arithmetic=verl_arithmetic(size, prompts),
    )


def check_bounds(lower: int | None, upper: int | None) -> None:
    """Raise unless the bounds, where given, leave room.

    Raises:
        InvalidInputError: `lower` below 2, or `upper` below `lower`.
    """
    if lower is not None and lower < 2:
        raise InvalidInputError(
            f"lower is {lower}, but a group of fewer than 2 rollouts has no advantage. "
            "Set lower to 2 or more."
        )
    if upper is not None and upper < (lower or 2):
        raise InvalidInputError(
            f"upper is {upper}, below lower = {lower or 2}. Raise the one or lower the other."
        )


def relative_noise(
    distribution: SuccessDistribution, size: int, lower: int, upper: int | None, *, even: bool
) -> float:
    """Return the noise of a step at this n over its limit for large n, rollouts being fixed.

    Even split: ``n / (n-1)``. Best split: ``n min E[v / (n_i - 1)] / E[sqrt v]^2``; 1 where no
    reward varies. Without an upper bound if it is None: `_upper` then costs little.
    """
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    limit = float(distribution.weight_J @ np.sqrt(v_J)) ** 2
    if even or limit <= 0.0:
        return size / (size - 1.0) if even else 1.0
    most = np.inf if upper is None else float(upper)
    return size * least_variance(distribution, size, lower=lower, upper=most) / limit


def _mode(replayed: ReplayResult | None, mean_visits: float) -> tuple[str, str]:
    if replayed is None:
        return "shadow", "Nothing was replayed: train in shadow mode first, it changes nothing."
    low, high = replayed.saving_interval
    if mean_visits < 2.0:
        return "shadow", (
            f"Prompts came {mean_visits:.1f} times on average, too rarely to judge the forecasts: "
            "train in shadow mode first, it changes nothing."
        )
    if low > 0.0 and low < high:
        return "adaptive", "The replay saves rollouts beyond chance: let the allocator decide."
    if replayed.saving > 0.0:
        return "shadow", (
            "The replayed saving is not sure: train in shadow mode first, it changes nothing."
        )
    return "uniform", "The replay saves nothing: keep equal groups."


def _size(
    distribution: SuccessDistribution | None,
    mean_rollouts: float,
    lower: int,
    upper: int | None,
    *,
    even: bool,
) -> tuple[int, str]:
    """Keep the run's n if it is near the limit and not twice too large."""
    most = np.inf if upper is None else float(upper)
    now = int(min(max(round(mean_rollouts), lower, 2), most))
    if distribution is None:
        return now, f"n = {now} is the run's: rewards of more than two values do not tell a better."
    fits = [size for size in SIZES if (lower < size or even) and lower <= size <= most]
    noise = {size: relative_noise(distribution, size, lower, upper, even=even) for size in fits}
    near = [size for size in fits if noise[size] <= NEAR]
    own = relative_noise(distribution, now, lower, upper, even=even)
    if not fits:
        return now, f"n = {now} is all that the bounds allow."
    best = near[0] if near else fits[-1]
    if now <= 2 * best and own <= NEAR:
        return now, f"n = {now} is the run's: at its rollouts a step {_over_limit(own)}."
    gain = noise[best]
    more = "more" if best > now else "fewer"
    return best, (
        f"n = {best}, {more} than the run's {mean_rollouts:.3g}: at the same rollouts a step "
        f"{_over_limit(gain)} (the run's n: {own - 1.0:.0%})."
    )


def _over_limit(noise: float) -> str:
    return f"{noise - 1.0:.0%} more gradient noise than very large groups"


def _lower(
    replayed: ReplayResult | None, size: int, lower: int | None, upper: int | None
) -> tuple[int, str]:
    if lower is not None:
        return lower, f"lower = {lower} is yours."
    sure = replayed is not None and replayed.standardised_sq > TOO_SURE
    careful = min(max(2, size // 4), size if upper is None else min(size, upper))
    if sure and careful > 2:
        return careful, f"lower = {careful}, a quarter of n: the forecasts are too sure."
    return 2, "lower = 2 is the smallest group that has an advantage."


def _upper(
    distribution: SuccessDistribution | None, size: int, lower: int, upper: int | None
) -> tuple[int, str]:
    if upper is not None:
        return upper, f"upper = {upper} is yours."
    if distribution is None:
        return 4 * size, f"upper = {4 * size}, four times n, is the trainer's default."
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    even = float(distribution.weight_J @ v_J) / (size - 1.0)
    full = even - least_variance(distribution, size, lower=lower)
    for times in _UPPER_TIMES:
        most = times * size
        cut = even - least_variance(distribution, size, lower=lower, upper=most)
        if cut >= _NEAR_CUT * full:
            break
    share = f"{cut / full:.0%}" if full > 1e-12 else "all"
    return most, f"upper = {most} keeps {share} of what could be cut without an upper bound."
