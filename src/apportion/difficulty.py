"""How hard prompts are for a model, from k samples of each: histogram, bands, verdict.

Axes: Q prompts, K samples of each prompt, J points on the grid of success probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from apportion import metrics, validate
from apportion.errors import InvalidInputError
from apportion.success_distribution import Estimate, fit_success, widened
from apportion.validate import FloatArray, IntArray

BANDS = {
    "hard": "[0, 0.0625]",
    "between": "(0.0625, 0.3)",
    "easy": "[0.3, 0.6]",
    "very easy": "(0.6, 0.9375)",
    "solved": "[0.9375, 1]",
}
"""Names of the bands, and the success that they hold; solved mirrors hard."""
MAJORITY = 2.0 / 3.0
"""Share of the prompts that must lie in one band before the whole set is called by its name."""
DRAWS = (1, 2, 4, 8, 16)
"""The k of pass@k and worst@k."""
GROUP_SIZES = (4, 8, 16)
"""The n for which groups without signal are expected."""
_Z = 1.959963984540054
_NOISE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a set is called (``easy``, ``hard`` or ``mixed``), and why, in a sentence."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Successes of each prompt in equally many samples.

    Attributes:
        num_success_Q: successes of each prompt, 0 to `num_samples`.
        num_samples: samples K of every prompt.

    Raises:
        InvalidInputError: there is no prompt, or a count is not whole or above `num_samples`.

    >>> Profile(num_success_Q=[0, 0, 2, 4], num_samples=4).histogram
    array([2, 0, 1, 0, 1])
    """

    num_success_Q: IntArray
    num_samples: int

    def __post_init__(self) -> None:
        """Check the counts."""
        num_samples = validate.whole_number("num_samples", self.num_samples, at_least=1)
        success_Q = validate.counts("num_success_Q", self.num_success_Q)
        if not len(success_Q):
            raise InvalidInputError("num_success_Q is empty. Give at least one prompt.")
        if success_Q.max() > num_samples:
            at = int(success_Q.argmax())
            raise InvalidInputError(
                f"num_success_Q[{at}] is {success_Q[at]}, above num_samples = {num_samples}."
            )
        object.__setattr__(self, "num_samples", num_samples)
        object.__setattr__(self, "num_success_Q", success_Q)

    @classmethod
    def of_histogram(cls, histogram: ArrayLike) -> Profile:
        """Return the profile of as many prompts with 0, 1, ..., K successes as the histogram has.

        >>> Profile.of_histogram([2, 0, 1]).num_success_Q
        array([0, 0, 2])
        """
        count = validate.counts("histogram", histogram)
        return cls(
            num_success_Q=np.repeat(np.arange(len(count)), count), num_samples=len(count) - 1
        )

    @property
    def histogram(self) -> IntArray:
        """Number of prompts with 0, 1, ..., K successes."""
        return np.bincount(self.num_success_Q, minlength=self.num_samples + 1)

    @property
    def mean(self) -> Estimate:
        """Mean success with its 95% interval over prompts, see `mean_over_prompts`."""
        return self._mean(self.num_success_Q / self.num_samples)

    def pass_at(self, k: int) -> Estimate:
        """Return pass@k, for rewards of two values also best@k: `metrics.pass_at_k` over prompts.

        Raises:
            InvalidInputError: k is above the number of samples.
        """
        num_Q = np.full(len(self.num_success_Q), self.num_samples)
        return self._mean(metrics.pass_at_k(num_Q, self.num_success_Q, k))

    def worst_at(self, k: int) -> Estimate:
        """Return worst@k, the chance that all of k are right: ``C(s, k) / C(K, k)``.

        Raises:
            InvalidInputError: k is above the number of samples.
        """
        return self._mean(_all_drawn_from(self.num_success_Q, self.num_samples, k))

    def no_signal_at(self, n: int) -> Estimate:
        """Return the share of groups of n that are expected to give no gradient.

        ``E[p^n + (1-p)^n]``, without bias by ``(C(s, n) + C(K-s, n)) / C(K, n)``.

        Raises:
            InvalidInputError: n is above the number of samples.
        """
        wrong_Q = self.num_samples - self.num_success_Q
        right = _all_drawn_from(self.num_success_Q, self.num_samples, n)
        return self._mean(right + _all_drawn_from(wrong_Q, self.num_samples, n))

    @property
    def counted(self) -> dict[str, float]:
        """Share of the prompts whose measured rate s/K lies in each band: blurred by K samples."""
        band_Q = band_of(self.num_success_Q / self.num_samples)
        share = np.bincount(band_Q, minlength=len(BANDS)) / len(band_Q)
        return dict(zip(BANDS, share.tolist(), strict=True))

    @property
    def bands(self) -> dict[str, Estimate]:
        """Share of the prompts whose true success lies in each band, with 95% intervals.

        The distribution of success is fitted to the counts, see `success_distribution`. An interval
        holds what other distributions with the same moments say, what resampled prompts say, and
        the interval of a share among as many prompts (Wilson, 1927).
        """
        num_Q = np.full(len(self.num_success_Q), self.num_samples)
        in_order_Q = np.sort(self.num_success_Q)  # resampling must not depend on their order
        fit = fit_success(in_order_Q, num_Q, np.arange(len(num_Q)))
        band_J = band_of(fit.success_J)
        found = {}
        for at, name in enumerate(BANDS):
            inside_J = (band_J == at).astype(np.float64)
            share = float(np.clip(fit.weight_J @ inside_J, 0.0, 1.0))
            drawn = widened(share, fit.weight_DJ @ inside_J, fit.range_of(inside_J))
            low, high = _wilson(share, len(num_Q))
            found[name] = Estimate(value=share, low=min(drawn.low, low), high=max(drawn.high, high))
        return found

    @property
    def verdict(self) -> Verdict:
        """What the set is called; see `verdict_of`."""
        return verdict_of(self.bands)

    def summary(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        bands, counted = self.bands, self.counted
        verdict = verdict_of(bands)
        draws = [k for k in DRAWS if k <= self.num_samples]
        passed = {str(k): asdict(self.pass_at(k)) for k in draws}
        return {
            "num_prompts": len(self.num_success_Q),
            "num_samples": self.num_samples,
            "mean": asdict(self.mean),
            "pass_at_k": passed,
            "best_at_k": passed,
            "worst_at_k": {str(k): asdict(self.worst_at(k)) for k in draws},
            "no_signal_at_n": {
                str(n): asdict(self.no_signal_at(n)) for n in GROUP_SIZES if n <= self.num_samples
            },
            "bands": {
                name: {**asdict(share), "counted": counted[name]} for name, share in bands.items()
            },
            "verdict": verdict.name,
            "reason": verdict.reason,
        }

    def _mean(self, value_Q: FloatArray) -> Estimate:
        return mean_over_prompts(value_Q, self.num_samples)


def band_of(success: ArrayLike) -> IntArray:
    """Return which of `BANDS` each success lies in.

    Easy and hard are the sets of the IsoCompute Playbook (arXiv 2603.12151), section 2.1: mean
    success of 16 samples in [0.3, 0.6], and in [0, 0.0625]. The others fill what they leave.

    >>> band_of([0.0, 0.0625, 0.1, 0.3, 0.6, 0.7, 1.0])
    array([0, 0, 1, 2, 2, 3, 4])
    """
    p = np.asarray(success, dtype=np.float64)
    return (p > 0.0625).astype(np.int64) + (p >= 0.3) + (p > 0.6) + (p >= 0.9375)


def verdict_of(bands: Mapping[str, Estimate]) -> Verdict:
    """Call a set easy or hard if at least two thirds of its prompts are; else it is mixed.

    Args:
        bands: share of the prompts whose true success lies in each of `BANDS`.

    The bands are those of the IsoCompute Playbook (arXiv 2603.12151), sections 2.1 and 3, which
    gives easy sets one recipe and both hard sets and mixtures another; two thirds is our own limit.

    >>> shares = dict.fromkeys(BANDS, Estimate(value=0.0, low=0.0, high=0.1))
    >>> verdict_of({**shares, "hard": Estimate(value=0.9, low=0.8, high=1.0)}).name
    'hard'
    """
    name = max(bands, key=lambda band: bands[band].value)
    share = bands[name]
    of_all = f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}] of the prompts"
    if name in ("easy", "hard") and share.value >= MAJORITY:
        doubt = " (perhaps fewer than two thirds)" if share.low < MAJORITY else ""
        return Verdict(name=name, reason=f"{of_all} have a success in {BANDS[name]}{doubt}.")
    reason = f"the largest band is {name}, {BANDS[name]}, with {of_all}"
    if share.value >= MAJORITY:
        return Verdict(name="mixed", reason=f"{reason}: neither easy nor hard.")
    doubt = "perhaps, but not surely, two thirds" if share.high >= MAJORITY else "not two thirds"
    return Verdict(name="mixed", reason=f"{reason}: {doubt}.")


