import json
from dataclasses import replace

import numpy as np
import pytest

from apportion.allocation import allocate
from apportion.run_log import RunLog
from apportion.training.config import TrainConfig
from apportion.training.memorising import memorising
from apportion.training.summary import curve, measured_values, summarise
from apportion.training.task import Measured
from apportion.types import Forecast, Outcomes

CONFIG = TrainConfig(
    prompts_per_step=4, rollouts_per_prompt=4, steps=3, upper=8, objective="variance", candidates=1
)
TRUTH = np.array([0.02, 0.5, 0.5, 0.98])
IDS = np.array(["a", "b", "c", "d"])
SIZES = np.array([2, 6, 6, 2])


def features(keys):
    return np.array([[float(ord(key)), 1.0] for key in keys])


def write_run(folder, *, exact=True, config=CONFIG, even=None):
    rng = np.random.default_rng(0)
    rewards = []
    with RunLog.create(folder, {"train": config.to_dict()}) as log:
        for step in range(3):
            group_N = np.repeat(np.arange(4), SIZES)
            reward_N = (rng.random(16) < TRUTH[group_N]).astype(float)
            rewards.append((reward_N, group_N))
            log.log_groups(
                Outcomes.of_rewards(IDS, reward_N, group_N, step=step),
                Forecast.of_success([0.1, 0.4, 0.6, 0.9]),
            )
            line = {"fallback": float(step == 0), "allocation_seconds": 0.01}
            choice = {"gain_ratio": [1.0, None, 3.0][step], "share_touched": 0.1 * (step + 1)}
            choice["num_candidates"] = 12.0
            log.log_step(step, line | (choice if even is not None else {}))
            values = {"seconds": 2.0} | ({"success": TRUTH.tolist()} if exact else {})
            values |= {"even_success": even[step]} if even is not None else {}
            log.log_batch(step, values)
        for step in (0, 3):
            values = measured_values(Measured.of_success(TRUTH + 0.01 * step))
            log.log_evaluation(step, compute=16 * step, split="pool", values=values)
    return rewards


def test_summary_equals_a_hand_computation(tmp_path):
    rewards = write_run(tmp_path)
    summary = summarise(tmp_path, features)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["num_rollouts"] == summary["budget"] == 48
    assert summary["num_uniform_steps"] == 1
    assert summary["seconds"]["allocation_share"] == pytest.approx(0.03 / 6.0)
    signal = [
        len(set(reward_N[group_N == i])) > 1 for reward_N, group_N in rewards for i in range(4)
    ]
    assert summary["share_with_signal"] == pytest.approx(np.mean(signal))
    noise = TRUTH * (1 - TRUTH)
    ours, even = (noise / (SIZES - 1)).sum(), (noise / 3).sum()
    best = allocate(TRUTH, 16, lower=2, upper=8)
    assert summary["gradient_variance"] == {
        "against_uniform": pytest.approx(ours / even),
        "oracle_against_uniform": pytest.approx(best.variance / even),
    }
    expected = np.abs(np.array([0.1, 0.4, 0.6, 0.9]) - TRUTH).mean()
    assert summary["forecast_error"]["forecast"] == pytest.approx(expected)
    # A moving average knows nothing at first and says the same of every prompt.
    assert summary["forecast_error"]["moving_average"] > expected
    assert summary["success"]["pool"]["before"]["avg"] == pytest.approx(TRUTH.mean())
    assert summary["success"]["pool"]["after"]["avg"] == pytest.approx(TRUTH.mean() + 0.03)


def test_the_gain_of_a_choice_by_hand(tmp_path):
    """Progress under the exact success; the noise of other prompts is no measure."""
    even = [0.0, 0.5, 1.0, 0.9]
    config = replace(CONFIG, objective="progress", candidates=3)
    write_run(tmp_path, config=config, even=[even] * 3)
    summary = summarise(tmp_path, features, ["a note"])

    def progress(success_B, num_B):
        noise_B = np.array(success_B) * (1 - np.array(success_B))
        signal_B = noise_B * (np.array(num_B) - 1)
        return (noise_B**2 * signal_B / (signal_B + 1)).sum()

    want = progress(TRUTH, SIZES) / progress(even, [4] * 4)
    assert summary["gain"] == {
        "against_uniform": pytest.approx(want),
        "median": pytest.approx(want),
    }
    assert summary["gradient_variance"] is None
    assert summary["expected_gain"] == 3.0  # the even step, the first, says nothing of it
    assert summary["num_candidates"] == 12.0
    assert summary["prompts_per_step"] == 4.0
    assert summary["share_touched"] == pytest.approx(0.3)
    assert summary["memorising"] is None
    assert summary["notes"] == ["a note"]
    json.dumps(summary, allow_nan=False)


