"""A plan as a page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.cli.audit_layout import Page
from apportion.plan.recipe import FEWEST_STEPS, WARMUP_STEPS, rate_text
from apportion.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from apportion.plan.planning import Plan
    from apportion.plan.recipe import Reason
    from apportion.plan.sweep_first import Cost

_LETTER = {
    "difficulty": "set",
    "rollouts_per_prompt": "n",
    "prompts_per_step": "B_p",
    "num_steps": "M",
    "learning_rate": "rate",
    "regularisation": "loss",
    "whole_run": "run",
}
"""Of each reason."""
_BASIS = {
    "published": "Prior: from published runs of other models and data, none of yours.",
    "runs": "From your runs.",
}
_WHERE = {"published": "of what was published", "runs": "of redrawn sweeps"}


def print_plan(plan: Plan, console: Console) -> None:
    """Print the plan, why, what stands against it, and what to run first."""
    page = Page(console)
    page.say(f"{plan.budget:,} rollouts, {plan.difficulty} problems. {_BASIS[plan.basis]}", "bold")
    page.line()
    for label, value, note in _settings(plan):
        page.line(f"{label:<24}{value:>9}  {note}".rstrip())
    if plan.expected_reward is not None and plan.reward_interval is not None:
        low, high = plan.reward_interval
        label = f"{'held-out reward':<24}{plan.expected_reward:>9.3f}"
        page.line(f"{label}  90%: {low:.3f} to {high:.3f}")
    if plan.cost.tokens is not None or plan.cost.gpu_hours is not None:
        page.line(f"{'cost':<24}{_cost(plan.cost)}")
    page.head("Why")
    page.labelled(_why(plan.reasons))
    page.say("IsoCompute: arXiv 2603.12151, mostly one 7B model on mathematics.", "dim")
    if plan.warnings:
        page.head("What stands against it")
        page.bullets(plan.warnings)
    if plan.basis == "published":
        _print_sweep(page, plan)


def _settings(plan: Plan) -> list[tuple[str, str, str]]:
    interval = plan.interval
    terms = plan.regularisation
    sizes = f"{terms.kl_coefficient} and {terms.entropy_coefficient}, untried beyond a small model"
    return [
        (
            "rollouts per prompt n",
            f"{plan.rollouts_per_prompt:,}",
            f"{interval.level:.0%} {_WHERE[plan.basis]}: {interval.low:,.0f} to "
            f"{interval.high:,.0f}",
        ),
        ("prompts per step B_p", f"{plan.prompts_per_step:,}", f"{plan.batch:,} rollouts a step"),
        ("steps M", f"{plan.num_steps:,}", f"{plan.unspent:,} rollouts of the budget left"),
        (
            "learning rate",
            rate_text(plan.learning_rate),
            f"constant after {WARMUP_STEPS} steps",
        ),
        ("KL and entropy terms", "on" if terms.kl_term else "off", sizes if terms.kl_term else ""),
    ]


def _why(reasons: Sequence[Reason]) -> dict[str, str]:
    """Return reasons by letter; several of one setting follow each other."""
    said: dict[str, str] = {}
    for reason in reasons:
        letter = _LETTER[reason.about]
        text = f"{reason.text} ({reason.source})."
        said[letter] = f"{said[letter]} Then {text}" if letter in said else text
    return said


def _print_sweep(page: Page, plan: Plan) -> None:
    page.head("Run first")
    runs = plan.sweep_first
    if not runs:
        page.say(
            "Nothing: budget and limits leave no room for three sizes, the planned n among them, "
            f"of {FEWEST_STEPS} steps each."
        )
        return
    total = sum(run.cost.rollouts for run in runs)
    hours = [run.cost.gpu_hours for run in runs if run.cost.gpu_hours is not None]
    price = [run.cost.price for run in runs if run.cost.price is not None]
    parts = [f"{counted(len(runs), 'run')}, {total:,} rollouts, {total / plan.budget:.0%}"]
    parts += [f"{sum(hours):,.1f} GPU-hours"] if hours else []
    parts += [f"price {sum(price):,.2f}"] if price else []
    page.say(f"{', '.join(parts)}. Evaluate each at least 6 times on the same held-out problems.")
    page.table(
        ["n", "B_p", "steps", "learning rate", "rollouts"],
        [
            [
                f"{run.rollouts_per_prompt:,}",
                f"{run.prompts_per_step:,}",
                f"{run.num_steps:,}",
                rate_text(run.learning_rate),
                f"{run.cost.rollouts:,}",
            ]
            for run in runs
        ],
    )
    page.say(f"The last: {runs[-1].tells}. A probe of the rate, no advice.")


def _cost(cost: Cost) -> str:
    parts = [] if cost.tokens is None else [f"{cost.tokens:,.0f} tokens"]
    parts += [] if cost.gpu_hours is None else [f"{cost.gpu_hours:,.1f} GPU-hours"]
    parts += [] if cost.price is None else [f"price {cost.price:,.2f}"]
    return ", ".join(parts)
