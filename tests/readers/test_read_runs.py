"""Runs of a sweep from run folders of ours, and from folders that hold them."""

from __future__ import annotations

import contextlib
import json
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import ApportionError, InvalidInputError, RunFolderError
from apportion.readers.runs import read_runs
from apportion.run_log import RunLog
from apportion.training.config import TrainConfig
from apportion.training.summary import measured_values
from apportion.training.task import Measured

SUCCESS = np.array([0.0, 0.2, 0.5, 0.9])
OWN = {"model": "mine", "dataset": "mine.jsonl"}


def config(n=4, **changes):
    told = {"arm": "uniform", "rollouts_per_prompt": n, "prompts_per_step": 8, "steps": 4}
    return TrainConfig(**{**told, **changes})


def write_run(
    folder, told=None, *, pool=200, exact=True, steps=(0, 2, 4), success_Q=SUCCESS, growth=0.01
):
    """Write a run that grows a little at each evaluation, as `apportion train` writes it."""
    told = config() if told is None else told
    with RunLog.create(folder, {"train": told.to_dict()}) as log:
        for step in range(4):
            log.log_step(step, {"reward_prompt_mean": 0.1 * (step + 1), "num_rollouts": 32.0})
        for at, step in enumerate(steps):
            measured = Measured.of_success(success_Q + growth * at)
            if pool:
                log.log_evaluation(
                    step,
                    compute=step * told.budget_per_step,
                    split="pool",
                    values={**measured_values(measured), "num_problems": pool},
                )
            log.log_evaluation(
                step,
                compute=step * told.budget_per_step,
                split="held_out",
                values=measured_values(measured),
                prompts=list("abcd") if exact else None,
                success_Q=measured.success_Q if exact else None,
            )
    return folder


def test_a_run_folder(tmp_path):
    told = config(n=8, seed=3, learning_rate=3e-6)
    (run,), notes = read_runs([write_run(tmp_path / "mine", told)])
    assert notes == []
    assert (run.name, run.seed, run.setting) == ("mine", 3, (8, 8, 3e-6, "uniform"))
    np.testing.assert_array_equal(run.compute_T, [0, 128, 256])
    np.testing.assert_allclose(run.reward_T, [0.4, 0.41, 0.42])
    assert (run.num_prompts, run.evaluation, run.is_filtered) == (200, None, False)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mean", SUCCESS),
        ("best@8", 1 - (1 - SUCCESS) ** 8),
        ("pass@8", 1 - (1 - SUCCESS) ** 8),
        ("best@4", 1 - (1 - SUCCESS) ** 4),
        ("worst@3", SUCCESS**3),
        ("worst@8", SUCCESS**8),
    ],
)
def test_every_metric_of_exact_success(tmp_path, metric, expected):
    (run,), _ = read_runs([write_run(tmp_path / "run")], metric=metric)
    assert run.reward_T[0] == pytest.approx(expected.mean())
    assert run.evaluation is None


