"""Building the embedded checkpoint from nothing: clean stage, noisy demonstrations, export, pools.

1. *Clean stage*: supervised training on right answers, until the easy cells are mastered.
2. *Noisy stage*: a short training on demonstrations of which a share, set for each cell, is wrong
   (a trailing dot, a refusal, an echo of the equals sign, one wrong character). The model learns to
   be right only part of the time although it knows better, like a pretrained language model before
   reinforcement learning, which sharpens what is there. Without it there is hardly any head-room.
3. *Export* in float16, then the pools are chosen by the exact success of the exported weights.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from apportion import validate
from apportion.embedded.cells import CELLS, MAX_ANSWER_CHARS
from apportion.embedded.exact import exact_success
from apportion.embedded.likelihood import TokenBatch, encode, log_likelihood
from apportion.embedded.model import build_model, build_tokenizer, load
from apportion.embedded.pools import choose_pools, write_pools
from apportion.embedded.tasks import (
    Problem,
    generate,
    split,
)
from apportion.errors import InvalidInputError

Progress = Callable[[str, int, int, float], None]
"""Called with the stage, the step, the number of steps and the loss of that step."""

CLEAN_LEARNING_RATE = 2e-3
NOISY_LEARNING_RATE = 6e-4
BATCH_SIZE = 64  # larger batches learned less from the same CPU time
_BUCKET_ROWS = (
    4096  # rows drawn together and sorted by length, so that batches carry little padding
)


def build(
    out: str | Path,
    *,
    clean_steps: int = 9_000,
    noisy_steps: int = 1_500,
    draws_per_cell: int = 20_000,
    seed: int = 0,
    clean_checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train the embedded model and write checkpoint, tokenizer and pools.

    Deterministic by seed on one machine with one number of threads; ``torch.set_num_threads(1)``
    is the most economical. The clean weights are kept in ``out/clean``, so that the noisy stage can
    be repeated alone. Needs torch 2.9 or newer for its optimizer Muon.

    Args:
        out: folder to write; made if missing.
        clean_steps: updates on right answers.
        noisy_steps: updates on noisy demonstrations.
        draws_per_cell: problems drawn for each cell before repeats are dropped.
        seed: of data, initial weights and order.
        clean_checkpoint: folder of an earlier ``clean`` stage; the clean stage is then skipped.
        progress: called after every update.

    Returns:
        ``out`` as a path.

    Raises:
        InvalidInputError: a count is below 1, ``clean_checkpoint`` holds no checkpoint, or torch is
            older than 2.9.
        MissingExtraError: reasoning-gym is not installed.
    """
    if not hasattr(torch.optim, "Muon"):
        raise InvalidInputError(
            f"torch is {torch.__version__}, but building needs 2.9 or newer for its optimizer Muon."
        )
    clean_steps = validate.whole_number("clean_steps", clean_steps, at_least=1)
    noisy_steps = validate.whole_number("noisy_steps", noisy_steps, at_least=1)
    out = Path(out)
    reused = None if clean_checkpoint is None else load(clean_checkpoint)[0]
    tokenizer = build_tokenizer()
    problems = draw_problems(draws_per_cell, seed=seed)
    demonstrations = [p for p in problems if split(p.prompt) == "demonstration"]
    if reused is None:
        model = build_model(seed=seed)
        rate = CLEAN_LEARNING_RATE
        _train(model, tokenizer, demonstrations, clean_steps, rate, seed, "clean", progress)
        _export(model, tokenizer, out / "clean", torch.float32)
    else:
        model = reused
    noisy = noisy_demonstrations(demonstrations, seed=seed)
    rate = NOISY_LEARNING_RATE
    _train(model, tokenizer, noisy, noisy_steps, rate, seed + 1, "noisy", progress)
    _export(model, tokenizer, out, torch.float16)

    shipped, tokenizer = load(out)
    candidates = [p for p in problems if split(p.prompt) != "demonstration"]
    success_Q = exact_success(
        shipped, tokenizer, [p.prompt for p in candidates], [p.answer for p in candidates]
    )
    write_pools(out / "pools.csv", choose_pools(candidates, success_Q, seed=seed))
    return out


