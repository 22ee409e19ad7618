"""Rollouts under a budget of tokens, where a rollout of one prompt is longer than that of another.

``min sum_i V_i(n_i)  s.t.  sum_i c_i n_i <= token_budget,  lower <= n_i <= upper``, whole n, with
``c_i`` the tokens that one rollout of prompt i is expected to take.

At a price per token every prompt has the rollouts whose drop in variance reaches ``price c_i``. The
lowest price that the budget can pay bounds the optimum from below (Lagrange). What it leaves over
is less than one rollout of some prompt: the rollouts just above and just below the price are chosen
anew, exactly, and the rest is filled by drop per token.

For engines whose number of rows is free: a loop of your own, and trainers that take batches of any
size. Where the batch has a fixed number of rows, as in TRL, or is padded to it, as in verl, fewer
rows save nothing: use `apportion.allocate`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, validate
from apportion.errors import InfeasibleBudgetError, InvalidInputError, NonConvexLawError
from apportion.gradient_variance import KnownLaw, named_law
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_TINY, _HUGE = 5e-324, 1e300
_SLACK = 1e-12
"""Rounding error of a sum of tokens, relative to the budget."""
_FEW = 4096
"""So many undecided rollouts are cheaper to sort than to search."""
_CORE = 14
"""Rollouts on either side of the price that are chosen anew: 2^14 sets each are compared."""
_MOST = 2**40
_MOST_TOKENS = 2.0**53
"""As of all counts; sums of larger ones could leave the range of floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAllocation:
    """How many rollouts each prompt gets, by tokens.

    Attributes:
        num_rollouts_B: the whole-number answer.
        num_tokens: what it is expected to take, at most the budget.
        unspent: what the budget leaves over.
        variance: total gradient variance under the forecast.
        bound: what no answer within the limits can be below.
        price: the drop in variance for one more token; 0 if no more tokens are wanted.
    """

    num_rollouts_B: IntArray
    num_tokens: float
    unspent: float
    variance: float
    bound: float
    price: float

    @property
    def gap(self) -> float:
        """Share of the variance that may have been avoidable; 0 is proven optimal."""
        return max(0.0, 1.0 - self.bound / self.variance) if self.variance > 0.0 else 0.0


def allocate_tokens(
    success_or_forecast: ArrayLike | Forecast,
    token_budget: float,
    tokens_B: ArrayLike,
    *,
    variance: str | KnownLaw = "rloo",
    lower: int = 2,
    upper: int | None = None,
) -> TokenAllocation:
    """Split a budget of tokens so that the total gradient variance is nearly the least possible.

    ``min sum_i V_i(n_i)  s.t.  sum_i c_i n_i <= token_budget,  lower <= n_i <= upper``, whole n.

    Args:
        success_or_forecast: success probability of each prompt (B), or a forecast with doubt.
        token_budget: tokens in all.
        tokens_B: expected tokens ``c_i`` of one rollout of each prompt, above 0, at most 2^53.
        variance: "rloo", "dr_grpo", "grpo", "grpo_population_std" or what `law_for` returns.
        lower: fewest rollouts of a prompt.
        upper: most rollouts of a prompt; what the budget can pay if None.

    Returns:
        The answer with the bound that it is measured by. Tokens that lower no variance stay
        unspent.

    Raises:
        InvalidInputError: malformed input.
        InfeasibleBudgetError: the budget does not pay for `lower` rollouts of every prompt.
        NonConvexLawError: the law is not convex and decreasing from `lower`.

    Source: ours; the greedy of Fox (1966) by drop per token, and an exact core as for knapsacks
    (Balas and Zemel, 1980).

    >>> short_and_long = allocate_tokens([0.5, 0.5], 2_000, [50, 200])
    >>> short_and_long.num_rollouts_B, short_and_long.num_tokens
    (array([12,  7]), 2000.0)
    """
    forecast = success_or_forecast
    if not isinstance(forecast, Forecast):
        forecast = Forecast.of_success(forecast)
    problem = _Problem.of(forecast, token_budget, tokens_B, variance, lower, upper)
    start_B, price = problem.at_lowest_price()
    bound = problem.variance(start_B) - price * problem.left(start_B)
    plain_B = problem.filled(start_B)
    mended_B = problem.filled(problem.with_core(start_B))
    plain, mended = problem.variance(plain_B), problem.variance(mended_B)
    num_B, least = (mended_B, mended) if mended < plain * (1.0 - _SLACK) else (plain_B, plain)
    num_tokens = float(problem.tokens_B @ num_B)
    return TokenAllocation(
        num_rollouts_B=num_B,
        num_tokens=num_tokens,
        unspent=max(problem.budget - num_tokens, 0.0),
        variance=least,
        bound=min(bound, least),
        price=price,
    )


