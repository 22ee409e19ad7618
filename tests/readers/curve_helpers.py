"""What the tests of the scalar readers share."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from apportion.errors import ApportionError
from apportion.readers import curves
from apportion.recording import Curve


def read(path: Path) -> tuple[dict[str, Curve], list[str]]:
    """Read what must be a scalar log."""
    found = read_or_leave(path)
    assert found is not None
    return found


def read_or_leave(path: Path) -> tuple[dict[str, Curve], list[str]] | None:
    """Read a path, and check what holds for every scalar log."""
    found = curves.read(path)
    if found is None:
        return None
    for curve in found[0].values():
        assert curve.step_T.dtype == np.int64
        assert curve.value_T.dtype == np.float64
        assert len(curve.step_T) == len(curve.value_T) > 0
        assert (np.diff(curve.step_T) > 0).all()
        assert not np.isinf(curve.value_T).any()
    for note in found[1]:
        assert note.endswith(".")
        note.encode()
    return found


def points(curve: Curve) -> list[tuple[int, float]]:
    return list(zip(curve.step_T.tolist(), curve.value_T.tolist(), strict=True))


def read_whatever(path: Path, content: bytes) -> None:
    """Write bytes and read them: curves, None or an error of ours, and nothing else."""
    path.write_bytes(content)
    with contextlib.suppress(ApportionError):
        read_or_leave(path)


def check_every_cut(path: Path, step: int = 1) -> None:
    """Cut a good file at every byte: what is still read was there before."""
    content = path.read_bytes()
    whole = {name: set(map(str, points(curve))) for name, curve in read(path)[0].items()}
    for size in range(0, len(content), step):
        path.write_bytes(content[:size])
        found = read_or_leave(path)
        for name, curve in found[0].items() if found else ():
            assert name in whole, (size, name)
            assert set(map(str, points(curve))) <= whole[name], (size, name)
    path.write_bytes(content)
