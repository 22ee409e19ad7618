"""Measures of grouped rewards: unbiased k-sample scores, and which groups carry signal.

Axes: B groups (one a problem), N rollouts, A distinct answers of one group. Rewards are
flat over N with ``group_N``, the position in B of each rollout's problem, never a rectangle.
The k-sample scores are exact expectations over k draws without replacement from the rollouts of a
problem, which makes them unbiased for k fresh draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

_MAX_MAJORITY = 1_000
"""Above about 1,029 the number of subsets overflows a float."""


def pass_at_k(num_samples_B: ArrayLike, num_correct_B: ArrayLike, k: int) -> FloatArray:
    """Return the chance that at least one of k samples is correct, for each problem.

    ``1 - C(n - c, k) / C(n, k)``

    Args:
        num_samples_B: samples n of each problem.
        num_correct_B: how many of them are correct, c.
        k: draws, at most the smallest n.

    Raises:
        InvalidInputError: c > n or k > n somewhere.

    Chen et al., "Evaluating large language models trained on code", 2021, eq. (1).

    >>> pass_at_k([4, 4], [1, 0], 2)
    array([0.5, 0. ])
    """
    num_B = validate.counts("num_samples_B", num_samples_B)
    correct_B = validate.counts("num_correct_B", num_correct_B, size=len(num_B))
    k = _draws(k, num_B)
    if (correct_B > num_B).any():
        at = int(np.argmax(correct_B > num_B))
        raise InvalidInputError(
            f"num_correct_B[{at}] is {correct_B[at]}, more than its {num_B[at]} samples."
        )
    miss_B = np.ones(len(num_B))
    for drawn in range(k):
        miss_B *= np.maximum(num_B - correct_B - drawn, 0) / (num_B - drawn)
    return 1.0 - miss_B


def best_at_k(reward_N: ArrayLike, group_N: ArrayLike, k: int) -> FloatArray:
    """Return the expected largest of k rewards, for each problem.

    ``sum_i x_(i) C(i - 1, k - 1) / C(n, k)`` over the rewards in rising order.

    Args:
        reward_N: real-valued rewards.
        group_N: problem of each reward, 0 to B - 1, none empty.
        k: draws, at most the smallest group.

    Raises:
        InvalidInputError: an empty group or k larger than a group.

    >>> best_at_k([0.0, 1.0, 0.5], [0, 0, 0], 2).round(4)
    array([0.8333])
    """
    reward, group, num_B = _grouped(reward_N, group_N)
    k = _draws(k, num_B)
    order = np.lexsort((reward, group))
    start_B = np.concatenate([[0], np.cumsum(num_B)[:-1]])
    score_B = np.zeros(len(num_B))
    for at, (start, num) in enumerate(zip(start_B, num_B, strict=True)):
        # From the largest down: P(x_(i) is the maximum), first k/n, then times (i-k)/(i-1).
        rank = np.arange(num, 1, -1)
        step = np.concatenate([[k / num], np.maximum(rank - k, 0) / (rank - 1)])
        falling = reward[order[start : start + num]][::-1]
        score_B[at] = np.cumprod(step) @ falling
    return score_B


def worst_at_k(reward_N: ArrayLike, group_N: ArrayLike, k: int) -> FloatArray:
    """Return the expected smallest of k rewards, for each problem; see `best_at_k`.

    >>> worst_at_k([0.0, 1.0, 0.5], [0, 0, 0], 2).round(4)
    array([0.1667])
    """
    return -best_at_k(-validate.vector("reward_N", reward_N), group_N, k)


def mean_at_k(reward_N: ArrayLike, group_N: ArrayLike, k: int) -> FloatArray:
    """Return the expected mean of k rewards for each problem: the mean of the group, whatever k.

    >>> mean_at_k([0.0, 1.0, 0.5], [0, 0, 0], 2)
    array([0.5])
    """
    reward, group, num_B = _grouped(reward_N, group_N)
    _draws(k, num_B)
    return np.asarray(np.bincount(group, weights=reward) / num_B)


def maj_at_k(answer_N: ArrayLike, reward_N: ArrayLike, group_N: ArrayLike, k: int) -> FloatArray:
    """Return the expected reward of the most frequent answer among k, for each problem.

    Exact over all subsets of k rollouts, by counting them; answers that tie for the most votes are
    equally likely to be picked. The reward of an answer is the mean over its rollouts.

    Args:
        answer_N: the answers, numbers or strings; equal means the same answer.
        reward_N: reward of each rollout.
        group_N: problem of each rollout, 0 to B - 1, none empty.
        k: draws, at most the smallest group.

    Raises:
        InvalidInputError: k larger than a group, or a group of more than 1,000 rollouts.

    Self-consistency: Wang et al., ICLR 2023, Sec. 2.

    >>> maj_at_k(["7", "7", "8"], [1, 1, 0], [0, 0, 0], 3)
    array([1.])
    """
    reward, group, num_B = _grouped(reward_N, group_N)
    k = _draws(k, num_B)
    if num_B.max(initial=0) > _MAX_MAJORITY:
        raise InvalidInputError(
            f"A group has {num_B.max()} rollouts, but maj_at_k counts subsets of at most "
            f"{_MAX_MAJORITY}. Use a random part of the group."
        )
    answer = np.asarray(answer_N)
    validate.check_size("answer_N", answer, len(reward))
    score_B = np.zeros(len(num_B))
    for at in range(len(num_B)):
        mine = group == at
        _, place, count_A = np.unique(answer[mine], return_inverse=True, return_counts=True)
        reward_A = np.bincount(place.ravel(), weights=reward[mine]) / count_A
        score_B[at] = _majority(count_A, reward_A, k)
    return score_B


def _majority(count_A: IntArray, reward_A: FloatArray, k: int) -> float:
    """Sum over the winning number of votes; subsets are counted by (votes given, answers on top).

    ``ways[x, t]`` counts the choices of x rollouts so far in which t answers have exactly `top`
    votes and none has more; ``worth[x, t]`` sums over them the rewards of those t answers.
    """
    # Ratios of binomials: C(c, i) stays exact enough as a float, all terms being positive.
    total = _binomials(int(count_A.sum()))[k]
    score = 0.0
    for top in range(1, min(k, int(count_A.max())) + 1):
        most = k // top
        ways, worth = np.zeros((k + 1, most + 2)), np.zeros((k + 1, most + 2))
        ways[0, 0] = 1.0
        for count, reward in zip(count_A, reward_A, strict=True):
            choose = _binomials(int(count))
            next_ways, next_worth = np.zeros_like(ways), np.zeros_like(worth)
            for votes in range(min(top - 1, int(count)) + 1):
                next_ways[votes:] += choose[votes] * ways[: k + 1 - votes]
                next_worth[votes:] += choose[votes] * worth[: k + 1 - votes]
            if count >= top:
                before, value = ways[: k + 1 - top, :-1], worth[: k + 1 - top, :-1]
                next_ways[top:, 1:] += choose[top] * before
                next_worth[top:, 1:] += choose[top] * (value + reward * before)
            ways, worth = next_ways, next_worth
        tied = np.arange(1, most + 2)
        score += float((worth[k, 1:] / tied).sum())
    return score / float(total)


def _binomials(n: int) -> FloatArray:
    """Return C(n, 0), ..., C(n, n)."""
    row = np.ones(n + 1)
    for i in range(1, n + 1):
        row[i] = row[i - 1] * (n + 1 - i) / i
    return row


def has_signal(reward_N: ArrayLike, group_N: ArrayLike) -> NDArray[np.bool_]:
    """Return for each group whether its rewards differ by more than float noise.

    ``max - min > 1e-12 + 1e-9 max|r|``; a group without rewards or with one has no signal.

    >>> has_signal([0.1 + 0.2, 0.3, 1.0, 0.0], [0, 0, 1, 1])
    array([False,  True])
    """
    reward = validate.vector("reward_N", reward_N)
    group = validate.counts("group_N", group_N, size=len(reward))
    size = int(group.max(initial=-1)) + 1
    high_B, low_B, large_B = np.full(size, -np.inf), np.full(size, np.inf), np.zeros(size)
    np.maximum.at(high_B, group, reward)
    np.minimum.at(low_B, group, reward)
    np.maximum.at(large_B, group, np.abs(reward))
    return np.asarray(high_B - low_B > 1e-12 + 1e-9 * large_B)


def has_signal_from_sums(
    num_rollouts_B: ArrayLike, reward_sum_B: ArrayLike, reward_sumsq_B: ArrayLike
) -> NDArray[np.bool_]:
    """Return the same from the sums of each group that a log keeps.

    ``n sum r^2 - (sum r)^2 > 1e-12 n sum r^2``: rewards that differ by less than a millionth of
    their size count as equal, for the sums do not hold more.

    >>> has_signal_from_sums([2, 2, 1], [0.6, 1.0, 1.0], [0.18, 1.0, 1.0])
    array([False,  True, False])
    """
    num = validate.vector("num_rollouts_B", num_rollouts_B)
    total = validate.vector("reward_sum_B", reward_sum_B, size=len(num))
    square = validate.vector("reward_sumsq_B", reward_sumsq_B, size=len(num))
    return np.asarray(num * square - total**2 > 1e-12 * num * square)


def signal_share(reward_N: ArrayLike, group_N: ArrayLike) -> float:
    """Return the share of groups with signal; 0 if there is no group.

    >>> signal_share([1, 1, 1, 0], [0, 0, 1, 1])
    0.5
    """
    signal_B = has_signal(reward_N, group_N)
    return float(signal_B.mean()) if signal_B.size else 0.0


def _grouped(reward_N: ArrayLike, group_N: ArrayLike) -> tuple[FloatArray, IntArray, IntArray]:
    reward = validate.vector("reward_N", reward_N)
    group = validate.counts("group_N", group_N, size=len(reward))
    num_B = np.bincount(group).astype(np.int64)
    if (num_B == 0).any():
        raise InvalidInputError(
            f"Group {int(np.argmin(num_B))} has no reward. Number the groups 0 to B - 1."
        )
    return reward, group, num_B


def _draws(k: int, num_B: IntArray) -> int:
    k = validate.whole_number("k", k, at_least=1)
    if num_B.size and k > num_B.min():
        at = int(num_B.argmin())
        raise InvalidInputError(
            f"k is {k}, but problem {at} has only {num_B[at]} rollouts. Choose a smaller k."
        )
    return k
