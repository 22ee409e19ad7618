"""Why a plan is as it is, and what stands against it, in sentences."""

from __future__ import annotations

import numpy as np

from apportion.plan import published
from apportion.plan.limits import (
    LEAST_GROUP,
    LEAST_STEPS,
    MOST_ROLLOUTS,
    Batch,
    Interval,
    Limits,
)
from apportion.plan.prior import EVIDENCE, LEAST_ROLLOUTS, one_pass_rollouts
from apportion.plan.recipe import WARMUP_STEPS, Reason, least_prompts, passes_of_best
from apportion.words import counted

_FAR = 2
"""Times the steps of the best published runs from which a plan is told to be beyond them."""
_MOST_PROMPTS = 1024
"""Of a step, that were compared."""


def reason_of_prior(budget: float, difficulty: str, metric: str, num_prompts: int | None) -> Reason:
    """Say what each published law gives, and where n saturated."""
    parts = []
    for name, seen in EVIDENCE.items():
        if difficulty not in (name, "mixed"):
            continue
        where = [
            f"{n:,} or more" if key in published.STILL_RISING else f"{n:,}"
            for key, n in sorted(published.SATURATION.items(), key=lambda entry: entry[1])
            if key[1] == name
        ]
        part = f"{name}: sigmoid law {float(seen.law(budget)):,.0f}"
        if num_prompts is not None:
            visits = float(np.exp(np.mean(np.log(seen.visits))))
            part += f", one useful pass {one_pass_rollouts(budget, num_prompts, visits):,.0f}"
        parts.append(f"{part}, saturated at {', '.join(where)} by model")
    shift = published.METRIC_SHIFT[metric]["hard"]
    way = f"{'doubles' if shift > 0.0 else 'halves'} n on hard sets, not on easy ones"
    judged = f"; {metric} {way}" if shift else ""
    return Reason(
        about="rollouts_per_prompt",
        text=f"median of published laws. {'; '.join(parts)}{judged}",
        source="IsoCompute 4.1 and other models",
    )


def warnings_of_prior(budget: float, difficulty: str, num_prompts: int | None) -> list[str]:
    """Return where published runs do not reach."""
    points = published.FRONTIER_POINTS["hard" if difficulty == "hard" else "easy"]
    computes = [compute * 1e6 for group in points.values() for compute in group]
    found = []
    if not min(computes) <= budget <= max(computes):
        found.append(
            f"Published runs led from {min(computes):,.0f} to {max(computes):,.0f} rollouts; "
            "outside, their laws are extrapolated."
        )
    if num_prompts is not None and num_prompts < published.SMALL_SET[0]:
        found.append(
            f"{counted(num_prompts, 'prompt')} {_are(num_prompts)} fewer than the "
            f"{published.SMALL_SET[0]} of the smallest set that was tried."
        )
    return found


def reasons_of_n(batch: Batch, interval: Interval, limits: Limits) -> list[Reason]:
    """Say why n is not the one next to the median."""
    found = []
    if limits.epochs is not None and batch.wanted > interval.median * np.sqrt(2.0) + 1e-9:
        found.append(
            Reason(
                about="rollouts_per_prompt",
                text=f"raised to {batch.wanted:,}, within the interval, so that "
                f"{limits.epochs:g} passes over the prompts spend more of the budget",
                source="limit",
            )
        )
    n = batch.rollouts_per_prompt
    if _is_held(batch, limits):
        return found
    if LEAST_ROLLOUTS <= n < batch.wanted:
        steps = published.STEPS_TO_LEAD
        few = [num for prompts, num in steps.items() if prompts > 32]
        found.append(
            Reason(
                about="rollouts_per_prompt",
                text=f"lowered from {batch.wanted:,} so that {LEAST_STEPS} steps remain: no n led "
                f"before {steps[32]} steps at 32 prompts a step, before {min(few)} to {max(few)} "
                f"at more{_of_interval(n, interval)}",
                source="IsoCompute 4.1",
            )
        )
    elif n < batch.wanted:
        found.append(
            Reason(
                about="rollouts_per_prompt",
                text=f"lowered from {batch.wanted:,} to {n:,}, fewer than were compared: the "
                f"budget pays for no more at {counted(batch.prompts_per_step, 'prompt')} a step"
                f"{_of_interval(n, interval)}",
                source="limit",
            )
        )
    elif not found and _of_interval(n, interval):
        found.append(
            Reason(
                about="rollouts_per_prompt",
                text=f"{n:,} lies outside the interval: n is the power of two next to the median, "
                f"{LEAST_GROUP} to {MOST_ROLLOUTS:,}",
                source="what was tried",
            )
        )
    return found


