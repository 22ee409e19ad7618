"""What ``apportion train --plan`` takes from a plan: numbers that flags may still change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from apportion.errors import InvalidInputError, first_line

FORMAT = "apportion-plan"
_FLAG_OF = {
    "rollouts_per_prompt": "rollouts_per_prompt",
    "prompts_per_step": "prompts_per_step",
    "num_steps": "steps",
    "learning_rate": "learning_rate",
}
_TERMS = {"kl": "kl_coefficient", "entropy": "entropy_coefficient"}


def use_plan(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the numbers of a plan the defaults of the other flags.

    Raises:
        InvalidInputError: the file cannot be read or is no plan.
    """
    if path is not None:
        plan = read_plan(path)
        ctx.default_map = {flag: plan[name] for name, flag in _FLAG_OF.items()} | terms_of(plan)
    return path


def use_terms(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the loss terms of a plan the defaults of their flags; a table has none."""
    try:
        if path is not None:
            ctx.default_map = terms_of(read_plan(path))
    except InvalidInputError:
        pass
    return path


def terms_of(plan: dict[str, Any]) -> dict[str, float]:
    """Return the sizes of the loss terms that a plan has."""
    terms = plan.get("regularisation")
    if not isinstance(terms, dict):
        return {}
    sizes = {flag: terms.get(name) for flag, name in _TERMS.items()}
    return {flag: float(size) for flag, size in sizes.items() if isinstance(size, int | float)}


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan that ``apportion plan --out`` wrote.

    Raises:
        InvalidInputError: the file cannot be read or is no plan.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"The plan {path} cannot be read: {first_line(error)}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} is no plan. `apportion plan --budget C --out plan.json` writes one."
        )
    missing = [name for name in _FLAG_OF if not isinstance(content.get(name), int | float)]
    if missing:
        raise InvalidInputError(f"The plan {path} lacks a number for {missing[0]}. Write it again.")
    return content
