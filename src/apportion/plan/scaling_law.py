"""Laws of the best number of rollouts per prompt, n*(C), with what the data say of each parameter.

* sigmoid   ``log2 n*(C) = L / (1 + exp(-k (log10 C - log10 C0))) + b``
* constant  ``log2 n*(C) = b``
* power     ``log2 n*(C) = s (log10 C - log10 C0)``, C0 the compute at which n* is 1
* one_pass  ``n*(C) = clip(C / V, n_low, n_high)``, V = v D: a prompt teaches for v visits; one
  useful pass over D prompts is over at ``C(n1 -> n2) = v D n1^a n2^(1-a)`` when the learning rate
  grows as B^a, so each n has its turn, up to where the learning rate is the limit

The same sigmoid in another variable gives n*(M) or B_p*(M) at a fixed batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.law_search import FORMULA, LAWS, NAMES, best, bounds_of
from apportion.validate import FloatArray

LEVEL = 0.9
"""Coverage of the intervals of parameters."""
_HALVINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number of a law.

    Attributes:
        name: as in the formula.
        value: best fit.
        error: standard error from the curvature at the best fit; NaN if there is none.
        low: lower end of the profile-likelihood interval.
        high: upper end.
        is_identified: whether the interval ends before the search does on both sides.
    """

    name: str
    value: float
    error: float
    low: float
    high: float
    is_identified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """A fitted law; call it with rollouts (or steps) to get n*.

    Attributes:
        form: of `LAWS`.
        parameters: in the order of the formula.
        rmse: root of the mean squared residual, in log2 n.
        num_points: points that it was fitted to.
        advice: what stands against it in plain words; empty if nothing.
        top_error: standard error of L + b, the log2 n that a sigmoid goes to; NaN if there is none.
    """

    form: str
    parameters: tuple[Parameter, ...]
    rmse: float
    num_points: int
    advice: str = ""
    top_error: float = np.nan

    def __call__(self, compute: ArrayLike) -> FloatArray:
        """Return n*, a real number."""
        x = np.asarray(compute, dtype=np.float64)
        theta = np.array([p.value for p in self.parameters])
        n_star: FloatArray = np.exp2(FORMULA[self.form](x, theta))
        return n_star

    def __getitem__(self, name: str) -> Parameter:
        """Return a parameter by its name."""
        return next(p for p in self.parameters if p.name == name)


def sigmoid_law(log2_rise: float, k: float, log10_c0: float, b: float) -> ScalingLaw:
    """Make a law from printed parameters.

    >>> law = sigmoid_law(6.09, 4.75, 5.84, 2.73)
    >>> float(law(1e9))
    451.94
    """
    values = zip(NAMES["sigmoid"], (log2_rise, k, log10_c0, b), strict=True)
    return ScalingLaw(
        form="sigmoid",
        parameters=tuple(
            Parameter(
                name=name, value=value, error=np.nan, low=np.nan, high=np.nan, is_identified=True
            )
            for name, value in values
        ),
        rmse=np.nan,
        num_points=0,
    )


def fit_law(
    compute_K: ArrayLike, rollouts_K: ArrayLike, form: str = "sigmoid", *, level: float = LEVEL
) -> ScalingLaw:
    """Fit a law to points of the frontier by least squares in log2 n.

    Intervals are those of the profile likelihood, ``SSE(theta_i) <= SSE (1 + F(level; 1, K-P) /
    (K-P))``: all values that fit nearly as well as the best one when the others adapt. They treat
    points as independent; where runs are at hand, refits of resampled runs say more.

    Args:
        compute_K: rollouts of each point.
        rollouts_K: n that attains the frontier there.
        form: of `LAWS`.
        level: coverage of the intervals.

    Returns:
        The law. With too few points to judge it, its `advice` says so.

    Raises:
        InvalidInputError: lengths differ, no points, numbers not above 0.

    >>> law = fit_law([1e5, 2e5, 4e5, 8e5, 1.6e6], [8, 16, 32, 64, 128], "power")
    >>> round(law["s"].value, 2), law["s"].is_identified
    (3.32, True)

    Source: IsoCompute Playbook, the fitted law of section 4.1 and its parameters in the figures.
    """
    x_K, y_K = _checked(compute_K, rollouts_K)
    validate.choice("form", form, LAWS)
    theta, sse = best(form, x_K, y_K, {})
    num, free = len(x_K), len(theta)
    spare = num - free
    if spare < 1 or np.ptp(x_K) == 0.0:
        parameters = [
            Parameter(
                name=name, value=value, error=np.nan, low=-np.inf, high=np.inf, is_identified=False
            )
            for name, value in zip(NAMES[form], theta.tolist(), strict=True)
        ]
        return ScalingLaw(
            form=form,
            parameters=tuple(parameters),
            rmse=float(np.sqrt(sse / num)),
            num_points=num,
            advice=f"{num} of the {free + 1} points that judging a law of {free} parameters takes.",
        )
    covariance_PP = _covariance(form, x_K, theta, sse / spare)
    error_P = np.sqrt(np.diag(covariance_PP))
    limit = _limit(sse, spare, level, num)
    parameters = [
        _profiled(form, x_K, y_K, theta, i, float(error_P[i]), limit) for i in range(free)
    ]
    return ScalingLaw(
        form=form,
        parameters=tuple(parameters),
        rmse=float(np.sqrt(sse / num)),
        num_points=num,
        advice=_advice(parameters),
        top_error=_top_error(form, covariance_PP),
    )