def graded_summary(value_QK: ArrayLike) -> dict[str, Any]:
    """Return what can be said of rewards between 0 and 1: no pass@k, no bands and no verdict.

    Args:
        value_QK: rewards in [0, 1], K of each prompt.

    Raises:
        InvalidInputError: a reward is outside [0, 1] or there is none.
    """
    value_QK = validate.numbers("value_QK", value_QK)
    if value_QK.ndim != 2 or not value_QK.size:
        raise InvalidInputError(f"value_QK has shape {value_QK.shape}. Give K rewards a prompt.")
    num_prompts, num_samples = value_QK.shape
    value_N = validate.probability("value_QK", value_QK.ravel())
    group_N = np.repeat(np.arange(num_prompts), num_samples)

    def mean(value_Q: FloatArray) -> dict[str, float]:
        return asdict(mean_over_prompts(np.clip(value_Q, 0.0, 1.0), num_samples))

    draws = [k for k in DRAWS if k <= num_samples]
    alike_QK = _num_alike(value_QK)
    return {
        "num_prompts": num_prompts,
        "num_samples": num_samples,
        "mean": mean(value_QK.mean(axis=1)),
        "best_at_k": {str(k): mean(metrics.best_at_k(value_N, group_N, k)) for k in draws},
        "worst_at_k": {str(k): mean(metrics.worst_at_k(value_N, group_N, k)) for k in draws},
        "no_signal_at_n": {
            str(n): mean(_all_drawn_from(alike_QK, num_samples, n).sum(axis=1))
            for n in GROUP_SIZES
            if n <= num_samples
        },
        "verdict": None,
        "reason": "Rewards between the lowest and the highest have a mean, but no successes to "
        "count: no histogram, no pass@k, no verdict.",
    }


