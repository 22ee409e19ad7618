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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray

LAWS = ("constant", "power", "one_pass", "sigmoid")
LEVEL = 0.9
"""Coverage of the intervals of parameters."""
STEEPEST = 100.0
"""Largest k searched, per decade: 10 to 90% of the rise within 0.044 decades, a step."""
LEAST_K = 0.1
_GRID = 24
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
    """

    form: str
    parameters: tuple[Parameter, ...]
    rmse: float
    num_points: int
    advice: str = ""

    def __call__(self, compute: ArrayLike) -> FloatArray:
        """Return n*, a real number."""
        x = np.asarray(compute, dtype=np.float64)
        theta = np.array([p.value for p in self.parameters])
        n_star: FloatArray = np.exp2(_FORMULA[self.form](x, theta))
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
    values = zip(_NAMES["sigmoid"], (log2_rise, k, log10_c0, b), strict=True)
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
    theta, sse = _best(form, x_K, y_K, {})
    num, free = len(x_K), len(theta)
    spare = num - free
    if spare < 1 or np.ptp(x_K) == 0.0:
        parameters = [
            Parameter(
                name=name, value=value, error=np.nan, low=-np.inf, high=np.inf, is_identified=False
            )
            for name, value in zip(_NAMES[form], theta.tolist(), strict=True)
        ]
        return ScalingLaw(
            form=form,
            parameters=tuple(parameters),
            rmse=float(np.sqrt(sse / num)),
            num_points=num,
            advice=f"{num} points cannot judge a law of {free} parameters.",
        )
    error_P = _errors(form, x_K, theta, sse / spare)
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
    )


def best_parameters(form: str, compute_K: ArrayLike, rollouts_K: ArrayLike) -> FloatArray:
    """Return the parameters of `fit_law` alone, without intervals, for refits by the hundred."""
    return _best(form, *_checked(compute_K, rollouts_K), {})[0]


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
        theta, _ = _best(form, x_K[is_past], y_K[is_past], {})
        miss_K = _FORMULA[form](x_K[~is_past], theta) - y_K[~is_past]
        squares.append(float(np.mean(miss_K**2)))
    return float(np.sqrt(np.mean(squares)))


def _sigmoid(x: FloatArray, theta: FloatArray) -> FloatArray:
    from scipy.special import expit

    rise, k, middle, b = theta
    log2_n: FloatArray = rise * expit(k * (np.log10(x) - middle)) + b
    return log2_n


def _constant(x: FloatArray, theta: FloatArray) -> FloatArray:
    return np.full(np.shape(x), theta[0])


def _power(x: FloatArray, theta: FloatArray) -> FloatArray:
    slope, base = theta
    log2_n: FloatArray = slope * (np.log10(x) - base)
    return log2_n


def _one_pass(x: FloatArray, theta: FloatArray) -> FloatArray:
    volume, low, high = theta
    log2_n: FloatArray = np.clip(np.log2(x) - volume, low, max(low, high))
    return log2_n


_FORMULA: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "sigmoid": _sigmoid,
    "constant": _constant,
    "power": _power,
    "one_pass": _one_pass,
}
_NAMES = {
    "sigmoid": ("L", "k", "log10_C0", "b"),
    "constant": ("b",),
    "power": ("s", "log10_C0"),
    "one_pass": ("log2_V", "log2_n_low", "log2_n_high"),
}


def _bounds(form: str, x_K: FloatArray, y_K: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how far each parameter is searched: a decade of compute, three doublings of n."""
    x_low, x_high = np.log10(x_K.min()), np.log10(x_K.max())
    y_low, y_high = y_K.min(), y_K.max()
    span = y_high - y_low + 3.0
    low, high = {
        "sigmoid": (
            (0.0, LEAST_K, x_low - 1.0, y_low - 3.0),
            (2.0 * span, STEEPEST, x_high + 1.0, y_high),
        ),
        "constant": ((y_low - 3.0,), (y_high + 3.0,)),
        "power": ((-20.0, x_low - 20.0), (20.0, x_high)),
        "one_pass": (
            (np.log2(x_K.min()) - y_high - 3.0, y_low - 3.0, y_low - 3.0),
            (np.log2(x_K.max()) - y_low + 3.0, y_high, y_high + 3.0),
        ),
    }[form]
    return np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)


