"""Sampling that bought no gradient: groups whose rewards are all equal.

Axes: G groups, Q prompts, P parts of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from apportion.errors import InvalidInputError
from apportion.recording import GroupTable
from apportion.validate import IntArray

BoolArray = NDArray[np.bool_]

NUM_PARTS = 5
WITH_SIGNAL, ALL_WRONG, ALL_RIGHT, IN_BETWEEN, NOT_SCORED = range(5)
"""Kinds of groups."""
_Z = 1.959963984540054
_NOISE = 1e-6
"""Share of the range that a mean may be off an end and count as there."""
_ROUNDING = 1e-12
"""Share of the largest reward that sums lose."""
_MOSTLY = 0.5
_NEARLY_ALL = 0.99
"""Share of groups whose tokens must be known before tokens are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of groups; the last five sum to 1. Groups without a score are no waste.

    Attributes:
        num_groups: how many groups.
        with_signal: rewards differ.
        all_wrong: all rewards are the lowest of the run.
        all_right: all rewards are the highest of the run.
        in_between: all rewards are equal, and neither.
        not_scored: no rollout got a reward.
    """

    num_groups: int
    with_signal: float
    all_wrong: float
    all_right: float
    in_between: float
    not_scored: float

    @property
    def without_signal(self) -> float:
        """Share of groups whose rewards were all equal: they bought no gradient."""
        return self.all_wrong + self.all_right + self.in_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a run, from its first to its last step."""

    first_step: int
    last_step: int
    shares: Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What sampling costs.

    Attributes:
        gpu_hours: of all sampling of the run.
        price_per_gpu_hour: in any currency.
        price_per_million_tokens: of completion tokens, in any currency.
    """

    gpu_hours: float | None = None
    price_per_gpu_hour: float | None = None
    price_per_million_tokens: float | None = None

    def __post_init__(self) -> None:
        """Check that they are not negative and fit together."""
        for name in ("gpu_hours", "price_per_gpu_hour", "price_per_million_tokens"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < np.inf:
                raise InvalidInputError(f"{name} is {value:g}, but must be finite and at least 0.")
        if self.price_per_gpu_hour is not None and self.gpu_hours is None:
            raise InvalidInputError(
                "price_per_gpu_hour is given without gpu_hours. Give the hours of the run as well."
            )
        if self.price_per_gpu_hour is not None and self.price_per_million_tokens is not None:
            raise InvalidInputError(
                "price_per_gpu_hour and price_per_million_tokens price the same sampling. Keep one."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What was spent on groups without signal.

    Attributes:
        shares: of the whole run.
        interval: 95% interval of the share without signal, prompts being a sample.
        parts: the same shares by fifths of the run.
        num_rollouts, total_rollouts: rollouts in groups without signal, and in all.
        num_tokens, total_tokens: their completion tokens; None where not recorded.
        gpu_hours: hours that went there, by tokens or else by rollouts; None without a total.
        cost: in the currency of the price; None without one.
        num_prompts: prompts that occur.
        num_prompts_without_signal: prompts with scores, none of whose groups had signal.
        worst_tenth_share: share of the wasted rollouts that the tenth of prompts with most holds.
        hidden_share: share of the groups without signal whose reward components differ; None where
            no components were recorded.
    """

    shares: Shares
    interval: tuple[float, float]
    parts: tuple[Part, ...]
    num_rollouts: int
    total_rollouts: int
    num_tokens: int | None
    total_tokens: int | None
    gpu_hours: float | None
    cost: float | None
    num_prompts: int
    num_prompts_without_signal: int
    worst_tenth_share: float
    hidden_share: float | None

    @property
    def share_of_sampling(self) -> float:
        """Share of the tokens that bought nothing; of the rollouts where tokens are unknown."""
        if self.num_tokens is not None and self.total_tokens:
            return self.num_tokens / self.total_tokens
        return self.num_rollouts / self.total_rollouts if self.total_rollouts else 0.0


def waste_of(groups: GroupTable, reward_range: tuple[float, float], rates: Rates) -> Waste:
    """Count what groups without signal cost.

    Args:
        groups: of the run; at least one.
        reward_range: lowest and highest reward.
        rates: what sampling costs.
    """
    kind_G = kinds(groups, reward_range)
    dead_G = (kind_G != WITH_SIGNAL) & (kind_G != NOT_SCORED)
    num_prompts = len(groups.id_Q)
    total_tokens = tokens_of(groups)
    waste = Waste(
        shares=_shares(kind_G),
        interval=_interval(dead_G, groups.prompt_G),
        parts=tuple(_parts(groups.step_G, kind_G)),
        num_rollouts=int(groups.num_requested_G[dead_G].sum()),
        total_rollouts=int(groups.num_requested_G.sum()),
        num_tokens=int(groups.num_tokens_G[dead_G].sum()) if total_tokens else None,
        total_tokens=total_tokens,
        gpu_hours=None,
        cost=None,
        num_prompts=num_prompts,
        num_prompts_without_signal=int(
            np.setdiff1d(groups.prompt_G[dead_G], groups.prompt_G[kind_G == WITH_SIGNAL]).size
        ),
        worst_tenth_share=_worst_tenth(groups, dead_G),
        hidden_share=_hidden_share(groups.hidden_G, dead_G),
    )
    return _priced(waste, rates)


