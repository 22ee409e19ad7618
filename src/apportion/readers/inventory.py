"""What the paths of a run hold: tables that tell groups, scalar curves, run folders of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np

from apportion.errors import ApportionError, InvalidInputError, MissingExtraError
from apportion.readers import curves as scalar_logs
from apportion.readers import trl, verl
from apportion.readers.columns import Columns
from apportion.readers.mere_ids import choose_by_rows
from apportion.readers.sources import COMPLETIONS, check_exists, files_under
from apportion.readers.tabular import Table, open_table
from apportion.readers.tally import Tally, listed
from apportion.readers.wandb_table import WANDB_TABLE, wandb_step
from apportion.recording import Curve

TRL, VERL = "TRL completions", "verl rollouts"
_WANDB_RUN = re.compile(r"(offline-)?run-\d+_\d+-\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table that tells groups.

    Attributes:
        table: the table.
        inside: its path within the folder that was asked for.
        kind: what wrote it, in words.
        columns: which column holds what.
        step: step of all its rows, if its name tells it and no column does.
    """

    table: Table
    inside: PurePath
    kind: str
    columns: Columns
    step: int | None

    @property
    def name(self) -> str:
        """How notes call it."""
        return self.table.path.name


@dataclass(slots=True, kw_only=True)
class Inventory:
    """What was found at some paths.

    Attributes:
        sources: tables that tell groups, in reading order.
        curves: scalar curves by their logger's names.
        runs: run folders of ours.
        tables: tables that do not tell groups.
        others: files that are neither tables nor scalars.
        problems: errors that count only if nothing else is usable.
    """

    sources: list[Source] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    problems: list[ApportionError] = field(default_factory=list)


def take_stock(paths: Sequence[Path], columns: Columns, tally: Tally) -> Inventory:
    """Sort what the paths hold, reading no more than the beginning of tables.

    Raises:
        InvalidInputError: a path does not exist, or a folder holds several runs.
    """
    stock = Inventory()
    for path in paths:
        check_exists(path)
        if path.is_dir():
            _take_folder(path, columns, stock, tally)
        else:
            if not _take_file(path, PurePath(path.name), columns, stock):
                _settle([], [path], stock, tally)
    return stock


def _take_folder(folder: Path, columns: Columns, stock: Inventory, tally: Tally) -> None:
    files, runs = files_under(folder, tally)
    stock.runs += [run for run in runs if run not in stock.runs]
    found = len(stock.sources)
    others = [one for one in files if not _take_file(one, one.relative_to(folder), columns, stock)]
    stock.sources[found:] = _of_one_run(folder, stock.sources[found:], tally)
    parents = dict.fromkeys(one.table.path.parent for one in stock.sources[found:])
    above = [up for parent in parents for up in (parent.parent, parent) if folder in up.parents]
    above += [up for run in runs for up in reversed(run.parents) if folder in up.parents]
    # What our own log says is read with the run; only TRL's folder may say more.
    places = [up for up in (folder, *above) if up not in runs or (up / COMPLETIONS).is_dir()]
    _settle(places, others, stock, tally)


def _take_file(file: Path, inside: PurePath, columns: Columns, stock: Inventory) -> bool:
    """Keep a table, or the error that a file gives; return whether no more can come of it."""
    try:
        table = open_table(file)
    except InvalidInputError as error:
        stock.problems.append(error)
        return True
    if table is None:
        return False
    source = _source(table, inside, columns)
    if source is None:
        stock.tables.append(table)
        return False
    stock.sources.append(source)
    return True


def _source(table: Table, inside: PurePath, columns: Columns) -> Source | None:
    kind, names, wanted = table.form, table.names, columns
    if trl.is_trl(names):
        kind = TRL
        if columns.reward is None:
            names, wanted = (*names, trl.TOTAL), replace(columns, reward=trl.TOTAL)
    elif verl.is_verl(names):
        kind, wanted = VERL, verl.verl_columns(names, columns)
    chosen = None if _is_history(table, columns) else choose_by_rows(table, names, wanted)
    if chosen is None:
        return None
    step = wandb_step(table.path.name) if table.form == WANDB_TABLE else None
    return Source(table=table, inside=inside, kind=kind, columns=chosen, step=step)


def _is_history(table: Table, columns: Columns) -> bool:
    """Return whether a table is a history of scalars, as W&B exports it."""
    return "_step" in table.names and "_runtime" in table.names and not columns.named


def _of_one_run(folder: Path, sources: list[Source], tally: Tally) -> list[Source]:
    """Leave out validation and second copies; refuse the records of several runs."""
    training = [one for one in sources if not verl.is_validation(one.inside)]
    if training and len(training) < len(sources):
        for one in sources:
            if verl.is_validation(one.inside):
                tally.add("files", "hold validation, by their names, and were left out", one.name)
    kept = training or sources
    in_parquet = [one for one in kept if one.kind == TRL and one.table.form != WANDB_TABLE]
    if in_parquet:
        copies = [one for one in kept if one.kind == TRL and one.table.form == WANDB_TABLE]
        for one in copies:
            tally.add("files", "repeat TRL's own completions and were left out", one.name)
        kept = [one for one in kept if one not in copies]
    for kind in (TRL, VERL):
        places = dict.fromkeys(str(one.inside.parent) for one in kept if one.kind == kind)
        _check_one(folder, kind, list(places))
    found = [_WANDB_RUN.search(str(one.inside)) for one in kept]
    _check_one(folder, "W&B tables", list(dict.fromkeys(run[0] for run in found if run)))
    return kept


def _check_one(folder: Path, what: str, places: list[str]) -> None:
    if len(places) > 1:
        raise InvalidInputError(
            f"{folder} holds {what} of several runs, or of training and validation, in "
            f"{listed(places)}. Give the one to read."
        )


def _settle(places: list[Path], others: list[Path], stock: Inventory, tally: Tally) -> None:
    """Read scalars at the first place that has some, else at the files without groups."""
    if any(_add_curves(place, stock, tally) for place in places):
        return
    for file in others:
        if not _add_curves(file, stock, tally):
            stock.others.append(file)


def _add_curves(path: Path, stock: Inventory, tally: Tally) -> bool:
    try:
        found = scalar_logs.read(path)
    except (InvalidInputError, MissingExtraError) as error:
        stock.problems.append(error)
        return False
    if found is None or not found[0]:
        return False
    for name, curve in found[0].items():
        stock.curves[name] = _joined(stock.curves.get(name), curve)
    for note in found[1]:
        tally.say(f"{path.name}: {note}")
    return True


def _joined(earlier: Curve | None, later: Curve) -> Curve:
    """Return both curves one after the other; where they overlap, the later log counts."""
    if earlier is None or not len(later.step_T):
        return earlier or later
    kept_T = earlier.step_T < later.step_T[0]
    return Curve(
        step_T=np.concatenate([earlier.step_T[kept_T], later.step_T]),
        value_T=np.concatenate([earlier.value_T[kept_T], later.value_T]),
    )