def _best(
    form: str, x_K: FloatArray, y_K: FloatArray, fixed: dict[int, float]
) -> tuple[FloatArray, float]:
    """Return the best parameters, some of them held, and the sum of squares."""
    if form == "sigmoid":
        return _best_sigmoid(x_K, y_K, fixed)
    if form == "one_pass":
        return _best_one_pass(x_K, y_K, fixed)
    return _best_line(form, x_K, y_K, fixed)


def _best_line(
    form: str, x_K: FloatArray, y_K: FloatArray, fixed: dict[int, float]
) -> tuple[FloatArray, float]:
    if form == "constant":
        theta = np.array([fixed.get(0, float(y_K.mean()))])
    else:
        t_K = np.log10(x_K)
        spread = t_K - t_K.mean()
        if 0 in fixed:
            slope = fixed[0]
        elif 1 in fixed:
            slope = float((t_K - fixed[1]) @ y_K / max(float(np.sum((t_K - fixed[1]) ** 2)), 1e-12))
        else:
            slope = float(spread @ y_K / max(float(spread @ spread), 1e-12))
        slope = slope if abs(slope) > 1e-9 else 1e-9
        base = fixed.get(1, float(t_K.mean() - y_K.mean() / slope))
        theta = np.array([slope, base])
    return theta, _sse(form, x_K, y_K, theta)


