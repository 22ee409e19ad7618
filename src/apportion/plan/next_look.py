"""One decision of an adaptive sweep: what its runs call for next, or why they suffice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from apportion import validate
from apportion.plan.learning_curve import LEAST_POINTS
from apportion.plan.recipe import FEWEST_STEPS
from apportion.plan.reward_forecast import RewardForecast, forecast_rewards
from apportion.plan.runs import Run, cells_of

FIRST_PART = 4
"""A first look takes this part of a run: its own first quarter then backtests the forecast."""
LEAST_PART = 16
"""Where first looks would cost more than half of what may be spent, they shrink to this part."""
TOLERANCE = 0.5
"""Expected regret that may be left, in errors of one evaluation; see research/LOG.md."""
LEAST_GAIN = 0.1
"""A setting that beats the plan by less than this on average, in the same unit, is left alone."""
_UNKNOWN_NOISE = 0.01
"""Of an evaluation whose size is unknown."""
SPENT = "The share of the grid's rollouts that may be spent is spent."
_ALL_SEEN = "Every run that could change the plan has been made."
_NO_ROOM = (
    "The share of the grid's rollouts that may be spent is too small for a first look at every "
    "setting. Raise it, lengthen the runs, or leave out settings with the largest steps."
)
_TOO_FEW = (
    f"Fewer than two settings have {LEAST_POINTS} evaluations, so nothing can be foretold. "
    "Evaluate more often, or add a setting."
)

Setting = tuple[int, int, float | None, str]
Key = tuple[Setting, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that a sweep may make.

    Attributes:
        rollouts_per_prompt: n.
        prompts_per_step: B_p.
        learning_rate: as its run tells it; None if unknown.
        allocator: who decides the group sizes.
        seed: of the run.

    Raises:
        InvalidInputError: n or B_p is not a whole number of at least 1.
    """

    rollouts_per_prompt: int
    prompts_per_step: int
    learning_rate: float | None = None
    allocator: str = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("rollouts_per_prompt", "prompts_per_step"):
            validate.whole_number(name, getattr(self, name), at_least=1)

    @property
    def batch(self) -> int:
        """B, rollouts of a step."""
        return self.rollouts_per_prompt * self.prompts_per_step

    @property
    def setting(self) -> Setting:
        """What tells it from others, its seed aside; that of its run."""
        return self.rollouts_per_prompt, self.prompts_per_step, self.learning_rate, self.allocator

    @property
    def key(self) -> Key:
        """Setting and seed, by which its run is known."""
        return self.setting, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A run to begin or to go on with.

    Attributes:
        candidate: whose run.
        until: rollouts that it is to have spent in all: whole steps, with an evaluation there.
        why: in a few words.
    """

    candidate: Candidate
    until: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to run next, or why to stop.

    Attributes:
        extensions: runs to make, in any order.
        stop: why there are none; empty while there are.
        spent: rollouts of the runs behind the decision.
        regret: reward that the plan is expected to lose if made now; None before a forecast.
        noise: standard error of one evaluation of the plan; None before a forecast.
        chance_by_setting: share of draws in which each setting is best, by its label.
    """

    extensions: tuple[Extension, ...] = ()
    stop: str = ""
    spent: float
    regret: float | None = None
    noise: float | None = None
    chance_by_setting: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What stays the same from decision to decision."""

    candidates: tuple[Candidate, ...]
    most_per_run: int
    target: float
    budget: float
    num_at_once: int
    seed: int

    def whole(self, candidate: Candidate) -> int:
        """Return the rollouts of a whole run."""
        return self.most_per_run // candidate.batch * candidate.batch

    def look(self, candidate: Candidate, part: float) -> int:
        """Return the rollouts of a first look: whole steps, enough of them, at most a whole run."""
        steps = max(int(np.ceil(self.most_per_run / part / candidate.batch)), FEWEST_STEPS)
        return min(steps * candidate.batch, self.whole(candidate))

    def firsts(self) -> list[Candidate]:
        """Return the first candidate of every setting."""
        found: dict[Setting, Candidate] = {}
        for one in self.candidates:
            found.setdefault(one.setting, one)
        return list(found.values())


def decide(sweep: Sweep, begun: Mapping[Candidate, Run]) -> Decision:
    """Decide on runs that have all done what was asked of them."""
    spent = float(sum(run.compute_T[-1] for run in begun.values()))
    unknown = Decision(spent=spent, chance_by_setting={})
    if not begun:
        return _first_looks(sweep, unknown)
    cells = cells_of(list(begun.values()))
    if sum(cell.num_levels >= LEAST_POINTS for cell in cells) < 2:
        kept = _affordable(sweep, begun, spent, _more_points(sweep, begun))
        return replace(unknown, extensions=kept, stop="" if kept else _TOO_FEW)
    found = forecast_rewards(cells, sweep.target, seed=sweep.seed)
    chosen = int(found.reward_S.argmax())
    regret, noise = _regret(found, chosen), _noise(found, chosen)
    best_S = np.bincount(found.reward_DS.argmax(1), minlength=len(cells)) / len(found.reward_DS)
    decision = Decision(
        spent=spent,
        regret=regret,
        noise=noise,
        chance_by_setting=dict(zip([cell.label for cell in cells], best_S.tolist(), strict=True)),
    )
    is_tested = any(run.compute_T[-1] >= sweep.whole(one) for one, run in begun.items())
    if is_tested and regret < TOLERANCE * noise:
        stop = (
            f"The plan is expected to lose {regret:.4f} of reward, less than {TOLERANCE:g} of the "
            f"error of one evaluation, {noise:.4f}."
        )
        return replace(decision, stop=stop)
    wanted = _telling(sweep, begun, found, chosen, LEAST_GAIN * noise)
    kept = _affordable(sweep, begun, spent, wanted)
    stop = "" if kept else SPENT if wanted else _ALL_SEEN
    return replace(decision, extensions=kept, stop=stop)


def _first_looks(sweep: Sweep, decision: Decision) -> Decision:
    """Look at every setting, as far as half of the budget allows."""
    part = float(FIRST_PART)
    looks = [sweep.look(one, part) for one in sweep.firsts()]
    while sum(looks) > sweep.budget / 2.0 and part < LEAST_PART:
        part *= 2.0
        looks = [sweep.look(one, part) for one in sweep.firsts()]
    if sum(looks) > sweep.budget:
        return replace(decision, stop=_NO_ROOM)
    extensions = [
        Extension(candidate=one, until=until, why="a first look at this setting")
        for one, until in zip(sweep.firsts(), looks, strict=True)
    ]
    return replace(decision, extensions=tuple(extensions))


def _more_points(sweep: Sweep, begun: Mapping[Candidate, Run]) -> list[Extension]:
    """Double the runs that have too few evaluations for a forecast."""
    return [
        Extension(
            candidate=one,
            until=min(2 * int(np.ceil(run.compute_T[-1] / one.batch)) * one.batch, whole),
            why="too few evaluations to foretell it",
        )
        for one, run in begun.items()
        if np.count_nonzero(run.compute_T > 0.0) < LEAST_POINTS
        and run.compute_T[-1] < (whole := sweep.whole(one))
    ]


def _telling(
    sweep: Sweep,
    begun: Mapping[Candidate, Run],
    found: RewardForecast,
    chosen: int,
    least_gain: float,
) -> list[Extension]:
    """Return what tells most about the plan: whole runs of it and its rivals, then their seeds."""
    gain_S = np.maximum(found.reward_DS - found.reward_DS[:, [chosen]], 0.0).mean(0)
    gain_S[chosen] = np.inf
    order = np.argsort(-gain_S, kind="stable")
    settings = [found.cells[s].runs[0].setting for s in order if gain_S[s] > least_gain]
    unfinished, unbegun = [], []
    for setting in settings:
        whose = "the setting planned so far" if setting == settings[0] else "a rival of the plan"
        for one in (one for one in sweep.candidates if one.setting == setting):
            if one not in begun:
                why = f"another seed of {whose}"
                unbegun.append(Extension(candidate=one, until=sweep.whole(one), why=why))
            elif begun[one].compute_T[-1] < sweep.whole(one):
                unfinished.append(Extension(candidate=one, until=sweep.whole(one), why=whose))
    return unfinished + unbegun


def _affordable(
    sweep: Sweep, begun: Mapping[Candidate, Run], spent: float, wanted: Sequence[Extension]
) -> tuple[Extension, ...]:
    """Return the first of the extensions that can be paid, as many as are made at once."""
    left = sweep.budget - spent
    kept: list[Extension] = []
    for one in wanted:
        run = begun.get(one.candidate)
        cost = one.until - (0.0 if run is None else float(run.compute_T[-1]))
        if cost <= left and len(kept) < sweep.num_at_once:
            kept.append(one)
            left -= cost
    return tuple(kept)


def _regret(found: RewardForecast, chosen: int) -> float:
    return float((found.reward_DS.max(1) - found.reward_DS[:, chosen]).mean())


def _noise(found: RewardForecast, chosen: int) -> float:
    """Return the standard error of an evaluation at the reward that the plan should reach."""
    evaluation = found.cells[chosen].runs[0].evaluation
    if evaluation is None:
        return _UNKNOWN_NOISE
    reward = float(np.clip(found.reward_S[chosen], 0.0, 1.0))
    return float(np.sqrt(reward * (1.0 - reward) / np.prod(evaluation)))
