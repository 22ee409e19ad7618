"""Teacher-forced likelihood of completions, the forward pass of training and exact evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Prompts padded on the left and completions padded on the right.

    Attributes:
        prompt_BP: token ids (long).
        is_prompt_BP: where ``prompt_BP`` is not padding.
        completion_BT: token ids (long), the end-of-sequence token included where it was written.
        is_completion_BT: where ``completion_BT`` is not padding.
    """

    prompt_BP: torch.Tensor
    is_prompt_BP: torch.Tensor
    completion_BT: torch.Tensor
    is_completion_BT: torch.Tensor

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.prompt_BP)

    def rows(self, row_B: torch.Tensor) -> TokenBatch:
        """The given rows, trimmed to their longest prompt and completion."""
        is_prompt, is_completion = self.is_prompt_BP[row_B], self.is_completion_BT[row_B]
        start = self.prompt_BP.shape[1] - int(is_prompt.sum(1).max())
        stop = int(is_completion.sum(1).max())
        return TokenBatch(
            self.prompt_BP[row_B, start:],
            is_prompt[:, start:],
            self.completion_BT[row_B, :stop],
            is_completion[:, :stop],
        )

    def order_by_length(self) -> torch.Tensor:
        """Rows sorted by the length of the prompt, then of the completion (stable)."""
        num_completion = self.is_completion_BT.sum(1)
        key = self.is_prompt_BP.sum(1) * (1 + self.completion_BT.shape[1]) + num_completion
        return key.argsort(stable=True)


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], completions: Sequence[str]
) -> TokenBatch:
    """Tokens of prompts and of completions that end with the end-of-sequence token.

    Args:
        tokenizer: any tokenizer with a padding and an end-of-sequence token.
        prompts: B texts.
        completions: B texts.

    Returns:
        The batch, on the CPU.

    Raises:
        InvalidInputError: the lengths differ, nothing is given, or the tokenizer lacks a token.
    """
    if len(prompts) != len(completions) or not prompts:
        raise InvalidInputError(
            f"{len(prompts)} prompts and {len(completions)} completions; "
            "pass as many completions as prompts, at least one"
        )
    eos = tokenizer.eos_token_id
    if tokenizer.pad_token_id is None or eos is None:
        raise InvalidInputError("the tokenizer needs a pad token and an eos token; set both")
    prompt_ids = tokenizer(list(prompts))["input_ids"]
    completion_ids = tokenizer(list(completions), add_special_tokens=False)["input_ids"]
    prompt_BP, is_prompt_BP = pad_rows(prompt_ids, tokenizer.pad_token_id, left=True)
    completion_BT, is_completion_BT = pad_rows(
        [[*ids, eos] for ids in completion_ids], tokenizer.pad_token_id, left=False
    )
    return TokenBatch(prompt_BP, is_prompt_BP, completion_BT, is_completion_BT)


def pad_rows(
    ids: Sequence[Sequence[int]], pad: int, *, left: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged token ids as a rectangle and the mask of what is not padding.

    >>> pad_rows([[5], [6, 7]], 0, left=True)[0].tolist()
    [[0, 5], [6, 7]]
    """
    length_B = np.array([len(row) for row in ids])
    is_token_BW = np.arange(length_B.max()) < length_B[:, None]
    if left:
        is_token_BW = is_token_BW[:, ::-1].copy()
    id_BW = np.full(is_token_BW.shape, pad, dtype=np.int64)
    id_BW[is_token_BW] = [token for row in ids for token in row]
    return torch.from_numpy(id_BW), torch.from_numpy(is_token_BW)


def scored_inputs(model: PreTrainedModel, batch: TokenBatch) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return all tokens of a batch, and what a forward pass takes to score its completions."""
    device = model.device
    token = torch.cat([batch.prompt_BP, batch.completion_BT], dim=1).to(device)
    is_token = torch.cat([batch.is_prompt_BP, batch.is_completion_BT], dim=1).to(device)
    return token, {
        "input_ids": token[:, :-1],
        "attention_mask": is_token[:, :-1].long(),
        "position_ids": (is_token.long().cumsum(1) - 1).clamp(min=0)[:, :-1],
        "use_cache": False,
        "logits_to_keep": batch.completion_BT.shape[1],
    }


def log_likelihood(model: PreTrainedModel, batch: TokenBatch) -> torch.Tensor:
    """Log-probability of every completion, differentiable.

        l_b = sum_t log pi(completion_bt | prompt_b, completion_b,<t)

    Args:
        model: any Hugging Face causal language model.
        batch: B prompts and completions; rows of similar length waste least, see `TokenBatch.rows`.

    Returns:
        ``l_B``, float.
    """
    num_steps = batch.completion_BT.shape[1]
    token, inputs = scored_inputs(model, batch)
    logits = model(**inputs).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = functional.cross_entropy(
        logits.flatten(0, 1), token[:, -num_steps:].flatten(), reduction="none"
    )
    return -(nll.view(-1, num_steps) * batch.is_completion_BT.to(token.device)).sum(1)


def weighted_gradient(
    model: PreTrainedModel,
    batch: TokenBatch,
    weight_B: torch.Tensor,
    *,
    of: Literal["likelihood", "log_likelihood"],
    batch_size: int = 128,
) -> torch.Tensor:
    """Gradient of a weighted sum over completions with respect to the parameters.

        g = d/d theta  sum_b w_b f(l_b),      f = exp or the identity

    Rows without weight are left out, rows of similar length are computed together. Existing
    ``.grad`` fields are neither read nor changed.

    Args:
        model: any Hugging Face causal language model.
        batch: B prompts and completions.
        weight_B: ``w_B``, used as given.
        of: sum likelihoods (exact policy gradient) or their logarithms (estimated from rollouts).
        batch_size: rows in one forward pass.

    Returns:
        Flat gradient over the parameters that require one, in the order of ``model.parameters()``.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    order_B = batch.order_by_length()
    for row_B in order_B[weight_B[order_B] != 0].split(batch_size):
        if len(row_B) == 0:
            break
        value_B = log_likelihood(model, batch.rows(row_B))
        if of == "likelihood":
            value_B = value_B.exp()
        objective = (value_B * weight_B[row_B].to(value_B)).sum()
        for sum_, part in zip(total, torch.autograd.grad(objective, parameters), strict=True):
            sum_ += part
    return torch.cat([t.flatten() for t in total])