def best_parameters(form: str, compute_K: ArrayLike, rollouts_K: ArrayLike) -> FloatArray:
    """Return the parameters of `fit_law` alone, without intervals, for refits by the hundred."""
    return best(form, *_checked(compute_K, rollouts_K), {})[0]


def predicted_rollouts(
    form: str, compute_K: ArrayLike, rollouts_K: ArrayLike, compute: float
) -> float:
    """Return n* at a compute by the law that fits the points best, as a real number."""
    theta = best_parameters(form, compute_K, rollouts_K)
    return float(np.exp2(FORMULA[form](np.array(compute), theta)))


def held_out_error(compute_K: ArrayLike, rollouts_K: ArrayLike, form: str) -> float:
    """Return the root mean squared error, in log2 n, of a law on points it was not fitted to.

    The points are put in order of compute; each of the last two fifths and the last fifth is
    predicted from what lies before it. Infinite with fewer than five levels of compute.

    Args:
        compute_K: rollouts of each point.
        rollouts_K: n that attains the frontier there.
        form: of `LAWS`.
    """
    x_K, y_K = _checked(compute_K, rollouts_K)
    levels = np.unique(x_K)
    if len(levels) < 5:
        return np.inf
    squares: list[float] = []
    for share in (0.6, 0.8):
        is_past = x_K <= levels[int(share * len(levels)) - 1]
        theta, _ = best(form, x_K[is_past], y_K[is_past], {})
        miss_K = FORMULA[form](x_K[~is_past], theta) - y_K[~is_past]
        squares.append(float(np.mean(miss_K**2)))
    return float(np.sqrt(np.mean(squares)))


def _limit(sse: float, spare: int, level: float, num: int) -> float:
    """Return the sum of squares up to which parameters count as fitting."""
    from scipy.stats import f

    # Points that a law meets exactly still leave n* known to a hundredth of a doubling at best.
    least = num * 1e-4
    return max(sse, least) * (1.0 + float(f.ppf(level, 1, spare)) / spare)


def _covariance(form: str, x_K: FloatArray, theta: FloatArray, variance: float) -> FloatArray:
    """Return covariances from the curvature; NaN where the law does not feel a parameter."""
    step_P = 1e-4 * np.maximum(np.abs(theta), 1e-2)
    jacobian = np.stack(
        [
            (FORMULA[form](x_K, theta + step) - FORMULA[form](x_K, theta - step))
            / (2.0 * step_P[i])
            for i, step in enumerate(np.diag(step_P))
        ],
        axis=1,
    )
    information = jacobian.T @ jacobian
    if np.linalg.cond(information) > 1e12:
        return np.full(information.shape, np.nan)
    covariance: FloatArray = np.linalg.inv(information) * variance
    return covariance


def _top_error(form: str, covariance_PP: FloatArray) -> float:
    if form != "sigmoid":
        return float(np.nan)
    at = [NAMES[form].index(name) for name in ("L", "b")]
    return float(np.sqrt(covariance_PP[np.ix_(at, at)].sum()))


def _profiled(
    form: str,
    x_K: FloatArray,
    y_K: FloatArray,
    theta: FloatArray,
    index: int,
    error: float,
    limit: float,
) -> Parameter:
    """Return a parameter with its profile interval, each end found by halving."""
    value = float(theta[index])
    is_slope = NAMES[form][index] == "k"

    def fits(at: float) -> bool:
        return best(form, x_K, y_K, {index: at})[1] <= limit

    ends, reached = [], []
    for edge in (float(bound[index]) for bound in bounds_of(form, x_K, y_K)):
        inside, outside = value, edge
        reached.append(fits(edge))
        for _ in range(0 if reached[-1] else _HALVINGS):
            middle = np.sqrt(inside * outside) if is_slope else (inside + outside) / 2.0
            inside, outside = (middle, outside) if fits(middle) else (inside, middle)
        ends.append(edge if reached[-1] else float(inside))
    return Parameter(
        name=NAMES[form][index],
        value=value,
        error=error,
        low=ends[0],
        high=ends[1],
        is_identified=not any(reached),
    )


def _advice(parameters: list[Parameter]) -> str:
    loose = [p.name for p in parameters if not p.is_identified]
    if not loose:
        return ""
    return (
        f"Not identified: {', '.join(loose)}. Values at the edge of the search fit nearly as well, "
        "so read the range, not the number."
    )


def _checked(compute_K: ArrayLike, rollouts_K: ArrayLike) -> tuple[FloatArray, FloatArray]:
    x = validate.vector("compute_K", compute_K)
    n = validate.vector("rollouts_K", rollouts_K, size=len(x))
    if not len(x) or x.min() <= 0.0 or n.min() <= 0.0:
        raise InvalidInputError(
            "A law needs at least one point, and compute and rollouts per prompt above 0."
        )
    return x, np.log2(n)
