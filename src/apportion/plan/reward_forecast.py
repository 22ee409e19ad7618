"""What each setting of a sweep will have reached at a larger budget, and how sure that is.

A curve shared by all settings is fitted to what the runs have shown. How far it may be wrong is
measured on the runs themselves: fitted to the first quarter of their compute, it foretells their
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.learning_curve import LEAST_POINTS, fit_curve
from apportion.plan.runs import Cell, cells_of
from apportion.plan.shared_curve import fit_shared
from apportion.validate import FloatArray

NUM_DRAWS = 60
BACKTEST = 4.0
"""The backtest foretells this many times the compute that it is fitted to."""
WIDENING = 1.5
"""Error grows by this much more than the logarithm of how far ahead; see research/LOG.md."""
OWN_SHARE = 0.25
"""Of the error, what may differ from setting to setting."""
_GUESS = 0.03
"""Error of a backtest that the runs are too short for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardForecast:
    """Rewards to expect.

    Attributes:
        cells: settings.
        compute_S: rollouts that the forecast is for, of each.
        reward_S: expected reward of each.
        reward_DS: draws of it, with the error of the form.
        seen_to: most rollouts of any run.
        backtest: root mean squared error of the backtest; None if the runs are too short for one.
        misfit: mean squared residual over what noise explains; above 2 the form does not fit.
    """

    cells: tuple[Cell, ...]
    compute_S: FloatArray
    reward_S: FloatArray
    reward_DS: FloatArray
    seen_to: float
    backtest: float | None
    misfit: float

    def interval(self, setting: int, level: float = 0.9) -> tuple[float, float]:
        """Return where the reward of a setting should lie."""
        low, high = np.quantile(
            self.reward_DS[:, setting], [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
        )
        return float(low), float(high)

    def best_log2_rollouts(self, allowed_S: np.ndarray) -> FloatArray:
        """Return log2 of the best n among allowed settings, draw by draw."""
        size_S = np.array([cell.rollouts_per_prompt for cell in self.cells], dtype=np.float64)
        reward_DS = np.where(allowed_S, self.reward_DS, -np.inf)
        best: FloatArray = np.log2(size_S[reward_DS.argmax(1)])
        return best


def forecast_rewards(
    cells: Sequence[Cell], compute: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0
) -> RewardForecast:
    """Foretell the reward of every setting at a budget.

    Args:
        cells: settings with their runs.
        compute: rollouts of the run to come, for all settings or for each.
        num_draws: D, of the uncertainty.
        seed: of the draws.

    Raises:
        InvalidInputError: compute is not above 0, or fewer than two settings have enough points.
    """
    compute_S = np.broadcast_to(validate.numbers("compute", compute), len(cells))
    if compute_S.min() <= 0.0:
        raise InvalidInputError(f"compute is {compute_S.min():g}, but must be above 0.")
    if sum(cell.num_levels >= LEAST_POINTS for cell in cells) < 2:
        raise InvalidInputError(
            f"A forecast needs two settings with {LEAST_POINTS} evaluations or more each, but the "
            f"runs have {_evaluated(cells)}. Evaluate more often, or add a run with another n."
        )
    shared = fit_shared(cells, seed=seed)
    seen_to = max(float(run.compute_T[-1]) for cell in cells for run in cell.runs)
    backtest = _backtest(cells, seen_to / BACKTEST, seed)
    ahead_S = np.maximum(np.log(compute_S / seen_to), 0.0) / np.log(BACKTEST)
    error_S = WIDENING * ahead_S * (_GUESS if backtest is None else backtest)
    drawn_DS = shared.draws(cells, compute_S, num_draws=num_draws, seed=seed)
    rng = np.random.default_rng(seed)
    common_S = np.hypot(error_S * np.sqrt(1.0 - OWN_SHARE**2), _sampling_error(cells))
    reward_DS = drawn_DS + rng.normal(size=(num_draws, 1)) * common_S
    reward_DS = reward_DS + rng.normal(size=drawn_DS.shape) * error_S * OWN_SHARE
    return RewardForecast(
        cells=tuple(cells),
        compute_S=compute_S,
        reward_S=shared.predict(cells, compute_S),
        reward_DS=np.clip(reward_DS, 0.0, 1.0),
        seen_to=seen_to,
        backtest=backtest,
        misfit=shared.chi_square,
    )


def _evaluated(cells: Sequence[Cell]) -> str:
    told = [f"{cell.num_levels} at {cell.label}" for cell in cells[:3]]
    return "; ".join(told) + (" and so on" if len(cells) > 3 else "")


def _backtest(cells: Sequence[Cell], until: float, seed: int) -> float | None:
    """Return the error with which the first part of the runs foretells their ends."""
    early = [part for cell in cells for run in cell.runs if (part := run.until(until)) is not None]
    begun = [run for run in early if run.compute_T[-1] > 0.0]
    if not begun:
        return None
    past = cells_of(begun)
    if sum(cell.num_levels >= LEAST_POINTS for cell in past) < 2:
        return None
    shared = fit_shared(past, seed=seed)
    squares = []
    for cell in cells:
        end = float(cell.points()[0].max())
        if end > until:
            reached = float(fit_curve(*cell.points(), "isotonic")(end))
            squares.append((float(shared.predict([cell], end)[0]) - reached) ** 2)
    return float(np.sqrt(np.mean(squares))) if squares else None


def _sampling_error(cells: Sequence[Cell]) -> float:
    """Return what a choice of held-out problems may shift all rewards by.

    ``sqrt(R (1 - R) / (2 problems))``: half the variance is taken to lie between problems.
    """
    runs = [run for cell in cells for run in cell.runs if run.evaluation is not None]
    shifts = [
        float(run.reward_T[-1] * (1.0 - run.reward_T[-1])) / (2.0 * run.evaluation[0])
        for run in runs
        if run.evaluation is not None
    ]
    return float(np.sqrt(max(shifts, default=0.0)))