@pytest.mark.parametrize(
    ("reward_NK", "metric"),
    [
        ([[1, 0, 1, 1, 0, 0, 0, 0], [0] * 8, [1] * 8, [1, 1, 1, 1, 1, 0, 1, 0]], "best@4"),
        ([[1, 0, 1, 1, 0, 0, 0, 0], [0] * 8, [1] * 8, [1, 1, 1, 1, 1, 0, 1, 0]], "worst@3"),
    ],
)
def test_other_k_of_sampled_success_is_without_bias(tmp_path, reward_NK, metric):
    """Against the mean over all subsets of k of the eight samples."""
    success_Q = np.mean(reward_NK, axis=1)
    folder = write_run(tmp_path / "run", config(**OWN), pool=0, success_Q=success_Q, growth=0.0)
    (run,), _ = read_runs([folder], metric=metric)
    name, k = metric.split("@")
    of = max if name == "best" else min
    expected = np.mean([[of(s) for s in combinations(row, int(k))] for row in reward_NK])
    np.testing.assert_allclose(run.reward_T, expected)
    assert run.evaluation == (4, 8 // int(k))
    with pytest.raises(InvalidInputError, match="measures mean, best@8 and worst@8, not best@9"):
        read_runs([folder], metric="best@9")


def test_graded_rewards_have_no_other_k(tmp_path):
    folder = write_run(tmp_path / "run", config(**OWN), pool=0)
    with pytest.raises(InvalidInputError, match="not best@4"):
        read_runs([folder], metric="best@4")


def test_sampled_success_has_a_size_and_no_other_k(tmp_path):
    folder = write_run(tmp_path / "run", config(**OWN), pool=0, exact=False)
    (run,), _ = read_runs([folder])
    assert (run.evaluation, run.num_prompts) == ((4, 8), None)
    (best,), _ = read_runs([folder], metric="best@8")
    assert best.evaluation == (4, 1)
    with pytest.raises(InvalidInputError, match="measures mean, best@8 and worst@8, not best@4"):
        read_runs([folder], metric="best@4")


def test_what_choosing_prompts_learns_from_is_counted_from_its_features(tmp_path):
    folder = write_run(tmp_path / "run", config(**OWN), pool=0, exact=False)
    features = {"prompt": ["a", "b", "c"], "feature": [[1.0]] * 3}
    pl.DataFrame(features).write_parquet(folder / "prompts.parquet")
    assert read_runs([folder])[0][0].num_prompts == 3
    (folder / "prompts.parquet").write_bytes(b"PAR1")
    assert read_runs([folder])[0][0].num_prompts is None


def test_rewards_of_another_range_are_mapped(tmp_path):
    told = config(**OWN, reward_low=-1.0, reward_high=3.0)
    (run,), notes = read_runs([write_run(tmp_path / "run", told, pool=0)])
    assert run.reward_T[0] == pytest.approx((0.4 + 1) / 4)
    assert notes == ["Rewards from -1 to 3 were mapped to [0, 1]."]


def test_splits(tmp_path):
    folder = write_run(tmp_path / "run")
    assert len(read_runs([folder], split="pool")[0]) == 1
    with pytest.raises(InvalidInputError, match="split test, but of pool and held_out: see --sp"):
        read_runs([folder], split="test")


def test_a_folder_of_runs_at_any_depth(tmp_path):
    for arm, options in [
        ("uniform", {}),
        ("adaptive", {"objective": "variance", "candidates": 1}),
        ("adaptive", {"objective": "progress", "candidates": 3}),
        ("adaptive", {"objective": "progress", "candidates": 2}),
        ("vip", {}),
    ]:
        place = tmp_path / "sweep" / "-".join([arm, *map(str, options.values())]) / "uniform-seed0"
        write_run(place, config(arm=arm, **options))
    (tmp_path / "sweep" / "loop").symlink_to(tmp_path, target_is_directory=True)
    write_run(tmp_path / "sweep" / ".hidden" / "run")
    checkpoint = place / "checkpoints" / "checkpoint-4" / "trainer_state.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text('{"log_history": [{"step": 1, "eval_reward": 0.5}]}')
    runs, notes = read_runs([tmp_path, place])
    assert notes == []
    assert sorted(run.allocator for run in runs) == [
        "adaptive",
        "adaptive (progress, 2 x)",
        "adaptive (progress, 3 x)",
        "uniform",
        "vip",
    ]
    assert len({run.setting for run in runs}) == len({run.name for run in runs}) == 5
    assert f"uniform-seed0 in {tmp_path / 'sweep' / 'vip'}" in {run.name for run in runs}


def test_runs_without_evaluation_are_left_out_and_told(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", steps=(), pool=0)
    runs, notes = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a"]
    assert notes[0].startswith(f"Left out: {tmp_path / 'b'} has no evaluation yet.")
    with pytest.raises(InvalidInputError, match="has no evaluation yet"):
        read_runs([tmp_path / "b"])


def test_training_reward_is_taken_on_request_alone(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", config(arm="adaptive", objective="progress"), steps=(), pool=0)
    runs, notes = read_runs([tmp_path], training_reward=True)
    judged, trained = runs
    assert judged.reward_T[-1] == pytest.approx(0.42)
    np.testing.assert_array_equal(trained.compute_T, [32, 64, 96, 128])
    np.testing.assert_allclose(trained.reward_T, [0.1, 0.2, 0.3, 0.4])
    assert trained.evaluation == (8, 4)
    assert trained.is_filtered  # of prompts that were chosen
    assert len(notes) == 1
    assert "The reward of b is that of training prompts, which misleads" in notes[0]
    assert "do not compare these" in notes[0]


def test_runs_of_different_tasks_are_refused_and_recipes_told(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", config(n=8, estimator="rloo", lower=3, learning_rate=1e-3))
    notes = read_runs([tmp_path])[1]
    assert notes == ["Runs differ in estimator (dr_grpo and rloo), which is not told apart here."]
    write_run(tmp_path / "x" / "d", config(model="/a/mine", dataset="d.csv"), steps=(0, 4))
    write_run(tmp_path / "x" / "e", config(model="/b/mine", dataset="d.csv", seed=1))
    assert len(read_runs([tmp_path / "x"])[0]) == 2  # one model, on two machines
    write_run(tmp_path / "c", config(pool="hard"))
    with pytest.raises(InvalidInputError, match="pool is mixed in a and hard in c"):
        read_runs([tmp_path / "a", tmp_path / "c"])


def test_a_loop_of_ones_own_needs_its_sizes(tmp_path):
    with RunLog.create(tmp_path / "run", {"seed": 1}) as log:
        log.log_evaluation(1, compute=64, split="held_out", values={"avg": 0.5, "num_samples": 4})
        log.log_evaluation(1, compute=64, split="held_out", values={"avg": 0.75})
    with pytest.raises(InvalidInputError, match="Give --rollouts-per-prompt"):
        read_runs([tmp_path])
    with pytest.raises(InvalidInputError, match="Give --prompts-per-step"):
        read_runs([tmp_path], rollouts_per_prompt=4)
    (run,), _ = read_runs([tmp_path], rollouts_per_prompt=4, prompts_per_step=16)
    assert run.setting == (4, 16, None, "uniform")
    np.testing.assert_array_equal(run.reward_T, [0.75])  # the later of two counts
    with pytest.raises(InvalidInputError, match="prompts_per_step is 0"):
        read_runs([tmp_path], rollouts_per_prompt=4, prompts_per_step=0)


def test_damage_is_told_or_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = folder / "evaluations.jsonl"
    whole = lines.read_text()
    lines.write_text(whole + '{"compute": "many", "split": "held_out"}\n{"step": 4, "comp')
    (run,), notes = read_runs([folder])
    assert len(run.compute_T) == 3
    assert notes == [
        f"{lines}: dropped a torn last line.",
        f"{lines}: left out 1 damaged line.",
    ]
    lines.write_text(whole.replace('"avg": 0.42', '"avg": 4.2'))
    with pytest.raises(InvalidInputError, match=r"reward of run\[2\] is 4.2"):
        read_runs([folder])
    described = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**described, "version": 99}))
    with pytest.raises(RunFolderError, match="has version 99"):
        read_runs([folder])


@pytest.mark.parametrize("inside", [None, "a.txt", "logs/b.json"])
def test_paths_without_runs(tmp_path, inside):
    if inside is not None:
        (tmp_path / inside).parent.mkdir(exist_ok=True)
        (tmp_path / inside).write_text("hello")
    with pytest.raises(InvalidInputError, match="holds no runs"):
        read_runs([tmp_path])
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(InvalidInputError, match="no runs"):
        read_runs([])


def test_kinds_may_be_mixed(tmp_path):
    write_run(tmp_path / "ours")
    table = tmp_path / "theirs.csv"
    table.write_text("run,n,B_p,C,reward\nx,4,8,64,0.5\n")
    runs, _ = read_runs([table, tmp_path / "ours"])
    assert [run.setting[:2] for run in runs] == [(4, 8), (4, 8)]
    assert [run.name for run in runs] == ["x", "ours"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
LINES = st.dictionaries(
    st.sampled_from(["step", "compute", "split", "avg", "num_problems", "num_samples", "pass@8"]),
    JSON | st.sampled_from(["held_out", "pool"]),
)
TOLD = st.dictionaries(
    st.sampled_from(
        [
            *("arm", "rollouts_per_prompt", "prompts_per_step", "seed", "learning_rate", "model"),
            *("objective", "candidates", "reward_low", "reward_high", "dataset"),
        ]
    ),
    JSON | st.sampled_from(["uniform", "adaptive", 1, 2.0, 4]),
)


@given(TOLD, st.lists(LINES, max_size=4), st.sampled_from(["mean", "best@4", "("]))
def test_any_content_is_read_or_refused(tmp_path_factory, told, lines, metric):
    folder = tmp_path_factory.mktemp("run")
    described = {"format": "apportion-run", "version": 1, "config": {"train": told}}
    (folder / "run.json").write_text(json.dumps(described))
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with contextlib.suppress(ApportionError):
        read_runs([folder], metric=metric, rollouts_per_prompt=4, prompts_per_step=8)
