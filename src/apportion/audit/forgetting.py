"""Prompts whose success fell while the run went on.

Axes: G groups in the order of the record, Q prompts, F prompts that are found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

FALSE_SHARE = 0.05
"""Expected share of false alarms among the prompts that are named forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Prompts that were solved significantly less often late than early.

    Attributes:
        prompt_F: rows of the prompts found, the surest first.
        early_F, late_F: success rate over the first and over the last third of their visits.
        p_value_F: chance of such a fall if nothing had changed.
        num_tested: prompts whose counts could have shown a fall.
        num_lost_tenth: prompts of two visits or more whose rate fell by more than 0.1, chance
            included.
        num_revisited: prompts of two visits or more.
    """

    prompt_F: IntArray
    early_F: FloatArray
    late_F: FloatArray
    p_value_F: FloatArray
    num_tested: int
    num_lost_tenth: int
    num_revisited: int


def forgotten(
    prompt_G: ArrayLike,
    num_success_G: ArrayLike,
    num_rollouts_G: ArrayLike,
    *,
    false_share: float = FALSE_SHARE,
) -> Forgetting:
    """Find prompts that got worse from the first to the last third of their visits.

    Fisher's exact test for each prompt, one-sided, on (successes, failures) early and late; then
    the procedure of Benjamini and Hochberg, which bounds the expected share of false alarms. Exact
    p-values are never too small, and prompts whose totals alone rule a fall out are set aside
    first: totals say nothing of its direction. Outer thirds (rounded up; one visit against one
    where there are two) find drops at any time and steady declines more often than halves do
    (`tests/test_forgetting.py`).

    Args:
        prompt_G: row of each group's prompt, in the order of the run.
        num_success_G: successes of each group.
        num_rollouts_G: scored rollouts of each group.
        false_share: q, in (0, 1).

    Raises:
        InvalidInputError: counts that are not whole or lie outside [0, n], or q outside (0, 1).

    Source: Benjamini and Hochberg, 1995; setting tests aside: Gilbert, 2005.

    >>> found = forgotten([0, 1, 0, 1], [8, 4, 0, 4], [8, 8, 8, 8])
    >>> found.prompt_F, found.early_F, found.late_F
    (array([0]), array([1.]), array([0.]))
    """
    if not 0.0 < false_share < 1.0:
        raise InvalidInputError(f"false_share is {false_share:g}, but must lie between 0 and 1.")
    prompt_G = validate.counts("prompt_G", prompt_G)
    num_G = validate.counts("num_rollouts_G", num_rollouts_G, size=len(prompt_G))
    success_G = validate.counts("num_success_G", num_success_G, size=len(prompt_G))
    if (success_G > num_G).any():
        raise InvalidInputError("num_success_G holds more successes than rollouts.")
    early_G, late_G = _outer_thirds(prompt_G)
    size = int(prompt_G.max(initial=-1)) + 1

    def total(value_G: IntArray, where_G: NDArray[np.bool_]) -> IntArray:
        return np.bincount(prompt_G, weights=value_G * where_G, minlength=size).astype(np.int64)

    early = total(success_G, early_G), total(num_G, early_G)
    late = total(success_G, late_G), total(num_G, late_G)
    p_value_Q, least_Q = fall_p_values(*early, *late)
    tested_Q = least_Q <= false_share
    found_F = np.flatnonzero(tested_Q)[benjamini_hochberg(p_value_Q[tested_Q], false_share)]
    found_F = found_F[np.argsort(p_value_Q[found_F], kind="stable")]
    both_Q = (early[1] > 0) & (late[1] > 0)
    early_rate_Q = early[0] / np.maximum(early[1], 1)
    late_rate_Q = late[0] / np.maximum(late[1], 1)
    return Forgetting(
        prompt_F=found_F,
        early_F=early_rate_Q[found_F],
        late_F=late_rate_Q[found_F],
        p_value_F=p_value_Q[found_F],
        num_tested=int(tested_Q.sum()),
        num_lost_tenth=int((both_Q & (early_rate_Q - late_rate_Q > 0.1)).sum()),
        num_revisited=int(both_Q.sum()),
    )


def fall_p_values(
    early_success_Q: IntArray, early_Q: IntArray, late_success_Q: IntArray, late_Q: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return one-sided p-values of Fisher's exact test, and the smallest that could have come.

    ``P(X >= k)``, X hypergeometric: so many of all successes early, if order did not matter.

    Args:
        early_success_Q: successes early.
        early_Q: rollouts early.
        late_success_Q: successes late.
        late_Q: rollouts late.

    >>> p_value, least = fall_p_values(*(np.array([n]) for n in (3, 4, 1, 4)))
    >>> p_value.round(4), least.round(4)
    (array([0.2429]), array([0.0143]))
    """
    table_Q4 = np.stack([early_success_Q, early_Q, late_success_Q, late_Q], axis=1)
    table_U4, row_Q = np.unique(table_Q4, axis=0, return_inverse=True)
    k, n, other, rest = (table_U4[:, at] for at in range(4))
    most = np.minimum(k + other, n)
    tail_U, least_U = _upper_tail(k, most, n, rest, k + other)
    return tail_U[row_Q.ravel()], least_U[row_Q.ravel()]


