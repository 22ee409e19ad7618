"""How success is spread over the groups of a run, fitted to their counts.

Each group is k successes in n rollouts of a success probability p that nobody sees. The share of
groups at each p is fitted by maximum likelihood, without assuming a shape; from it follows what
other group sizes would have shown. Raw rates k/n will not do: their spread holds the noise of n
rollouts as well, so that too many seem hopeless, and too many solved.

Axes: G groups, K distinct counts (k, n), J points on the grid of p, D resampled runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

BoolArray = NDArray[np.bool_]

NUM_POINTS = 101
NUM_DRAWS = 200
_MOST_STEPS = 600
_GAP = 1e-6
"""Log likelihood a group that may still be gained when the fit stops."""
_MOST_MOMENTS = 64
_FLOOR = 0.1
"""An extrapolated weight keeps this share of the weight that EM gave it: zeros never come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessDistribution:
    """The share of groups at each success probability.

    Attributes:
        success_J: grid of p from 0 to 1, denser towards the ends.
        weight_J: share of groups at each; sums to 1.
        weight_DJ: the same fitted to runs whose prompts were drawn anew, with replacement.
        num_moments: the counts determine E[p], ..., E[p^num_moments] and no more.
        num_independent: groups, as if they were independent: those of one prompt tell less.
        all_wrong, all_right: shares of such groups that the fit expects at the recorded sizes.
    """

    success_J: FloatArray
    weight_J: FloatArray
    weight_DJ: FloatArray
    num_moments: int
    num_independent: float
    all_wrong: float
    all_right: float

    def range_of(self, value_J: FloatArray) -> tuple[float, float]:
        """Return least and largest E[value(p)] over distributions with the same moments."""
        from scipy.optimize import linprog

        value = float(self.weight_J @ value_J)
        count_K = np.arange(self.num_moments + 1)
        chance_KJ = binomial(count_K, np.full_like(count_K, self.num_moments), self.success_J)
        ends = []
        for sign in (1.0, -1.0):
            best = linprog(
                sign * value_J, A_eq=chance_KJ, b_eq=chance_KJ @ self.weight_J, bounds=(0, None)
            )
            ends.append(sign * float(best.fun or 0.0) if best.status == 0 else value)
        return min(ends[0], value), max(ends[1], value)


