"""What ``apportion sweep`` makes of its flags: what is usual, the grid, the engine, the goal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from apportion import validate
from apportion.cli.lists import names, numbers, wholes
from apportion.cli.task_options import DEFAULTS
from apportion.errors import InvalidInputError
from apportion.training.config import OWN_LEARNING_RATE, OWN_MAX_TOKENS

if TYPE_CHECKING:
    from apportion.sweep.adaptive import Goal
    from apportion.sweep.settings import RateRule, Setting
    from apportion.sweep.sweep import Job

SIZES, PROMPTS = "4,16,64", "16"
QUICK_SIZES, QUICK_BUDGET = "4,8,16,32,64", 20_480
AHEAD, SHARE = 10, 0.25
"""An adaptive sweep plans for so many times its budget and spends this part of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What is taken where a flag is left out."""

    learning_rate: float
    tuned_at: int
    evaluations: int
    max_tokens: int
    micro_batch: int | None
    processes: int


EMBEDDED = Usual(
    learning_rate=5e-5,
    tuned_at=256,
    evaluations=13,
    max_tokens=DEFAULTS.max_tokens,
    micro_batch=None,
    processes=os.cpu_count() or 1,
)
OWN = Usual(
    learning_rate=OWN_LEARNING_RATE,
    tuned_at=1024,
    evaluations=9,
    max_tokens=OWN_MAX_TOKENS,
    micro_batch=8,
    processes=1,
)


def rates_of(text: str | None, tuned_at: int, rules: str, usual: Usual) -> list[RateRule]:
    """Return every learning rate with every rule.

    Raises:
        InvalidInputError: a value is none; the flag is named.
    """
    from apportion.sweep.settings import RateRule

    batch = validate.whole_number("--tuned-at", tuned_at, at_least=1)
    rates = (
        (usual.learning_rate,) if text is None else numbers("--learning-rate", text, "1e-6,2e-6")
    )
    if not all(0.0 < rate < float("inf") for rate in rates):
        raise InvalidInputError(f"--learning-rate is {text}, but every rate must be above 0.")
    return [
        RateRule(learning_rate=rate, tuned_at=batch, rule=rule)
        for rate, rule in product(rates, names(rules))
    ]


def grid_of(
    sizes: str,
    prompts: str,
    rates: Sequence[RateRule],
    allocators: str,
    seeds: Sequence[int],
    budget: int | None,
) -> list[Setting]:
    """Return the runs of a grid.

    Raises:
        InvalidInputError: there is no budget, or a value is none or out of range.
    """
    from apportion.sweep.settings import ALLOCATORS, grid

    if budget is None:
        raise InvalidInputError(
            "How far should each run go? Give --budget, the rollouts of each, e.g. --budget 1e5; "
            "or --quick for a first look at the embedded model."
        )
    for arm in names(allocators):
        validate.choice("--allocator", arm, ALLOCATORS)
    return grid(
        rollouts_per_prompt=wholes("--rollouts-per-prompt", sizes, SIZES),
        prompts_per_step=wholes("--prompts-per-step", prompts, PROMPTS),
        rates=rates,
        allocators=names(allocators),
        seeds=seeds,
        budget=budget,
    )


def engine_of(
    workers: int, *, on_ray: bool, address: str | None, gpus_per_run: float
) -> Callable[..., dict[Job, str]]:
    """Return what makes the runs of a list: processes here, or Ray."""
    from apportion.sweep.make import make
    from apportion.training.processes import run_all

    validate.whole_number("--processes", workers, at_least=1)
    if not on_ray:
        if address is not None or gpus_per_run:
            raise InvalidInputError("--address and --gpus-per-run are read with --ray alone.")
        return partial(run_all, make=make, num_processes=workers)
    from apportion.sweep.on_ray import run_on_ray

    return partial(run_on_ray, address=address, num_processes=workers, gpus_per_run=gpus_per_run)


def goal_of(
    target: float | None,
    share: float | None,
    settings: Sequence[Setting],
    *,
    is_adaptive: bool,
    workers: int,
) -> Goal | None:
    """Return what an adaptive sweep is for; None for a grid.

    Raises:
        InvalidInputError: a number is out of range, or given without --adaptive; or allocators
            differ, which the forecast behind the decisions does not tell apart.
    """
    if not is_adaptive:
        if target is not None or share is not None:
            raise InvalidInputError("--target and --share are read with --adaptive alone.")
        return None
    from apportion.sweep.adaptive import Goal

    if len({setting.allocator for setting in settings}) > 1:
        raise InvalidInputError(
            "--adaptive cannot compare allocators: its forecast tells runs apart by n, prompts a "
            "step and learning rate alone. Leave it out, or sweep one allocator."
        )
    budget = max(setting.budget for setting in settings)
    compute = float(AHEAD * budget) if target is None else validate.number("--target", target)
    part = SHARE if share is None else validate.number("--share", share)
    if compute <= 0.0 or not 0.0 < part <= 1.0:
        raise InvalidInputError(
            f"--target is {compute:g} and --share {part:g}, but the first must be above 0 and the "
            "second above 0 and at most 1."
        )
    return Goal(target=compute, share=part, num_at_once=workers)
