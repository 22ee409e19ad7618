"""Where the JSON of an audit may go: never over what is audited, nor over anything else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from apportion.errors import InvalidInputError

FORMAT = "apportion-audit"


def check_out(out: Path, paths: Sequence[Path]) -> None:
    """Raise unless writing `out` destroys nothing but an earlier audit.

    Args:
        out: file for the JSON.
        paths: what is audited, files and folders.

    Raises:
        InvalidInputError: `out` is audited, lies in a folder that is, or is another file.
    """
    for path in paths:
        if _is_within(out, path):
            raise InvalidInputError(
                f"--out {out} would write into what is audited, {path}. Name a file elsewhere."
            )
    if out.is_dir():
        raise InvalidInputError(f"--out {out} is a folder. Name a file in it.")
    for file in (out, out.with_name(f"{out.name}.tmp")):  # `replace_file` writes both
        if (file.exists() or file.is_symlink()) and not _is_audit(file):
            raise InvalidInputError(
                f"--out {out} would overwrite {file}, which is no audit. Name another file."
            )


def _is_within(out: Path, path: Path) -> bool:
    try:
        if out.resolve().is_relative_to(path.resolve()):
            return True
        return out.exists() and path.exists() and out.samefile(path)
    except (OSError, RuntimeError):  # a loop of links, or a folder that cannot be entered
        return False


def _is_audit(path: Path) -> bool:
    """Return whether a file is an earlier audit; a device is never read."""
    try:
        if not path.is_file():
            return False
        answer = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and answer.get("format") == FORMAT
