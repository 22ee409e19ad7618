"""Several processes: groups that straddle them, one decision, the same weights everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from apportion import advantage

HERE = Path(__file__).parent


def launched(folder, num_ranks, sizes, micro_batch, num_generations):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={num_ranks}", str(HERE / "trl_ranks.py"), str(folder)]
    command += [json.dumps(sizes), str(micro_batch), str(num_generations)]
    quiet = {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in range(num_ranks)]


def check_choice(ranks, sizes):
    """Every rank trains on its part of the prompts that the first one chose."""
    given = [0, *sizes[1:], sizes[0], *[0] * (len(sizes) - 1)]
    assert len({rank["chosen_checksum"] for rank in ranks}) == 1
    assert ranks[0]["candidates"]
    assert all(len(set(keys)) == 2 * len(sizes) for keys in ranks[0]["candidates"])
    for i in range(len(ranks[0]["chosen"])):
        group_N, reward_N, advantage_N = (
            np.concatenate([rank["chosen"][i][name] for rank in ranks])
            for name in ("group", "reward", "advantage")
        )
        prompt_N = [prompt for rank in ranks for prompt in rank["chosen"][i]["prompt"]]
        assert np.bincount(group_N).tolist() == [size for size in given if size]
        pairs = {(g, p) for g, p in zip(group_N.tolist(), prompt_N, strict=True)}
        assert len(pairs) == len({p for _, p in pairs}) == len(sizes)
        want_N = advantage.grpo(reward_N, group_N, scale="batch")
        want_N = want_N * advantage.prompt_weight(group_N, centring="mean")
        np.testing.assert_allclose(advantage_N, want_N, atol=2e-5)


@pytest.mark.parametrize(
    ("num_ranks", "sizes", "micro_batch", "num_generations"),
    [
        (2, [2, 2, 8, 4], 8, 4),
        # 4 rows a rank and groups of 6: neither stock nor ragged groups fit a rank.
        pytest.param(3, [9, 3], 4, 6, marks=pytest.mark.slow),
    ],
)
def test_groups_straddle_ranks(tmp_path, num_ranks, sizes, micro_batch, num_generations):
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "run.json").write_text("{}")
    ranks = launched(tmp_path, num_ranks, sizes, micro_batch, num_generations)
    assert all(rank["world"] == num_ranks for rank in ranks)
    assert all(rank["even_is_stock"] for rank in ranks)
    assert len({rank["checksum"] for rank in ranks}) == 1
    assert [rank["asked"] for rank in ranks] == [3, *[0] * (num_ranks - 1)]
    for rank in ranks:
        decided, learned, opened = rank["errors"]
        assert "all together" in decided
        assert learned.endswith("LocalError: I forgot")
        assert opened.startswith("RunFolderError")
    assert ranks[0]["logged"]
    check_choice(ranks, sizes)
    straddling = False
    for i, batch in enumerate(ranks[0]["batches"]):

        def whole(name, i=i):
            return np.concatenate([rank["batches"][i][name] for rank in ranks])

        group_N, reward_N = whole("group"), whole("reward")
        np.testing.assert_array_equal(group_N, np.repeat(range(len(sizes)), sizes))
        prompts = {(g, p) for g, p in zip(group_N.tolist(), whole("prompt").tolist(), strict=True)}
        assert len(prompts) == len(sizes)
        want_N = advantage.grpo(reward_N, group_N, scale="batch")
        want_N = want_N * advantage.prompt_weight(group_N, centring="mean")
        np.testing.assert_allclose(whole("advantage"), want_N, atol=2e-5)
        np.testing.assert_allclose(
            ranks[0]["told"][i], np.bincount(group_N, weights=reward_N), atol=1e-6
        )
        num_tokens = float(whole("num_tokens") @ advantage.prompt_weight(group_N))
        assert {rank["batches"][i]["normaliser"] for rank in ranks} == {batch["normaliser"]}
        assert batch["normaliser"] == pytest.approx(num_tokens, rel=1e-5)
        owners = [set(group_N[r * micro_batch : (r + 1) * micro_batch]) for r in range(num_ranks)]
        straddling |= any(a & b for a, b in pairwise(owners))
    assert straddling
