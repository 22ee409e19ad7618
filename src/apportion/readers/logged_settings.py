"""The settings of a run that a log of scalars does not hold, where trainers leave them otherwise.

TRL saves its arguments as ``training_args.bin``. It is a pickle, which might do anything if it were
loaded, so that it is not: its instructions are read as text, and a name followed by a number or a
word is taken as a setting. verl prints its configuration at the start of a console log, and the
command that began it may stand there too.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from apportion.readers.found_runs import allocator_of, rate, whole
from apportion.readers.text_lines import head_bytes

_ARGUMENTS = "training_args.bin"
_LARGEST = 2**24
_BROKEN = (zipfile.BadZipFile, zlib.error)
_NAMES = frozenset(
    (
        *("num_generations", "generation_batch_size", "steps_per_generation", "num_iterations"),
        *("gradient_accumulation_steps", "seed", "learning_rate"),
        *("allocator_mode", "objective", "candidates"),
    )
)
_CONSOLE_HEAD = 2**20
"""Bytes of a console log in which the configuration must stand."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"^\([\w.:]+ pid=\d+(?:, ip=[\d.]+)?\) ?", re.MULTILINE)
_BRACES = re.compile(r"'(?:[^'\\\n]|\\.)*'|[{}]")
_OVERRIDES = {
    "n": r"actor_rollout_ref\.rollout\.n=(\d+)",
    "train_batch_size": r"data\.train_batch_size=(\d+)",
    "gen_batch_size": r"data\.gen_batch_size=(\d+)",
    "lr": r"actor_rollout_ref\.actor\.optim\.lr=([\d.eE+-]+)",
    "seed": r"data\.seed=(\d+)",
    "enable": r"algorithm\.filter_groups\.enable=(\w+)",
}
_PRINTED = {
    "n": ("rollout", r"'n': (\d+)"),
    "train_batch_size": ("data", r"'train_batch_size': (\d+)"),
    "gen_batch_size": ("data", r"'gen_batch_size': (\d+)"),
    "lr": ("optim", r"'lr': ([\d.eE+-]+)"),
    "seed": ("data", r"'seed': (\d+)"),
    "enable": ("filter_groups", r"'enable': (\w+)"),
}
"""Under which dictionary of verl's configuration a setting stands."""


def trl_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run of TRL, by apportion's names; empty if they are not there.

    A step of the trainer is an update; it takes ``generation_batch_size x
    gradient_accumulation_steps / (steps_per_generation x num_iterations)`` new rollouts.

    Args:
        folder: output folder of the run, or one of its checkpoints.

    Returns:
        What is known of ``rollouts_per_prompt``, ``prompts_per_step``, ``rollouts_per_step``,
        ``seed``, ``learning_rate``, ``allocator``.
    """
    places = [folder / _ARGUMENTS, *sorted(folder.glob(f"checkpoint-*/{_ARGUMENTS}"))]
    told: Mapping[str, Any] = {}
    for path in places:
        told = told or (_arguments(path) if path.is_file() else {})
    if not told:
        return {}
    n, batch = whole(told.get("num_generations")), whole(told.get("generation_batch_size"))
    accumulated = whole(told.get("gradient_accumulation_steps")) or 1
    per_generation = whole(told.get("steps_per_generation")) or accumulated
    found: dict[str, Any] = {
        "rollouts_per_prompt": n,
        "seed": told.get("seed"),
        "learning_rate": rate(told.get("learning_rate")),
        "allocator": allocator_of(told),
    }
    if n is not None and batch is not None:
        of_update = batch * accumulated / per_generation
        found["prompts_per_step"] = max(round(of_update / n), 1)
        found["rollouts_per_step"] = of_update / (whole(told.get("num_iterations")) or 1)
    return found


def verl_settings(log: Path) -> dict[str, Any]:
    """Return the settings of a run of verl, by apportion's names, as its console log tells them.

    Returns:
        What is known of ``rollouts_per_prompt``, ``prompts_per_step``, ``prompts_per_round`` (of
        dynamic sampling), ``seed``, ``learning_rate``, ``is_filtered``.
    """
    text = head_bytes(log, _CONSOLE_HEAD).decode("utf-8", "replace").replace("\r", "\n")
    text = _RAY.sub("", _COLOUR.sub("", text))
    told = {name: _override(text, name) or _printed(text, name) for name in _OVERRIDES}
    number = {name: _number(value) for name, value in told.items()}
    found = {
        "rollouts_per_prompt": whole(number["n"]),
        "prompts_per_step": whole(number["train_batch_size"]),
        "prompts_per_round": whole(number["gen_batch_size"]) or whole(number["train_batch_size"]),
        "seed": None if number["seed"] is None else int(number["seed"]),
        "learning_rate": rate(number["lr"]),
        "is_filtered": str(told["enable"]).lower() == "true" or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _arguments(path: Path) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(path) as file:
            inside = next(one for one in file.infolist() if one.filename.endswith("/data.pkl"))
            content = file.read(inside) if inside.file_size <= _LARGEST else b""
        return dict(_pairs(content))
    except (OSError, EOFError, RuntimeError, StopIteration, ValueError, *_BROKEN):
        return {}


def _pairs(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield each known name with the value that stands behind it, nothing being executed."""
    memo: dict[Any, Any] = {}
    last: Any = None
    for operation, argument, _ in pickletools.genops(content):
        kind = operation.name
        if kind.endswith("PUT"):
            memo[argument] = last
            continue
        if kind == "MEMOIZE":
            memo[len(memo)] = last
            continue
        value = memo.get(argument) if kind.endswith("GET") else argument
        if isinstance(last, str) and last in _NAMES:
            yield last, value
        last = value


def _override(text: str, name: str) -> str | None:
    """Return what the command line set, the last of several."""
    found = re.findall(rf"(?<![\w.]){_OVERRIDES[name]}", text)
    return found[-1] if found else None


def _printed(text: str, name: str) -> str | None:
    inside, pattern = _PRINTED[name]
    for begin in re.finditer(rf"'{inside}': {{", text):
        found = re.search(pattern, _flat(text, begin.end()))
        if found:
            return found[1]
    return None


def _flat(text: str, start: int) -> str:
    """Return what a printed dictionary holds itself, without the dictionaries in it."""
    parts, depth, at = [], 1, start
    for match in _BRACES.finditer(text, start):
        if match[0] not in "{}":
            continue
        if depth == 1:
            parts.append(text[at : match.start()])
        depth += 1 if match[0] == "{" else -1
        at = match.end()
        if not depth:
            break
    return "".join(parts)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