def mean_over_prompts(value_Q: ArrayLike, num_samples: int = 1) -> Estimate:
    """Return the mean of values in [0, 1] with a 95% interval, the prompts being a random sample.

    Wilson's interval at the effective number of prompts ``m (1 - m) / (s^2 / Q)``, s^2 their
    variance; Q where the mean is 0 or 1, and never above the number of samples.

    Args:
        value_Q: mean of the samples of each prompt, each in [0, 1].
        num_samples: samples behind each.

    Raises:
        InvalidInputError: there is no value, or one lies outside [0, 1].

    Wilson, 1927; effective sample size in it: Korn and Graubard, 1998.

    >>> found = mean_over_prompts([0.0, 0.5, 1.0, 0.5], 16)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (0.5, 0.19, 0.81)
    """
    value_Q = validate.probability("value_Q", value_Q)
    num = len(value_Q)
    if not num:
        raise InvalidInputError("value_Q is empty. Give at least one prompt.")
    mean = float(value_Q.mean())
    spread, effective = mean * (1.0 - mean), float(num)
    if num > 1 and spread > _NOISE:
        square = float(value_Q.var(ddof=1)) / num
        effective = spread / max(square, spread / (num * num_samples))
    low, high = _wilson(mean, effective)
    return Estimate(value=mean, low=low, high=high)


def _wilson(share: float, num: float) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share among `num`."""
    centre = (share + _Z**2 / (2.0 * num)) / (1.0 + _Z**2 / num)
    half = _Z / (1.0 + _Z**2 / num) * (share * (1.0 - share) / num + _Z**2 / (4 * num**2)) ** 0.5
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)


def _all_drawn_from(count: IntArray, num_samples: int, k: int) -> FloatArray:
    """Return ``C(count, k) / C(K, k)``: the chance that k draws of K samples all hit the count."""
    k = validate.whole_number("k", k, at_least=1)
    if k > num_samples:
        raise InvalidInputError(f"k is {k}, but there are {num_samples} samples. Take a smaller k.")
    drawn_k = np.arange(k)
    left = np.maximum(count[..., None] - drawn_k, 0)
    return np.asarray((left / (num_samples - drawn_k)).prod(axis=-1))


def _num_alike(value_QK: FloatArray) -> IntArray:
    """Return for each prompt how many of its samples share each distinct value; zeros fill up."""
    sorted_QK = np.sort(value_QK, axis=1)
    is_new_QK = np.diff(sorted_QK, axis=1, prepend=sorted_QK[:, :1]) > _NOISE
    count_QK = np.zeros(value_QK.shape, dtype=np.int64)
    np.add.at(count_QK, (np.arange(len(value_QK))[:, None], is_new_QK.cumsum(axis=1)), 1)
    return count_QK
