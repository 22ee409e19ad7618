"""Guessed columns that the rows do not bear out: ids of rollouts, and names of data sets.

A group is what shares a step and a group id (or a prompt). A guess that leaves nearly every row
alone, where prompts come again, is an id of rollouts; a group that mixes prompts is a category.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from apportion.readers import verl
from apportion.readers.columns import Columns, other_prompts
from apportion.readers.rollouts import Chunk
from apportion.readers.tabular import Table
from apportion.readers.tally import Tally

JUDGED_ROWS = 20_000
_MOST_SINGLE, _FEW_SINGLE = 0.9, 0.5
_MOST_MIXED = 0.05


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as words by column; absent columns are empty words."""

    chunk: Chunk
    size: int

    def words(self, name: str | None) -> list[str]:
        """Return a column; empty words for one that is not there."""
        return list(map(str, self.chunk.get(name or "", [""] * self.size)))

    def share_single(self, step: str | None, name: str | None) -> float:
        """Return the share of groups by this column that have one row."""
        count = Counter(zip(self.words(step), self.words(name), strict=True))
        return sum(one == 1 for one in count.values()) / max(1, len(count))

    def share_mixed(self, step: str | None, group: str | None, prompt: str | None) -> float:
        """Return the share of groups by this column that name several prompts."""
        groups = zip(self.words(step), self.words(group), strict=True)
        prompts: dict[tuple[str, str], set[str]] = {}
        for one, name in zip(groups, self.words(prompt), strict=True):
            prompts.setdefault(one, set()).add(name)
        return sum(len(one) > 1 for one in prompts.values()) / max(1, len(prompts))


def judged(
    tables: Sequence[Table], columns: Columns, named: Columns, tally: Tally, *, is_verl: bool
) -> Columns:
    """Return the columns without guesses that the first rows contradict.

    Args:
        tables: tables with these columns; the first rows of the first ones are read.
        columns: what was chosen.
        named: what the user named; that stays.
        tally: takes what was not used.
        is_verl: whether verl wrote them: its uid is a group, even if prompts differ by turn.
    """
    if columns.num_success is not None or (named.prompt and (named.group or not columns.group)):
        return columns
    others = [] if named.prompt else other_prompts(tables[0].names, columns)
    if columns.group in (None, columns.prompt) and not others:
        return columns
    rows = _first_rows(tables, [*columns.named, *others], is_verl=is_verl and named.group is None)
    if any(word[:1] in "[(" for word in rows.words(columns.reward) if word):
        return columns
    columns = _with_prompt(columns, others, rows, tally)
    return _with_group(columns, named, rows, tally, is_verl=is_verl)


def _first_rows(tables: Sequence[Table], wanted: Sequence[str], *, is_verl: bool) -> _Rows:
    names = [name for name in dict.fromkeys(wanted) if name in tables[0].names]
    rows: Chunk = {name: [] for name in names}
    size = 0
    for chunk in chain.from_iterable(table.chunks(names, Tally()) for table in tables):
        if is_verl and "uid" in chunk:
            chunk = verl.one_group_a_uid(chunk, Tally(), "")
        for name in names:
            rows[name] += chunk[name]
        size = len(rows[names[0]])
        if size >= JUDGED_ROWS:
            break
    return _Rows(rows, size)


def _with_prompt(columns: Columns, others: list[str], rows: _Rows, tally: Tally) -> Columns:
    if rows.share_single(columns.step, columns.prompt) <= _MOST_SINGLE:
        return columns
    for other in others:
        if rows.share_single(columns.step, other) < _FEW_SINGLE:
            tally.say(
                f"{columns.prompt} differs with nearly every row: {other} was taken for the prompt."
            )
            group = None if columns.group == columns.prompt else columns.group
            text = None if columns.text == other else columns.text
            return replace(columns, prompt=other, group=group, text=text)
    return columns


def _with_group(
    columns: Columns, named: Columns, rows: _Rows, tally: Tally, *, is_verl: bool
) -> Columns:
    group, prompt, step = columns.group, columns.prompt, columns.step
    if group in (None, prompt) or named.group is not None:
        return columns
    single = rows.share_single(step, prompt)
    if rows.share_single(step, group) > _MOST_SINGLE and single < _FEW_SINGLE:
        why = "differs with nearly every row"
    elif (
        not is_verl
        and single <= _MOST_SINGLE
        and rows.share_mixed(step, group, prompt) > _MOST_MIXED
    ):
        why = "holds several prompts a group"
    else:
        return columns
    tally.say(f"{group} {why} and was not used: rows of one {prompt} at a step are a group.")
    return replace(columns, group=None)
