"""Completions of prompts under the base model, the embedded one or yours, as trainers sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from apportion.errors import InvalidInputError
from apportion.training.run import load_model
from apportion.training.task import Task

TEMPERATURE = 1.0
"""That of the trainers; nothing is cut from the distribution."""

Rows = Sequence[dict[str, Any]]
Sampler = Callable[[Rows], tuple[list[Any], list[bool]]]
"""Completions of rows, those of a row together, and whether each was cut off."""


def sampler_of(task: Task, *, is_embedded: bool, num_samples: int, max_tokens: int) -> Sampler:
    """Load the model of a task and return what samples it with torch's global random numbers.

    Args:
        task: model and prompts.
        is_embedded: whether the model is the shipped one.
        num_samples: completions of each row.
        max_tokens: longest completion; one without an end by then is cut off.

    Raises:
        InvalidInputError: the model cannot be loaded, or its tokenizer cannot pad.
    """
    if is_embedded:
        return _embedded_sampler(num_samples, max_tokens)
    return _own_sampler(task, num_samples, max_tokens)


def _embedded_sampler(num_samples: int, max_tokens: int) -> Sampler:
    from apportion.embedded.model import load
    from apportion.embedded.sampler import sample

    model, tokenizer = load()

    def sample_rows(rows: Rows) -> tuple[list[Any], list[bool]]:
        prompts = [row["prompt"] for row in rows]
        rollouts = sample(model, tokenizer, prompts, num_samples, max_new_tokens=max_tokens)
        return list(rollouts.text_N), (~rollouts.is_finished_N).tolist()

    return sample_rows


def _own_sampler(task: Task, num_samples: int, max_tokens: int) -> Sampler:
    from transformers.utils import is_torch_cuda_available

    model, tokenizer = load_model(task, is_embedded=False)
    if tokenizer.pad_token_id is None:
        raise InvalidInputError(
            f"The tokenizer of {task.model!r} has neither a padding nor an end token. Set one."
        )
    model = model.cuda().bfloat16() if is_torch_cuda_available() else model
    model.eval()
    tokenizer.padding_side = "left"
    is_chat = not isinstance(task.rows[0]["prompt"], str)
    stops = _stop_tokens(model, tokenizer)

    def sample_rows(rows: Rows) -> tuple[list[Any], list[bool]]:
        inputs = _encoded(tokenizer, [row["prompt"] for row in rows], is_chat).to(model.device)
        output = model.generate(
            **inputs,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            num_return_sequences=num_samples,
            max_new_tokens=max_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=sorted(stops),
        )
        answers = output[:, inputs["input_ids"].shape[1] :].tolist()
        ends = [next((at for at, i in enumerate(ids) if i in stops), None) for ids in answers]
        kept = [ids[:end] for ids, end in zip(answers, ends, strict=True)]
        texts = tokenizer.batch_decode(kept, skip_special_tokens=True)
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        return completions if is_chat else texts, [end is None for end in ends]

    return sample_rows


def _stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the tokens that end a completion: those of the model and that of the tokenizer."""
    named = model.generation_config.eos_token_id
    stops = set(named) if isinstance(named, list) else {named}
    return {token for token in (*stops, tokenizer.eos_token_id) if token is not None}


def _encoded(tokenizer: Any, prompts: list[Any], is_chat: bool) -> Any:
    if not is_chat:
        return tokenizer(prompts, padding=True, return_tensors="pt")
    return tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, return_dict=True, padding=True, return_tensors="pt"
    )
