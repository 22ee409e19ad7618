"""One learning curve for all settings at once, to foretell what none has reached yet.

A run at n rollouts per prompt advances by its learning rate at every step, as long as its prompts
have something left to teach it:

    R = floor + (ceiling - floor) h(u),    u = (rate / rate_0) (B / B_0)^beta M' / u_mid
    M' = S ((1 + m / S)^tail - 1) / tail,  S = V / (B_p (1 - (1 - chance)^n))
    m = M^2 / (M + delay),                 M = C / (B_p n)

Of M steps m count after warm-up, of which M' are useful: every prompt teaches for about V / D
visits in which it is solved at all, and little after that. With V infinite nothing is ever used up.
Too large a rate lowers the ceiling: h is divided by ``1 + (rate / rate_max)^4``. The rise h is a
sigmoid in log u or ``1 - exp(-u^shape)``. Small n that were run long show how far the curve goes
and how soon prompts are used up; large n that were run briefly show how fast a step is: so what a
large n will reach at ten times the compute is read off the others.

Which of the variants holds is not known, so all are fitted and weighed by ``exp(-AIC / 2)``.

Source: the crossovers ``C(n1 -> n2) = v D n1^a n2^(1-a)`` of one useful pass at learning rates
``~ B^a`` follow from u and M' alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from apportion.plan.learning_curve import fit_curve
from apportion.plan.resampling import Noise, noise_of
from apportion.plan.runs import Cell
from apportion.validate import FloatArray

NUM_STARTS = 3
_LEAST_NOISE = 1.5e-3
"""Of a reward: no variant is exact."""
_MOST_STEPS = 60
_STEEPNESS = 4.0
"""Of the harm of a rate above its limit."""
# name, prior mean and spread, least, most, scale of a step
_TABLE: tuple[tuple[str, float, float, float, float, float], ...] = (
    ("floor", 0.3, 9.0, 1e-4, 0.98, 0.05),
    ("ceiling", 0.5, 9.0, 1e-3, 0.999, 0.2),
    ("log_mid", np.log(200.0), 3.0, np.log(0.3), np.log(1e7), 1.0),
    ("log_shape", 0.2, 0.4, np.log(0.3), np.log(4.0), 0.3),
    ("beta", 0.15, 0.25, -0.5, 1.0, 0.3),
    ("log_visits", np.log(3.0), 1.2, np.log(0.05), np.log(1e3), 1.0),
    ("log_chance", np.log(0.1), 1.0, np.log(1e-3), np.log(0.9), 0.5),
    ("log_rate_max", np.log(100.0), 0.7, np.log(0.5), np.log(1e5), 1.0),
    ("tail", -1.0, 1.0, -4.0, 0.8, 0.5),
    ("delay", 8.0, 6.0, 0.0, 40.0, 3.0),
)
_MEAN, _SPREAD, _LOW, _HIGH, _SCALE = (np.array([row[i] for row in _TABLE]) for i in range(1, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a forecast is asked for; arrays of one length.

    Attributes:
        rollouts_S: n.
        prompts_S: B_p.
        log_rate_S: logarithm of the learning rate over the reference.
    """

    rollouts_S: FloatArray
    prompts_S: FloatArray
    log_rate_S: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way in which the curve may be shaped.

    Attributes:
        is_sigmoid: h is a sigmoid in log u, else ``1 - exp(-u^shape)``.
        is_used_up: prompts stop teaching.
        has_limit: the learning rate may be too large.
    """

    is_sigmoid: bool
    is_used_up: bool
    has_limit: bool

    @property
    def free(self) -> np.ndarray:
        """Positions of the parameters that it has."""
        extra = [5, 6, 8] * self.is_used_up + [7] * self.has_limit
        return np.array(sorted([0, 1, 2, 3, 4, 9, *extra]))


VARIANTS = tuple(
    Variant(is_sigmoid=a, is_used_up=b, has_limit=c) for a, b, c in product((True, False), repeat=3)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCurve:
    """Fitted variants with their weights.

    Attributes:
        theta_VP: parameters of each variant.
        weight_V: of each, summing to 1.
        chi_square: mean squared residual over its expectation, of the best variant.
        data: what was fitted.
    """

    theta_VP: FloatArray
    weight_V: FloatArray
    chi_square: float
    data: Data

    def predict(self, cells: Sequence[Cell], compute: ArrayLike) -> FloatArray:
        """Return the expected reward of each setting at so many rollouts, of each or of all."""
        at = self.data.setting_of(cells)
        spent_S = np.broadcast_to(np.asarray(compute, dtype=np.float64), len(cells))
        of_variant = [
            self.data.reward(variant, theta, at, spent_S)
            for variant, theta in zip(VARIANTS, self.theta_VP, strict=True)
        ]
        expected: FloatArray = self.weight_V @ np.array(of_variant)
        return expected

    def draws(
        self, cells: Sequence[Cell], compute: ArrayLike, *, num_draws: int, seed: int = 0
    ) -> FloatArray:
        """Draw the reward of each setting, by refits to rewards and priors drawn again.

        Returns:
            ``reward_DS``, over variants by their weight.
        """
        rng = np.random.default_rng(seed)
        at = self.data.setting_of(cells)
        spent_S = np.broadcast_to(np.asarray(compute, dtype=np.float64), len(cells))
        rows = []
        for v in rng.choice(len(VARIANTS), size=num_draws, p=self.weight_V).tolist():
            theta = self.data.redrawn(VARIANTS[v], self.theta_VP[v], rng)
            rows.append(self.data.reward(VARIANTS[v], theta, at, spent_S))
        return np.array(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Points of all settings, one for each level of compute, with what they are measured against.

    Attributes:
        setting: of each point.
        compute_N: rollouts of each point.
        reward_N: mean over seeds.
        sigma_N: its standard deviation.
        visits: prompts, by which V is measured; a guess where they are unknown.
        rate: reference of the learning rates; NaN where they are unknown.
    """

    setting: Setting
    compute_N: FloatArray
    reward_N: FloatArray
    sigma_N: FloatArray
    visits: float
    rate: float

    def setting_of(self, cells: Sequence[Cell]) -> Setting:
        """Return n, B_p and learning rate of settings."""
        rollouts_S = np.array([float(cell.rollouts_per_prompt) for cell in cells])
        prompts_S = np.array([float(cell.prompts_per_step) for cell in cells])
        return Setting(
            rollouts_S=rollouts_S,
            prompts_S=prompts_S,
            log_rate_S=_log_rates(cells, self.rate),
        )

    def reward(
        self, variant: Variant, theta: FloatArray, at: Setting, compute_S: FloatArray
    ) -> FloatArray:
        """Return the reward of settings after so many rollouts, see the head of the file."""
        floor, ceiling, mid, shape, beta, visits, chance, limit, tail, delay = theta
        batch_S = at.rollouts_S * at.prompts_S
        steps_S = np.maximum(compute_S / batch_S, 1e-9)
        steps_S = steps_S**2 / (steps_S + delay)
        if variant.is_used_up:
            solved_S = -np.expm1(at.rollouts_S * np.log1p(-np.exp(chance)))
            most_S = np.exp(visits) * self.visits / (at.prompts_S * solved_S)
            tail = tail if abs(tail) > 1e-6 else 1e-6
            steps_S = most_S * np.expm1(tail * np.log1p(steps_S / most_S)) / tail
        log_u = at.log_rate_S + beta * np.log(batch_S / 1024.0) + np.log(steps_S) - mid
        power = np.clip(np.exp(shape) * log_u, -50.0, 50.0)
        rise: FloatArray = (
            1.0 / (1.0 + np.exp(-power)) if variant.is_sigmoid else -np.expm1(-np.exp(power))
        )
        if variant.has_limit:
            rise = rise / (1.0 + np.exp(_STEEPNESS * (at.log_rate_S - limit)))
        reward_S: FloatArray = floor + (ceiling - floor) * rise
        return reward_S

    def fitted(
        self, variant: Variant, start: FloatArray, reward_N: FloatArray, mean_P: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return the parameters that fit best from a start, and their cost with the prior's."""
        from scipy.optimize import least_squares

        free = variant.free
        whole = start.copy()

        def residuals(part: FloatArray) -> FloatArray:
            whole[free] = part
            miss_N = self.reward(variant, whole, self.setting, self.compute_N) - reward_N
            return np.concatenate([miss_N / self.sigma_N, (part - mean_P[free]) / _SPREAD[free]])

        margin = 1e-3 * (_HIGH - _LOW)[free]
        found = least_squares(
            residuals,
            np.clip(start[free], _LOW[free] + margin, _HIGH[free] - margin),
            bounds=(_LOW[free], _HIGH[free]),
            x_scale=_SCALE[free],
            max_nfev=_MOST_STEPS,
        )
        theta = start.copy()
        theta[free] = found.x
        return theta, 2.0 * float(found.cost)

    def redrawn(self, variant: Variant, theta: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Fit again to rewards and prior means drawn around the fit."""
        fit_N = self.reward(variant, theta, self.setting, self.compute_N)
        again_N = fit_N + rng.normal(size=len(fit_N)) * self.sigma_N
        return self.fitted(variant, theta, again_N, rng.normal(theta, np.minimum(_SPREAD, 2.0)))[0]


def fit_shared(cells: Sequence[Cell], *, seed: int = 0) -> SharedCurve:
    """Fit all variants to all settings together.

    Args:
        cells: settings with their runs.
        seed: of the starting points.
    """
    data = data_of(cells)
    rng = np.random.default_rng(seed)
    thetas, costs = [], []
    for variant in VARIANTS:
        fits = [
            data.fitted(variant, _start(data, rng), data.reward_N, _prior(data))
            for _ in range(NUM_STARTS)
        ]
        theta, cost = min(fits, key=lambda fit: fit[1])
        thetas.append(theta)
        costs.append(cost)
    aic_V = np.array(costs) + 2.0 * np.array([len(variant.free) for variant in VARIANTS])
    weight_V = np.exp(-(aic_V - aic_V.min()) / 2.0)
    return SharedCurve(
        theta_VP=np.array(thetas),
        weight_V=weight_V / weight_V.sum(),
        chi_square=min(costs) / len(data.reward_N),
        data=data,
    )


def data_of(cells: Sequence[Cell]) -> Data:
    """Average the seeds of each setting and estimate what the averages are uncertain by."""
    curves = [fit_curve(*cell.points(), "isotonic") for cell in cells]
    noise = noise_of(cells, curves)
    parts = [_averaged(cell, noise) for cell in cells]
    num_N = [len(compute) for compute, _, _ in parts]
    rates = [cell.learning_rate for cell in cells]
    rate = float(np.exp(np.mean([np.log(r) for r in rates if r]))) if all(rates) else np.nan
    log_rate_S = _log_rates(cells, rate)
    known = [cell.runs[0].num_prompts for cell in cells]
    passes = max(cell.points()[0].max() / cell.rollouts_per_prompt for cell in cells)
    return Data(
        setting=Setting(
            rollouts_S=np.repeat([float(cell.rollouts_per_prompt) for cell in cells], num_N),
            prompts_S=np.repeat([float(cell.prompts_per_step) for cell in cells], num_N),
            log_rate_S=np.repeat(log_rate_S, num_N),
        ),
        compute_N=np.concatenate([compute for compute, _, _ in parts]),
        reward_N=np.concatenate([reward for _, reward, _ in parts]),
        sigma_N=np.concatenate([sigma for _, _, sigma in parts]),
        visits=float(np.median([k for k in known if k])) if any(known) else float(passes),
        rate=rate,
    )


def _averaged(cell: Cell, noise: Noise) -> tuple[FloatArray, FloatArray, FloatArray]:
    compute, reward = cell.points()
    level_K, place, num_K = np.unique(compute, return_inverse=True, return_counts=True)
    mean_K = np.bincount(place, reward) / num_K
    variance_K = (noise.within**2 + noise.between**2) / num_K + _LEAST_NOISE**2
    is_spent = level_K > 0.0
    return level_K[is_spent], mean_K[is_spent], np.sqrt(variance_K)[is_spent]


def _log_rates(cells: Sequence[Cell], rate: float) -> FloatArray:
    """Return log learning rates over the reference; by the square-root rule where unknown."""
    batch_S = np.array([float(cell.batch) for cell in cells])
    if np.isnan(rate):
        return np.log(batch_S / 1024.0) / 2.0
    return np.log(np.array([float(cell.learning_rate or rate) for cell in cells]) / rate)


def _prior(data: Data) -> FloatArray:
    """Return the means of the prior; a prompt's chance to be solved is that at the start."""
    mean = _MEAN.copy()
    mean[6] = np.log(np.clip(np.percentile(data.reward_N, 10), 2e-3, 0.5))
    return mean


def _start(data: Data, rng: np.random.Generator) -> FloatArray:
    theta = _prior(data)
    low, high = np.percentile(data.reward_N, 10), data.reward_N.max()
    theta[0] = low
    theta[1] = min(0.95, low + (high - low) * rng.uniform(1.2, 3.0) + 0.02)
    theta[2] = rng.uniform(np.log(20.0), np.log(3000.0))
    theta[4] = rng.uniform(-0.1, 0.4)
    theta[5] = rng.choice([0.0, 1.0, 2.5])
    return theta
