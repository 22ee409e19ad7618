"""A run folder of ours, and what TRL and other loggers wrote of the same run beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError, first_line
from apportion.prompt_key import prompt_key
from apportion.readers.inventory import TRL, Inventory, Source
from apportion.readers.prompts import PromptTable, without_empty
from apportion.readers.run_folder import read_run_folder
from apportion.readers.sources import COMPLETIONS
from apportion.readers.tally import Tally, listed
from apportion.readers.wandb_table import WANDB_TABLE
from apportion.recording import GroupTable, Recording


def read_own_run(paths: Sequence[Path], stock: Inventory, tally: Tally) -> Recording:
    """Read the one run folder that was found; TRL's completions give no more than texts of prompts.

    Raises:
        InvalidInputError: several runs were found, or the run folder is damaged.
    """
    run = stock.runs[0]
    places = _places(stock.sources)
    if len(stock.runs) > 1 or not all(_is_same(one, run, paths) for one in stock.sources):
        names = [str(place) for place in (*stock.runs, *dict.fromkeys(places))]
        raise InvalidInputError(
            f"There are several runs here: {listed(names)}. Give one of them at a time."
        )
    recording = read_run_folder(run)
    groups = recording.groups
    for place in dict.fromkeys(places):
        tally.say(f"{place} records the same run and was not counted again.")
    for error in stock.problems:
        if isinstance(error, InvalidInputError):
            tally.say(f"{first_line(error)}.")
    return replace(
        recording,
        groups=None if groups is None else _with_texts(groups, stock.sources),
        curves={**stock.curves, **recording.curves},
        notes=(*recording.notes, *tally.sentences()),
    )


def _places(sources: Sequence[Source]) -> list[Path]:
    """Return where each table lies: its folder, if others lie there too or it is TRL's."""
    num_in = Counter(one.table.path.parent for one in sources)
    found = []
    for one in sources:
        folder = one.table.path.parent
        found.append(folder if num_in[folder] > 1 or folder.name == COMPLETIONS else one.table.path)
    return found


def _is_same(source: Source, run: Path, paths: Sequence[Path]) -> bool:
    """Return whether a table records the run too: its logger's folder holds it, or lies within.

    Paths that were given one by one are of one run, as the user says.
    """
    if source.kind not in (TRL, WANDB_TABLE):
        return False
    output = source.table.path.parent
    names = [folder.name for folder in output.parents]
    if "wandb" in names:
        output = output.parents[names.index("wandb")].parent
    elif output.name == COMPLETIONS:
        output = output.parent
    return run in paths or output in (run, *run.parents) or run in output.parents


def _with_texts(groups: GroupTable, sources: Sequence[Source]) -> GroupTable:
    """Return the groups with the texts of those prompts whose keys are the hash of a text."""
    known = {key: at for at, key in enumerate(groups.id_Q.tolist())}
    prompts = PromptTable()
    for source in sources:
        if "prompt" not in source.table.names:
            continue
        for chunk in source.table.chunks(["prompt"], Tally()):
            text_of = {key: one for one in chunk["prompt"] for key in _keys(one) if key in known}
            prompts.numbers(list(text_of), list(text_of.values()))
    if prompts.text_Q is None:
        return groups
    text_of = dict(zip(prompts.id_Q.tolist(), prompts.text_Q, strict=True))
    return replace(groups, text_Q=tuple(text_of.get(key, "") for key in known))


def _keys(prompt: Any) -> tuple[str, ...]:
    """Return the keys that a prompt may have: a table adds empty fields to messages."""
    if isinstance(prompt, str):
        return (prompt_key(prompt),)
    try:
        return prompt_key(prompt), prompt_key(without_empty(prompt))
    except (TypeError, ValueError, RecursionError):
        return ()
