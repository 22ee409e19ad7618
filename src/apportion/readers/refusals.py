"""Why nothing could be read: what was found, what is missing, and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from apportion.errors import ApportionError, InvalidInputError, MissingExtraError
from apportion.readers.columns import Columns, choose, guess, is_mere_id
from apportion.readers.inventory import Inventory
from apportion.readers.tabular import Table
from apportion.readers.tally import Tally, listed

_FLAGS = (
    "--prompt-column, --reward-column, --step-column, --group-column, --num-success-column, "
    "--num-rollouts-column, --tokens-column or --text-column"
)
_MOST_NAMES, _LONGEST_NAME = 12, 40


def refusal(
    paths: Sequence[Path], stock: Inventory, columns: Columns, tally: Tally
) -> ApportionError:
    """Return the error that says what was found instead of groups and curves."""
    if stock.tables and columns.named and not stock.sources:
        return InvalidInputError(_of_table(_nearest(stock.tables, columns), columns))
    missing = next((one for one in stock.problems if isinstance(one, MissingExtraError)), None)
    if missing is not None and not stock.sources:
        return missing
    here = listed([str(path) for path in paths])
    if stock.sources:
        source = stock.sources[0]
        why = " ".join(tally.counted())
        return InvalidInputError(
            f"{here}: no row can be used. {source.name} has {_names(source.table.names)}. {why} "
            f"Name columns with {_FLAGS}."
        )
    if stock.problems:
        return stock.problems[0]
    if stock.tables:
        return InvalidInputError(_of_table(_nearest(stock.tables, columns), columns))
    if not stock.others or all(path.is_file() and not path.stat().st_size for path in stock.others):
        return InvalidInputError(f"{here}: there is nothing in it. {_expected()}")
    return InvalidInputError(
        f"{here}: there is no table and no scalar log of a run. "
        f"{listed([path.name for path in stock.others])} cannot be used. {_expected()}"
    )


def _nearest(tables: Sequence[Table], columns: Columns) -> Table:
    """Return the table with most of the named columns, then with most that can be guessed."""

    def merit(table: Table) -> tuple[int, int]:
        named = len(set(columns.named) & set(table.names))
        return named, len(guess(table.names, columns).named)

    return max(tables, key=merit)


def _of_table(table: Table, columns: Columns) -> str:
    """Say of a table which column it lacks, or what was recognised and what was not."""
    file, names = table.path.name, table.names
    absent = [name for name in columns.named if name not in names]
    if absent:
        noun = "column" if len(absent) == 1 else "columns"
        return f"{file} has no {noun} {listed(absent)}; it has {_shown(names)}."
    if choose(names, columns) is not None:  # an id that the rows did not bear out
        names = tuple(name for name in names if not is_mere_id(name))
    found = guess(names, columns)
    said = listed(_recognised(found))
    if found.prompt is None and found.reward is None and found.num_success is None:
        said = f"{said}, but neither" if said else "neither"
        return (
            f"{file}: found {said} prompts nor rewards. It has {_names(table.names)}. Name "
            f"columns with {_FLAGS}."
        )
    used = set(found.named)
    rest = _shown([name for name in table.names if name not in used])
    candidates = f"; candidates: {rest}" if rest else ""
    return f"{file}: found {said}, but {_missing(found)}{candidates}."


def _recognised(found: Columns) -> list[str]:
    said = []
    if found.prompt is not None:
        said.append(f"prompts ({found.prompt})")
    if found.num_success is not None and found.num_rollouts is not None:
        said.append(f"counts ({found.num_success} of {found.num_rollouts})")
    elif found.reward is not None:
        said.append(f"rewards ({found.reward})")
    elif found.num_success is not None:
        said.append(f"successes ({found.num_success})")
    elif found.num_rollouts is not None:
        said.append(f"numbers of rollouts ({found.num_rollouts})")
    if found.step is not None:
        said.append(f"steps ({found.step})")
    return said


def _missing(found: Columns) -> str:
    if found.prompt is None:
        return "no prompt. Name its column with --prompt-column"
    if found.num_success is not None:
        return "not of how many rollouts. Name that column with --num-rollouts-column"
    if found.num_rollouts is not None:
        return "no successes. Name their column with --num-success-column"
    return (
        "no rewards. Name their column with --reward-column, or counts with --num-success-column "
        "and --num-rollouts-column"
    )


def _expected() -> str:
    return (
        "Give rollouts as JSON lines, CSV or Parquet with a prompt and a reward (columns are named "
        f"with {_FLAGS}), TRL's output folder, verl's rollout_data_dir, or a scalar log."
    )


def _names(names: Sequence[str]) -> str:
    return f"the columns {_shown(names)}"


def _shown(names: Sequence[str]) -> str:
    short = [name[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
    more = f" and {len(names) - len(short):,} more" if len(names) > len(short) else ""
    return f"{', '.join(short)}{more}"