def fit_success(
    num_success_G: ArrayLike,
    num_rollouts_G: ArrayLike,
    prompt_G: ArrayLike,
    *,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> SuccessDistribution:
    """Fit the distribution of success by nonparametric maximum likelihood.

    ``max_w  sum_g log sum_j w_j Binomial(k_g; n_g, p_j)``

    Groups of each size are fitted apart and the fits averaged by their groups: a run that gives
    rollouts by difficulty would otherwise mislead.

    Args:
        num_success_G: successes k of each group.
        num_rollouts_G: scored rollouts n of each group, at least 1.
        prompt_G: whose group it is, 0 to Q - 1; prompts are resampled as wholes.
        num_draws: D, resampled runs; 0 for none.
        seed: of the resampling.

    Raises:
        InvalidInputError: no groups, or counts that are not whole or lie outside [0, n].

    Kiefer and Wolfowitz, 1956; EM on a fixed grid: Laird, 1978; extrapolated steps: Varadhan and
    Roland, 2008.

    >>> found = fit_success([0, 0, 8, 8], [8, 8, 8, 8], [0, 1, 2, 3], num_draws=0)
    >>> found.weight_J[[0, -1]].round(3)
    array([0.5, 0.5])
    """
    num_G = validate.counts("num_rollouts_G", num_rollouts_G, at_least=1)
    success_G = validate.counts("num_success_G", num_success_G, size=len(num_G))
    prompt_G = validate.counts("prompt_G", prompt_G, size=len(num_G))
    if not len(num_G):
        raise InvalidInputError("There are no groups to fit. Give at least one.")
    if (success_G > num_G).any():
        at = int(np.argmax(success_G > num_G))
        raise InvalidInputError(f"num_success_G[{at}] is {success_G[at]}, above {num_G[at]}.")
    num_K, success_K, cell_G = _cells(num_G, success_G)
    count_DK = np.stack(list(_resampled(cell_G, prompt_G, len(num_K), num_draws, seed)))
    grid_J = grid(NUM_POINTS)
    weight_DJ, wrong, right = np.zeros((len(count_DK), len(grid_J))), 0.0, 0.0
    for size in np.unique(num_K):
        mine = num_K == size
        count_Dk = count_DK[:, mine]
        fit_DJ = fit_weights(binomial(success_K[mine], num_K[mine], grid_J), count_Dk)
        part_DJ = (count_Dk.sum(axis=1) / count_DK.sum(axis=1))[:, None] * fit_DJ
        weight_DJ += part_DJ
        wrong += float(part_DJ[0] @ (1.0 - grid_J) ** size)
        right += float(part_DJ[0] @ grid_J**size)
    return SuccessDistribution(
        success_J=grid_J,
        weight_J=weight_DJ[0],
        weight_DJ=weight_DJ[1:] if num_draws else weight_DJ,
        num_moments=min(int(np.sort(num_G)[(len(num_G) - 1) // 2]), _MOST_MOMENTS),
        num_independent=_num_independent((success_G == 0) | (success_G == num_G), prompt_G),
        all_wrong=wrong,
        all_right=right,
    )


def grid(num_points: int) -> FloatArray:
    """Return points of [0, 1], both ends included, equally far apart in arcsin(sqrt(p)).

    >>> grid(3)
    array([0. , 0.5, 1. ])
    """
    angle = np.linspace(0.0, np.pi / 2.0, num_points)
    point_J = np.sin(angle) ** 2
    point_J[-1] = 1.0
    return np.asarray((point_J + 1.0 - point_J[::-1]) / 2.0)


def binomial(
    num_success_K: IntArray, num_rollouts_K: IntArray, success_J: FloatArray
) -> FloatArray:
    """Return the probability of each count (K) at each success probability (J).

    >>> binomial(np.array([1]), np.array([2]), np.array([0.0, 0.5]))
    array([[0. , 0.5]])
    """
    from scipy.special import gammaln, xlog1py, xlogy

    k, n = num_success_K[:, None].astype(float), num_rollouts_K[:, None].astype(float)
    choose = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return np.asarray(np.exp(choose + xlogy(k, success_J) + xlog1py(n - k, -success_J)))


def fit_weights(
    chance_KJ: FloatArray, count_DK: FloatArray, *, num_steps: int = _MOST_STEPS
) -> FloatArray:
    """Return the weights (D, J) of a mixture that make each row of counts most likely.

    One step is two of EM, ``w_j <- w_j sum_k c_k chance_kj / (chance w)_k / sum c``, and a jump
    along them that is kept only where it raises the likelihood. It stops when the duality gap
    ``max_j sum_k c_k chance_kj / (chance w)_k / sum c - 1`` says that nothing is left to gain.

    Args:
        chance_KJ: probability of each observation under each component.
        count_DK: how often each was observed; one row a fit. A row of zeros stays uniform.
        num_steps: most steps.

    >>> fit_weights(np.eye(2), np.array([[3.0, 1.0]]))
    array([[0.75, 0.25]])
    """
    total_D1 = count_DK.sum(axis=1, keepdims=True)
    share_DK = np.divide(count_DK, total_D1, out=np.zeros_like(count_DK), where=total_D1 > 0)
    # Only the shape over j matters, and the largest value keeps it above the smallest float.
    chance_KJ = chance_KJ / chance_KJ.max(axis=1, keepdims=True)
    weight_DJ = np.full((len(count_DK), chance_KJ.shape[1]), 1.0 / chance_KJ.shape[1])
    open_i = np.flatnonzero(total_D1[:, 0] > 0)
    for _ in range(num_steps):
        weight_IJ, share_IK = weight_DJ[open_i], share_DK[open_i]
        slope_IJ = _slope(weight_IJ, share_IK, chance_KJ)
        rising = slope_IJ.max(axis=1) - 1.0 >= _GAP
        open_i, weight_IJ, share_IK = open_i[rising], weight_IJ[rising], share_IK[rising]
        if not open_i.size:
            break
        once_IJ = weight_IJ * slope_IJ[rising]
        twice_IJ = once_IJ * _slope(once_IJ, share_IK, chance_KJ)
        jump_IJ = _extrapolated(weight_IJ, once_IJ, twice_IJ)
        better = _score(jump_IJ, share_IK, chance_KJ) > _score(twice_IJ, share_IK, chance_KJ)
        weight_DJ[open_i] = np.where(better[:, None], jump_IJ, twice_IJ)
    return np.asarray(weight_DJ / weight_DJ.sum(axis=1, keepdims=True))


def _slope(weight_DJ: FloatArray, share_DK: FloatArray, chance_KJ: FloatArray) -> FloatArray:
    return np.asarray((share_DK / (weight_DJ @ chance_KJ.T)) @ chance_KJ)


def _score(weight_DJ: FloatArray, share_DK: FloatArray, chance_KJ: FloatArray) -> FloatArray:
    return np.asarray((share_DK * np.log(weight_DJ @ chance_KJ.T)).sum(axis=1))


def widened(value: float, draw_D: FloatArray, ends: tuple[float, float]) -> Estimate:
    """Move the ends of a range outwards by the 95% spread of draws around their median."""
    low, middle, high = np.quantile(draw_D, [0.025, 0.5, 0.975])
    return Estimate(
        value=value,
        low=min(max(float(ends[0] - (middle - low)), 0.0), value),
        high=max(min(float(ends[1] + (high - middle)), 1.0), value),
    )


def _extrapolated(start_DJ: FloatArray, once_DJ: FloatArray, twice_DJ: FloatArray) -> FloatArray:
    first_DJ = once_DJ - start_DJ
    bend_DJ = twice_DJ - once_DJ - first_DJ
    length = np.sqrt((first_DJ**2).sum(axis=1, keepdims=True))
    bent = np.sqrt((bend_DJ**2).sum(axis=1, keepdims=True))
    stride = np.maximum(np.divide(length, bent, out=np.ones_like(length), where=bent > 0.0), 1.0)
    jump_DJ = start_DJ + 2.0 * stride * first_DJ + stride**2 * bend_DJ
    jump_DJ = np.maximum(jump_DJ, _FLOOR * twice_DJ)
    return np.asarray(jump_DJ / jump_DJ.sum(axis=1, keepdims=True))


def _cells(num_G: IntArray, success_G: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the distinct (n, k) and which of them each group has."""
    width = int(num_G.max()) + 1
    key_K, cell_G = np.unique(num_G * width + success_G, return_inverse=True)
    return key_K // width, key_K % width, cell_G


def _num_independent(is_end_G: BoolArray, prompt_G: IntArray) -> float:
    """Return G over the design effect that prompts have on the share s of all right or wrong.

    ``G^2 s (1 - s) / sum_q (ends_q - s groups_q)^2``, at most G; the prompts, where s is 0 or 1.
    Source: Rao and Scott, 1981.
    """
    _, row_G = np.unique(prompt_G, return_inverse=True)
    groups_Q = np.bincount(row_G)
    num, share = len(is_end_G), float(is_end_G.mean())
    if share in (0.0, 1.0) or len(groups_Q) == 1:
        return float(len(groups_Q))
    square = float(((np.bincount(row_G, weights=is_end_G) - share * groups_Q) ** 2).sum())
    most = num**2 * share * (1.0 - share)
    return most / square if square * num > most else float(num)


def _resampled(
    cell_G: IntArray, prompt_G: IntArray, num_cells: int, num_draws: int, seed: int
) -> Iterator[FloatArray]:
    """Yield the counts of the cells: as recorded, then with prompts drawn with replacement."""
    from scipy.sparse import csr_array

    yield np.bincount(cell_G, minlength=num_cells).astype(np.float64)
    _, row_G = np.unique(prompt_G, return_inverse=True)
    num_prompts = int(row_G.max()) + 1
    ones_G = np.ones(len(cell_G))
    count_KQ = csr_array((ones_G, (cell_G, row_G)), shape=(num_cells, num_prompts))
    rng = np.random.default_rng(seed)
    for _ in range(num_draws):
        drawn_Q = np.bincount(rng.integers(0, num_prompts, num_prompts), minlength=num_prompts)
        yield np.asarray(count_KQ @ drawn_Q.astype(np.float64))
