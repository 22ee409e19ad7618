"""The one door: any paths of a run in, one `Recording` out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np

from apportion.errors import InvalidInputError, MissingExtraError, first_line
from apportion.readers import trl, verl
from apportion.readers.columns import Columns
from apportion.readers.grouping import Grouper
from apportion.readers.inventory import VERL, Inventory, Source, take_stock
from apportion.readers.prompts import PromptTable
from apportion.readers.rollouts import Chunk, PartArray, numbers, parts_of, whole_steps
from apportion.readers.run_folder import read_run_folder
from apportion.readers.tally import Tally, listed
from apportion.recording import Curve, GroupTable, Recording

_FLAGS = (
    "--prompt-column, --reward-column, --step-column, --group-column, --num-success-column, "
    "--num-rollouts-column or --tokens-column"
)
_MOST_NAMES, _LONGEST_NAME = 12, 40


def read(paths: Sequence[Path], columns: Columns = Columns()) -> Recording:  # noqa: B008
    r"""Read what a run left behind, whichever trainer wrote it.

    Reads run folders of ours; the output folder of TRL with ``log_completions=True``; the folder of
    verl's ``trainer.rollout_data_dir``; tables of W&B; JSON lines, JSON, CSV, TSV and Parquet with
    one rollout or one group a row; and scalar logs (see `curves.read`).

    Args:
        paths: files and folders of one run, in order; what a folder holds is read in natural order.
        columns: names of columns; every None is guessed.

    Raises:
        InvalidInputError: a path does not exist, several runs lie there, or nothing is usable.
        MissingExtraError: all there is needs a package that is not installed.

    >>> import tempfile
    >>> dump = Path(tempfile.mkdtemp()) / "dump.csv"
    >>> _ = dump.write_text("prompt,step,reward\na,1,0\na,1,1\n")
    >>> recording = read([dump])
    >>> recording.groups.rate_G, recording.source
    (array([0.5]), 'CSV')
    """
    paths, tally = [Path(path) for path in paths], Tally()
    if not paths:
        raise InvalidInputError("There is no path to read. Give a file or a folder.")
    stock = take_stock(paths, columns, tally)
    if stock.runs:
        return _own_run(stock, tally)
    reading = _Reading(tally)
    sources, components = _prepared(stock, tally)
    for source in sources:
        reading.add(source, components)
    groups = reading.finish()
    if groups is not None and not groups.num_rollouts_G.any():
        groups = None
    if groups is None and not stock.curves:
        _refuse(paths, stock, columns, tally)
    if groups is not None and groups.num_rollouts_G.max() < 2:
        tally.say("No group has two rollouts: nothing can be said of signal within groups.")
    _say_rest(stock, tally)
    kinds = dict.fromkeys(source.kind for source in stock.sources)
    return Recording(
        source=" and ".join(kinds) if groups is not None else "scalar curves",
        groups=groups,
        curves=stock.curves,
        reward_range=reading.reward_range if groups is not None else (0.0, 1.0),
        has_steps=groups is None or reading.has_steps,
        notes=tally.sentences(),
    )


class _Reading:
    """Groups as they come from one source after the other."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._prompts, self._grouper = tally, PromptTable(), Grouper()
        self._low, self._high = np.inf, -np.inf
        self._has_counts = self._has_marks = False

    @property
    def has_steps(self) -> bool:
        """Whether steps were recorded, once all is read."""
        return self._grouper.has_steps

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward seen; 0 and 1 are in it where successes were counted."""
        ends = (0.0, 1.0) if self._has_counts else (self._low, self._high)
        return float(min(self._low, ends[0])), float(max(self._high, ends[1]))

    def add(self, source: Source, components: trl.Components | None) -> None:
        """Read one table."""
        columns, chunks = _with_steps(source, self._tally)
        has_step = columns.step is not None or source.step is not None
        self._grouper.start_file(source.name, has_step=has_step)
        for chunk in chunks:
            part_R = self._parts(chunk, source, columns, components)
            if columns.step is None and source.step is not None:
                part_R["step"] = source.step
            scored_R = part_R["num_rollouts"] > 0
            self._low = min(self._low, part_R["reward_low"][scored_R].min(initial=np.inf))
            self._high = max(self._high, part_R["reward_high"][scored_R].max(initial=-np.inf))
            self._grouper.add(part_R)
        self._has_counts |= columns.num_success is not None
        if columns.step is None and source.step is not None:
            self._tally.say("Steps are W&B's own count, from the names of the tables.")

    def _parts(
        self, chunk: Chunk, source: Source, columns: Columns, components: trl.Components | None
    ) -> PartArray:
        mark_R = None
        if columns.reward == trl.TOTAL and components is not None:
            chunk = chunk | {trl.TOTAL: components.reward(chunk).tolist()}
            if len(components.names) > 1:
                mark_R, self._has_marks = components.mark(chunk), True
        if source.kind == VERL and columns.group == "uid":
            chunk = verl.one_group_a_uid(chunk, self._tally, source.name)
        return parts_of(chunk, columns, self._prompts, self._tally, source.name, mark_R=mark_R)

    def finish(self) -> GroupTable | None:
        """Return the groups, and say what could not be kept."""
        groups = self._grouper.finish(self._prompts, self._tally, has_marks=self._has_marks)
        if self._prompts.num_without_text:
            self._tally.say(
                f"The words of {self._prompts.num_without_text:,} prompts were not kept: all "
                "others together have 256 MB already."
            )
        return groups


def _with_steps(source: Source, tally: Tally) -> tuple[Columns, Iterator[Chunk]]:
    """Return columns without a step that no row of the beginning has, and the chunks."""
    wanted = [name for name in source.columns.named if name != trl.TOTAL]
    if source.columns.reward == trl.TOTAL:
        wanted += [name for name in source.table.names if name not in {*wanted, "completion"}]
    if source.columns.step is None:
        return source.columns, source.table.chunks(wanted, tally)
    first: Chunk = next(source.table.chunks([source.columns.step], Tally()), {})
    if np.isfinite(numbers(first.get(source.columns.step, []))).any():
        return source.columns, source.table.chunks(wanted, tally)
    return replace(source.columns, step=None), source.table.chunks(wanted, tally)


def _prepared(stock: Inventory, tally: Tally) -> tuple[list[Source], trl.Components | None]:
    """Return the sources without what TRL wrote twice or at evaluations, and how rewards add up."""
    summed = [one for one in stock.sources if one.columns.reward == trl.TOTAL]
    if not summed:
        return stock.sources, None
    left_out: set[Path] = set()
    evaluated = _evaluation_steps(stock.curves)
    names: dict[str, None] = {}
    chunks: list[Chunk] = []
    steps: list[int] = []
    before = ""
    for source in summed:
        parts = list(islice(source.table.chunks(source.table.names, Tally()), 2))
        if not parts:
            continue
        here = set(whole_steps(parts[0]["step"]).tolist())
        mark = trl.fingerprint(parts[0]) if len(parts) == 1 and len(here) == 1 else ""
        if here and here <= evaluated:
            tally.add("files", "hold completions of an evaluation and were left out", source.name)
            left_out.add(source.table.path)
        elif mark and mark == before:
            what = "repeat the batch before (it was used for several steps) and were left out"
            tally.add("files", what, source.name)
            left_out.add(source.table.path)
        else:
            steps += sorted(here)
            names |= dict.fromkeys(trl.reward_names(source.table.names, parts[0]))
            if sum(len(one["step"]) for one in chunks) < trl.FITTED_ROWS:
                chunks.append({name: parts[0][name] for name in parts[0] if name != "completion"})
        before = mark
    told = {name for name in names if f"rewards/{name}/mean" in stock.curves}
    components = trl.find_components([name for name in names if name in (told or names)], chunks)
    if components.sentence:
        tally.say(components.sentence)
    trl.say_gaps(steps, tally)
    return [one for one in stock.sources if one.table.path not in left_out], components


def _evaluation_steps(curves: dict[str, Curve]) -> set[int]:
    """Return where TRL evaluated: it then writes the same file again, with other completions."""
    found: set[int] = set()
    for name, curve in curves.items():
        if name.startswith("eval_"):
            found |= set(curve.step_T[np.isfinite(curve.value_T)].tolist())
    return found


def _own_run(stock: Inventory, tally: Tally) -> Recording:
    if len(stock.runs) > 1 or stock.sources:
        names = [str(run) for run in stock.runs] + [str(one.table.path) for one in stock.sources]
        raise InvalidInputError(
            f"There are several runs here: {listed(names)}. Give one of them at a time."
        )
    recording = read_run_folder(stock.runs[0])
    return replace(recording, notes=(*recording.notes, *tally.sentences()))


def _say_rest(stock: Inventory, tally: Tally) -> None:
    for error in stock.problems:
        tally.say(first_line(error))
    for file in stock.others:
        what = "hold neither rollouts nor scalars of a run and were left out"
        tally.add("files", what, file.name)


def _refuse(paths: Sequence[Path], stock: Inventory, columns: Columns, tally: Tally) -> NoReturn:
    """Raise with what was found, and what would help."""
    here = listed([str(path) for path in paths])
    missing = next((one for one in stock.problems if isinstance(one, MissingExtraError)), None)
    if missing is not None and not stock.sources:
        raise missing
    if stock.sources:
        source = stock.sources[0]
        why = " ".join(tally.counted())
        raise InvalidInputError(
            f"{here}: no row can be used. {source.name} has {_names(source.table.names)}. {why} "
            f"Name columns with {_FLAGS}."
        )
    if stock.tables:
        table = stock.tables[0]
        named = f" (asked for: {listed(list(columns.named))})" if columns.named else ""
        raise InvalidInputError(
            f"{here}: no table has both a prompt and rewards, or counts k of n{named}. "
            f"{table.path.name} has {_names(table.names)}. Name columns with {_FLAGS}."
        )
    if stock.problems:
        raise stock.problems[0]
    if not stock.others or all(path.is_file() and not path.stat().st_size for path in stock.others):
        raise InvalidInputError(f"{here}: there is nothing in it. {_expected()}")
    raise InvalidInputError(
        f"{here}: there is no table and no scalar log of a run. "
        f"{listed([path.name for path in stock.others])} cannot be used. {_expected()}"
    )


def _expected() -> str:
    return (
        "Give rollouts as JSON lines, CSV or Parquet with a prompt and a reward (columns are named "
        f"with {_FLAGS}), TRL's output folder, verl's rollout_data_dir, or a scalar log."
    )


def _names(names: Sequence[str]) -> str:
    short = [name[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
    more = f" and {len(names) - len(short):,} more" if len(names) > len(short) else ""
    return f"the columns {', '.join(short)}{more}"
