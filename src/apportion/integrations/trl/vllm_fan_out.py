"""One request per group size to a vLLM server, instead of one request per rollout.

Stock TRL sends every G-th prompt with ``n=G`` and lays the answers out again in blocks of G: with
groups of unequal size some rows would get another prompt's completion, without any error. Asked
for ``n=1`` it sends every row by itself, which is right but gives up the shared prefix. Between the
two: runs of the same prompt are sent once, those of one length together, the order is restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from apportion.errors import FormulaDriftError

Answer = dict[str, Any]


def runs(prompts: Sequence[Any]) -> list[tuple[int, int]]:
    """Return start and length of each run of equal neighbours.

    >>> runs(["a", "a", "b", "a"])
    [(0, 2), (2, 1), (3, 1)]
    """
    starts = [i for i in range(len(prompts)) if i == 0 or prompts[i] != prompts[i - 1]]
    ends = [*starts[1:], len(prompts)]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True)]


def generate_in_runs(
    generate: Callable[..., Answer], prompts: Sequence[Any], **options: Any
) -> Answer:
    """Generate one completion a prompt, sending each run of equal prompts once.

    Args:
        generate: the client's own ``generate``; answers a dictionary of lists with n entries a
            prompt, but one entry a prompt under ``prompt_ids``.
        prompts: one prompt a rollout.
        options: passed on; with ``n`` other than 1, or with images, prompts are sent as they are.

    Returns:
        The answer that ``generate(prompts, n=1)`` would have the shape of.

    Raises:
        FormulaDriftError: the answer has another shape than this was written for.
    """
    if options.get("n", 1) != 1 or _has_images(options):
        return generate(prompts=prompts, **options)
    runs_of_size: dict[int, list[int]] = {}
    for start, size in runs(prompts):
        runs_of_size.setdefault(size, []).append(start)
    answer: Answer = {}
    for size, starts in runs_of_size.items():
        part = generate(prompts=[prompts[start] for start in starts], **{**options, "n": size})
        for name, values in part.items():
            if values is None:
                answer[name] = None
                continue
            spread = _one_a_rollout(name, values, len(starts), size)
            rows = answer.setdefault(name, [None] * len(prompts))
            for k, start in enumerate(starts):
                rows[start : start + size] = spread[k * size : (k + 1) * size]
    return answer


@contextmanager
def fan_out(client: Any) -> Iterator[None]:
    """Let a vLLM client send runs of equal prompts once, for the duration of a block."""
    stock = client.generate

    @functools.wraps(stock)
    def generate(prompts: Sequence[Any], **options: Any) -> Answer:
        return generate_in_runs(stock, prompts, **options)

    client.generate = generate
    try:
        yield
    finally:
        client.generate = stock


def _one_a_rollout(name: str, values: list[Any], num_prompts: int, size: int) -> list[Any]:
    if name == "prompt_ids" and len(values) == num_prompts:
        return [value for value in values for _ in range(size)]
    if len(values) == num_prompts * size:
        return values
    raise FormulaDriftError(
        f"The vLLM server answered {len(values)} {name} to {num_prompts} prompts with n={size}, "
        f"but {num_prompts * size} were expected. This TRL release needs another adapter; use "
        'vllm_mode="colocate" meanwhile.'
    )


def _has_images(options: dict[str, Any]) -> bool:
    return any(options.get(name) is not None for name in ("features", "images"))
