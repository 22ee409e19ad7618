"""The exact split of a budget of rollouts over prompts.

``min sum_i V_i(n_i)  s.t.  sum_i n_i = budget,  lower_i <= n_i <= upper_i``, whole n.

Where every ``V_i`` is convex and decreasing, giving one rollout at a time to the prompt whose
variance drops most is optimal (Fox, 1966). The same answer, for all prompts at once: the rollouts
granted are the largest drops of the whole batch, so there is a price that every rollout granted
reaches and none withheld exceeds. Search that price; rollouts worth exactly the price go to the
prompt with fewer rollouts first, then by position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, relaxation, validate
from apportion.errors import InvalidInputError, NonConvexLawError
from apportion.gradient_variance import DR_GRPO, RLOO, KnownLaw, named_law
from apportion.types import Allocation, Forecast
from apportion.validate import FloatArray, IntArray

VarianceLaw = Callable[[Forecast, IntArray], FloatArray]
"""law(forecast, num_rollouts_B) -> variance_B, over the whole batch."""

_TINY = 5e-324
"""The smallest positive float: a rollout is worth something if it reaches this price."""
_FEW = 4096
_NARROW = 32
"""So many drops in all, or per prompt, are cheaper to sort than to search."""
_DENSE = 64
"""A law that the caller wrote is checked at this many n from `lower` on, then at growing steps."""
_NOISE = 1e-12
"""Rounding error of a law, relative to its value, that is not taken for a rise."""


def allocate(
    success_or_forecast: ArrayLike | Forecast,
    budget: int,
    *,
    variance: str | VarianceLaw = "rloo",
    lower: ArrayLike = 2,
    upper: ArrayLike | None = None,
) -> Allocation:
    """Split a budget of rollouts so that the total gradient variance is the least possible.

    ``min sum_i V_i(n_i)  s.t.  sum_i n_i = budget,  lower_i <= n_i <= upper_i``, whole n.

    Args:
        success_or_forecast: success probability of each prompt (B), or a forecast with doubt.
        budget: rollouts in all.
        variance: "rloo", "dr_grpo", "grpo", "grpo_population_std", what `law_for` returns, or any
            function (forecast, num_rollouts_B) -> variance_B that is convex and does not rise. A
            function of your own is checked at n = lower to lower + 64, then in steps that grow by a
            tenth: a bump between two of them goes unnoticed, and the answer may then not be the
            optimum.
        lower: fewest rollouts, for all or each prompt (B).
        upper: most rollouts, likewise; None is the budget.

    Returns:
        The whole-number optimum, exactly on budget. `relaxed_B` is the optimum over real numbers
        for "rloo" and "dr_grpo"; other laws are known at whole n only and taken as straight in
        between, so that it equals `num_rollouts_B`.

    Raises:
        InvalidInputError: malformed input, or a law that does not return one number a prompt.
        InfeasibleBudgetError: no whole numbers within the bounds sum to the budget.
        NonConvexLawError: the law is not convex and decreasing from `lower`.

    Source: VIP, Nguyen et al., ICLR 2026, equation 5, solved exactly.

    >>> allocate([0.01, 0.1, 0.5, 0.8], 32).num_rollouts_B
    array([ 3,  7, 12, 10])
    """
    forecast = success_or_forecast
    if not isinstance(forecast, Forecast):
        forecast = Forecast.of_success(forecast)
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(forecast))
    upper_B = np.minimum(upper_B, lower_B + (total - lower_B.sum()))  # what the budget can reach
    law = _checked_law(variance, forecast, lower_B, upper_B)
    even_B = bounds.even_split(total, lower_B, upper_B)
    search = _PriceSearch(forecast, law, total, lower_B, upper_B)
    relaxed = _relaxed(law, forecast, total, lower_B, upper_B)
    if relaxed is None:
        num_B = search.solve(float(np.median(law.drop(forecast, even_B))), step=2.0)
    else:
        num_B = search.solve(relaxed.multiplier, step=1.02)
    return Allocation(
        num_rollouts_B=num_B,
        relaxed_B=num_B.astype(np.float64) if relaxed is None else relaxed.num_rollouts_B,
        price=search.last_drop(num_B),
        variance=float(law.variance(forecast, num_B).sum()),
        uniform_variance=float(law.variance(forecast, even_B).sum()),
        forecast=forecast,
    )


def _relaxed(
    law: KnownLaw, forecast: Forecast, budget: int, lower_B: IntArray, upper_B: IntArray
) -> relaxation.Relaxation | None:
    if law == RLOO:
        return relaxation.solve_rloo(forecast.reward_var_B, budget, lower_B, upper_B)
    if law == DR_GRPO:
        return relaxation.solve_dr_grpo(forecast.reward_var_B, budget, lower_B, upper_B)
    return None


@dataclass(frozen=True, slots=True)
class _PriceSearch:
    """Search of the price at which the drops that reach it sum to the budget."""

    forecast: Forecast
    law: KnownLaw
    budget: int
    lower_B: IntArray
    upper_B: IntArray

    def solve(self, start: float, *, step: float) -> IntArray:
        """Return the optimum; the search leaves `start` in growing steps, then halves."""
        if self.budget == self.lower_B.sum():
            return self.lower_B
        worth_B = self.numbers_at(_TINY, self.lower_B, self.upper_B)
        if worth_B.sum() <= self.budget:
            return bounds.even_split(self.budget, worth_B, self.upper_B)
        low_B, high_B = self.lower_B, worth_B
        cheap, dear = _TINY, float(np.nextafter(self.drop(low_B).max(), np.inf))
        below = above = False
        price = start
        while not self.few_left(low_B, high_B) and np.nextafter(cheap, np.inf) < dear:
            if not cheap < price < dear:
                price = bounds.middle_price(cheap, dear)
            num_B = self.numbers_at(price, low_B, high_B)
            if num_B.sum() <= self.budget:
                low_B, dear, above = num_B, price, True
            else:
                high_B, cheap, below = num_B, price, True
            if above and below:
                price = bounds.middle_price(cheap, dear)
            else:
                price = price / step if above else price * step
                step *= step
        return self.settle(low_B, high_B)

    def drop(self, num_B: IntArray) -> FloatArray:
        """Return what one more rollout of each prompt buys."""
        return self.law.drop(self.forecast, num_B)

    def numbers_at(self, price: float, low_B: IntArray, high_B: IntArray) -> IntArray:
        """Return the rollouts of each prompt, within what is known, whose drops reach the price."""
        if self.law.crossing is None:
            return bounds.raised_while(lambda num_B: self.drop(num_B) >= price, low_B, high_B)
        guess_B = np.floor(self.law.crossing(self.forecast, price)) + 1.0
        num_B = np.clip(guess_B, low_B, high_B).astype(np.int64)
        # The formula is rounded otherwise than the drop itself, which alone decides.
        while (more_B := (num_B < high_B) & (self.drop(num_B) >= price)).any():
            num_B += more_B
        while (less_B := (num_B > low_B) & (self.drop(np.maximum(num_B - 1, low_B)) < price)).any():
            num_B -= less_B
        return num_B

    def few_left(self, low_B: IntArray, high_B: IntArray) -> bool:
        """Say whether the undecided drops are few enough to be sorted."""
        width_B = high_B - low_B
        return bool(width_B.max() <= _NARROW and width_B.sum() <= max(_FEW, len(width_B)))

    def settle(self, low_B: IntArray, high_B: IntArray) -> IntArray:
        """Grant what the budget still allows out of the undecided drops, largest first."""
        left = self.budget - int(low_B.sum())
        # Many can be left only where the search ended at one price, and then all are worth it.
        if left == 0 or not self.few_left(low_B, high_B):
            return bounds.even_split(self.budget, low_B, high_B)
        width_B = high_B - low_B
        drops, owners = [], []
        for layer in range(int(width_B.max())):
            owner = np.flatnonzero(width_B > layer)
            owners.append(owner)
            drops.append(self.drop(np.minimum(low_B + layer, self.upper_B))[owner])
        drop, owner = np.concatenate(drops), np.concatenate(owners)
        price = np.partition(drop, len(drop) - left)[len(drop) - left]
        size = len(low_B)
        granted_B = low_B + np.bincount(owner[drop > price], minlength=size)
        tied_B = granted_B + np.bincount(owner[drop == price], minlength=size)
        return bounds.even_split(self.budget, granted_B, tied_B)

    def last_drop(self, num_B: IntArray) -> float:
        """Return the smallest drop that was paid for, 0 if none was free."""
        bought_B = num_B > self.lower_B
        if not bought_B.any():
            return 0.0
        return float(self.drop(np.maximum(num_B - 1, self.lower_B))[bought_B].min())


def _checked_law(
    variance: str | VarianceLaw, forecast: Forecast, lower_B: IntArray, upper_B: IntArray
) -> KnownLaw:
    """Return a law that is convex and decreasing from the lower bounds, or refuse it by name."""
    if isinstance(variance, type):
        raise InvalidInputError(
            f"variance is the type {variance.__name__}, but must be a name or a function "
            "(forecast, num_rollouts_B) -> variance_B."
        )
    if not isinstance(variance, KnownLaw) and callable(variance):
        return _probed_law(variance, forecast, lower_B, upper_B)
    law = variance if isinstance(variance, KnownLaw) else named_law(variance)
    least = int(lower_B.min())
    if least < law.convex_from:
        raise NonConvexLawError(
            f"The law {law.name} is not convex and decreasing from lower = {least}; "
            f"it is from {law.convex_from}. Set lower to {law.convex_from} or more."
        )
    return law


def _probed_law(
    function: VarianceLaw, forecast: Forecast, lower_B: IntArray, upper_B: IntArray
) -> KnownLaw:
    """Wrap a caller's law, checked at many n between the bounds."""
    name = getattr(function, "__name__", repr(function))
    _check_arguments(function, name)
    # The law gets a forecast that it cannot write to and its own copy of n, and a copy is taken of
    # its answer, which it may keep and change.
    shown = replace(forecast, mean_B=forecast.mean_B.copy())
    for array_B in (shown.mean_B, shown.var_B, shown.reward_var_B):
        array_B.flags.writeable = False

    def value(forecast: Forecast, num_B: IntArray) -> FloatArray:
        answer = function(shown, num_B.copy())
        value_B = validate.numbers(f"What the law {name} returns", answer).copy()
        if value_B.shape != num_B.shape:
            raise InvalidInputError(
                f"The law {name} gave shape {value_B.shape}, but there are {len(num_B)} prompts. "
                "Return one variance a prompt."
            )
        bad_i = np.flatnonzero(~np.isfinite(value_B))
        if bad_i.size:
            at = int(bad_i[0])
            raise InvalidInputError(
                f"The law {name} is {value_B[at]} for prompt {at} at n = {num_B[at]}, but must be "
                "finite from lower to upper. Raise lower or set upper."
            )
        return value_B

    def drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
        return value(forecast, num_B) - value(forecast, np.minimum(num_B + 1, upper_B))

    law = KnownLaw(name, int(lower_B.min()), value, drop)
    mended = _convex_from(law, forecast, lower_B, upper_B)
    if mended is not None:
        advice = (
            f"It is from {mended} at every n tried: set lower to {mended} or more."
            if mended < upper_B.max()
            else "No lower bound mends that: set upper, or use another law."
        )
        raise NonConvexLawError(
            f"The law {name} is not convex and decreasing from lower = {lower_B.min()}: some "
            f"rollout adds variance, or saves less than the one after it. {advice}"
        )
    return law


