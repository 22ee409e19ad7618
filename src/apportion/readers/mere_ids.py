"""Ids that may number prompts or rollouts: the first rows of a table tell."""

from __future__ import annotations

from collections.abc import Sequence

from apportion.readers.columns import INDEX, Columns, choose, is_mere_id
from apportion.readers.tabular import Chunk, Table
from apportion.readers.tally import Tally


def choose_by_rows(table: Table, names: Sequence[str], wanted: Columns) -> Columns | None:
    """Return the columns to read, as `choose` does, without ids that the rows do not bear out.

    Args:
        table: its first rows are read if an id was guessed for the prompt.
        names: its columns.
        wanted: what the user named.
    """
    chosen = choose(names, wanted)
    while chosen is not None and wanted.prompt is None and is_mere_id(chosen.prompt):
        if _tells_prompts(table, chosen):
            break
        names = [name for name in names if name != chosen.prompt]
        chosen = choose(names, wanted)
    return chosen


def _tells_prompts(table: Table, columns: Columns) -> bool:
    """Return whether an id is the same within each group, and an index comes again.

    An index of rows that are rollouts comes again within a step; of groups, at another step.
    """
    is_index = is_mere_id(columns.prompt, (INDEX,))
    if columns.group is None and not is_index:
        return True
    first: Chunk = next(table.chunks(columns.named, Tally()), {})
    size = len(first.get(columns.prompt or "", []))
    ids, steps, groups, rewards = (
        list(map(str, first.get(name or "", [""] * size)))
        for name in (columns.prompt, columns.step, columns.group, columns.reward)
    )
    visits = list(zip(steps, ids, strict=True))
    if is_index:
        is_groups = columns.num_success is not None or any(one[:1] == "[" for one in rewards)
        again = ids if is_groups else visits
        if len(set(again)) == len(again):
            return False
    pairs = set(zip(steps, groups, strict=True))
    return columns.group is None or len(set(zip(visits, groups, strict=True))) == len(pairs)
