import json

import numpy as np
import pytest

from apportion.errors import InvalidInputError, RunFolderError
from apportion.training import compare
from apportion.training.config import TrainConfig

CONFIG = TrainConfig()


def finished(job, final, *, held_out=None, **fields):
    job.folder.mkdir(parents=True)
    curves = {"pool": [0.1, (0.1 + final) / 2, final]}
    curves |= {} if held_out is None else {"held_out": held_out}
    lines = [
        {"step": s, "compute": 10 * s, "split": split, "avg": v}
        for split, curve in curves.items()
        for s, v in enumerate(curve)
    ]
    (job.folder / "evaluations.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    summary = {
        "config": CONFIG.to_dict(),
        "success": {
            split: {"before": {"avg": curve[0]}, "after": {"avg": curve[-1]}}
            for split, curve in curves.items()
        },
        "budget": 20,
        "num_rollouts": 20,
        "share_with_signal": 0.5,
        "num_uniform_steps": 1,
        "gradient_variance": {"against_uniform": 0.8, "oracle_against_uniform": 0.7},
        "forecast_error": {"forecast": 0.1, "moving_average": 0.2, "ridge": 0.15},
        "seconds": {"allocation_share": 0.01},
        "notes": [],
    } | fields
    (job.folder / "summary.json").write_text(json.dumps(summary))


def test_paired_numbers_by_hand(tmp_path):
    jobs = compare.jobs_of(CONFIG, ["uniform", "adaptive"], [0, 1, 2], tmp_path)
    finals = {"uniform": [0.2, 0.3, 0.4], "adaptive": [0.3, 0.4, 0.5]}
    for job in jobs:
        finished(job, finals[job.config.arm][job.config.seed])
    result = compare.compare(jobs)
    pool = result["arms"]["adaptive"]["success"]["pool"]
    assert pool["after"] == pytest.approx(0.4)
    assert pool["difference"]["mean"] == pytest.approx(0.1)
    assert pool["difference"]["low"] == pytest.approx(0.1)
    # Uniform's mean ends at 0.3; adaptive rises from 0.1 by 0.15 an evaluation.
    assert pool["share_of_rollouts"]["mean"] == pytest.approx((10 + 10 * 0.05 / 0.15) / 20)
    assert result["arms"]["uniform"]["success"]["pool"]["share_of_rollouts"]["mean"] == 1.0
    json.dumps(result, allow_nan=False)


def test_choices_and_notes_are_put_side_by_side(tmp_path):
    jobs = compare.jobs_of(CONFIG, ["uniform", "adaptive"], [0, 1], tmp_path)
    for job in jobs:
        if job.config.arm == "uniform":
            finished(job, 0.2, held_out=[0.1, 0.2, 0.2], gain={"against_uniform": 1.0})
        else:
            finished(
                job,
                0.3,
                held_out=[0.1, 0.2, 0.18 + 0.01 * job.config.seed],
                gain={"against_uniform": 2.0 + job.config.seed},
                gradient_variance=None,
                prompts_per_step=40.0,
                share_touched=0.5,
                memorising="mine",
                notes=["the pool is small", "mine"],
            )
    result = compare.compare(jobs)
    entry = result["arms"]["adaptive"]
    assert (entry["gain"], entry["prompts_per_step"], entry["share_touched"]) == (2.5, 40.0, 0.5)
    assert "gradient_variance" not in entry
    uniform = result["arms"]["uniform"]
    assert (uniform["gain"], uniform["prompts_per_step"]) == (1.0, None)
    small, heart = result["notes"]
    assert small == "the pool is small"
    assert heart.startswith("adaptive: memorising a small pool")
    assert "fell by 0.015" in heart
    json.dumps(result, allow_nan=False)


def test_a_seed_without_all_arms_does_not_count(tmp_path):
    jobs = compare.jobs_of(CONFIG, ["uniform", "adaptive"], [0, 1], tmp_path)
    with pytest.raises(InvalidInputError, match="No seed has finished"):
        compare.compare(jobs)
    for job in jobs[:3]:
        finished(job, 0.2)
    result = compare.compare(jobs)
    assert result["seeds"] == [0]
    assert result["arms"]["adaptive"]["success"]["pool"]["difference"]["low"] is None
    assert np.isfinite(result["arms"]["adaptive"]["success"]["pool"]["difference"]["mean"])


def test_plan_round_trips_and_is_not_overwritten(tmp_path):
    compare.start(CONFIG, ["uniform", "vip"], [3, 4], tmp_path)
    assert compare.load(tmp_path) == (CONFIG, ["uniform", "vip"], [3, 4])
    with pytest.raises(RunFolderError, match="already holds"):
        compare.start(CONFIG, ["uniform", "vip"], [3], tmp_path)
    with pytest.raises(RunFolderError, match="no comparison"):
        compare.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("arms", "seeds", "message"),
    [
        (["adaptive", "vip"], [0], "needs uniform"),
        (["uniform"], [0], "and another"),
        (["uniform", "vip", "vip"], [0], "each once"),
        (["uniform", "best"], [0], "arm is 'best'"),
        (["uniform", "vip"], [], "at least one seed"),
    ],
)
def test_comparisons_that_compare_nothing(tmp_path, arms, seeds, message):
    with pytest.raises(InvalidInputError, match=message):
        compare.start(CONFIG, arms, seeds, tmp_path)


def test_a_comparison_of_an_older_version_is_still_shown(tmp_path, capsys):
    """Its summaries know no objective, no gain, no share touched and no notes."""
    from apportion.cli.tables import print_comparison

    config = TrainConfig(steps=4, num_evaluations=2)
    jobs = compare.jobs_of(config, ["uniform", "adaptive"], [0], tmp_path)
    for job in jobs:
        finished(job, 0.2)
        path = job.folder / "summary.json"
        summary = json.loads(path.read_text())
        for name in ("objective", "candidates"):
            summary["config"].pop(name, None)
        for name in ("gain", "expected_gain", "prompts_per_step", "share_touched", "memorising"):
            summary.pop(name, None)
        del summary["notes"]
        path.write_text(json.dumps(summary))
    result = compare.compare(jobs)
    assert (result["config"]["objective"], result["config"]["candidates"]) == ("variance", 1)
    assert result["arms"]["adaptive"]["gain"] is None
    assert result["notes"] == []
    print_comparison(result, tmp_path)
    assert "choose for" not in capsys.readouterr().out
