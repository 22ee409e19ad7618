"""``apportion allocate``: success rates or counts in, rollouts of each prompt out."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from apportion import validate
from apportion.allocation import allocate
from apportion.allocator import OBJECTIVES
from apportion.errors import InvalidInputError
from apportion.gain import Coverage, Gain, Progress
from apportion.gradient_variance import LAWS
from apportion.selection import select
from apportion.tokens import allocate_tokens
from apportion.types import Forecast

_COLUMN_OF = {
    "id": "id",
    "prompt": "id",
    "success": "success",
    "doubt": "doubt",
    "num_success": "num_success",
    "successes": "num_success",
    "num_rollouts": "num_rollouts",
    "attempts": "num_rollouts",
    "tokens": "tokens",
}
_LONGEST_TABLE = 40
_SHOWN_AT_EACH_END = 10
_EXAMPLE = "echo '[0.1, 0.5, 0.9]' | apportion allocate --budget 24"


def allocate_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSON or CSV with `success` (and perhaps `doubt`, its variance), or with counts "
            "`num_success` and `num_rollouts` (also `successes`, `attempts`), and perhaps `id` "
            "and `tokens`; a bare JSON list; or one number a line. Standard input if left out.",
        ),
    ] = None,
    *,
    budget: Annotated[int | None, typer.Option(help="Rollouts in all, spent exactly.")] = None,
    token_budget: Annotated[
        float | None,
        typer.Option(
            help="Tokens in all, instead of rollouts; `tokens` of the input are those of a rollout."
        ),
    ] = None,
    lower: Annotated[int, typer.Option(help="Fewest rollouts of a prompt.")] = 2,
    upper: Annotated[
        int | None, typer.Option(help="Most rollouts of a prompt; the budget if left out.")
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="variance: all prompts get some, for the least noise; progress or coverage: those "
            "that teach most, others get 0."
        ),
    ] = "variance",
    variance: Annotated[
        str, typer.Option(help=f"Law of gradient variance: {', '.join(LAWS)}.")
    ] = "rloo",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Split a budget over prompts so that the gradient is least noisy, or the gain largest.

    Counts are read as evidence on a flat prior, Beta(1, 1): 3 of 4 becomes Beta(4, 2).
    """
    columns = read_columns(_read(file))
    forecast = forecast_of(columns)
    ids = columns.get("id", range(len(forecast)))
    if len(ids) != len(forecast):
        raise InvalidInputError(f"id has {len(ids)} values, but there are {len(forecast)} prompts.")
    validate.choice("objective", objective, OBJECTIVES)
    if objective != "variance" and variance != "rloo":
        raise InvalidInputError(f"--variance {variance} belongs to --objective variance alone.")
    if token_budget is not None:
        found = _by_tokens(
            columns, forecast, token_budget, budget, objective, variance, lower, upper
        )
    elif budget is None:
        raise InvalidInputError("There is no budget. Give --budget, or --token-budget.")
    elif objective == "variance":
        found = _by_variance(forecast, budget, variance, lower, upper)
    else:
        found = _by_gain(forecast, budget, objective, lower, upper)
    if as_json:
        print(json.dumps(found.content))
    else:
        _print_table([str(key) for key in ids], forecast, found)


class _Answer(NamedTuple):
    """What is printed: JSON with `num_rollouts`, or a table that closes with a verdict."""

    content: dict[str, Any]
    verdict: str


def _by_variance(
    forecast: Forecast, budget: int, variance: str, lower: int, upper: int | None
) -> _Answer:
    found = allocate(forecast, budget, variance=variance, lower=lower, upper=upper)
    saved = 100.0 * (1.0 - found.variance_ratio)
    content = {
        "num_rollouts": found.num_rollouts_B.tolist(),
        "price": found.price,
        "variance": found.variance,
        "uniform_variance": found.uniform_variance,
        "variance_ratio": found.variance_ratio,
    }
    return _Answer(content, f"{saved:.1f}% less gradient variance than an even split.")