def _best_one_pass(
    x_K: FloatArray, y_K: FloatArray, fixed: dict[int, float]
) -> tuple[FloatArray, float]:
    """Search all three numbers on a grid made finer: the law has corners."""
    low, high = _bounds("one_pass", x_K, y_K)
    width = (high - low) / _GRID
    centre = (low + high) / 2.0
    offset = np.arange(-_GRID // 2, _GRID // 2 + 1.0)
    best, best_sse = centre, np.inf
    for _ in range(8):
        axes = [
            np.array([fixed[i]])
            if i in fixed
            else np.clip(centre[i] + offset * width[i], low[i], high[i])
            for i in range(3)
        ]
        # Of ceilings that fit alike, the highest: one that was not met is not believed.
        axes[2] = axes[2][::-1]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
        line_GK = np.log2(x_K) - grid[:, :1]
        fitted = np.clip(line_GK, grid[:, 1:2], np.maximum(grid[:, 1:2], grid[:, 2:3]))
        sse_G = ((fitted - y_K) ** 2).sum(1)
        at = int(sse_G.argmin())
        if sse_G[at] < best_sse:
            best, best_sse = grid[at], float(sse_G[at])
        centre, width, offset = best, width / 3.0, np.arange(-4.0, 5.0)
    return best, best_sse


def _best_sigmoid(
    x_K: FloatArray, y_K: FloatArray, fixed: dict[int, float]
) -> tuple[FloatArray, float]:
    """Search k and C0 on a grid, where L and b have a closed form, and polish the best."""
    from scipy.optimize import least_squares
    from scipy.special import expit

    low, high = _bounds("sigmoid", x_K, y_K)
    slopes = [fixed[1]] if 1 in fixed else np.geomspace(low[1], high[1], _GRID)
    middles = [fixed[2]] if 2 in fixed else np.linspace(low[2], high[2], 2 * _GRID)
    k_G, middle_G = (axis.ravel() for axis in np.meshgrid(slopes, middles, indexing="ij"))
    h_GK = expit(k_G[:, None] * (np.log10(x_K) - middle_G[:, None]))
    rise_G, b_G = _lines(h_GK, y_K, fixed, low, high)
    sse_G = ((rise_G[:, None] * h_GK + b_G[:, None] - y_K) ** 2).sum(1)
    order = np.argsort(sse_G, kind="stable")
    starts = np.stack([rise_G, k_G, middle_G, b_G], axis=1)[order]
    free = [i for i in range(4) if i not in fixed]
    best, best_sse = starts[0], float(sse_G[order[0]])
    for start in starts[: 1 if fixed else 2] if free else []:
        theta = np.clip(start, low, high)
        for i, value in fixed.items():
            theta[i] = value

        def residuals(part: FloatArray, base: FloatArray = theta) -> FloatArray:
            whole = base.copy()
            whole[free] = part
            return _sigmoid(x_K, whole) - y_K

        inner = np.clip(theta[free], low[free] + 1e-9, high[free] - 1e-9)
        found = least_squares(residuals, inner, bounds=(low[free], high[free]), xtol=1e-12)
        sse = 2.0 * float(found.cost)
        if sse < best_sse:
            best, best_sse = theta.copy(), sse
            best[free] = found.x
    return best, best_sse


def _lines(
    h_GK: FloatArray, y_K: FloatArray, fixed: dict[int, float], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the best rise and base of each shape, within their bounds."""
    if 3 in fixed:
        free_G = h_GK @ (y_K - fixed[3]) / np.maximum((h_GK * h_GK).sum(1), 1e-12)
    else:
        spread_GK = h_GK - h_GK.mean(1, keepdims=True)
        free_G = spread_GK @ y_K / np.maximum((spread_GK * spread_GK).sum(1), 1e-12)
    rise_G = np.full(len(h_GK), fixed[0]) if 0 in fixed else np.clip(free_G, low[0], high[0])
    base_G = np.clip((y_K - rise_G[:, None] * h_GK).mean(1), low[3], high[3])
    return rise_G, np.full(len(h_GK), fixed[3]) if 3 in fixed else base_G


def _sse(form: str, x_K: FloatArray, y_K: FloatArray, theta: FloatArray) -> float:
    return float(np.sum((_FORMULA[form](x_K, theta) - y_K) ** 2))


def _limit(sse: float, spare: int, level: float, num: int) -> float:
    """Return the sum of squares up to which parameters count as fitting."""
    from scipy.stats import f

    # Points that a law meets exactly still leave n* known to a hundredth of a doubling at best.
    least = num * 1e-4
    return max(sse, least) * (1.0 + float(f.ppf(level, 1, spare)) / spare)


def _errors(form: str, x_K: FloatArray, theta: FloatArray, variance: float) -> FloatArray:
    """Return standard errors from the curvature; NaN where the law does not feel a parameter."""
    step_P = 1e-4 * np.maximum(np.abs(theta), 1e-2)
    jacobian = np.stack(
        [
            (_FORMULA[form](x_K, theta + step) - _FORMULA[form](x_K, theta - step))
            / (2.0 * step_P[i])
            for i, step in enumerate(np.diag(step_P))
        ],
        axis=1,
    )
    information = jacobian.T @ jacobian
    if np.linalg.cond(information) > 1e12:
        return np.full(len(theta), np.nan)
    errors: FloatArray = np.sqrt(np.diag(np.linalg.inv(information)) * variance)
    return errors


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
    is_slope = _NAMES[form][index] == "k"

    def fits(at: float) -> bool:
        return _best(form, x_K, y_K, {index: at})[1] <= limit

    ends, reached = [], []
    for edge in (float(bound[index]) for bound in _bounds(form, x_K, y_K)):
        inside, outside = value, edge
        reached.append(fits(edge))
        for _ in range(0 if reached[-1] else _HALVINGS):
            middle = np.sqrt(inside * outside) if is_slope else (inside + outside) / 2.0
            inside, outside = (middle, outside) if fits(middle) else (inside, middle)
        ends.append(edge if reached[-1] else float(inside))
    return Parameter(
        name=_NAMES[form][index],
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
