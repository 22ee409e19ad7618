"""Run on every rank by test_trl_ranks.py: trains, and writes down what this rank saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import trl_helpers as helpers


def watch(trainer):
    """Record local rows, rewards and advantages of each generation batch."""
    seen = []
    stock_rewards = trainer._calculate_rewards
    stock_generate = trainer._generate_and_score_completions

    def calculated(inputs, *others):
        reward_NK = stock_rewards(inputs, *others)
        rank, size = trainer.accelerator.process_index, len(inputs)
        seen.append(
            {
                "group": [row["group_index"] for row in inputs],
                "prompt": [row["prompt"] for row in inputs],
                "reward": reward_NK[rank * size : (rank + 1) * size, 0].tolist(),
            }
        )
        return reward_NK

    def generated(inputs):
        output = stock_generate(inputs)
        seen[-1]["advantage"] = output["advantages"].tolist()
        seen[-1]["num_tokens"] = output["completion_mask"].sum(1).tolist()
        seen[-1]["normaliser"] = float(output["num_items_in_batch"])
        return output

    trainer._calculate_rewards = calculated
    trainer._generate_and_score_completions = generated
    return seen


class Forgetful(helpers.FixedAllocator):
    """Fails to learn, by an error that no other process could be sent."""

    def observe(self, outcomes):
        class LocalError(Exception):
            pass

        raise LocalError("I forgot")


def error_of(folder, allocator, **options):
    """Return the error that training ends with on this rank."""
    try:
        helpers.trained(helpers.build(folder, allocator=allocator, **options))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path, sizes: list[int], micro_batch: int, num_generations: int) -> None:
    options = {
        "per_device_train_batch_size": micro_batch,
        "num_generations": num_generations,
        "ddp_backend": "gloo",
        "gradient_accumulation_steps": 1,
    }
    rank = int(os.environ["RANK"])
    allocator = helpers.FixedAllocator(sizes)
    ragged = helpers.build(folder / "ragged", allocator=allocator, **options)
    seen = watch(ragged)
    weights = helpers.trained(ragged)
    result = {
        "world": ragged.accelerator.num_processes,
        "batches": seen,
        "checksum": float(weights.double().sum()),
        "asked": len(allocator.asked),
        "told": [out.reward_sum_B.tolist() for out in allocator.told],
        "logged": "rollouts/group_size_max" in ragged.state.log_history[0],
    }
    chooser = helpers.FixedChooser([0, *sizes[1:], sizes[0], *[0] * (len(sizes) - 1)])
    chosen = helpers.build(folder / "chosen", allocator=chooser, candidates=2, **options)
    result["chosen"] = watch(chosen)
    result["chosen_checksum"] = float(helpers.trained(chosen).double().sum())
    result["candidates"] = [keys for keys, _, _ in chooser.asked]
    even = helpers.FixedAllocator([num_generations])
    ours = helpers.trained(helpers.build(folder / "even", allocator=even, **options))
    stock = helpers.trained(helpers.build(folder / "stock", stock=True, **options))
    result["even_is_stock"] = bool(torch.equal(ours, stock))
    result["errors"] = [
        error_of(folder / "broken", helpers.FixedAllocator([99]), **options),
        error_of(folder / "forgetful", Forgetful(sizes), **options),
        error_of(folder, None, rollout_log_dir=str(folder / "held"), **options),
    ]
    (folder / f"rank{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Gloo's threads sometimes abort an interpreter that shuts down in its own time.
    os._exit(0)