def benjamini_hochberg(p_value_Q: FloatArray, false_share: float) -> NDArray[np.bool_]:
    """Return which hypotheses are rejected: the largest i with ``p_(i) <= q i / m``, and below.

    >>> benjamini_hochberg(np.array([0.04, 0.01, 0.5, 0.02]), 0.05)
    array([False,  True, False,  True])
    """
    if not len(p_value_Q):
        return np.zeros(0, dtype=np.bool_)
    sorted_Q = np.sort(p_value_Q)
    passed = np.flatnonzero(
        sorted_Q <= false_share * np.arange(1, len(sorted_Q) + 1) / len(sorted_Q)
    )
    return np.asarray(p_value_Q <= (sorted_Q[passed[-1]] if passed.size else -1.0))


def _outer_thirds(prompt_G: IntArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which groups lie in the first and in the last third of their prompt's visits."""
    num_Q = np.bincount(prompt_G).astype(np.int64)
    order_G = np.argsort(prompt_G, kind="stable")
    start_Q = np.cumsum(num_Q) - num_Q
    visit_G = np.empty(len(prompt_G), dtype=np.int64)
    visit_G[order_G] = np.arange(len(prompt_G)) - start_Q[prompt_G[order_G]]
    num_G = num_Q[prompt_G]
    third_G = np.where(num_G > 1, -(-num_G // 3), 0)
    return visit_G < third_G, (num_G > 1) & (visit_G >= num_G - third_G)


def _upper_tail(
    k: IntArray, most: IntArray, n: IntArray, rest: IntArray, total: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Sum the hypergeometric probabilities from k to most; return also the last one."""
    from scipy.special import gammaln

    def log_choose(a: IntArray, b: IntArray) -> FloatArray:
        return np.asarray(gammaln(a + 1.0) - gammaln(b + 1.0) - gammaln(a - b + 1.0))

    def chance(x: IntArray) -> FloatArray:
        log_x = log_choose(n, x) + log_choose(rest, total - x) - log_choose(n + rest, total)
        return np.exp(log_x)

    term, at = chance(k), k.copy()
    tail, open_i = term.copy(), np.flatnonzero(k < most)
    while open_i.size:
        x = at[open_i]
        late = total[open_i] - x
        # P(x+1) / P(x)
        term[open_i] *= (n[open_i] - x) * late / ((x + 1.0) * (rest[open_i] - late + 1.0))
        tail[open_i] += term[open_i]
        at[open_i] += 1
        open_i = open_i[(at[open_i] < most[open_i]) & (term[open_i] > 1e-18 * tail[open_i])]
    return np.minimum(tail, 1.0), chance(most)
