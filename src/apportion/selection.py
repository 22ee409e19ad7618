"""Which prompts, and how many rollouts each, under one budget.

``max sum_i u_i(n_i)  s.t.  sum_i n_i = budget,  n_i in {0} or [lower, upper]``, whole n.

The first `lower` rollouts of a prompt come together, so the problem is a knapsack; but each ``u_i``
is concave from one rollout on, and so nearly solved by its concave envelope: a prompt enters at the
``n*`` where its gain per rollout, its index, is largest. At a price per rollout all prompts whose
index reaches it are in, each with the rollouts whose own rise reaches it. The price at which the
budget is spent bounds the optimum from above (Lagrange); the prompts that it brings in, and those a
few places up and down the ranking, are each given the budget exactly, and the best is taken. What
is left to the bound is returned as `gap`; where it is more than a thousandth and the problem is
small, as with few prompts and large least groups, dynamic programming closes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import bounds, validate
from apportion.allocation import allocate
from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.gain import Gain
from apportion.gradient_variance import KnownLaw
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

BoolArray = NDArray[np.bool_]

_NEARBY = 3
"""How many places of the ranking around the price's own number of prompts are tried."""
_LARGE_GAP = 1e-3
_SMALL_PROBLEM = 20_000_000
"""Candidates times budget times group sizes up to which dynamic programming takes a moment."""
_LEAST = 2
"""A group of fewer rollouts has no advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rollouts of each candidate, 0 for those left out.

    Attributes:
        num_rollouts_B: sums to the budget exactly.
        gain: expected gain of all.
        bound: what no choice within the limits can exceed.
        price: gain that the last rollouts bought, each.
    """

    num_rollouts_B: IntArray
    gain: float
    bound: float
    price: float

    @property
    def gap(self) -> float:
        """Share of the bound that may have been missed; 0 is proven optimal."""
        return max(0.0, 1.0 - self.gain / self.bound) if self.bound > 0.0 else 0.0