@dataclass(frozen=True, slots=True)
class _Problem:
    """What was asked for, checked."""

    forecast: Forecast
    law: KnownLaw
    budget: float
    tokens_B: FloatArray
    lower_B: IntArray
    upper_B: IntArray

    @classmethod
    def of(
        cls,
        forecast: Forecast,
        token_budget: float,
        tokens_B: ArrayLike,
        variance: str | KnownLaw,
        lower: int,
        upper: int | None,
    ) -> _Problem:
        size = len(forecast)
        if size == 0:
            raise InvalidInputError("The batch is empty. Give at least one prompt.")
        cost_B = _costs(tokens_B, size)
        law = variance if isinstance(variance, KnownLaw) else named_law(variance)
        least = validate.whole_number("lower", lower, at_least=1)
        if least < law.convex_from:
            raise NonConvexLawError(
                f"The law {law.name} is not convex and decreasing from lower = {least}; it is from "
                f"{law.convex_from}. Set lower to {law.convex_from} or more."
            )
        most = _MOST if upper is None else validate.whole_number("upper", upper, at_least=least)
        budget = validate.number("token_budget", token_budget)
        needed = least * float(cost_B.sum())
        if needed > budget * (1.0 + _SLACK):
            raise InfeasibleBudgetError(
                f"token_budget is {budget:g}, but lower = {least} rollouts of {size} prompts need "
                f"{needed:g} tokens. Raise the budget, lower `lower`, or take fewer prompts."
            )
        free_B = np.minimum((budget * (1.0 + _SLACK) - needed) / cost_B, _MOST)
        upper_B = np.minimum(least + np.maximum(free_B, 0.0).astype(np.int64), most)
        return cls(forecast, law, budget, cost_B, np.full(size, least), upper_B)

    def variance(self, num_B: IntArray) -> float:
        return float(self.law.variance(self.forecast, num_B).sum())

    def left(self, num_B: IntArray) -> float:
        return self.budget - float(self.tokens_B @ num_B)

    def is_paid(self, num_B: IntArray) -> bool:
        return self.left(num_B) >= -_SLACK * self.budget

    def drop(self, owner: IntArray, num: IntArray) -> FloatArray:
        """Return what one more rollout buys those prompts."""
        return self.law.drop(self.forecast.take(owner), num)

    def at_lowest_price(self) -> tuple[IntArray, float]:
        """Return rollouts by drop per token until the first that cannot be paid, and its price."""
        low_B, high_B = self.lower_B, self.numbers_at(_TINY, self.lower_B, self.upper_B)
        if self.is_paid(high_B):
            return high_B, 0.0
        low_B, high_B = self.undecided(low_B, high_B)
        owner = np.repeat(np.arange(len(low_B)), high_B - low_B)
        num = low_B[owner] + _ranks(high_B - low_B)
        density = self.drop(owner, num) / self.tokens_B[owner]
        order = np.lexsort((owner, num, -density))
        spent = float(self.tokens_B @ low_B) + np.cumsum(self.tokens_B[owner[order]])
        limit = self.budget * (1.0 + _SLACK)
        paid = min(int(np.searchsorted(spent, limit, side="right")), len(order) - 1)
        taken_B = np.bincount(owner[order[:paid]], minlength=len(low_B))
        return low_B + taken_B, float(density[order[paid]])

    def undecided(self, low_B: IntArray, high_B: IntArray) -> tuple[IntArray, IntArray]:
        """Narrow what is paid for and what is not to few rollouts: growing steps, then halves."""
        even_B = np.clip(int(self.budget / self.tokens_B.sum()), low_B, high_B)
        price = float(np.median(self.law.drop(self.forecast, even_B) / self.tokens_B))
        cheap, dear, step = _TINY, _HUGE, 2.0
        while (high_B - low_B).sum() > max(_FEW, len(low_B)) and np.nextafter(cheap, 1.0) < dear:
            if not cheap < price < dear:
                price = bounds.middle_price(cheap, dear)
            num_B = self.numbers_at(price, low_B, high_B)
            if self.is_paid(num_B):
                low_B, dear = num_B, price
            else:
                high_B, cheap = num_B, price
            if cheap > _TINY and dear < _HUGE:
                price = bounds.middle_price(cheap, dear)
            else:
                price = price / step if dear < _HUGE else price * step
                step *= step
        return low_B, high_B

    def numbers_at(self, price: float, low_B: IntArray, high_B: IntArray) -> IntArray:
        """Return the rollouts of each prompt, within what is known, whose drops reach the price."""
        worth_B = np.maximum(price * self.tokens_B, _TINY)
        return bounds.raised_while(
            lambda num_B: self.law.drop(self.forecast, num_B) >= worth_B, low_B, high_B
        )

    def with_core(self, num_B: IntArray) -> IntArray:
        """Choose the rollouts next to the price anew, exactly."""
        size = len(num_B)
        reach = max(2, -(-_CORE // size))
        inside = self._core(num_B, range(-reach, 0), sign=1.0)
        outside = self._core(num_B, range(reach), sign=-1.0)
        owner, num = np.concatenate([inside, outside], axis=1)
        base_B = num_B - np.bincount(inside[0], minlength=size)
        capacity = self.left(base_B) + _SLACK * self.budget
        is_in = _best_subset(self.tokens_B[owner], self.drop(owner, num), capacity)
        mended_B: IntArray = base_B + np.bincount(owner[is_in], minlength=size)
        return mended_B if self.is_paid(mended_B) else num_B

    def _core(self, num_B: IntArray, offsets: range, *, sign: float) -> IntArray:
        """Return prompt and n of the rollouts nearest to the price on one side of it."""
        num = np.concatenate([num_B + offset for offset in offsets])
        owner = np.tile(np.arange(len(num_B)), len(offsets))
        within = (num >= self.lower_B[owner]) & (num < self.upper_B[owner])
        owner, num = owner[within], num[within]
        density = self.drop(owner, num) / self.tokens_B[owner]
        nearest = np.argsort(sign * density, kind="stable")[:_CORE]
        return np.stack([owner[nearest], num[nearest]])

    def filled(self, num_B: IntArray) -> IntArray:
        """Spend what is left, by drop per token, on rollouts that it can still pay."""
        num_B = num_B.copy()
        left = self.left(num_B) + _SLACK * self.budget
        fits = np.flatnonzero((self.tokens_B <= left) & (num_B < self.upper_B))
        density = self.drop(fits, num_B[fits]) / self.tokens_B[fits]
        heap = [(-worth, at) for worth, at in zip(density.tolist(), fits.tolist(), strict=True)]
        heapq.heapify(heap)
        while heap:
            worth, at = heapq.heappop(heap)
            if worth == 0.0 or self.tokens_B[at] > left:
                continue
            num_B[at] += 1
            left -= float(self.tokens_B[at])
            if num_B[at] < self.upper_B[at]:
                next_drop = self.drop(np.array([at]), num_B[[at]])[0]
                heapq.heappush(heap, (-float(next_drop / self.tokens_B[at]), at))
        return num_B


def _costs(tokens_B: ArrayLike, size: int) -> FloatArray:
    cost_B = validate.vector("tokens_B", tokens_B, size=size)
    bad_i = np.flatnonzero(cost_B <= 0.0)
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"tokens_B[{at}] is {cost_B[at]:g}, but a rollout takes more than 0 tokens. Give the "
            "expected number of each prompt."
        )
    large_i = np.flatnonzero(cost_B > _MOST_TOKENS)
    if large_i.size:
        at = int(large_i[0])
        raise InvalidInputError(
            f"tokens_B[{at}] is {cost_B[at]:g}, but must be at most 2^53. Give the expected tokens "
            "of one rollout."
        )
    return cost_B


def _ranks(width_B: IntArray) -> IntArray:
    """Return 0, 1, ... within each prompt's part.

    >>> _ranks(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    ends_B = np.cumsum(width_B)
    ranks: IntArray = np.arange(int(ends_B[-1])) - np.repeat(ends_B - width_B, width_B)
    return ranks


def _best_subset(cost: FloatArray, worth: FloatArray, capacity: float) -> np.ndarray:
    """Return the mask of the subset of the largest worth whose cost is within the capacity.

    All subsets of either half are listed; for each of the first the best of the second that still
    fits is looked up (Horowitz and Sahni, 1974).

    >>> _best_subset(np.array([3.0, 2.0, 2.0]), np.array([4.0, 3.0, 3.0]), 4.0)
    array([False,  True,  True])
    """
    half = len(cost) // 2
    first_cost, first_worth = _sums(cost[:half]), _sums(worth[:half])
    second_cost, second_worth = _sums(cost[half:]), _sums(worth[half:])
    order = np.argsort(second_cost, kind="stable")
    best = np.maximum.accumulate(second_worth[order])
    fitting = np.searchsorted(second_cost[order], capacity - first_cost, side="right")
    total = np.where(fitting > 0, first_worth + best[np.maximum(fitting - 1, 0)], -np.inf)
    left = int(total.argmax())
    right = int(order[int(second_worth[order[: max(int(fitting[left]), 1)]].argmax())])
    bits = [left >> i & 1 for i in range(half)] + [right >> i & 1 for i in range(len(cost) - half)]
    return np.array(bits, dtype=bool)


def _sums(values: FloatArray) -> FloatArray:
    """Return the sum of every subset; bit i of its number says whether value i is in."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums
