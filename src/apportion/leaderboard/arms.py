"""The arms of the leaderboard: who decides, with what belief, from how many candidates."""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from apportion.allocator import EXPLORATION, RolloutAllocator
from apportion.controls.mopps import CANDIDATES as MOPPS_CANDIDATES
from apportion.embedded import peers
from apportion.embedded.step import Rule
from apportion.errors import InvalidInputError, first_line
from apportion.predictor import FilterBank, Oracle
from apportion.types import Prompts
from apportion.validate import FloatArray

CANDIDATES = 3
"""Candidates over the prompts of an even step, for arms that choose."""
DAPO_CANDIDATES = 10
"""Batches that dynamic sampling may go through in one step; verl's recipe stops after ten."""
PILOT_COMMIT_CANDIDATES = 3
"""As published."""
UPPER_TIMES = 4
"""Most rollouts of a prompt over the mean, as in the trainers."""

OTHER_RATE = "uniform_other_rate"
"""Even rollouts at the learning rate that was not chosen: what of a share is the rate's doing."""
PEERS = (
    "uniform",
    OTHER_RATE,
    "dapo",
    "vip",
    "vip_code",
    "gvm",
    "knapsack",
    "reinforce_ada",
    "pilot_commit",
    "mopps",
    "proportional",
    "equal_n",
)
OURS = ("variance", "coverage", "progress")
ORACLES = ("oracle_variance", "oracle_coverage", "oracle_progress")
ARMS = (*PEERS, *OURS, *ORACLES)

SuccessOf = Callable[[Any], FloatArray]
"""Exact success of prompts by key, under the weights as they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm ready to run once.

    Attributes:
        decides: an allocator or a rule.
        belief: watches, for the forecasts that a rule asks for.
        candidates: prompts to choose from over those of an even step.
    """

    decides: RolloutAllocator | Rule
    belief: RolloutAllocator | None = None
    candidates: int = 1


def arm_of(name: str, prompts: Prompts, success_of: SuccessOf, *, rollouts_per_prompt: int) -> Arm:
    """Make an arm by its name, or from ``module:function``.

    Args:
        name: one of `ARMS`, or where a rule stands: a function ``rule(step)``, a class, of which
            every run makes its own object, or an object, of which every run has its own copy. It
            sees three candidates a prompt and the forecasts of the default predictor.
        prompts: all prompts of the pool, with features.
        success_of: the truth, for the oracles.
        rollouts_per_prompt: n, by which the most that a prompt may get is set.

    Raises:
        InvalidInputError: no arm has that name, nothing that can be called stands there, or it is
            an object that cannot be copied.
    """
    if ":" in name:
        return Arm(decides=_imported(name), belief=_watching(prompts), candidates=CANDIDATES)
    if name not in ARMS:
        raise _unknown(name)
    if name in OURS or name in ORACLES:
        knows = name in ORACLES
        objective = name.removeprefix("oracle_")
        allocator = RolloutAllocator(
            Oracle(success_of) if knows else FilterBank(),
            upper=UPPER_TIMES * rollouts_per_prompt,
            objective=objective,
            exploration=0.0 if knows else EXPLORATION,
            do_no_harm=not knows,
        )
        allocator.add(prompts)
        return Arm(decides=allocator, candidates=CANDIDATES if allocator.chooses else 1)
    if name in ("equal_n", "proportional"):
        rule = peers.equal_n if name == "equal_n" else peers.proportional
        return Arm(decides=rule, belief=_watching(prompts), candidates=CANDIDATES)
    made: dict[str, Callable[[], Rule]] = {
        "uniform": lambda: peers.uniform,
        OTHER_RATE: lambda: peers.uniform,
        "dapo": lambda: peers.dapo,
        "vip": lambda: peers.Vip(prompts),
        "vip_code": lambda: peers.VipCode(prompts),
        "gvm": lambda: peers.gvm,
        "knapsack": peers.Knapsack,
        "reinforce_ada": peers.ReinforceAda,
        "pilot_commit": peers.PilotCommit,
        "mopps": peers.Mopps,
    }
    wide = {
        "dapo": DAPO_CANDIDATES,
        "mopps": MOPPS_CANDIDATES,
        "pilot_commit": PILOT_COMMIT_CANDIDATES,
    }
    return Arm(decides=made[name](), candidates=wide.get(name, 1))


def check_arms(names: Sequence[str]) -> None:
    """Raise if a name is unknown or a rule cannot be imported, before hours are spent.

    Raises:
        InvalidInputError: says which and why.
    """
    for name in names:
        if ":" in name:
            _imported(name)
        elif name not in ARMS:
            raise _unknown(name)


@cache
def rule_digest(name: str) -> str:
    """Return a short hash of the one file that a rule stands in: an edited rule is another arm.

    What that file imports is not looked at.
    """
    _imported(name)
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    source = b"" if file is None else Path(file).read_bytes()
    return hashlib.sha256(source).hexdigest()[:8]


def _unknown(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"There is no arm {name!r}. Choose from {', '.join(ARMS)}, or name a rule of yours: "
        "module:function."
    )


def _watching(prompts: Prompts) -> RolloutAllocator:
    belief = RolloutAllocator(FilterBank())
    belief.add(prompts)
    return belief


def _imported(name: str) -> Rule:
    """Import a rule; the folder that the command runs in is looked through first."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
        rule = found() if isinstance(found, type) else found
    except Exception as error:  # the file is the user's: anything may happen in it
        raise InvalidInputError(
            f"The rule {name!r} cannot be imported: {type(error).__name__}: {first_line(error)}. "
            "Name it module:function, from the folder that holds module.py."
        ) from error
    if not callable(rule):
        raise InvalidInputError(
            f"The rule {name!r} is a {type(found).__name__}, but must be a function rule(step) or "
            "a class whose objects can be called so."
        )
    checked: Rule = rule
    return checked if isinstance(found, type) else _apart(checked, name)


def _apart(rule: Rule, name: str) -> Rule:
    """Return a copy of a rule that is an object: runs of one process must not share its state."""
    try:
        return copy.deepcopy(rule)
    except Exception as error:  # whatever the user's object makes of it
        raise InvalidInputError(
            f"The rule {name!r} is a {type(rule).__name__} that cannot be copied ("
            f"{first_line(error)}), so its state would go from run to run. Name its class: every "
            "run then makes an object of its own."
        ) from error