def _by_gain(
    forecast: Forecast, budget: int, objective: str, lower: int, upper: int | None
) -> _Answer:
    gain: Gain = Progress.of(forecast) if objective == "progress" else Coverage(forecast)
    found = select(gain, budget, size=len(forecast), lower=lower, upper=upper)
    content = {
        "num_rollouts": found.num_rollouts_B.tolist(),
        "price": found.price,
        "gain": found.gain,
        "bound": found.bound,
        "gap": found.gap,
    }
    return _Answer(
        content,
        f"{np.count_nonzero(found.num_rollouts_B):,} chosen, an expected gain of "
        f"{found.gain:.4g}, at most {100.0 * found.gap:.2g}% below the largest possible.",
    )


def _by_tokens(
    columns: Mapping[str, Sequence[Any]],
    forecast: Forecast,
    token_budget: float,
    budget: int | None,
    objective: str,
    variance: str,
    lower: int,
    upper: int | None,
) -> _Answer:
    if budget is not None or objective != "variance":
        raise InvalidInputError(
            "--token-budget stands instead of --budget, and with --objective variance alone."
        )
    if "tokens" not in columns:
        raise InvalidInputError(
            "--token-budget needs tokens in the input: what one rollout of each prompt takes."
        )
    found = allocate_tokens(
        forecast, token_budget, columns["tokens"], variance=variance, lower=lower, upper=upper
    )
    content = {
        "num_rollouts": found.num_rollouts_B.tolist(),
        "price": found.price,
        "variance": found.variance,
        "bound": found.bound,
        "gap": found.gap,
        "num_tokens": found.num_tokens,
        "unspent": found.unspent,
    }
    return _Answer(
        content,
        f"{found.num_tokens:,.0f} of {token_budget:,.0f} tokens, a gradient variance of "
        f"{found.variance:.4g}, at most {100.0 * found.gap:.2g}% of it avoidable.",
    )


def forecast_of(columns: Mapping[str, Sequence[Any]]) -> Forecast:
    """Return the forecast that columns `success` and `doubt`, or counts, stand for.

    Counts s of n on a flat prior: ``m = (s+1) / (n+2)``, ``var = m(1-m) / (n+3)``.

    >>> forecast_of({"num_success": [3], "num_rollouts": [4]}).mean_B
    array([0.66666667])
    """
    has_counts = "num_success" in columns or "num_rollouts" in columns
    if ("success" in columns) == has_counts or ("doubt" in columns and has_counts):
        raise InvalidInputError(
            f"The input has {', '.join(columns) or 'nothing'}. Give either success (and perhaps "
            "doubt) or both num_success and num_rollouts."
        )
    if not has_counts:
        return Forecast.of_success(columns["success"], columns.get("doubt"))
    if not {"num_success", "num_rollouts"} <= columns.keys():
        raise InvalidInputError(
            "num_success and num_rollouts come together: one of them is missing."
        )
    tried_B = validate.counts("num_rollouts", columns["num_rollouts"])
    solved_B = validate.counts("num_success", columns["num_success"], size=len(tried_B))
    above_i = np.flatnonzero(solved_B > tried_B)
    if above_i.size:
        at = int(above_i[0])
        raise InvalidInputError(
            f"num_success[{at}] is {solved_B[at]}, above num_rollouts[{at}] = {tried_B[at]}."
        )
    mean_B = (solved_B + 1.0) / (tried_B + 2.0)
    return Forecast.of_success(mean_B, mean_B * (1.0 - mean_B) / (tried_B + 3.0))


def read_columns(text: str) -> dict[str, list[Any]]:
    r"""Return the columns of JSON, CSV with a header, or one number a line.

    >>> read_columns("0.1\n0.5")
    {'success': [0.1, 0.5]}
    """
    text = text.strip()
    if not text:
        raise InvalidInputError(f"The input is empty. Give success rates, for example: {_EXAMPLE}")
    if text[0] in "[{":
        return _json_columns(text)
    return _csv_columns(text)


