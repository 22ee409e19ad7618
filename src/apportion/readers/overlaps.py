"""Files that hold the same prompts at the same steps: a resumed run, shards, or two runs.

A resume repeats the last steps of the file before. Shards of one step each, or of the whole run,
hold the same steps from the first on, and parts of the same groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.errors import InvalidInputError
from apportion.readers.restarts import is_same
from apportion.readers.rollouts import PartArray
from apportion.readers.tally import Tally, listed
from apportion.validate import IntArray

_SHARD = re.compile(
    r"(?:^|[^a-z])(rank|shard|worker|part|proc|process|gpu|device|node|host|actor|replica|dp|local"
    r"|global)[-_. ]?(rank[-_. ]?)?\d+",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_NEARLY_FIRST = 0.05
_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class _Stream:
    """A file, or files of one step each whose names differ by a number."""

    files: tuple[int, ...]
    step_T: IntArray


def latest(
    part_G: PartArray, file_G: IntArray, paths: Sequence[Path], tally: Tally
) -> NDArray[np.bool_]:
    """Return which groups to keep where files hold the same prompts at the same steps.

    All of them where the files are shards of one run; the later file's where it resumes the run.

    Args:
        part_G: groups of all files.
        file_G: which file each comes from.
        paths: the files.
        tally: takes what was assumed.

    Raises:
        InvalidInputError: the files look like two runs.
    """
    clash = _clashes(part_G, file_G)
    if not clash:
        return np.ones(len(part_G), dtype=np.bool_)
    found = _Overlaps(part_G, file_G, paths)
    streams = _streams(part_G, file_G, paths)
    of_file = {file: at for at, one in enumerate(streams) for file in one.files}
    for at, stream in enumerate(streams):
        inside = {pair for pair in clash if of_file[pair[0]] == of_file[pair[1]] == at}
        if inside:
            found.settle_within(stream, inside)
    pairs = {tuple(sorted({of_file[one], of_file[other]})) for one, other in clash}
    for pair in sorted(one for one in pairs if len(one) == 2):
        found.settle_pair(streams[pair[0]], streams[pair[1]])
    found.say(tally)
    return ~found.repeated_G


class _Overlaps:
    """What pairs of files turned out to be."""

    def __init__(self, part_G: PartArray, file_G: IntArray, paths: Sequence[Path]) -> None:
        self._part_G, self._file_G, self._paths = part_G, file_G, paths
        self.repeated_G = np.zeros(len(part_G), dtype=np.bool_)
        self._copied_G = np.zeros(len(part_G), dtype=np.bool_)
        self._shards: set[int] = set()

    def settle_within(self, stream: _Stream, clash: set[tuple[int, int]]) -> None:
        """Settle files of one step each: shards if nearly all steps have several, else a resume."""
        twice = {int(self._part_G["step"][np.argmax(self._file_G == one)]) for one, _ in clash}
        is_whole_run = 1 < len(stream.step_T) <= len(twice) / _NEARLY_ALL
        for one, other in sorted(clash):
            first, second = (self._part_G[self._file_G == file] for file in (one, other))
            is_copy = is_same(first, second)
            if is_whole_run and not is_copy:
                self._shards |= {one, other}
            else:
                self._leave_out((one,), (other,), is_copy=is_copy)

    def settle_pair(self, one: _Stream, other: _Stream) -> None:
        """Settle two streams, the earlier first."""
        names = [self._paths[stream.files[0]] for stream in (one, other)]
        shared_T = np.intersect1d(one.step_T, other.step_T)
        is_shared_G = np.isin(self._part_G["step"], shared_T)
        first, second = (
            self._part_G[is_shared_G & np.isin(self._file_G, stream.files)]
            for stream in (one, other)
        )
        is_copy = is_same(first, second)
        is_one_folder = names[0].parent == names[1].parent
        if (is_copy and is_one_folder) or not _is_parallel(one.step_T, other.step_T):
            self._leave_out(one.files, other.files, is_copy=is_copy)
            return
        are_ranks = all(_is_shard(name, names) for name in names)
        if not are_ranks and not (is_one_folder and _share(first, second) >= _NEARLY_ALL):
            raise InvalidInputError(
                f"{names[0]} and {names[1]} hold the same steps"
                f"{'' if is_one_folder else ', in two folders'}: two runs? Give one of them; if "
                "they are parts of one run, put rank0, rank1, ... into their names."
            )
        if are_ranks or len(shared_T) >= _NEARLY_ALL * max(len(one.step_T), len(other.step_T)):
            self._shards |= {*one.files, *other.files}
        else:
            self._leave_out(one.files, other.files, is_copy=False)

    def say(self, tally: Tally) -> None:
        """Say what was joined and what was left out."""
        if self._shards:
            tally.say(
                f"{self._names(self._shards)} hold the same steps, as shards of one run: the "
                "rollouts of a prompt at a step were joined into one group."
            )
        if self._copied_G.any():
            files = np.unique(self._file_G[self._copied_G]).tolist()
            tally.say(f"Rows of {self._names(files)} stand in a later file too: each counts once.")
        out_G = self.repeated_G & ~self._copied_G
        if out_G.any():
            files = np.unique(self._file_G[out_G]).tolist()
            tally.say(
                f"{_steps(np.unique(self._part_G['step'][out_G]))} in more than one file, as after "
                f"a resume: the later file counts, and {int(out_G.sum()):,} groups of "
                f"{self._names(files)} were left out."
            )

    def _leave_out(self, early: tuple[int, ...], late: tuple[int, ...], *, is_copy: bool) -> None:
        """Leave out what files hold of the steps that later ones repeat."""
        is_early_G, is_late_G = np.isin(self._file_G, early), np.isin(self._file_G, late)
        out_G = is_early_G & np.isin(self._part_G["step"], self._part_G["step"][is_late_G])
        self._copied_G |= out_G & ~self.repeated_G if is_copy else False
        self.repeated_G |= out_G

    def _names(self, files: Iterable[int]) -> str:
        return listed([self._paths[file].name for file in sorted(files)])


def _clashes(part_G: PartArray, file_G: IntArray) -> set[tuple[int, int]]:
    """Return the pairs of files that share a prompt at a step, the earlier file first."""
    order_G = np.lexsort((file_G, part_G["prompt"], part_G["step"]))
    step_G, prompt_G = part_G["step"][order_G], part_G["prompt"][order_G]
    sorted_G = file_G[order_G]
    same_G = (step_G[1:] == step_G[:-1]) & (prompt_G[1:] == prompt_G[:-1])
    same_G &= sorted_G[1:] != sorted_G[:-1]
    pairs = np.unique(np.stack([sorted_G[:-1][same_G], sorted_G[1:][same_G]], axis=1), axis=0)
    return {(int(one), int(other)) for one, other in pairs}


def _streams(part_G: PartArray, file_G: IntArray, paths: Sequence[Path]) -> list[_Stream]:
    files_of: dict[tuple[str, str], list[int]] = {}
    step_of = {}
    for file in np.unique(file_G).tolist():
        step_of[file] = np.unique(part_G["step"][file_G == file])
        path = paths[file]
        key = (str(path), "")
        if len(step_of[file]) == 1:
            rank = _SHARD.search(path.name)
            key = (str(path.parent), f"{_DIGITS.sub('', path.name)} {rank[0] if rank else ''}")
        files_of.setdefault(key, []).append(file)
    return [
        _Stream(tuple(files), np.unique(np.concatenate([step_of[file] for file in files])))
        for files in files_of.values()
    ]


def _is_parallel(step_T: IntArray, other_T: IntArray) -> bool:
    """Return whether two streams begin at nearly the same step, and share nearly all they can."""
    late = max(int(step_T[0]), int(other_T[0]))
    passed = max(int((step_T < late).sum()), int((other_T < late).sum()))
    longest = max(len(step_T), len(other_T))
    return passed <= _NEARLY_FIRST * longest


def _is_shard(path: Path, others: Sequence[Path]) -> bool:
    """Return whether what differs between the paths is the number of a rank or a shard."""
    parts = [part for part in path.parts if any(part not in other.parts for other in others)]
    return any(_SHARD.search(part) for part in parts)


def _share(part_G: PartArray, other_G: PartArray) -> float:
    """Return the share of prompts that two streams have in common, at the steps of both."""
    shared_T = np.intersect1d(part_G["step"], other_G["step"])
    visits, others = (
        {*zip(one["step"].tolist(), one["prompt"].tolist(), strict=True)}
        for one in (part[np.isin(part["step"], shared_T)] for part in (part_G, other_G))
    )
    return len(visits & others) / max(1, len(visits | others))


def _steps(steps: IntArray) -> str:
    first, last = int(steps[0]), int(steps[-1])
    if first == last:
        return f"Step {first} stands"
    if len(steps) == last - first + 1:
        return f"Steps {first} to {last} stand"
    return f"{len(steps):,} steps between {first} and {last} stand"
