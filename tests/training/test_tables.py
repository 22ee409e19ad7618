"""What a summary and a comparison look like to people."""

import pytest

from apportion.cli.tables import _choice, print_comparison, print_summary
from apportion.training.config import TrainConfig

CONFIG = TrainConfig(arm="adaptive")
SUMMARY = {
    "config": CONFIG.to_dict(),
    "success": {},
    "num_steps": 60,
    "num_rollouts": 15_360,
    "budget": 15_360,
    "share_with_signal": 0.6,
    "prompts_per_step": 41.5,
    "num_candidates": 192.0,
    "share_touched": 0.37,
    "gain": {"against_uniform": 2.5, "median": 2.4},
    "expected_gain": 3.0,
    "gradient_variance": None,
    "expected_variance": None,
    "forecast_error": {"forecast": 0.1, "moving_average": 0.2, "ridge": 0.3},
    "num_uniform_steps": 2,
    "notes": ["memorising a small pool: ..."],
    "seconds": {"steps": 60.0, "allocation_share": 0.01},
}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_a_choice_is_told_in_words(tmp_path, capsys):
    print_summary(SUMMARY, tmp_path)
    out = capsys.readouterr().out
    assert "41.5 a step, chosen for coverage among 3 x 64; 37% of the pool was sampled" in out
    assert "expected coverage, median of the 58 steps in which the forecast decided: the" in out
    flat = " ".join(out.split())
    assert "expected 3.00 times an even split's, it was 2.40 by the exact success" in flat
    assert "even split  was made in 2 of 60 steps" in out
    assert "against the exact success" in out
    assert "memorising a small pool" in out
    assert "variance" not in out


def test_the_gain_is_called_by_its_name(tmp_path, capsys):
    config = TrainConfig(arm="adaptive", objective="coverage")
    print_summary({**SUMMARY, "config": config.to_dict()}, tmp_path)
    assert "gain        expected coverage, median of the 58 steps" in capsys.readouterr().out


def test_a_pool_smaller_than_the_candidates_is_what_was_chosen_from(tmp_path, capsys):
    config = TrainConfig(arm="adaptive", candidates=500, prompts_per_step=16)
    print_summary({**SUMMARY, "config": config.to_dict(), "num_candidates": 2000.0}, tmp_path)
    out = capsys.readouterr().out
    assert "a step, chosen for coverage among all 2,000 prompts; 37% of the pool" in out
    assert "500" not in out


def test_a_run_that_was_even_throughout_has_no_gain(tmp_path, capsys):
    nothing = {"gain": {"against_uniform": 1.0, "median": None}, "expected_gain": None}
    print_summary({**SUMMARY, **nothing, "num_uniform_steps": 60}, tmp_path)
    out = capsys.readouterr().out
    assert "gain  " not in out
    assert "even split  was made in 60 of 60 steps" in out


def test_without_the_exact_success_the_expected_gain_stands_alone(tmp_path, capsys):
    print_summary({**SUMMARY, "gain": None, "share_touched": None}, tmp_path)
    out = capsys.readouterr().out
    assert "expected 3.00 times an even split's\n" in out
    assert "of the pool" not in out
    assert "noise included" in out


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"num_candidates": 192.0}, "among 3 x 64)"),
        ({"num_candidates": 150.0}, "among all 150 prompts)"),
        ({}, "among 3 x 64)"),  # comparisons of before it was noted
    ],
)
def test_arms_that_choose_say_among_how_many(found, words):
    result = {"config": CONFIG.to_dict(), "arms": {"uniform": {}, "adaptive": found, "oracle": {}}}
    assert _choice(result) == f" (adaptive and oracle choose for coverage {words}"
    assert _choice({**result, "arms": {"uniform": {}, "vip": {}}}) == ""


def test_arms_that_choose_beside_one_that_does_not(tmp_path, capsys):
    split = {
        "before": 0.1,
        "after": 0.2,
        "difference": {"num_seeds": 1, "mean": 0.01, "low": None, "high": None},
        "share_of_rollouts": {"num_seeds": 1, "mean": None, "low": None, "high": None},
    }
    even = {
        "success": {"pool": split},
        "share_with_signal": 0.2,
        "gain": 1.0,
        "prompts_per_step": 64.0,
        "share_touched": None,
        "forecast_error": {"forecast": 0.1, "moving_average": 0.2, "ridge": 0.3},
        "allocation_share": 0.01,
        "num_uniform_steps": 0.0,
        "gradient_variance": {"against_uniform": 1.0, "oracle_against_uniform": 0.5},
    }
    chosen = {**even, "gain": 2.5, "prompts_per_step": 40.0, "share_touched": 0.37}
    del chosen["gradient_variance"]
    result = {
        "seeds": [0],
        "budget": 100,
        "config": CONFIG.to_dict(),
        "arms": {"uniform": even, "adaptive": chosen},
        "notes": ["adaptive: memorising a small pool: ..."],
    }
    print_comparison(result, tmp_path)
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "adaptive" in line and "2.50" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("adaptive", "20.0%", "2.50", "", "40", "37%")
    ]
    assert "adaptive: memorising a small pool" in out
    assert "(adaptive chooses for coverage among 3 x 64)" in out
    assert "against the exact success" in out