def _check_arguments(function: VarianceLaw, name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some compiled functions do not tell
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise InvalidInputError(
            f"The law {name} takes {signature}, but is called with (forecast, num_rollouts_B)."
        ) from error


def _convex_from(
    law: KnownLaw, forecast: Forecast, lower_B: IntArray, upper_B: IntArray
) -> int | None:
    """Return the n from which no drop tried is negative or below a later one, None if `lower`."""
    mended: int | None = None
    value_B = law.variance(forecast, lower_B)
    drop_B = law.drop(forecast, lower_B)
    for offset in _offsets(int((upper_B - lower_B).max())):
        next_B = np.minimum(lower_B + offset, upper_B)
        next_value_B = law.variance(forecast, next_B)
        next_drop_B = law.drop(forecast, next_B)
        slack_B = _NOISE * (np.abs(value_B) + np.abs(next_value_B))
        wrong_B = (drop_B < -slack_B) | ((next_B < upper_B) & (next_drop_B > drop_B + slack_B))
        if wrong_B.any():
            mended = int(next_B[wrong_B].max())
        value_B, drop_B = next_value_B, next_drop_B
    return mended


def _offsets(widest: int) -> list[int]:
    """Return every offset up to `_DENSE`, then steps that grow by a tenth, up to the widest."""
    dense = list(range(1, min(widest, _DENSE) + 1))
    while dense and dense[-1] < widest:
        dense.append(min(widest, dense[-1] * 11 // 10))
    return dense
