"""Further rows of a data set, beside those of a batch, for the allocator to choose from."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .rows import Row, row_key

logger = logging.getLogger(__name__)

ExtraRows = Callable[[int, Sequence[Row]], Sequence[Row]]
"""``extra_rows(step, heads) -> rows``: candidates of a step besides the heads of its batch."""


class DrawnRows:
    """Rows drawn without replacement, none of whose prompts is in the batch.

    The draw follows from the seed, the step and the prompts of the batch alone, so that a resumed
    run draws the same, and two batches of one step draw apart.

    Args:
        dataset: has a length and rows by position.
        times: candidates over the prompts of a batch, the batch included.
        seed: of the draw.
        key_column: column with the key of a prompt; None hashes the prompt.

    >>> data = [{"prompt": text} for text in "abca"]
    >>> drawn = DrawnRows(data, 3, seed=0)(7, [{"prompt": "a"}])
    >>> sorted(row["prompt"] for row in drawn)
    ['b', 'c']
    """

    def __init__(
        self, dataset: Any, times: int, *, seed: int, key_column: str | None = None
    ) -> None:
        self.dataset, self.times, self.seed, self.key_column = dataset, times, seed, key_column
        self._has_warned = False

    def __call__(self, step: int, heads: Sequence[Row]) -> list[Row]:
        """Return ``times - 1`` rows for each head, with the columns of the heads.

        Fewer where the data set has not as many distinct prompts, which is warned of once.
        """
        keys = [row_key(head, self.key_column) for head in heads]
        taken, columns = set(keys), {name for head in heads for name in head}
        num_extra = (self.times - 1) * len(heads)
        mark = zlib.crc32("\0".join(keys).encode(errors="surrogatepass"))
        rng = np.random.default_rng([self.seed, step, mark])
        rows: list[Row] = []
        for index in rng.permutation(len(self.dataset)).tolist():
            if len(rows) == num_extra:
                break
            row = dict(self.dataset[index])
            key = row_key(row, self.key_column)
            if key not in taken:
                taken.add(key)
                rows.append({name: value for name, value in row.items() if name in columns})
        if len(rows) < num_extra and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "The data set has %d distinct prompts, but candidates %d asks for %d in a batch of "
                "%d: there is less to choose from. Lower candidates or the batch, or give more "
                "prompts.",
                len(taken),
                self.times,
                num_extra + len(heads),
                len(heads),
            )
        return rows