def _json_columns(text: str) -> dict[str, list[Any]]:
    try:
        content = json.loads(text, object_pairs_hook=_without_repeats)
    except InvalidInputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"The input is not valid JSON: {error}.") from error
    if isinstance(content, list):
        content = {"success": content}
    columns = _named(list(content), list(content.values()))
    for name, values in columns.items():
        if not isinstance(values, list):
            raise InvalidInputError(f"{name} must be a list with one value a prompt.")
        for at, value in enumerate(values):
            if name != "id" and isinstance(value, bool | str):
                raise _no_number(name, at, value)
    return columns


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidInputError(f"The input gives {name[:40]!r} twice. Keep one.")
            seen.add(name)
    return content


def _csv_columns(text: str) -> dict[str, list[Any]]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except csv.Error as error:
        raise InvalidInputError(f"The input is not valid CSV: {error}.") from error
    if len(rows[0]) == 1 and _is_number(rows[0][0]):
        rows.insert(0, ["success"])
    header = [name.strip() for name in rows[0]]
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InvalidInputError(
                f"Row {line} has {len(row)} values, but the header has {len(header)}."
            )
    columns = _named(header, [[row[at] for row in rows[1:]] for at in range(len(header))])
    for name, values in columns.items():
        if name == "id":
            continue
        for at, value in enumerate(values):
            if not _is_number(value):
                raise _no_number(name, at, value)
        columns[name] = [float(value) for value in values]
    return columns


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if name not in _COLUMN_OF:
            raise InvalidInputError(
                f"The input names {name[:40]!r}, but known are {', '.join(_COLUMN_OF)}. "
                "Without a header give one number a line."
            )
        if _COLUMN_OF[name] in columns:
            raise InvalidInputError(f"The input gives {_COLUMN_OF[name]} twice. Keep one.")
        columns[_COLUMN_OF[name]] = value
    return columns


def _no_number(name: str, at: int, value: object) -> InvalidInputError:
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
    return InvalidInputError(f"{name} must be numbers, but {name}[{at}] is {shown}.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read(file: Path | None) -> str:
    if file is None or str(file) == "-":
        if sys.stdin is None or sys.stdin.isatty():  # None: it was closed
            raise InvalidInputError(f"No input. Name a file or pipe numbers in: {_EXAMPLE}")
        try:
            name, content = "Standard input", sys.stdin.buffer.read()
        except OSError as error:
            raise InvalidInputError(f"Standard input cannot be read: {error.strerror}.") from error
    else:
        try:
            name, content = str(file), file.read_bytes()
        except OSError as error:
            raise InvalidInputError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{name} is not UTF-8 text (byte {error.start}). Save it as JSON or CSV in UTF-8."
        ) from error


def _print_table(ids: Sequence[str], forecast: Forecast, found: _Answer) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("prompt", overflow="ellipsis", no_wrap=True)
    table.add_column("success", justify="right", no_wrap=True, min_width=7)
    table.add_column("rollouts", justify="right", no_wrap=True, min_width=8)
    num_rollouts, size = found.content["num_rollouts"], len(forecast)
    cut = size > _LONGEST_TABLE
    for at in range(size):
        if cut and at == _SHOWN_AT_EACH_END:
            table.add_row(f"... {size - 2 * _SHOWN_AT_EACH_END:,} more", "", "")
        if cut and _SHOWN_AT_EACH_END <= at < size - _SHOWN_AT_EACH_END:
            continue
        table.add_row(Text(ids[at]), f"{forecast.mean_B[at]:.3g}", str(num_rollouts[at]))
    console = Console()
    console.print(table)
    total = f"{sum(num_rollouts):,} rollouts over {size:,} prompts: "
    console.print(total + found.verdict, highlight=False)
