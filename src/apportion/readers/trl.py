"""The completions that TRL writes with ``log_completions=True``, and what they leave unsaid.

A file a log: `step`, `prompt`, `completion`, one column a reward function, columns of
``log_extra``, `advantage`. The weights of the reward functions are not in it, but the advantages
are: within a group ``advantage ~ sum_k weight_k (reward_k - mean reward_k)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from apportion.readers.rollouts import Chunk, numbers
from apportion.readers.tally import Tally, listed
from apportion.validate import FloatArray

TOTAL = "<reward>"
"""Stands for the column that TRL does not write: the weighted sum of the reward functions."""
_OWN = {"step", "prompt", "completion", "advantage", "image", "images"}
FITTED_ROWS = 20_000
"""Enough to find the weights of the reward functions."""
_SMALL_ADVANTAGE = 1e-3
_PARALLEL = 1e-6
_UNIQUE = 1e-3
_MARK = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The reward functions of a run, and how they add up to the reward.

    Attributes:
        names: their columns.
        weight_K: weight of each.
        sentence: how the weights were found; empty for a single one.
    """

    names: tuple[str, ...]
    weight_K: FloatArray
    sentence: str = ""

    def reward(self, chunk: Chunk) -> FloatArray:
        """Return the reward of each row as TRL adds it up; NaN where no function gave one."""
        reward_RK = self._columns(chunk)
        total_R = np.nan_to_num(reward_RK) @ self.weight_K
        return np.asarray(np.where(np.isnan(reward_RK).all(axis=1), np.nan, total_R))

    def mark(self, chunk: Chunk) -> FloatArray:
        """Return a number a row that differs wherever a component does."""
        scale_K = np.resize(_MARK, len(self.names)) * (1 + np.arange(len(self.names)) // len(_MARK))
        return np.asarray(np.nan_to_num(self._columns(chunk)) @ scale_K)

    def _columns(self, chunk: Chunk) -> FloatArray:
        return _matrix(chunk, self.names)


def is_trl(names: Sequence[str]) -> bool:
    """Return whether a table has the columns of TRL's completions."""
    return {"step", "prompt", "completion", "advantage"} <= set(names)


def reward_names(names: Sequence[str], first: Chunk) -> list[str]:
    """Return the columns that may be reward functions: floats, and nothing of TRL's own."""
    return [name for name in names if name not in _OWN and _floats(first[name])]


def find_components(names: Sequence[str], chunks: Iterable[Chunk]) -> Components:
    """Find the weights of the reward functions from the recorded advantages.

    Equal weights if the advantages agree with them. Else the direction w that makes ``X w``
    parallel to the advantages in every group (X: centred rewards, a: advantages of length one): the
    null vector of ``sum X' (I - a a') X``. That holds for every scaling of advantages, and columns
    that are no rewards get weight 0.

    Args:
        names: columns that may be reward functions.
        chunks: rows with these columns, `step`, `prompt` and `advantage`.
    """
    chunks = list(chunks)
    varying = _varying(names, chunks) or list(names)
    constant = [name for name in names if name not in varying]
    found = _fitted(varying, chunks)
    if not constant:
        return found
    is_one = len(constant) == 1
    sentence = (
        f"{listed(constant)} {'is' if is_one else 'are'} the same within every group and "
        f"{'affects' if is_one else 'affect'} no advantage: not added to the reward."
    )
    return replace(found, sentence=f"{found.sentence} {sentence}".lstrip())


def _varying(names: Sequence[str], chunks: Sequence[Chunk]) -> list[str]:
    """Return the columns that differ within a group anywhere."""
    varies_K = np.zeros(len(names), dtype=np.bool_)
    for chunk in chunks:
        reward_RK = _matrix(chunk, names)
        for rows in _rows_of_groups(chunk):
            group_NK = np.nan_to_num(reward_RK[rows])
            varies_K |= np.ptp(group_NK, axis=0) > 1e-6 * np.abs(group_NK).max(axis=0)
    return [name for name, varies in zip(names, varies_K.tolist(), strict=True) if varies]


def _fitted(names: Sequence[str], chunks: Sequence[Chunk]) -> Components:
    one_K = np.ones(len(names))
    if len(names) < 2:
        return Components(names=tuple(names), weight_K=one_K)
    cross_KK, total_KK, sign_K = _moments(names, chunks)
    varies_K = np.diagonal(total_KK) > 0
    scale_K = np.sqrt(np.where(varies_K, np.diagonal(total_KK), 1.0))
    off = one_K @ cross_KK @ one_K
    if varies_K.any() and off <= _PARALLEL * (one_K @ total_KK @ one_K) and sign_K @ one_K > 0:
        sentence = f"The reward is the sum of {listed(list(names))}; the recorded advantages agree."
        return Components(names=tuple(names), weight_K=one_K, sentence=sentence)
    scaled_KK = (cross_KK / np.outer(scale_K, scale_K))[np.ix_(varies_K, varies_K)]
    if len(scaled_KK) > 1:
        value_K, vector_KK = np.linalg.eigh(scaled_KK)
        if value_K[0] <= _PARALLEL and value_K[1] > _UNIQUE:
            weight_K = one_K.copy()
            weight_K[varies_K] = vector_KK[:, 0] / scale_K[varies_K]
            return _weighted(names, weight_K, varies_K, sign_K)
    sentence = (
        f"The reward was taken as the plain sum of {listed(list(names))}: their weights are not "
        "recorded, and the advantages do not tell them. Name the one that counts with "
        "--reward-column, if there is one."
    )
    return Components(names=tuple(names), weight_K=one_K, sentence=sentence)


def fingerprint(chunk: Chunk) -> str:
    """Return what tells one batch of completions from another."""
    columns = (chunk["prompt"], chunk["completion"], chunk["advantage"])
    text = repr(columns).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def say_gaps(steps: Sequence[int], tally: Tally) -> None:
    """Say that TRL keeps the last batch before each log alone, if steps are missing."""
    gap_T = np.diff(np.unique(np.asarray(steps, dtype=np.int64)))
    if len(gap_T) and np.median(gap_T) > 1:
        tally.say(
            f"TRL recorded one step in {int(np.median(gap_T))} (logging_steps): what was sampled "
            "between them is not in the record."
        )


def _floats(values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(type(value) is float for value in known)


def _matrix(chunk: Chunk, names: Sequence[str]) -> FloatArray:
    size = len(chunk["step"])
    columns = [numbers(chunk.get(name, [None] * size)) for name in names]
    empty_RK = np.zeros((size, 0))
    reward_RK = np.column_stack([empty_RK, *columns])
    return np.where(np.abs(reward_RK) <= 1e50, reward_RK, np.nan)


def _moments(
    names: Sequence[str], chunks: Iterable[Chunk]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sum ``X'(I - aa')X``, ``X'X`` and ``X'a`` over groups whose advantages say something."""
    size = len(names)
    cross_KK, total_KK, sign_K = np.zeros((size, size)), np.zeros((size, size)), np.zeros(size)
    for reward_NK, advantage_N in _groups(names, chunks):
        centred_NK = reward_NK - reward_NK.mean(axis=0)
        noise_K = 1e-6 * np.abs(reward_NK).max(axis=0)
        centred_NK[:, np.abs(centred_NK).max(axis=0) <= noise_K] = 0.0
        along_K = centred_NK.T @ (advantage_N / np.linalg.norm(advantage_N))
        square_KK = centred_NK.T @ centred_NK
        cross_KK += square_KK - np.outer(along_K, along_K)
        total_KK += square_KK
        sign_K += along_K
    return cross_KK, total_KK, sign_K


def _groups(
    names: Sequence[str], chunks: Iterable[Chunk]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    num_rows = 0
    for chunk in chunks:
        reward_RK, advantage_R = _matrix(chunk, names), numbers(chunk["advantage"])
        usable_R = np.isfinite(advantage_R) & ~np.isnan(reward_RK).all(axis=1)
        large = _SMALL_ADVANTAGE * np.abs(advantage_R[usable_R]).max(initial=0.0)
        for rows in _rows_of_groups(chunk):
            at_N = np.array(rows)[usable_R[rows]]
            advantage_N = np.clip(advantage_R[at_N], -1e50, 1e50)
            if len(at_N) > 1 and np.abs(advantage_N).max() > large:
                yield np.nan_to_num(reward_RK[at_N]), advantage_N
        num_rows += len(advantage_R)
        if num_rows >= FITTED_ROWS:
            return


def _rows_of_groups(chunk: Chunk) -> Iterator[list[int]]:
    keys = zip(map(repr, chunk["step"]), map(repr, chunk["prompt"]), strict=True)
    rows_of: dict[tuple[str, str], list[int]] = {}
    for at, key in enumerate(keys):
        rows_of.setdefault(key, []).append(at)
    yield from rows_of.values()


def _weighted(
    names: Sequence[str], weight_K: FloatArray, varies_K: np.ndarray, sign_K: FloatArray
) -> Components:
    weight_K[varies_K] /= np.abs(weight_K[varies_K]).max()
    if sign_K[varies_K] @ weight_K[varies_K] < 0:
        weight_K[varies_K] *= -1
    weight_K = np.round(weight_K, 4)
    kept = [at for at, weight in enumerate(weight_K.tolist()) if abs(weight) > _UNIQUE]
    terms = " + ".join(f"{weight_K[at]:g} {names[at]}" for at in kept)
    return Components(
        names=tuple(names[at] for at in kept),
        weight_K=weight_K[kept],
        sentence=f"The reward is {terms}: the weights follow from the recorded advantages, up to "
        "one common factor.",
    )
