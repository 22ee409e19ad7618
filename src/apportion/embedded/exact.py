"""Exact success probability and exact policy gradient of problems with one right answer.

A policy succeeds on prompt q when it writes the answer y and stops:

    p_q = prod_t pi(y_t | q, y_<t),      y_T = end of sequence,

the teacher-forced likelihood, so neither evaluation nor gradient needs a sample. The likelihood is
the success probability only where (1) the scorer accepts one string and (2) the tokenizer spells
that string in one way and concatenates: the tokens of the joined text are those of the prompt, then
those of the answer. Character tokenizers do. With subword tokenizers the value is a lower bound, as
other token sequences may decode to the answer, and an answer whose first or last piece merges with
its neighbour is measured wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apportion.embedded.likelihood import encode, log_likelihood, weighted_gradient
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray


def exact_success(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    answers: Sequence[str],
    *,
    batch_size: int = 128,
) -> FloatArray:
    """Success probability of every prompt at temperature 1, the likelihood of its answer.

    Args:
        model: any Hugging Face causal language model.
        tokenizer: its tokenizer; see the module's limits.
        prompts: Q texts.
        answers: Q texts, the one completion of each that scores 1.
        batch_size: rows in one forward pass.

    Returns:
        ``success_Q``, float64 in [0, 1].

    Raises:
        InvalidInputError: the lengths differ or nothing is given.
    """
    batch = encode(tokenizer, prompts, answers)
    success_Q = np.empty(len(batch))
    with torch.inference_mode():
        for row_B in batch.order_by_length().split(batch_size):
            log_B = log_likelihood(model, batch.rows(row_B))
            success_Q[row_B.numpy()] = log_B.double().exp().cpu().numpy()
    return success_Q


def exact_gradient(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    answers: Sequence[str],
    weights: ArrayLike | None = None,
    *,
    batch_size: int = 128,
) -> torch.Tensor:
    """Gradient of the (weighted) mean success with respect to the parameters.

        g = d/d theta  sum_q w_q p_q(theta),      w_q = 1/Q by default

    This is the policy gradient of the expected reward; every unbiased estimator has it as its mean.
    Existing ``.grad`` fields of the model are neither read nor changed.

    Args:
        model: any Hugging Face causal language model; dropout off for an exact value.
        tokenizer: its tokenizer; see the module's limits.
        prompts: Q texts.
        answers: Q texts, the one completion of each that scores 1.
        weights: ``w_Q``, used as given (not normalised).
        batch_size: rows in one forward pass.

    Returns:
        Flat gradient over the parameters that require one, in the order of ``model.parameters()``.

    Raises:
        InvalidInputError: the lengths differ, nothing is given or ``weights`` has another length.
    """
    batch = encode(tokenizer, prompts, answers)
    weight_Q = (
        np.full(len(batch), 1 / len(batch)) if weights is None else np.asarray(weights, float)
    )
    if weight_Q.shape != (len(batch),):
        raise InvalidInputError(
            f"weights has shape {weight_Q.shape}, but must be one number for each of the "
            f"{len(batch)} prompts."
        )
    return weighted_gradient(
        model, batch, torch.as_tensor(weight_Q), of="likelihood", batch_size=batch_size
    )
