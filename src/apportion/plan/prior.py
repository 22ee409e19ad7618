"""What published laws say of n for a budget, with their spread, before any run of one's own.

``log2 n = max(min(law(C) + scatter, saturation) + shift of the metric, 3)``. What is not known of
another model is drawn from what was published:

* the law: the sigmoid in C; or, where the number Q of prompts is known, as likely one useful pass,
  ``n = C / (v Q)``, with v = ``C(n1 -> n2) / (Q sqrt(n1 n2))`` of a published crossover;
* the model: each that was tried is as likely, with its saturation and, for the sigmoid, how much
  earlier than the main one it passed to larger n;
* the scatter of points about their law: ``s sqrt(1 + P / K)`` for P parameters fitted to K points.

Axes: D draws. Q of the playbook's own: 6,000 easy, 5,000 hard.

Source: Cheng et al., IsoCompute Playbook, arXiv 2603.12151; the second law follows from one useful
pass at learning rates that grow with the square root of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan import published
from apportion.plan.scaling_law import ScalingLaw
from apportion.validate import FloatArray

DIFFICULTIES = ("easy", "hard", "mixed")
METRICS = tuple(published.METRIC_SHIFT)
LEAST_ROLLOUTS = 8
"""Smallest n of the main study."""
NUM_DRAWS = 4096
_HALF_STEP = 0.5
"""Doublings either side of a saturation: what was tried were powers of two at best."""
_RISE = 2.0
"""Doublings above the largest n tried that a saturation not met may lie at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was published of problems of one difficulty; one entry a model.

    Attributes:
        law: n*(C) of the main model.
        scatter: standard deviation of log2 n about a law.
        num_prompts: of the main study.
        visits: v of each crossover of the main study.
        saturation: log2 of the lowest and the highest n where each model may saturate.
        delay: decades of compute by which each passes to larger n later than the law says.
    """

    law: ScalingLaw
    scatter: float
    num_prompts: int
    visits: tuple[float, ...]
    saturation: tuple[tuple[float, float], ...]
    delay: tuple[float, ...]


def evidence_of(difficulty: str) -> Evidence:
    """Return what was published of easy or hard problems.

    >>> [round(v, 2) for v in evidence_of("easy").visits]
    [2.76, 2.18, 1.16, 1.23]
    """
    law, num_prompts = published.LAWS[difficulty], published.NUM_PROBLEMS[difficulty]
    num_points = sum(map(len, published.FRONTIER_POINTS[difficulty].values()))
    models = [key for key in published.SATURATION if key[1] == difficulty]
    return Evidence(
        law=law,
        scatter=published.SCATTER[difficulty] * np.sqrt(1.0 + len(law.parameters) / num_points),
        num_prompts=num_prompts,
        visits=tuple(
            float(compute / (num_prompts * np.sqrt(left * entered)))
            for left, entered, compute in published.CROSSOVERS[difficulty]
        ),
        saturation=tuple(_saturation(key) for key in models),
        delay=tuple(_delay(law, published.OTHER_CROSSOVERS.get(key, ())) for key in models),
    )


def _saturation(key: tuple[str, str]) -> tuple[float, float]:
    seen = float(np.log2(published.SATURATION[key]))
    if key in published.STILL_RISING:
        return seen, seen + _RISE
    return seen - _HALF_STEP, seen + _HALF_STEP


def _delay(law: ScalingLaw, crossovers: tuple[tuple[int, int, float], ...]) -> float:
    """Return the mean of log10 C at crossovers less what the law says of their middle n."""
    if not crossovers:
        return 0.0
    rise, k, middle, b = (parameter.value for parameter in law.parameters)
    late = []
    for left, entered, compute in crossovers:
        share = (np.log2(left * entered) / 2.0 - b) / rise
        late.append(np.log10(compute) - middle - np.log(share / (1.0 - share)) / k)
    return float(np.mean(late))


EVIDENCE = {name: evidence_of(name) for name in ("easy", "hard")}


def draw_log2_rollouts(
    compute: float,
    difficulty: str,
    *,
    num_prompts: int | None = None,
    metric: str = "mean",
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    evidence: Mapping[str, Evidence] = EVIDENCE,
) -> FloatArray:
    """Draw the best log2 n of a budget, as far as published runs tell.

    Args:
        compute: C, rollouts of the run.
        difficulty: easy, hard, or mixed: half of the draws of each.
        num_prompts: Q, prompts to train on; None leaves one useful pass out.
        metric: of `METRICS`, what the run is judged by.
        num_draws: rows; the same seed gives the same models, scatter and so on for every compute.
        seed: of the draws.
        evidence: by difficulty.

    Returns:
        log2 n, shape (D,); every draw rises or stays as compute rises.

    Raises:
        InvalidInputError: a name is unknown, or a number below 1.

    >>> draws = draw_log2_rollouts(2e6, "easy")
    >>> [round(2**q) for q in np.quantile(draws, [0.05, 0.5, 0.95])]
    [13, 64, 440]
    """
    validate.choice("difficulty", difficulty, DIFFICULTIES)
    validate.choice("metric", metric, METRICS)
    if validate.number("compute", compute) < 1.0:
        raise InvalidInputError(f"compute is {compute:g}, but must be at least 1 rollout.")
    if num_prompts is not None:
        validate.whole_number("num_prompts", num_prompts, at_least=1)
    names = ("easy", "hard") if difficulty == "mixed" else (difficulty,)
    rng = np.random.default_rng(seed)
    parts = [
        _draw(compute, evidence[name], num_prompts, num_draws, rng)
        + published.METRIC_SHIFT[metric][name]
        for name in names
    ]
    drawn_D = np.choose(rng.integers(len(names), size=num_draws), parts)
    return np.maximum(drawn_D, np.log2(LEAST_ROLLOUTS))


def one_pass_rollouts(compute: float, num_prompts: int, visits: float) -> float:
    """Return n of one useful pass: ``C / (v Q)``.

    >>> one_pass_rollouts(2e6, 6000, 1.3)
    256.41025641025641
    """
    return compute / (visits * num_prompts)


def _draw(
    compute: float,
    seen: Evidence,
    num_prompts: int | None,
    num_draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw log2 n of one difficulty, for the mean reward and without a least n."""
    model_D = rng.integers(len(seen.saturation), size=num_draws)
    low_D, high_D = np.array(seen.saturation)[model_D].T
    cap_D = low_D + rng.uniform(size=num_draws) * (high_D - low_D)
    scatter_D = seen.scatter * rng.normal(size=num_draws)
    law_D = np.log2(seen.law(compute / 10.0 ** np.array(seen.delay)[model_D]))
    if num_prompts is not None:
        visits_D = rng.choice(seen.visits, size=num_draws)
        pass_D = np.log2([one_pass_rollouts(compute, num_prompts, v) for v in visits_D])
        law_D = np.where(rng.uniform(size=num_draws) < 0.5, law_D, pass_D)
        cap_D = cap_D - saturation_drop(num_prompts, seen.num_prompts)
    return np.asarray(np.minimum(law_D + scatter_D, cap_D))


def saturation_drop(num_prompts: int, of_study: int) -> float:
    """Return by how many doublings fewer prompts lower the saturation of n.

    ``log(6000 / Q) / log(6000 / 500)``: a power law through the two sizes that were tried; none
    where there are more prompts than in the study.

    >>> saturation_drop(500, 6000), saturation_drop(60_000, 6000)
    (1.0, 0.0)

    Source: IsoCompute Playbook, dataset size.
    """
    num_small, saturation, _ = published.SMALL_SET
    num_all, at_all = published.NUM_PROBLEMS["easy"], max(published.SATURATION.values())
    slope = np.log2(at_all / saturation) / np.log(num_all / num_small)
    return float(max(slope * np.log(of_study / num_prompts), 0.0))
