"""Pools too large to be memorised: the kinds of the shipped ones, eight times their size.

On the 2,000 problems of a shipped pool 15,000 rollouts sharpen the pool itself, and no arm, not
even one that knows every success, differs much on held-out problems. These are drawn anew from the
same cells, disjoint from demonstrations and from held-out problems, and kept in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from apportion.embedded.exact import exact_success
from apportion.embedded.model import load
from apportion.embedded.pools import Pool, choose_pools, read_pools, write_pools
from apportion.embedded.tasks import split

SIZE = 16_000
"""Problems of each pool."""
_DRAWS_PER_CELL = 40_000


def write_large_pools(path: Path, told: Callable[[str], None] = lambda what: None) -> None:
    """Draw the pools and write them, unless the file is there; about a minute.

    Args:
        path: file to write.
        told: called with what is being done.
    """
    if path.exists():
        return
    from apportion.embedded.build import draw_problems

    told("drawing problems")
    problems = [p for p in draw_problems(_DRAWS_PER_CELL) if split(p.prompt) != "demonstration"]
    told("computing their exact success")
    model, tokenizer = load()
    prompts, answers = [p.prompt for p in problems], [p.answer for p in problems]
    success_Q = exact_success(model, tokenizer, prompts, answers)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    write_pools(partial, choose_pools(problems, success_Q, size=SIZE))
    partial.replace(path)


@lru_cache(maxsize=1)
def read_large_pools(path: Path) -> dict[str, Pool]:
    """Read what `write_large_pools` wrote; once in a process."""
    return read_pools(path)