def test_the_gain_of_coverage_is_coverage_and_both_averages_are_told(tmp_path):
    even = [[0.0, 0.5, 1.0, 0.9], [0.5] * 4, [0.01] * 4]
    config = replace(CONFIG, objective="coverage", candidates=3)
    write_run(tmp_path, config=config, even=even)

    def coverage(success_B, num_B):
        p_B, num_B = np.array(success_B), np.array(num_B)
        return (1 - p_B**num_B - (1 - p_B) ** num_B).sum()

    ours = coverage(TRUTH, SIZES)
    evens = [coverage(success_B, [4] * 4) for success_B in even]
    assert summarise(tmp_path, features)["gain"] == {
        "against_uniform": pytest.approx(3 * ours / sum(evens)),
        # Of the second and the third step: the first was even.
        "median": pytest.approx(np.median([ours / one for one in evens[1:]])),
    }


@pytest.mark.parametrize("num_even", [0, 1, 2, 3])
def test_the_medians_of_the_gain_are_of_the_steps_in_which_the_forecast_decided(tmp_path, num_even):
    even = [[0.0, 0.5, 1.0, 0.9], [0.5] * 4, [0.01] * 4]
    write_run(tmp_path, config=replace(CONFIG, objective="progress", candidates=3), even=even)
    lines = [
        {"step": step, "fallback": float(step < num_even), "gain_ratio": 1.0 + step}
        for step in range(3)
    ]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    summary = summarise(tmp_path, features)

    def progress(success_B, num_B):
        noise_B = np.array(success_B) * (1 - np.array(success_B))
        signal_B = noise_B * (np.array(num_B) - 1)
        return (noise_B**2 * signal_B / (signal_B + 1)).sum()

    ratios = [progress(TRUTH, SIZES) / progress(one, [4] * 4) for one in even]
    assert summary["num_uniform_steps"] == num_even
    if num_even == 3:
        assert summary["gain"]["median"] is summary["expected_gain"] is None
    else:
        assert summary["gain"]["median"] == pytest.approx(np.median(ratios[num_even:]))
        assert summary["expected_gain"] == pytest.approx(np.median([1.0, 2.0, 3.0][num_even:]))
    json.dumps(summary, allow_nan=False)


def test_a_pool_learned_by_heart_is_noted(tmp_path):
    write_run(tmp_path)
    curves = {"pool": [0.1, 0.2, 0.3, 0.4], "held_out": [0.1, 0.2, 0.21, 0.19]}
    lines = [
        {"step": step, "compute": 16 * step, "split": split, "avg": value}
        for split, curve_T in curves.items()
        for step, value in enumerate(curve_T)
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    summary = summarise(tmp_path, features)
    (note,) = summary["notes"]
    assert note == summary["memorising"]
    assert "rose by 0.200 while held-out success fell by 0.010" in note
    assert "lower learning rate" in note


@pytest.mark.parametrize(
    ("pool_T", "held_out_T"),
    [
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.196]),  # held-out stays
        ([0.1, 0.2, 0.205], [0.1, 0.2, 0.1]),  # the pool stays
        ([0.1, 0.3], [0.2, 0.1]),  # too few evaluations
        ([], []),
        ([0.1, 0.2, 0.3], []),
    ],
)
def test_what_is_not_learning_by_heart(pool_T, held_out_T):
    assert memorising(pool_T, held_out_T) is None


def test_without_exact_success_the_observed_means_are_the_target(tmp_path):
    rewards = write_run(tmp_path, exact=False)
    summary = summarise(tmp_path, features)
    assert summary["gradient_variance"] is None
    assert summary["gain"] is None
    seen = [[reward_N[group_N == i].mean() for i in range(4)] for reward_N, group_N in rewards]
    expected = np.abs(np.array(seen) - [0.1, 0.4, 0.6, 0.9]).mean()
    assert summary["forecast_error"]["forecast"] == pytest.approx(expected)


def test_curve(tmp_path):
    write_run(tmp_path)
    compute_T, reward_T = curve(tmp_path, "pool")
    assert compute_T.tolist() == [0.0, 48.0]
    np.testing.assert_allclose(reward_T, [TRUTH.mean(), TRUTH.mean() + 0.03])


def test_known_success_and_sampled_rewards_measure_the_same():
    rng = np.random.default_rng(0)
    success_Q = rng.random(5)
    draws = (rng.random((5, 200_000, 8)) < success_Q[:, None, None]).astype(float)
    known = measured_values(Measured.of_success(success_Q))
    sampled = Measured.of_rewards(draws.reshape(-1, 8))
    for name, value in measured_values(sampled).items():
        if name != "num_problems":
            assert known[name] == pytest.approx(value, abs=3e-3)
