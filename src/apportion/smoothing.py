"""What a whole record tells about the success of each prompt at each visit, that visit left out.

    f_q(t) ~ N(center, spread) at any time,  f_q(t') - f_q(t) ~ N(0, rate |t' - t|),
    k of n ~ Binomial(n, sigmoid(f_q(t)))

A filter runs over the visits of a prompt forwards and another backwards; what they say of a visit
before they have seen it is multiplied. The visit's own rewards stay unused, so that a decision can
be scored on them without bias. Hindsight: never shown to an allocator. Axes: G groups, Q prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.predictor.dispersion import spread_and_most
from apportion.predictor.moments import QUICK, logistic_moments, tilted_moments
from apportion.recording import GroupTable
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_RATE_K = 10.0 ** np.arange(-5.0, 0.25, 0.5)
_SPREAD_S = 0.5 * 1.6 ** np.arange(10.0)
_MOST_FITTED = 2_000
"""Prompts that rate and spread are fitted to."""
_EDGE = 1e-9


class Population(NamedTuple):
    """How logits lie (center, spread) and how fast they move (rate, variance a step)."""

    center: float
    spread: float
    rate: float


class _Visits(NamedTuple):
    """Groups sorted by prompt and time; start_Q is where each prompt's visits begin."""

    order_G: IntArray
    start_Q: IntArray
    num_Q: IntArray
    step_G: FloatArray
    success_G: FloatArray
    count_G: FloatArray


def leave_one_out(
    groups: GroupTable, reward_range: tuple[float, float] = (0.0, 1.0)
) -> tuple[Forecast, Population]:
    """Return for each group what the other visits of its prompt tell about its success.

    Args:
        groups: the record; groups without a scored reward are forecast but teach nothing.
        reward_range: lowest and highest reward; rewards count as fractions of a success.

    Returns:
        A forecast of G rows in the order of the record, and what was fitted.

    >>> from apportion.recording import table_of_counts
    >>> groups = table_of_counts(["a", "b"] * 9, np.repeat(np.arange(9), 2), [4, 0] * 9, 4)
    >>> forecast, _ = leave_one_out(groups)
    >>> bool(forecast.mean_B[0] > 0.9), bool(forecast.mean_B[1] < 0.1)
    (True, True)
    """
    visits = _visits(groups, reward_range)
    population = _fit(visits)
    ahead_mean_G, ahead_var_G, _ = _filter(visits, population)
    back_mean_G, back_var_G, _ = _filter(_reversed(visits), population)
    back_mean_G, back_var_G = back_mean_G[::-1], back_var_G[::-1]
    # Both sides hold the population once; it counts once.
    precision_G = 1.0 / ahead_var_G + 1.0 / back_var_G - 1.0 / population.spread
    precision_G = np.maximum(precision_G, 1e-3 / population.spread)
    shift_G = ahead_mean_G / ahead_var_G + back_mean_G / back_var_G
    shift_G -= population.center / population.spread
    mean_G, var_G = logistic_moments(shift_G / precision_G, 1.0 / precision_G)
    mean_G = np.clip(mean_G, _EDGE, 1.0 - _EDGE)
    at_G = np.empty(len(groups), dtype=np.int64)
    at_G[visits.order_G] = np.arange(len(groups))
    mean_G, var_G = mean_G[at_G], np.minimum(var_G, mean_G * (1.0 - mean_G))[at_G]
    reward_var_G = _dispersion(groups, reward_range) * (mean_G * (1.0 - mean_G) - var_G)
    return Forecast(mean_B=mean_G, var_B=var_G, reward_var_B=reward_var_G), population


def _dispersion(groups: GroupTable, reward_range: tuple[float, float]) -> FloatArray:
    """Return for each group how its prompt's other rewards vary against the most they could.

    1 for 0/1 rewards; sums as in `predictor.dispersion`, shrunk to those of all prompts.
    """
    low, high = reward_range
    width = max(high - low, 1e-300)
    num_G, sum_G = groups.num_rollouts_G.astype(np.float64), groups.reward_sum_G
    square_G = (groups.reward_sumsq_G - 2.0 * low * sum_G + low**2 * num_G) / width**2
    success_G = np.clip((sum_G - low * num_G) / width, 0.0, num_G)
    # A group of one has neither part, and one without a score nothing at all.
    spread_G, most_G = spread_and_most(np.maximum(num_G, 1.0), success_G, square_G)

    def others(value_G: FloatArray) -> FloatArray:
        total_Q = np.bincount(groups.prompt_G, weights=value_G, minlength=len(groups.id_Q))
        return np.asarray(total_Q[groups.prompt_G] - value_G)

    everyone = float(spread_G.sum()) / max(float(most_G.sum()), 1e-300) if most_G.any() else 1.0
    dispersion_G = (others(spread_G) + everyone) / (others(most_G) + 1.0)
    return np.asarray(np.clip(dispersion_G, 0.0, 1.0))


