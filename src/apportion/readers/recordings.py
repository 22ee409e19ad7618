"""The one door: any paths of a run in, one `Recording` out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from apportion.errors import InvalidInputError, first_line
from apportion.readers import trl, verl
from apportion.readers.binary_columns import BinaryColumns, binary_names
from apportion.readers.columns import INDEX, Columns, is_mere_id
from apportion.readers.grouping import Grouper
from apportion.readers.inventory import VERL, Inventory, Source, take_stock
from apportion.readers.judged_columns import judged
from apportion.readers.own_run import read_own_run
from apportion.readers.prompts import PromptTable
from apportion.readers.refusals import refusal
from apportion.readers.reward_range import RewardRange
from apportion.readers.rollouts import Chunk, PartArray, parts_of, whole_steps
from apportion.readers.step_names import has_steps, with_numbers
from apportion.readers.tabular import Table
from apportion.readers.tally import Tally
from apportion.recording import Curve, GroupTable, Recording


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
        return read_own_run(paths, stock, tally)
    reading = _Reading(tally, columns)
    sources, components = _prepared(stock, tally)
    for source in _judged(sources, columns, tally):
        reading.add(source, components)
    groups = reading.finish()
    if groups is not None and not groups.num_rollouts_G.any():
        groups = None
    is_asked = columns.named and stock.tables and not stock.sources
    if groups is None and (is_asked or not stock.curves):
        raise refusal(paths, stock, columns, tally)
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

    def __init__(self, tally: Tally, named: Columns) -> None:
        self._tally, self._named = tally, named
        self._prompts, self._grouper, self._binary = PromptTable(), Grouper(tally), BinaryColumns()
        self._rewards = RewardRange()
        self._has_counts = self._has_marks = False

    @property
    def has_steps(self) -> bool:
        """Whether steps were recorded, once all is read."""
        return self._grouper.has_steps

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward seen; 0 and 1 are in it where successes were counted."""
        low, high = self._rewards.ends
        return (min(low, 0.0), max(high, 1.0)) if self._has_counts else (low, high)

    def add(self, source: Source, components: trl.Components | None) -> None:
        """Read one table."""
        binary = self._binary_names(source, components)
        columns, chunks = _with_steps(source, binary, self._named, self._tally)
        has_step = columns.step is not None or source.step is not None
        self._grouper.start_file(source.table.path, has_step=has_step)
        for chunk in chunks:
            part_R = self._parts(chunk, source, columns, components, binary)
            if columns.step is None and source.step is not None:
                part_R["step"] = source.step
            self._rewards.add(part_R)
            self._grouper.add(part_R)
        self._has_counts |= columns.num_success is not None
        if columns.step is None and source.step is not None:
            self._tally.say("Steps are W&B's own count, from the names of the tables.")
        if self._named.prompt is None and is_mere_id(columns.prompt, (INDEX,)):
            self._tally.say(
                f"{columns.prompt} was taken for the prompt, since it comes again; if it is not, "
                "name another column with --prompt-column."
            )

    def _binary_names(self, source: Source, components: trl.Components | None) -> list[str]:
        """Return the columns that may be what a shaped reward is about; none if one was named."""
        if self._named.reward is not None or source.columns.reward is None:
            return []
        found = binary_names(source.table.names, source.columns.reward)
        if source.columns.reward == trl.TOTAL and components is not None:
            parts = components.names if len(components.names) > 1 else ()
            found = [*parts, *(one for one in found if one not in components.names)]
        return [name for name in found if name in source.table.names]

    def _parts(
        self,
        chunk: Chunk,
        source: Source,
        columns: Columns,
        components: trl.Components | None,
        binary: list[str],
    ) -> PartArray:
        mark_R = None
        if columns.reward == trl.TOTAL and components is not None:
            chunk = chunk | {trl.TOTAL: components.reward(chunk).tolist()}
            if len(components.names) > 1:
                mark_R, self._has_marks = components.mark(chunk), True
        if source.kind == VERL and columns.group == "uid":
            chunk = verl.one_group_a_uid(chunk, self._tally, source.name)
        part_R = parts_of(chunk, columns, self._prompts, self._tally, source.name, mark_R=mark_R)
        self._binary.add(chunk, binary, part_R)
        return part_R

    def finish(self) -> GroupTable | None:
        """Return the groups, and say what could not be kept."""
        groups = self._grouper.finish(self._prompts, has_marks=self._has_marks)
        self._binary.say(self._tally)
        self._rewards.say(self._tally)
        if self._prompts.num_without_text:
            self._tally.say(
                f"The words of {self._prompts.num_without_text:,} prompts were not kept: all "
                "others together have 256 MB already."
            )
        return groups


def _with_steps(
    source: Source, binary: Sequence[str], named: Columns, tally: Tally
) -> tuple[Columns, Iterator[Chunk]]:
    """Return columns without a step that no row has, and the chunks, a rollout or a group a row.

    Raises:
        InvalidInputError: the user named the step, and no row has one.
    """
    table, columns = source.table, source.columns
    if columns.step is not None:
        step = columns.step
        is_step, example = has_steps(table.chunks([step], Tally()), step)
        if not is_step and named.step is not None:
            seen = f" ({example!r})" if example else ""
            raise InvalidInputError(
                f"Column {step} of {source.name} holds no steps{seen}. Name one of whole numbers "
                "with --step-column."
            )
        if not is_step and example:
            tally.say(f"Column {step} holds no whole numbers ({example!r}) and was not used.")
        if not is_step:
            columns = replace(columns, step=None)
    return columns, _rows(source, columns, binary, tally)


def _rows(source: Source, columns: Columns, binary: Sequence[str], tally: Tally) -> Iterator[Chunk]:
    table, is_summed = source.table, columns.reward == trl.TOTAL
    wanted = [name for name in columns.named if name != trl.TOTAL]
    wanted += [name for name in binary if name not in wanted]
    if is_summed:
        wanted += [name for name in table.names if name not in {*wanted, "completion"}]
    turns = None
    if verl.TRAJECTORY in table.names and columns.prompt is not None:
        wanted = [*dict.fromkeys([*wanted, verl.TRAJECTORY])]
        ends = table.chunks([verl.TRAJECTORY, columns.prompt], Tally())
        turns = verl.LastTurns(ends, columns.prompt)
    for chunk in table.chunks(wanted, tally):
        rows = chunk if turns is None else turns.of(chunk)
        yield rows if columns.step is None else with_numbers(rows, columns.step)
    if turns is not None:
        turns.say(source.name, tally)


def _judged(sources: Sequence[Source], named: Columns, tally: Tally) -> list[Source]:
    """Return the sources without guessed columns that their rows contradict."""
    alike: dict[tuple[tuple[str, ...], str, Columns], list[Table]] = {}
    keys = [(one.table.names, one.kind, one.columns) for one in sources]
    for key, one in zip(keys, sources, strict=True):
        alike.setdefault(key, []).append(one.table)
    found = {
        key: judged(
            tables,
            key[2],
            named,
            tally,
            is_verl=key[1] == VERL or verl.TRAJECTORY in key[0],
        )
        for key, tables in alike.items()
    }
    return [replace(one, columns=found[key]) for key, one in zip(keys, sources, strict=True)]


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


def _say_rest(stock: Inventory, tally: Tally) -> None:
    for error in stock.problems:
        tally.say(f"{first_line(error)}.")
    for file in stock.others:
        what = "hold neither rollouts nor scalars of a run and were left out"
        tally.add("files", what, file.name)
