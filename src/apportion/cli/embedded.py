"""``apportion embedded``: the small language model that ships with the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.progress import stage_display
from apportion.errors import MissingExtraError, RunFolderError

embedded_app = typer.Typer(help="The small language model that ships with the package.")


@embedded_app.callback()
def _group() -> None:
    """Hold the commands of the embedded model."""


@embedded_app.command("build")
def build_command(
    out: Annotated[Path, typer.Option(help="Folder for checkpoint and pools; must be empty.")],
    seed: Annotated[int, typer.Option(help="Seed of weights, problems and noise.")] = 0,
    clean_from: Annotated[
        Path | None,
        typer.Option(help="Folder of an earlier clean stage; only the noisy stage is run."),
    ] = None,
) -> None:
    """Rebuild checkpoint and pools from nothing: some 14 minutes on one core."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: more threads are slower here
    if out.exists() and any(out.iterdir()):
        raise RunFolderError(f"{out} is not empty. Choose another folder.")
    try:
        from transformers.utils.logging import disable_progress_bar

        from apportion.embedded.build import build
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from error
    disable_progress_bar()
    with stage_display() as progress:
        build(out, seed=seed, clean_checkpoint=clean_from, progress=progress)
    typer.echo(f"checkpoint and pools in {out}")