def _of_interval(n: int, interval: Interval) -> str:
    """Say that n lies outside of its interval; empty if it does not."""
    if round(interval.low) <= n <= round(interval.high):
        return ""
    return "; so n lies outside its interval, which is without limits"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _is_held(batch: Batch, limits: Limits) -> bool:
    """Return whether the largest batch is what holds n."""
    n = batch.rollouts_per_prompt
    return n < batch.wanted and 2 * n > limits.batch_of(batch.prompts_per_step)


def reasons_of_steps(n: int, passes: float | None, limits: Limits) -> list[Reason]:
    """Say where M comes from, and that n stays as it is."""
    low, high = published.STEPS_OF_BEST
    text = f"the rest of the budget; the best published runs took {low} to {high}"
    if passes is not None:
        least, most = published.PASSES_TO_PAY
        text += (
            f". {passes:.2g} passes over {counted(limits.num_prompts or 1, 'prompt')}; a larger "
            f"n paid after {least:g} to {most:g} of its own"
        )
    return [
        Reason(about="num_steps", text=text, source="IsoCompute 4.1"),
        Reason(
            about="whole_run",
            text=f"keep n = {n:,} throughout: the frontier joins runs, one run cannot ride it by "
            "raising n",
            source="own simulation; not shown for language models",
        ),
    ]


def warnings_of_batch(batch: Batch, difficulty: str, limits: Limits) -> list[str]:
    """Return whether limits hold the batch below what is wanted or was tried."""
    n, prompts = batch.rollouts_per_prompt, batch.prompts_per_step
    found = []
    if _is_held(batch, limits):
        found.append(
            f"max_batch {limits.max_batch:,} holds n at {n:,} instead of {batch.wanted:,}. What a "
            "larger batch would buy is unknown."
        )
    if prompts > _MOST_PROMPTS:
        found.append(
            f"{prompts:,} prompts a step are more than the 32 to {_MOST_PROMPTS:,} that were "
            "compared: what so many do is unknown, and they leave fewer steps."
        )
    elif prompts < least_prompts("easy"):
        found.append(
            f"{counted(prompts, 'prompt')} a step {_are(prompts)} fewer than the 32 to "
            "1,024 that were compared; down to 8 nothing unstable was reported on easy problems."
        )
    elif prompts < least_prompts(difficulty):
        found.append(
            f"{prompts:,} prompts a step may be too few for {difficulty} problems, where the "
            f"first that are solved dominate: {least_prompts(difficulty)} or more."
        )
    return found


def warnings_of_steps(num_steps: int, passes: float | None, difficulty: str) -> list[str]:
    """Return whether steps are fewer, or passes more, than were seen to be best."""
    found = []
    low, high = published.STEPS_OF_BEST
    if num_steps > _FAR * high:
        found.append(
            f"{num_steps:,} steps are more than {_FAR} times what the best published runs took, "
            f"{low} to {high}: so far ahead nothing of theirs is known. A larger n or B_p would "
            "bring them down."
        )
    if num_steps < LEAST_STEPS:
        found.append(
            f"Only {num_steps:,} {'step' if num_steps == 1 else 'steps'}, {WARMUP_STEPS} for "
            f"warm-up: the best published runs took {low} to {high}."
        )
    most = passes_of_best(difficulty)
    if passes is not None and passes > most:
        found.append(
            f"{passes:.3g} passes over the prompts: published runs that led had made {most:.0f} at "
            "most. Repeated prompts overfit: watch the held-out reward, or add prompts."
        )
    return found


def warnings_of_rest(unspent: int, batch: Batch, limits: Limits) -> list[str]:
    """Return what the limit of passes leaves of the budget."""
    if unspent < batch.size:
        return []
    return [
        f"{unspent:,} rollouts stay unspent: {limits.epochs:g} passes over "
        f"{counted(limits.num_prompts or 1, 'prompt')} take no more. More prompts would use them."
    ]