def draw_problems(draws_per_cell: int, *, seed: int = 0) -> list[Problem]:
    """Problems of all cells with distinct prompts; a prompt of two cells belongs to the first.

    Args:
        draws_per_cell: see `apportion.embedded.tasks.generate`.
        seed: of the draws.

    Returns:
        The problems, cell after cell.
    """
    by_prompt: dict[str, Problem] = {}
    for cell in CELLS.values():
        for problem in generate(cell, draws_per_cell, seed=seed):
            by_prompt.setdefault(problem.prompt, problem)
    return list(by_prompt.values())


def noisy_demonstrations(problems: Sequence[Problem], *, seed: int = 0) -> list[Problem]:
    """The same problems, a share of them with a wrong answer: ``Cell.noise`` sets the share."""
    rng = random.Random(seed)
    noisy = []
    for p in problems:
        is_wrong = rng.random() < CELLS[p.cell].noise
        noisy.append(Problem(p.cell, p.prompt, corrupt(p.answer, rng)) if is_wrong else p)
    return noisy


def corrupt(answer: str, rng: random.Random) -> str:
    """A wrong demonstration: format slip (40%), refusal, echo or one wrong character (20% each).

    >>> rng = random.Random(1)
    >>> [corrupt("12", rng) for _ in range(4)]
    ['12.', '02', '12.', '=12']
    """
    kind = rng.random()
    if kind < 0.4 and len(answer) < MAX_ANSWER_CHARS:
        return answer + "."
    if kind < 0.6:
        return "?"
    if kind < 0.8 and len(answer) < MAX_ANSWER_CHARS:
        return "=" + answer
    at = rng.randrange(len(answer))
    old = answer[at]
    if old.isdigit():
        new = str((int(old) + rng.choice((1, 9))) % 10)
    else:
        new = rng.choice([c for c in "abcdefghijklmnopqrstuvwxyz" if c != old])
    return answer[:at] + new + answer[at + 1 :]


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[Problem],
    num_steps: int,
    learning_rate: float,
    seed: int,
    stage: str,
    progress: Progress | None,
) -> None:
    """Loss on the answer tokens only, linear warm-up and cosine decay to 3% of the rate."""
    optimizers = _optimizers(model, learning_rate)
    num_warmup = min(100, max(1, num_steps // 20))
    model.train()
    batches = _batches(demonstrations, tokenizer, torch.Generator().manual_seed(seed))
    for step in range(num_steps):
        warmup = min(1.0, (step + 1) / num_warmup)
        decay = 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        for group in (g for o in optimizers for g in o.param_groups):
            group["lr"] = learning_rate * warmup * decay
        batch = next(batches)
        loss = -log_likelihood(model, batch).sum() / batch.is_completion_BT.sum()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if progress is not None:
            progress(stage, step + 1, num_steps, loss.item())
    model.eval()


def _optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    is_matrix = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in is_matrix]
    return [
        torch.optim.Muon(
            matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def _batches(
    demonstrations: Sequence[Problem],
    tokenizer: PreTrainedTokenizerFast,
    generator: torch.Generator,
) -> Iterator[TokenBatch]:
    """Endless batches of rows of similar length; cells are drawn by weight, rows evenly within."""
    rows = encode(tokenizer, [p.prompt for p in demonstrations], [p.answer for p in demonstrations])
    count: dict[str, int] = {}
    for p in demonstrations:
        count[p.cell] = count.get(p.cell, 0) + 1
    weight_N = torch.tensor(
        [CELLS[p.cell].weight / count[p.cell] for p in demonstrations], dtype=torch.float64
    )
    length_N = rows.is_prompt_BP.sum(1) + 32 * rows.is_completion_BT.sum(1)
    while True:
        drawn = torch.multinomial(weight_N, _BUCKET_ROWS, replacement=True, generator=generator)
        jitter = torch.rand(_BUCKET_ROWS, generator=generator)
        bucket = drawn[(length_N[drawn] + jitter).argsort()].split(BATCH_SIZE)
        for i in torch.randperm(len(bucket), generator=generator):
            yield rows.rows(bucket[int(i)])


def _export(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, dtype: torch.dtype
) -> None:
    """Write a copy of the model stored in ``dtype``, with its tokenizer.

    The configuration says float32, so that who loads it without further ado can train it.
    """
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(dtype).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # written readable for its owner alone