def kinds(groups: GroupTable, reward_range: tuple[float, float]) -> IntArray:
    """Return what each group was (G): `WITH_SIGNAL`, `ALL_WRONG`, `ALL_RIGHT` and so on."""
    low, high = ends(reward_range)
    slack = _NOISE * (high - low) + _ROUNDING * max(abs(low), abs(high))
    kind_G = np.full(len(groups), IN_BETWEEN, dtype=np.int64)
    kind_G[groups.rate_G <= low + slack] = ALL_WRONG
    kind_G[groups.rate_G >= high - slack] = ALL_RIGHT
    kind_G[groups.num_rollouts_G == 0] = NOT_SCORED
    kind_G[groups.signal_G] = WITH_SIGNAL
    return kind_G


def is_mostly_single(groups: GroupTable) -> bool:
    """Return whether most scored groups have one scored rollout."""
    num_G = groups.num_rollouts_G
    return int((num_G == 1).sum()) > _MOSTLY * int((num_G > 0).sum())


def tokens_of(groups: GroupTable) -> int | None:
    """Return the completion tokens of a run; None unless nearly all groups tell theirs."""
    if not float((groups.num_tokens_G > 0).mean()) >= _NEARLY_ALL:
        return None
    return int(groups.num_tokens_G.sum())


def ends(reward_range: tuple[float, float]) -> tuple[float, float]:
    """Return wrong and right; where all rewards are equal, 0 and below is wrong.

    >>> ends((0.0, 0.0)), ends((-1.0, 1.0)), ends((1.0, 1.0))
    ((0.0, 1.0), (-1.0, 1.0), (0.0, 1.0))
    """
    low, high = reward_range
    return (low, high) if low < high else (min(low, 0.0), max(high, 1.0))


def _shares(kind_G: IntArray) -> Shares:
    count = np.bincount(kind_G, minlength=5) / max(len(kind_G), 1)
    return Shares(
        num_groups=len(kind_G),
        with_signal=float(count[WITH_SIGNAL]),
        all_wrong=float(count[ALL_WRONG]),
        all_right=float(count[ALL_RIGHT]),
        in_between=float(count[IN_BETWEEN]),
        not_scored=float(count[NOT_SCORED]),
    )


def _parts(step_G: IntArray, kind_G: IntArray) -> Iterator[Part]:
    for steps in np.array_split(np.unique(step_G), NUM_PARTS):
        if len(steps):
            first, last = int(steps[0]), int(steps[-1])
            mine = slice(
                int(np.searchsorted(step_G, first)), int(np.searchsorted(step_G, last, "right"))
            )
            yield Part(first_step=first, last_step=last, shares=_shares(kind_G[mine]))


def _interval(dead_G: BoolArray, prompt_G: IntArray) -> tuple[float, float]:
    """Return a normal interval of a ratio over prompts, which come as wholes."""
    share = float(dead_G.mean())
    num_Q = np.bincount(prompt_G).astype(np.float64)
    dead_Q, num_Q = np.bincount(prompt_G, weights=dead_G)[num_Q > 0], num_Q[num_Q > 0]
    num = len(num_Q)
    if num < 2:
        return 0.0, 1.0
    spread = float(((dead_Q - share * num_Q) ** 2).sum()) * num / (num - 1)
    error = _Z * float(np.sqrt(spread)) / len(dead_G)
    return max(share - error, 0.0), min(share + error, 1.0)


def _worst_tenth(groups: GroupTable, dead_G: BoolArray) -> float:
    wasted_G = groups.num_requested_G * dead_G
    wasted_Q = np.bincount(groups.prompt_G, weights=wasted_G, minlength=len(groups.id_Q))
    worst = np.sort(wasted_Q)[::-1][: -(-len(wasted_Q) // 10)]
    return float(worst.sum() / wasted_Q.sum()) if wasted_Q.sum() else 0.0


def _hidden_share(hidden_G: BoolArray | None, dead_G: BoolArray) -> float | None:
    if hidden_G is None:
        return None
    return float(hidden_G[dead_G].mean()) if dead_G.any() else 0.0


def _priced(waste: Waste, rates: Rates) -> Waste:
    hours = cost = None
    if rates.gpu_hours is not None:
        hours = rates.gpu_hours * waste.share_of_sampling
        if rates.price_per_gpu_hour is not None:
            cost = hours * rates.price_per_gpu_hour
    if rates.price_per_million_tokens is not None and waste.num_tokens is not None:
        cost = waste.num_tokens / 1e6 * rates.price_per_million_tokens
    return replace(waste, gpu_hours=hours, cost=cost)
