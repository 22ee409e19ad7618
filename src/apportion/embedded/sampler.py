"""Fast sampling of unequal groups of rollouts from any Hugging Face decoder with a dynamic cache.

Each prompt is read once, its keys and values are repeated for its rollouts, and finished rows leave
the batch. Temperature 1 and no truncation of the distribution: completions follow the model, which
exact success and policy gradients take for granted.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from apportion import validate
from apportion.embedded.cells import MAX_ANSWER_CHARS
from apportion.embedded.likelihood import TokenBatch, pad_rows
from apportion.errors import InvalidInputError

MAX_TOKENS = MAX_ANSWER_CHARS + 1
"""Tokens of a completion at most, the end-of-sequence token included."""
_COMPACT_BELOW = 0.75
"""Finished rows leave once fewer than this share of rows is alive; leaving copies the cache."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Completions of B prompts, N in all, prompt after prompt.

    Attributes:
        group_N: position of each rollout's prompt in B (long).
        tokens: the N prompts and completions, completions with their end-of-sequence token.
        text_N: decoded completions without the end-of-sequence token; other special tokens stay
            visible, so that a completion that holds one is not taken for the answer.
        is_finished_N: whether the end-of-sequence token was written in time.
    """

    group_N: torch.Tensor
    tokens: TokenBatch
    text_N: tuple[str, ...]
    is_finished_N: torch.Tensor

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self.group_N)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    num_rollouts: ArrayLike,
    *,
    max_new_tokens: int = MAX_TOKENS,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """Sample ``num_rollouts[b]`` completions of each prompt at temperature 1.

    Args:
        model: a decoder whose cache is transformers' ``DynamicCache`` (full attention).
        tokenizer: its tokenizer, with a pad and an eos token.
        prompts: B texts.
        num_rollouts: ``num_rollouts_B``, whole numbers of at least 0, or one number for all.
        max_new_tokens: tokens of a completion at most, the end-of-sequence token included.
        generator: source of randomness on the CPU; torch's global one by default.

    Returns:
        ``sum(num_rollouts_B)`` rollouts.

    Raises:
        InvalidInputError: no rollout is asked for, a count is negative or no whole number, or the
            counts do not fit the prompts.
    """
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    if pad is None or eos is None:
        raise InvalidInputError("the tokenizer needs a pad token and an eos token; set both")
    max_new_tokens = validate.whole_number("max_new_tokens", max_new_tokens, at_least=1)
    values = np.full(len(prompts), num_rollouts) if np.ndim(num_rollouts) == 0 else num_rollouts
    num_rollouts_B = validate.counts("num_rollouts", values, size=len(prompts))
    if not num_rollouts_B.sum():
        raise InvalidInputError("num_rollouts asks for no rollout at all; ask for at least one")

    group_N = torch.arange(len(prompts)).repeat_interleave(torch.from_numpy(num_rollouts_B))
    prompt_BP, is_prompt_BP = pad_rows(tokenizer(list(prompts))["input_ids"], pad, left=True)
    completion_NT, is_completion_NT, is_finished_N = _decode(
        model, prompt_BP, is_prompt_BP, group_N, pad, eos, max_new_tokens, generator
    )
    tokens = TokenBatch(prompt_BP[group_N], is_prompt_BP[group_N], completion_NT, is_completion_NT)
    is_text_NT = is_completion_NT & (completion_NT != eos)
    text_N = tokenizer.batch_decode(
        [row[shown].tolist() for row, shown in zip(completion_NT, is_text_NT, strict=True)]
    )
    return Rollouts(group_N, tokens, tuple(text_N), is_finished_N)


def _decode(
    model: PreTrainedModel,
    prompt_BP: torch.Tensor,
    is_prompt_BP: torch.Tensor,
    group_N: torch.Tensor,
    pad: int,
    eos: int,
    max_new_tokens: int,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Completions, their mask and whether each ended; ``A`` is the shrinking axis of alive rows."""
    device, num_rows = model.device, len(group_N)
    attended = is_prompt_BP.long().to(device)
    cache = DynamicCache(config=model.config)
    takes_cache = "cache" in inspect.signature(model.forward).parameters  # newer transformers
    cache_argument = {"cache" if takes_cache else "past_key_values": cache}
    logits = model(
        input_ids=prompt_BP.to(device),
        attention_mask=attended,
        position_ids=(attended.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        **cache_argument,
        logits_to_keep=1,
    ).logits[:, -1]
    prompt_A = group_N.to(device)
    cache.batch_select_indices(prompt_A)
    logits, attended = logits[prompt_A], attended[prompt_A]
    position_A = attended.sum(1)

    completion_NT = torch.full((num_rows, max_new_tokens), pad)
    is_completion_NT = torch.zeros((num_rows, max_new_tokens), dtype=torch.bool)
    row_A = torch.arange(num_rows)
    is_alive_A = torch.ones(num_rows, dtype=torch.bool)
    for t in range(max_new_tokens):
        token_A = _draw(logits, generator)
        completion_NT[row_A[is_alive_A], t] = token_A[is_alive_A]
        is_completion_NT[row_A[is_alive_A], t] = True
        is_alive_A &= token_A != eos
        num_alive = int(is_alive_A.sum())
        if num_alive == 0 or t + 1 == max_new_tokens:
            break
        if num_alive < _COMPACT_BELOW * len(row_A):
            keep = is_alive_A.nonzero()[:, 0]
            row_A, token_A, is_alive_A = row_A[keep], token_A[keep], is_alive_A[keep]
            keep = keep.to(device)
            cache.batch_select_indices(keep)
            attended, position_A = attended[keep], position_A[keep]
        attended = torch.cat([attended, attended.new_ones(len(attended), 1)], dim=1)
        logits = model(
            input_ids=token_A[:, None].to(device),
            attention_mask=attended,
            position_ids=(position_A + t)[:, None],
            use_cache=True,
            **cache_argument,
        ).logits[:, -1]
    is_finished_N = (completion_NT == eos).logical_and(is_completion_NT).any(1)
    return completion_NT, is_completion_NT, is_finished_N


def _draw(logits_AV: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """One token a row by an exponential race: argmax_v p_v / E_v is v with probability p_v."""
    p_AV = logits_AV.float().softmax(-1).cpu()
    race_AV = torch.empty_like(p_AV).exponential_(generator=generator)
    return p_AV.div_(race_AV).argmax(-1)
