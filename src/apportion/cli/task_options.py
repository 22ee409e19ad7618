"""Flags that name a task, the same in every command that samples a model: declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from apportion.training.config import OWN_MAX_TOKENS, POOLS, TrainConfig

DEFAULTS = TrainConfig()
_TASK = "Model and data"

ModelFlag = Annotated[
    str | None,
    typer.Option(help="Path or hub id; the embedded model if left out.", rich_help_panel=_TASK),
]
DatasetFlag = Annotated[
    str | None,
    typer.Option(help=".jsonl, .csv, .parquet, a folder or a hub id.", rich_help_panel=_TASK),
]
RewardFlag = Annotated[
    str,
    typer.Option(
        help="exact, math-verify or package.module:function (called as TRL calls rewards).",
        rich_help_panel=_TASK,
    ),
]
RewardLowFlag = Annotated[
    float, typer.Option(help="Lowest possible reward.", rich_help_panel=_TASK)
]
RewardHighFlag = Annotated[
    float, typer.Option(help="Highest possible reward.", rich_help_panel=_TASK)
]
PromptColumnFlag = Annotated[
    str, typer.Option(help="Column of the prompts.", rich_help_panel=_TASK)
]
AnswerColumnFlag = Annotated[
    str, typer.Option(help="Column of the answers.", rich_help_panel=_TASK)
]
PriorFlag = Annotated[
    str | None,
    typer.Option(
        help="File of offline success rates: prompt, success, num_rollouts.",
        rich_help_panel=_TASK,
    ),
]
HeldOutFlag = Annotated[
    int,
    typer.Option(
        help="Prompts of your data kept for evaluation (at most a fifth).", rich_help_panel=_TASK
    ),
]
PoolFlag = Annotated[
    str, typer.Option(help=f"Embedded problems: {', '.join(POOLS)}.", rich_help_panel=_TASK)
]
MaxTokensFlag = Annotated[
    int | None,
    typer.Option(
        help=f"Longest completion in tokens; {DEFAULTS.max_tokens} for the embedded model, "
        f"else {OWN_MAX_TOKENS}.",
        rich_help_panel=_TASK,
    ),
]
LimitFlag = Annotated[
    int | None,
    typer.Option(
        help="Train on the first so many prompts; all if left out.", rich_help_panel=_TASK
    ),
]
