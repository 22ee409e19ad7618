"""Completions of a Hugging Face model at temperature 1, apart from any trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sample_texts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    *,
    max_tokens: int,
    batch_size: int = 64,
    seed: int = 0,
) -> list[Any]:
    """Sample one completion a prompt without touching the random state of the process.

    Args:
        model: any Hugging Face causal language model.
        tokenizer: its tokenizer.
        prompts: texts, or lists of chat messages.
        max_tokens: longest completion, in tokens.
        batch_size: prompts in one call of ``generate``.
        seed: equal seeds give equal completions.

    Returns:
        A text for each text, a list with one assistant message for each list of messages.
    """
    was_training = model.training
    model.eval()
    completions: list[Any] = []
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), batch_size):
                batch = prompts[start : start + batch_size]
                completions += _sample_batch(model, tokenizer, batch, max_tokens)
    finally:
        model.train(was_training)
    return completions


def _sample_batch(model: Any, tokenizer: Any, prompts: Sequence[Any], max_tokens: int) -> list[Any]:
    texts = [
        prompt
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        for prompt in prompts
    ]
    side = tokenizer.padding_side
    tokenizer.padding_side = "left"
    try:
        # A chat template writes the start token itself.
        inputs = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            add_special_tokens=all(isinstance(prompt, str) for prompt in prompts),
        ).to(model.device)
    finally:
        tokenizer.padding_side = side
    output = model.generate(
        **inputs,
        do_sample=True,
        # What a model's own generation settings would change is set back, as trainers do.
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=max_tokens,
        pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
    )
    answers = output[:, inputs["input_ids"].shape[1] :]
    decoded = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, decoded, strict=True)
    ]
