"""The forms of the laws of n*, and their least squares with some parameters held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from apportion.validate import FloatArray

LAWS = ("constant", "power", "one_pass", "sigmoid")
"""See `apportion.plan.scaling_law`."""
STEEPEST = 100.0
"""Largest k searched, per decade: 10 to 90% of the rise within 0.044 decades, a step."""
LEAST_K = 0.1
_GRID = 24


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


FORMULA: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "sigmoid": _sigmoid,
    "constant": _constant,
    "power": _power,
    "one_pass": _one_pass,
}
NAMES = {
    "sigmoid": ("L", "k", "log10_C0", "b"),
    "constant": ("b",),
    "power": ("s", "log10_C0"),
    "one_pass": ("log2_V", "log2_n_low", "log2_n_high"),
}


def bounds_of(form: str, x_K: FloatArray, y_K: FloatArray) -> tuple[FloatArray, FloatArray]:
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


def best(
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
    low, high = bounds_of("one_pass", x_K, y_K)
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

    low, high = bounds_of("sigmoid", x_K, y_K)
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
    return float(np.sum((FORMULA[form](x_K, theta) - y_K) ** 2))