def _visits(groups: GroupTable, reward_range: tuple[float, float]) -> _Visits:
    low, high = reward_range
    order_G = np.lexsort((groups.step_G, groups.prompt_G))
    prompt_G = groups.prompt_G[order_G]
    _, start_Q, num_Q = np.unique(prompt_G, return_index=True, return_counts=True)
    count_G = groups.num_rollouts_G[order_G].astype(np.float64)
    success_G = (groups.reward_sum_G[order_G] - low * count_G) / max(high - low, 1e-300)
    return _Visits(
        order_G,
        start_Q.astype(np.int64),
        num_Q.astype(np.int64),
        groups.step_G[order_G].astype(np.float64),
        np.clip(success_G, 0.0, count_G),
        count_G,
    )


def _reversed(visits: _Visits) -> _Visits:
    size = len(visits.order_G)
    return _Visits(
        visits.order_G[::-1],
        (size - visits.start_Q - visits.num_Q)[::-1],
        visits.num_Q[::-1],
        -visits.step_G[::-1],
        visits.success_G[::-1],
        visits.count_G[::-1],
    )


def _filter(visits: _Visits, population: Population) -> tuple[FloatArray, FloatArray, float]:
    """Return mean and variance of each logit before its visit, and the evidence of revisits."""
    size = len(visits.step_G)
    mean_G, var_G = np.empty(size), np.empty(size)
    evidence = 0.0
    # Prompts with most visits first, so that those still running are always a leading part.
    rank_Q = np.argsort(-visits.num_Q, kind="stable")
    start_Q, num_Q = visits.start_Q[rank_Q], visits.num_Q[rank_Q]
    mean_Q = np.full(len(rank_Q), population.center)
    var_Q = np.full(len(rank_Q), population.spread)
    for visit in range(int(num_Q[0]) if len(num_Q) else 0):
        running = int(np.searchsorted(-num_Q, -visit, side="left"))
        at = start_Q[:running] + visit
        mean, var = mean_Q[:running], var_Q[:running]
        if visit:
            age = visits.step_G[at] - visits.step_G[at - 1]
            var = np.minimum(var + population.rate * age, population.spread)
        mean_G[at], var_G[at] = mean, var
        found = tilted_moments(mean, var, visits.success_G[at], visits.count_G[at], QUICK)
        evidence += float(found.log_evidence_B.sum()) if visit else 0.0
        mean_Q[:running], var_Q[:running] = found.mean_B, found.var_B
    return mean_G, var_G, evidence


def _fit(visits: _Visits) -> Population:
    """Choose center and spread by first visits and the rate by revisits, by likelihood."""
    part = _first_prompts(visits, _MOST_FITTED)
    first = part.start_Q
    success, count = part.success_G[first], part.count_G[first]
    rate = (visits.success_G.sum() + 0.5) / (visits.count_G.sum() + 1.0)
    center = float(np.log(rate / (1.0 - rate)))
    best, spread = -np.inf, 6.0
    for shift in (-1.0, -0.5, 0.0, 0.5, 1.0):
        for candidate in _SPREAD_S:
            mean = np.full(len(first), center + shift * np.sqrt(candidate))
            found = tilted_moments(mean, np.full(len(first), candidate), success, count, QUICK)
            evidence = float(found.log_evidence_B.sum())
            if evidence > best:
                best, spread, chosen = evidence, float(candidate), float(mean[0])
    scores = [_filter(part, Population(chosen, spread, float(r)))[2] for r in _RATE_K]
    return Population(chosen, spread, float(_RATE_K[int(np.argmax(scores))]))


def _first_prompts(visits: _Visits, most: int) -> _Visits:
    """Return the visits of at most so many prompts, evenly chosen."""
    size = len(visits.start_Q)
    if size <= most:
        return visits
    chosen = np.linspace(0, size - 1, most).astype(np.int64)
    num_Q = visits.num_Q[chosen]
    offset = np.cumsum(num_Q) - num_Q
    row_G = np.repeat(visits.start_Q[chosen] - offset, num_Q) + np.arange(int(num_Q.sum()))
    return _Visits(
        visits.order_G[row_G],
        offset,
        num_Q,
        visits.step_G[row_G],
        visits.success_G[row_G],
        visits.count_G[row_G],
    )