def select(
    gain: Gain,
    budget: int,
    *,
    size: int,
    lower: int = 2,
    upper: int | None = None,
    required_B: ArrayLike | None = None,
) -> Selection:
    """Choose prompts and rollouts together so that the expected gain is largest.

    Args:
        gain: expected gain of each of the candidates.
        budget: rollouts in all.
        size: B, the number of candidates.
        lower: fewest rollouts of a prompt that gets any, at least 2.
        upper: most rollouts of a prompt; the budget if None.
        required_B: candidates that get at least `lower` whatever they promise; none if None.

    Returns:
        The choice, on budget, with the bound that it is measured by. Candidates of equal promise
        come in by position.

    Raises:
        InvalidInputError: malformed input.
        InfeasibleBudgetError: no choice within the limits spends the budget.

    Source: ours; the envelope is that of the multiple-choice knapsack (Sinha and Zoltners, 1979).

    >>> from apportion.gain import Progress
    >>> known = Progress.of(Forecast.of_success([0.0, 0.5, 0.02, 0.4, 0.9, 1.0]))
    >>> select(known, 12, size=6).num_rollouts_B
    array([0, 6, 0, 6, 0, 0])
    """
    is_required_B = np.zeros(size, dtype=bool) if required_B is None else _mask(required_B, size)
    total, least, most = _feasible(budget, lower, upper, size, int(is_required_B.sum()))
    ranking = _Ranking.of(gain, least, most, size, is_required_B)
    number = ranking.number_at(total)
    price = ranking.price_between(number, total)
    found = [
        _filled(gain, ranking.order_B[:count], total, least, most, size)
        for count in ranking.numbers_near(number, total)
    ]
    num_B = max(found, key=lambda num_B: float(gain.value(num_B).sum()))
    worth, bound = float(gain.value(num_B).sum()), ranking.bound(price, total)
    is_small = size * total * (most - least + 1) <= _SMALL_PROBLEM
    if worth < (1.0 - _LARGE_GAP) * bound and is_small:
        num_B = _by_dynamic_programming(gain, total, least, most, is_required_B)
        worth = bound = max(worth, float(gain.value(num_B).sum()))
    return Selection(num_rollouts_B=num_B, gain=worth, bound=max(bound, worth), price=price)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Candidates by index: the required ones, then those of the largest gain per rollout."""

    gain: Gain
    lower: int
    upper: int
    order_B: IntArray
    index_B: FloatArray
    is_required_B: BoolArray

    @classmethod
    def of(
        cls, gain: Gain, lower: int, upper: int, size: int, is_required_B: BoolArray
    ) -> _Ranking:
        best_B = _best_numbers(gain, lower, upper, size)
        index_B = gain.value(best_B) / best_B
        order_B = np.lexsort((np.arange(size), -index_B, ~is_required_B))
        return cls(gain, lower, upper, order_B, index_B, is_required_B)

    @property
    def num_required(self) -> int:
        return int(self.is_required_B.sum())

    def numbers_at(self, price: float, count: int) -> IntArray:
        """Return the rollouts of the first `count` prompts of the ranking whose rise is worth it.

        The largest n within the bounds with ``u(n) - u(n-1) >= price``.
        """
        head = self.gain.take(self.order_B[:count])
        low_B, high_B = np.full(count, self.lower), np.full(count, self.upper)
        return bounds.raised_while(lambda num_B: head.rise(num_B) >= price, low_B, high_B)

    def number_at(self, budget: int) -> int:
        """Return how many prompts are in when the price has fallen far enough to spend the budget.

        The spending at the index of the next prompt grows along the ranking.
        """
        low, high = max(self.num_required, 1), len(self.order_B)
        while low < high:
            middle = (low + high) // 2
            if self.numbers_at(self._index(middle), middle).sum() >= budget:
                high = middle
            else:
                low = middle + 1
        return low

    def price_between(self, count: int, budget: int) -> float:
        """Return the price at which `count` prompts spend the budget, within their part of it."""
        high = self._index(count - 1) if count > self.num_required else np.inf
        low = self._index(count)
        if not np.isfinite(high):
            high = max(float(self.gain.rise(np.full(len(self.order_B), self.lower)).max()), low)
            high = np.nextafter(high, np.inf)
        if self.numbers_at(high, count).sum() >= budget:
            return float(high)
        for _ in range(60):
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            if self.numbers_at(middle, count).sum() >= budget:
                low = middle
            else:
                high = middle
        return float(low)

    def bound(self, price: float, budget: int) -> float:
        """Return the Lagrangian bound ``price C + sum_i max_n (u_i(n) - price n)``, or 0 left out.

        It holds at any price.
        """
        size = len(self.order_B)
        num_B = self.numbers_at(price, size)
        net_B = self.gain.take(self.order_B).value(num_B) - price * num_B
        free_B = np.where(self.is_required_B[self.order_B], net_B, np.maximum(net_B, 0.0))
        return float(price * budget + free_B.sum())

    def numbers_near(self, number: int, budget: int) -> list[int]:
        """Return the numbers of prompts to try, near `number`, that can spend the budget.

        As many as possible where nothing promises anything.
        """
        least = max(-(-budget // self.upper), self.num_required, 1)
        most = min(budget // self.lower, len(self.order_B))
        if not self.index_B.any():
            return [most]
        tried = range(number - _NEARBY, number + _NEARBY + 1)
        return sorted({min(max(count, least), most) for count in tried})

    def _index(self, place: int) -> float:
        """Return the index of the prompt at a place of the ranking; 0 behind the last."""
        if place >= len(self.order_B):
            return 0.0
        return float(self.index_B[self.order_B[place]])


def _best_numbers(gain: Gain, lower: int, upper: int, size: int) -> IntArray:
    """Return ``n*``, the n within the bounds of the largest ``u(n) / n``, by halving.

    ``u`` is concave from 1 and ``u(1) = 0``: the average rises as long as the next rise exceeds it.
    """
    low_B, high_B = np.full(size, lower), np.full(size, upper)
    return bounds.raised_while(
        lambda num_B: gain.rise(num_B) * num_B > gain.value(num_B), low_B, high_B
    )


def _filled(
    gain: Gain, chosen: IntArray, budget: int, lower: int, upper: int, size: int
) -> IntArray:
    """Spend the budget on the chosen prompts, exactly and best for them."""
    at = np.sort(chosen)
    part = gain.take(at)
    law = KnownLaw(
        "minus the gain",
        lower,
        lambda forecast, num_B: -part.value(num_B),
        lambda forecast, num_B: part.rise(num_B),
    )
    anyone = Forecast.of_success(np.full(len(at), 0.5))
    num_B = np.zeros(size, dtype=np.int64)
    num_B[at] = allocate(anyone, budget, variance=law, lower=lower, upper=upper).num_rollouts_B
    return num_B


def _by_dynamic_programming(
    gain: Gain, budget: int, lower: int, upper: int, is_required_B: BoolArray
) -> IntArray:
    """Return an optimum: prompt by prompt, the most that each part of the budget can gain."""
    size = len(is_required_B)
    sizes = np.arange(lower, upper + 1)
    gain_KB = np.stack([gain.value(np.full(size, n)) for n in sizes])
    best_C = np.full(budget + 1, -np.inf)
    best_C[0] = 0.0
    taken_BC = np.zeros((size, budget + 1), dtype=np.int64)
    for b in range(size):
        with_it_C = np.full(budget + 1, -np.inf) if is_required_B[b] else best_C.copy()
        for n, worth in zip(sizes.tolist(), gain_KB[:, b].tolist(), strict=True):
            offer_C = best_C[: budget + 1 - n] + worth
            is_better_C = offer_C > with_it_C[n:]
            with_it_C[n:][is_better_C] = offer_C[is_better_C]
            taken_BC[b, n:][is_better_C] = n
        best_C = with_it_C
    num_B = np.zeros(size, dtype=np.int64)
    left = budget
    for b in range(size - 1, -1, -1):
        num_B[b] = taken_BC[b, left]
        left -= int(num_B[b])
    return num_B


def _feasible(
    budget: int, lower: int, upper: int | None, size: int, num_required: int
) -> tuple[int, int, int]:
    """Return budget and bounds, checked against one another."""
    if size == 0:
        raise InvalidInputError("There are no candidates. Give at least one prompt.")
    total = validate.whole_number("budget", budget, at_least=1)
    least = validate.whole_number("lower", lower, at_least=_LEAST)
    most = total if upper is None else validate.whole_number("upper", upper, at_least=least)
    most = max(min(most, total), least)
    fewest, greatest = max(-(-total // most), num_required, 1), min(total // least, size)
    if fewest > greatest:
        raise InfeasibleBudgetError(
            f"budget is {total}, but no number of the {size} candidates, {num_required} of them "
            f"required, can spend it with {least} to {most} rollouts each. Change the budget, "
            "lower `lower`, raise `upper`, or give more candidates."
        )
    return total, least, most


def _mask(required_B: ArrayLike, size: int) -> BoolArray:
    mask_B = np.asarray(required_B)
    if mask_B.dtype != bool or mask_B.shape != (size,):
        raise InvalidInputError(
            f"required_B has type {mask_B.dtype} and shape {mask_B.shape}, but must be a mask of "
            f"{size} candidates."
        )
    return mask_B
