"""Frozen pools of problems, chosen by the exact success of the shipped checkpoint.

=========  =========================================================================================
mixed      problems of all cells, evenly
hard       initial success in [0.005, 0.3]
bimodal    80% below 0.02 or above 0.98, 20% in [0.15, 0.85]: an even split wastes most rollouts
held_out   for evaluation: all cells evenly, disjoint from the other pools and from demonstrations
=========  =========================================================================================
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.embedded.tasks import Problem, split
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

BoolArray = NDArray[np.bool_]
StrArray = NDArray[np.str_]

POOL_NAMES = ("mixed", "hard", "bimodal", "held_out")
HARD_RANGE = (0.005, 0.3)
EDGE_BELOW, EDGE_ABOVE, MIDDLE_RANGE, EDGE_SHARE = 0.02, 0.98, (0.15, 0.85), 0.8
NUM_POOL, NUM_HELD_OUT = 2_000, 1_000


@dataclass(frozen=True, slots=True)
class Pool:
    """Problems with the exact success of the shipped checkpoint.

    Attributes:
        name: one of `POOL_NAMES`.
        prompts: Q prompts.
        answers: Q answers.
        cells: Q names of cells.
        success_Q: probability in [0, 1] that the shipped checkpoint answers right.
    """

    name: str
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    cells: tuple[str, ...]
    success_Q: FloatArray

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.prompts)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The rows as problems, to be scored by `apportion.embedded.tasks.score`."""
        return tuple(
            Problem(c, p, a) for c, p, a in zip(self.cells, self.prompts, self.answers, strict=True)
        )


def pool(name: str) -> Pool:
    """One of the shipped pools.

    Args:
        name: "mixed", "hard", "bimodal" or "held_out".

    Returns:
        The pool, in a fixed random order.

    Raises:
        InvalidInputError: no pool has that name.
    """
    return _shipped()[validate.choice("name", name, POOL_NAMES)]


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, Pool]:
    path = resources.files("apportion.embedded") / "checkpoint" / "pools.csv"
    return read_pools(Path(str(path)))


def choose_pools(
    candidates: Sequence[Problem],
    success_Q: FloatArray,
    *,
    seed: int = 0,
    size: int = NUM_POOL,
) -> dict[str, Pool]:
    """Choose the pools from problems never demonstrated, as evenly over cells as they allow.

    Args:
        candidates: Q problems with distinct prompts; each goes where `split` says.
        success_Q: their exact success under the checkpoint to ship.
        seed: of the choice and of the order.
        size: problems of each pool to train on; fewer where there are not as many.

    Returns:
        A pool for each of `POOL_NAMES`.

    Raises:
        InvalidInputError: the lengths differ or a candidate belongs to the demonstrations.
    """
    if len(candidates) != len(success_Q):
        raise InvalidInputError(
            f"{len(candidates)} candidates but {len(success_Q)} success values; pass one for each"
        )
    split_Q = np.array([split(p.prompt) for p in candidates])
    if "demonstration" in split_Q:
        raise InvalidInputError(
            "candidates hold demonstrated prompts; keep those whose split is 'pool' or 'held_out'"
        )
    rng = np.random.default_rng(seed)
    cell_Q = np.array([p.cell for p in candidates])

    def evenly(where_Q: BoolArray, num: int) -> IntArray:
        return _evenly(np.flatnonzero(where_Q), cell_Q, num, rng)

    is_pool_Q = split_Q == "pool"
    low, high = HARD_RANGE
    rows = {
        "mixed": evenly(is_pool_Q, size),
        "hard": evenly(is_pool_Q & (low <= success_Q) & (success_Q <= high), size),
        "bimodal": _bimodal(is_pool_Q, success_Q, evenly, size),
        "held_out": evenly(split_Q == "held_out", NUM_HELD_OUT),
    }
    order_Q = np.argsort([_order(p.prompt) for p in candidates])
    rank_Q = np.argsort(order_Q)
    rows = {name: row_Q[np.argsort(rank_Q[row_Q])] for name, row_Q in rows.items()}
    return {
        name: _pool(name, [candidates[q] for q in row_Q], success_Q[row_Q])
        for name, row_Q in rows.items()
    }


