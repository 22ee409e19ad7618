"""Learning curves: held-out reward as a rising, bounded function of the rollouts spent.

Three forms, of which the data choose one by how well it predicts what comes next:

* exponential  ``R(C) = ceiling - (ceiling - floor) exp(-rate C)``
* sigmoid      ``R(C) = floor + (ceiling - floor) / (1 + (C_mid / C)^B)``  (ScaleRL)
* isotonic     the rising step function nearest to the points, which claims nothing beyond them
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan import saturating
from apportion.validate import FloatArray

FORMS = ("exponential", "sigmoid", "isotonic")
CUTS = (0.25, 0.5)
"""Shares of the compute up to which a form is fitted to predict the rest, when forms are judged."""
LEAST_POINTS = 4
"""Different compute levels that a form with a shape needs."""
_RISING_SHARE = 0.1
"""A curve whose reward at the end misses its ceiling by more of its gain is still rising."""
_FLAT_GAIN = 1e-6
_RISE = {"exponential": saturating.exponential, "sigmoid": saturating.sigmoid}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """A fitted curve; call it with rollouts to get the reward.

    Attributes:
        form: of `FORMS`.
        floor: reward at no compute.
        ceiling: reward at endless compute.
        shape: (rate,) per rollout, (C_mid, B), or () for isotonic.
        knot_compute_K: rollouts at the knots of the isotonic form, else empty.
        knot_reward_K: rewards there.
        observed_from: least rollouts of a point after the start.
        observed_to: most rollouts of a point.
        rmse: root of the mean squared residual.
        advice: what stands against it in plain words; empty if nothing.
    """

    form: str
    floor: float
    ceiling: float
    shape: tuple[float, ...]
    knot_compute_K: FloatArray
    knot_reward_K: FloatArray
    observed_from: float
    observed_to: float
    rmse: float
    advice: str = ""

    def __call__(self, compute: ArrayLike) -> FloatArray:
        """Return the reward at `compute` rollouts."""
        spent = np.asarray(compute, dtype=np.float64)
        if self.form == "isotonic":
            held: FloatArray = np.interp(spent, self.knot_compute_K, self.knot_reward_K)
            return held
        height = _RISE[self.form](spent, np.log(np.array(self.shape)))
        return self.floor + (self.ceiling - self.floor) * height

    @classmethod
    def exponential(
        cls,
        *,
        ceiling: float,
        loss: float,
        rate: float,
        observed_from: float,
        observed_to: float,
    ) -> LearningCurve:
        """Make ``R(C) = ceiling - loss exp(-rate C)``, as curves are printed.

        >>> curve = LearningCurve.exponential(
        ...     ceiling=0.6, loss=0.2, rate=1e-6, observed_from=1e4, observed_to=1e6
        ... )
        >>> float(curve(1e6))
        0.526
        """
        return cls(
            form="exponential",
            floor=ceiling - loss,
            ceiling=ceiling,
            shape=(rate,),
            knot_compute_K=np.empty(0),
            knot_reward_K=np.empty(0),
            observed_from=observed_from,
            observed_to=observed_to,
            rmse=0.0,
        )


def fit_curve(compute_T: ArrayLike, reward_T: ArrayLike, form: str = "best") -> LearningCurve:
    """Fit a learning curve by least squares.

    Args:
        compute_T: rollouts spent at each evaluation; evaluations of several seeds may be joined.
        reward_T: held-out reward there, in [0, 1].
        form: of `FORMS`, or "best": the one that predicts best, see `predictive_error`.

    Returns:
        The curve. With fewer than `LEAST_POINTS` different levels of compute it is isotonic.

    Raises:
        InvalidInputError: lengths differ, no point, compute below 0, rewards outside [0, 1].

    >>> compute_T = np.linspace(0, 4e6, 30)
    >>> curve = fit_curve(compute_T, 0.6 - 0.2 * np.exp(-1e-6 * compute_T))
    >>> curve.form, round(curve.ceiling, 3)
    ('exponential', 0.6)

    Source: IsoCompute Playbook, section on compute-optimal n (a monotonic sigmoid per n, whose
    formula is not given; the drawn curves are exponential); ScaleRL, equation 1.
    """
    compute_T, reward_T = _points(compute_T, reward_T)
    validate.choice("form", form, ("best", *FORMS))
    if len(np.unique(compute_T)) < LEAST_POINTS:
        return fit_rows(compute_T, reward_T[None], "isotonic")[0]
    if form == "best":
        form = min(FORMS, key=lambda name: predictive_error(compute_T, reward_T, name))
    return fit_rows(compute_T, reward_T[None], form)[0]


def fit_rows(compute_T: FloatArray, reward_ST: FloatArray, form: str) -> list[LearningCurve]:
    """Fit curves of one form to S rows of rewards at the same rollouts, all at once."""
    if form == "isotonic":
        return [_isotonic(compute_T, reward_T) for reward_T in reward_ST]
    rise = _RISE[form]
    found = saturating.fit(rise, _axes(form, compute_T), compute_T, reward_ST)
    start, end = _observed(compute_T)
    height_S = rise(np.array(end), found.shape_SP)
    return [
        LearningCurve(
            form=form,
            floor=float(floor),
            ceiling=float(ceiling),
            shape=tuple(np.exp(shape_P).tolist()),
            knot_compute_K=np.empty(0),
            knot_reward_K=np.empty(0),
            observed_from=start,
            observed_to=end,
            rmse=float(error),
            advice=_advice(float(floor), float(ceiling), float(height), bool(at_edge)),
        )
        for floor, ceiling, shape_P, error, height, at_edge in zip(
            found.floor_S,
            found.ceiling_S,
            found.shape_SP,
            found.error_S,
            height_S,
            found.at_edge_S,
            strict=True,
        )
    ]


def predictive_error(compute_T: ArrayLike, reward_T: ArrayLike, form: str) -> float:
    """Return the mean squared error with which a form predicts the later part of a curve.

    It is fitted up to a share of the largest compute and judged on the points after it; the mean is
    over the shares `CUTS`. Infinite where too few points lie before every cut.

    Args:
        compute_T: rollouts spent at each evaluation.
        reward_T: held-out reward there.
        form: of `FORMS`.
    """
    compute_T, reward_T = _points(compute_T, reward_T)
    errors = []
    for share in CUTS:
        is_past = compute_T <= share * compute_T.max()
        if len(np.unique(compute_T[is_past])) < LEAST_POINTS:
            continue
        curve = fit_rows(compute_T[is_past], reward_T[None, is_past], form)[0]
        errors.append(float(np.mean((curve(compute_T[~is_past]) - reward_T[~is_past]) ** 2)))
    return float(np.mean(errors)) if errors else np.inf


def _points(compute_T: ArrayLike, reward_T: ArrayLike) -> tuple[FloatArray, FloatArray]:
    compute = validate.vector("compute_T", compute_T)
    reward = validate.probability("reward_T", reward_T, size=len(compute))
    if not len(compute) or compute.min() < 0.0 or compute.max() <= 0.0:
        raise InvalidInputError(
            "A learning curve needs at least one evaluation, at rollouts of 0 or more of which one "
            "is above 0."
        )
    return compute, reward


def _observed(compute_T: FloatArray) -> tuple[float, float]:
    """Return the least and the most rollouts of an evaluation after the start."""
    return float(compute_T[compute_T > 0.0].min()), float(compute_T.max())


def _axes(form: str, compute_T: FloatArray) -> list[FloatArray]:
    """Return the grid of the shape of a form, wide around the rollouts seen."""
    start, end = _observed(compute_T)
    start = max(start, end * 1e-4)
    if form == "exponential":
        return [np.linspace(np.log(0.02 / end), np.log(10.0 / start), 60)]
    middle = np.linspace(np.log(start / 10.0), np.log(end * 30.0), 36)
    return [middle, np.linspace(np.log(0.25), np.log(8.0), 12)]


def _isotonic(compute_T: FloatArray, reward_T: FloatArray) -> LearningCurve:
    """Return the rising function nearest to the points, straight between levels of compute."""
    from scipy.optimize import isotonic_regression

    level_K, place_T, num_K = np.unique(compute_T, return_inverse=True, return_counts=True)
    mean_K = np.bincount(place_T, reward_T) / num_K
    fitted_K = np.asarray(isotonic_regression(mean_K, weights=num_K).x)
    few = len(level_K) < LEAST_POINTS
    return LearningCurve(
        form="isotonic",
        floor=float(fitted_K[0]),
        ceiling=float(fitted_K[-1]),
        shape=(),
        knot_compute_K=level_K,
        knot_reward_K=fitted_K,
        observed_from=_observed(level_K)[0],
        observed_to=float(level_K[-1]),
        rmse=float(np.sqrt(np.mean((fitted_K[place_T] - reward_T) ** 2))),
        advice=(
            f"Evaluated at {len(level_K)} of the {LEAST_POINTS} levels of compute that it takes."
            if few
            else "Beyond the last evaluation the reward is held: this form predicts nothing there."
        ),
    )


def _advice(floor: float, ceiling: float, height: float, at_edge: bool) -> str:
    if ceiling - floor < _FLAT_GAIN:
        return "The reward does not rise: there is no curve to extrapolate."
    if 1.0 - height > _RISING_SHARE:
        share = f"{100 * height:.0f}% of the way to its ceiling"
        return f"Still rising, {share} at the last evaluation: the ceiling is a guess."
    if at_edge:
        return "Its speed lies at the edge of what was searched: evaluate earlier and more often."
    return ""
