"""Features of prompts from their characters alone: hashed n-grams and a truncated SVD, in NumPy.

Two views of a text are counted: its characters, and its *shape*, in which each digit is ``0``,
each lower-case letter ``a`` and each upper-case letter ``A``. The shape tells the kind and the size
of a task, which is most of what text says about difficulty. Axes: V hash buckets, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidInputError, StateError
from apportion.validate import FloatArray, IntArray

_SAMPLE = 2048
_CHUNK = 512
_SEED = 20_260_201
_OVERSAMPLE = 8
_NUM_POWER = 2
_CHARACTER_WEIGHT = 0.5
"""Weight of the characters against the shape, whose counts tell more and are fewer."""
_MULTIPLIER = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_FINISH = 0xFF51AFD7ED558CCD
_STATE = ("center_V", "component_VD", "scale")


class TextEmbedding:
    """Hashed character n-grams of text and shape, projected on their main directions.

    Counts c of n-grams become ``log(1 + c)``; rows are centred and projected on the leading right
    singular vectors of (at most 2,048, evenly spaced) fitted texts, then divided by one number so
    that the squared norm is 1 on average. Columns keep their spectrum; the sign of each is such
    that its largest weight is positive. Hashes are fixed arithmetic on code points, the random
    projection is seeded: the same texts give the same features, apart from rounding of the
    matrix library.

    Args:
        num_features: columns D; those beyond the rank of the texts are 0.
        max_ngram: n-grams of 1 to this many characters, at most 3.
        num_buckets: hash buckets of each view.

    Randomised SVD: Halko, Martinsson and Tropp, SIAM Review 53 (2011), Alg. 4.4.

    >>> embedding = TextEmbedding(num_features=2).fit(["1+1=", "2+7=", "gcd(12,18)="])
    >>> embedding.transform(["3+4="]).shape
    (1, 2)
    """

    def __init__(
        self, *, num_features: int = 32, max_ngram: int = 3, num_buckets: int = 1024
    ) -> None:
        self.num_features = validate.whole_number("num_features", num_features, at_least=1)
        self.max_ngram = validate.whole_number("max_ngram", max_ngram, at_least=1)
        self.num_buckets = validate.whole_number("num_buckets", num_buckets, at_least=2)
        if self.max_ngram > len(_MULTIPLIER):
            raise InvalidInputError(
                f"max_ngram is {max_ngram}, but must be at most {len(_MULTIPLIER)}."
            )
        self._center_V: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self._component_VD: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        self._scale = 0.0

    def fit(self, text_B: Sequence[str]) -> TextEmbedding:
        """Learn the directions from these texts and return self.

        Raises:
            InvalidInputError: there is no text.
        """
        if len(text_B) == 0:
            raise InvalidInputError(
                "There are no texts to fit the embedding to. Give at least one."
            )
        row_A = np.linspace(0, len(text_B) - 1, min(len(text_B), _SAMPLE)).astype(np.int64)
        count_AV = self._counts([text_B[row] for row in row_A])
        self._center_V = count_AV.mean(axis=0, dtype=np.float64).astype(np.float32)
        count_AV -= self._center_V
        self._component_VD = _leading(count_AV, self.num_features)
        norm = float(np.sqrt(((count_AV @ self._component_VD) ** 2).sum(axis=1).mean()))
        self._scale = 1.0 / norm if norm > 1e-6 else 1.0
        return self

    def transform(self, text_B: Sequence[str]) -> FloatArray:
        """Return the features of texts, (B, D), whether or not they were fitted.

        Raises:
            InvalidInputError: the embedding has not been fitted.
        """
        if self._scale == 0.0:
            raise InvalidInputError("The embedding is not fitted. Call fit(texts) first.")
        feature_BD = np.zeros((len(text_B), self.num_features))
        for start in range(0, len(text_B), _CHUNK):
            count_AV = self._counts(text_B[start : start + _CHUNK]) - self._center_V
            feature_BD[start : start + _CHUNK] = count_AV @ self._component_VD
        return feature_BD * self._scale

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what was fitted, as arrays."""
        return {
            "center_V": self._center_V.astype(np.float64),
            "component_VD": self._component_VD.astype(np.float64),
            "scale": np.array([self._scale]),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned, bit for bit.

        Raises:
            StateError: arrays are missing or of another size.
        """
        if set(state) != set(_STATE):
            raise StateError(f"The state of a TextEmbedding holds {_STATE}, got {tuple(state)}.")
        width = 2 * self.num_buckets
        shapes = [state[name].shape for name in _STATE]
        if shapes not in (
            [(width,), (width, self.num_features), (1,)],
            [(0,), (0, 0), (1,)],
        ):
            raise StateError(
                f"The state has arrays of shapes {shapes}, but {self.num_features} features on "
                f"{width} buckets are expected. Make the TextEmbedding with the same arguments."
            )
        # Both hold float32 values, so that the round trip through float64 loses nothing.
        self._center_V = np.asarray(state["center_V"]).astype(np.float32)
        self._component_VD = np.asarray(state["component_VD"]).astype(np.float32)
        self._scale = float(state["scale"][0])

    def _counts(self, text_B: Sequence[str]) -> NDArray[np.float32]:
        """Return ``log(1 + count)`` of both views, weighted, (B, V)."""
        code_C, text_C = _code_points(text_B)
        views = (code_C, _shape(code_C))
        count_BV = np.zeros((len(text_B), len(views) * self.num_buckets), dtype=np.float32)
        for at, view_C in enumerate(views):
            cell = np.concatenate(
                [self._cells(view_C, text_C, length + 1) for length in range(self.max_ngram)]
            )
            flat = np.bincount(cell, minlength=len(text_B) * self.num_buckets)
            part = slice(at * self.num_buckets, (at + 1) * self.num_buckets)
            count_BV[:, part] = flat.reshape(len(text_B), self.num_buckets)
        np.log1p(count_BV, out=count_BV)
        count_BV[:, : self.num_buckets] *= _CHARACTER_WEIGHT
        return count_BV

    def _cells(self, code_C: NDArray[np.uint64], text_C: IntArray, length: int) -> IntArray:
        """Return (text, bucket) of each n-gram of this length, as one number."""
        num = max(len(code_C) - length + 1, 0)
        hash_C = np.full(num, length, dtype=np.uint64)
        for at in range(length):
            hash_C ^= (code_C[at : at + num] + np.uint64(1)) * np.uint64(_MULTIPLIER[at])
            hash_C ^= hash_C >> np.uint64(29)
        hash_C *= np.uint64(_FINISH)
        hash_C ^= hash_C >> np.uint64(32)
        bucket_C = (hash_C % np.uint64(self.num_buckets)).astype(np.int64)
        within_C = text_C[:num] == text_C[length - 1 : length - 1 + num]
        cell_C: IntArray = text_C[:num][within_C] * self.num_buckets + bucket_C[within_C]
        return cell_C


def hashed_ngrams(
    text_B: Sequence[str], *, num_features: int = 32, max_ngram: int = 3, num_buckets: int = 1024
) -> FloatArray:
    """Return features of texts, fitted to these texts; see `TextEmbedding`.

    >>> feature_BD = hashed_ngrams(["1+1=", "2+7=", "gcd(12,18)="], num_features=4)
    >>> feature_BD.shape, float((feature_BD**2).sum(axis=1).mean().round(3))
    ((3, 4), 1.0)
    """
    embedding = TextEmbedding(
        num_features=num_features, max_ngram=max_ngram, num_buckets=num_buckets
    )
    return embedding.fit(text_B).transform(text_B)


def _code_points(text_B: Sequence[str]) -> tuple[NDArray[np.uint64], IntArray]:
    """Return the code points of all texts, end to end, and the text that each belongs to."""
    joined = "".join(text_B).encode("utf-32-le", errors="surrogatepass")
    code_C = np.frombuffer(joined, dtype="<u4").astype(np.uint64)
    length_B = np.fromiter(map(len, text_B), dtype=np.int64, count=len(text_B))
    return code_C, np.repeat(np.arange(len(text_B)), length_B)


def _shape(code_C: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shape_C = code_C.copy()
    for first, last in ("09", "az", "AZ"):
        target = ord("0") if first == "0" else ord(first)
        shape_C[(code_C >= ord(first)) & (code_C <= ord(last))] = target
    return shape_C


def _leading(matrix_AV: NDArray[np.float32], num: int) -> NDArray[np.float32]:
    """Return the leading right singular vectors, (V, num), 0 beyond the rank."""
    num_rows, width = matrix_AV.shape
    rank = min(num + _OVERSAMPLE, num_rows, width)
    probe_VR = np.random.default_rng(_SEED).standard_normal((width, rank)).astype(np.float32)
    range_AR, _ = np.linalg.qr(matrix_AV @ probe_VR)
    for _ in range(_NUM_POWER):
        range_VR, _ = np.linalg.qr(matrix_AV.T @ range_AR)
        range_AR, _ = np.linalg.qr(matrix_AV @ range_VR)
    _, singular_R, right_RV = np.linalg.svd(range_AR.T @ matrix_AV, full_matrices=False)
    kept = singular_R > 1e-4 * max(float(singular_R[0]), 1e-6)
    right_RV = right_RV[kept][:num]
    largest_R = np.abs(right_RV).argmax(axis=1)
    right_RV = right_RV * np.sign(right_RV[np.arange(len(right_RV)), largest_R])[:, None]
    component_VD = np.zeros((width, num), dtype=np.float32)
    component_VD[:, : len(right_RV)] = right_RV.T
    return component_VD