def write_pools(path: Path, pools: Mapping[str, Pool]) -> None:
    """Write the pools to one CSV file, a line a problem with the names of its pools."""
    names: dict[Problem, list[str]] = {}
    success: dict[Problem, float] = {}
    for name in POOL_NAMES:
        for problem, p in zip(pools[name].problems, pools[name].success_Q, strict=True):
            names.setdefault(problem, []).append(name)
            success[problem] = float(p)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("cell", "prompt", "answer", "success", "pools"))
        for problem in sorted(names, key=lambda p: _order(p.prompt)):
            p = f"{success[problem]:.8g}"
            writer.writerow(
                (problem.cell, problem.prompt, problem.answer, p, " ".join(names[problem]))
            )


def read_pools(path: Path) -> dict[str, Pool]:
    """Read the pools that `write_pools` wrote.

    Raises:
        InvalidInputError: the file is missing.
    """
    if not path.is_file():
        raise InvalidInputError(f"{path} is missing; `apportion embedded build` writes it")
    problems: dict[str, list[Problem]] = {name: [] for name in POOL_NAMES}
    success: dict[str, list[float]] = {name: [] for name in POOL_NAMES}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in row["pools"].split():
                problems[name].append(Problem(row["cell"], row["prompt"], row["answer"]))
                success[name].append(float(row["success"]))
    return {name: _pool(name, problems[name], np.array(success[name])) for name in POOL_NAMES}


def _order(prompt: str) -> str:
    """Key of the fixed random order of all pools."""
    return hashlib.sha256(f"order/{prompt}".encode()).hexdigest()


def _pool(name: str, problems: Sequence[Problem], success_Q: FloatArray) -> Pool:
    return Pool(
        name=name,
        prompts=tuple(p.prompt for p in problems),
        answers=tuple(p.answer for p in problems),
        cells=tuple(p.cell for p in problems),
        success_Q=success_Q,
    )


def _bimodal(
    is_pool_Q: BoolArray,
    success_Q: FloatArray,
    evenly: Callable[[BoolArray, int], IntArray],
    size: int,
) -> IntArray:
    """Rows at the edges and in the middle, 4 to 1; half of the edge rows hopeless if both last."""
    low, high = MIDDLE_RANGE
    below_R = evenly(is_pool_Q & (success_Q < EDGE_BELOW), size)
    above_R = evenly(is_pool_Q & (success_Q > EDGE_ABOVE), size)
    middle_R = evenly(is_pool_Q & (low <= success_Q) & (success_Q <= high), size)
    num_edge = min(
        round(EDGE_SHARE * size),
        len(below_R) + len(above_R),
        int(len(middle_R) * EDGE_SHARE / (1 - EDGE_SHARE)),
    )
    num_below = min(len(below_R), max(num_edge // 2, num_edge - len(above_R)))
    num_middle = round(num_edge * (1 - EDGE_SHARE) / EDGE_SHARE)
    return np.concatenate(
        [below_R[:num_below], above_R[: num_edge - num_below], middle_R[:num_middle]]
    )


def _evenly(row_R: IntArray, cell_Q: StrArray, num: int, rng: np.random.Generator) -> IntArray:
    """At most ``num`` of the rows, in random order, taken from the cells in turn."""
    row_R = rng.permutation(row_R)
    seen: dict[str, int] = {}
    turn_R = np.empty(len(row_R), dtype=np.int64)
    for r, cell in enumerate(cell_Q[row_R]):
        turn_R[r] = seen[cell] = seen.get(cell, -1) + 1
    return rng.permutation(row_R[np.argsort(turn_R, kind="stable")[:num]])
