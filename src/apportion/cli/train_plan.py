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
_TERMS = {"kl_term": "--kl", "entropy_term": "--entropy"}


def use_plan(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the numbers of a plan the defaults of the other flags.

    Raises:
        InvalidInputError: the file cannot be read or is no plan.
    """
    if path is None:
        return None
    plan = read_plan(path)
    ctx.default_map = {flag: plan[name] for name, flag in _FLAG_OF.items()}
    wanted = [flag for term, flag in _TERMS.items() if plan.get("regularisation", {}).get(term)]
    if wanted:
        typer.echo(
            f"The plan has {' and '.join(wanted)} on, but no source gives their size: give them, "
            "or train without.",
            err=True,
        )
    return path


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
