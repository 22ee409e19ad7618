"""What `apportion plan` prints, writes and refuses."""

from __future__ import annotations

import json
from functools import partial

import cli_helpers
import pytest

from apportion.training.profile_files import write_described

EASY = ("plan", "--budget", "2e6", "--difficulty", "easy")
NOUNS = {
    "rollouts_per_prompt",
    "prompts_per_step",
    "num_steps",
    "learning_rate",
    "regularisation",
    "expected_reward",
    "interval",
    "cost",
    "reasons",
    "warnings",
    "sweep_first",
}


@pytest.fixture
def call(monkeypatch, capsys):
    return partial(cli_helpers.call, monkeypatch, capsys)


@pytest.fixture
def profiled(tmp_path):
    """A finished profile of 320 easy prompts; those drawn at random if asked."""

    def profiled(limit=None):
        histogram = [0] * 5 + [64] * 5 + [0] * 7
        write_described(
            tmp_path, {"config": {"limit": limit}, "summary": {}, "histogram": histogram}
        )
        return tmp_path

    return profiled


def test_the_first_command(call, monkeypatch):
    code, out, err = call(*EASY, "--max-batch", 8192)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "Prior: from published runs of other models and data, none of yours." in lines[0]
    settings = {line.split("  ")[0]: line.split() for line in lines[2:7]}
    assert settings["rollouts per prompt n"][4] == "64"
    assert "90% of what was published: 13 to 440" in out
    assert "976" in settings["steps M"]
    assert "1.41e-6" in settings["learning rate"]
    assert "0.01 and 0.001, untried beyond a small model" in out
    assert "one run cannot ride it" in out
    assert "What stands against it" not in out
    assert "4 runs, 198,400 rollouts, 10%." in out
    assert "A probe of the rate, no advice" in out


def test_a_terminal_of_80_columns_is_enough(call, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    costs = ("--tokens-per-rollout", 900, "--rollouts-per-gpu-hour", 1000)
    price = ("--price-per-gpu-hour", 2.5)
    code, out, _ = call(*EASY, "--max-batch", 128, "--prompts", 40, *costs, *price)
    assert code == 0
    plain = out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 80
    assert len(plain.splitlines()) < 60


def test_json_has_the_nouns_and_is_what_out_holds(call, tmp_path):
    file = tmp_path / "plan.json"
    code, out, _ = call(*EASY, "--json", "--out", file)
    assert code == 0
    found = json.loads(out)
    assert found.keys() >= NOUNS
    assert json.loads(file.read_text()) == found
    assert found["format"] == "apportion-plan"
    assert found["version"] == 1
    assert found["basis"] == "published"
    assert found["expected_reward"] is None
    assert found["regularisation"] == {
        "kl_term": True,
        "entropy_term": True,
        "kl_coefficient": 0.01,
        "entropy_coefficient": 0.001,
    }
    assert found["interval"].keys() == {"low", "median", "high", "level"}
    assert found["cost"].keys() == {"rollouts", "tokens", "gpu_hours", "price"}
    assert all(reason.keys() == {"about", "text", "source"} for reason in found["reasons"])
    code, out, _ = call(*EASY, "--out", file)
    assert code == 0
    assert f"The plan is in {file}." in out


def test_a_profile_gives_difficulty_and_prompts(call, profiled):
    folder = profiled()
    for path in (folder, folder / "profile.json"):
        code, out, _ = call("plan", "--budget", "1e5", "--profile", path, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["difficulty"] == "easy"
        assert found["passes"] == found["num_steps"] * found["prompts_per_step"] / 320
        assert found["reasons"][0]["text"].startswith("easy: ")
        assert found["reasons"][0]["source"] == str(path)
    out = call("plan", "--budget", "1e5", "--profile", folder)[1]
    assert any(line.startswith("set   easy: ") for line in out.splitlines())
    fewer = call("plan", "--budget", "1e5", "--profile", folder, "--prompts", 160, "--json")[1]
    found = json.loads(fewer)
    assert found["passes"] == found["num_steps"] * found["prompts_per_step"] / 160


def test_a_profile_of_some_prompts_does_not_tell_how_many_there_are(call, profiled):
    out = call("plan", "--budget", "1e5", "--profile", profiled(320), "--json")[1]
    found = json.loads(out)
    assert found["passes"] is None
    assert "give --prompts" in found["warnings"][0]


def test_gpu_hours_are_a_budget(call):
    rate = ("--rollouts-per-gpu-hour", 5000)
    out = call("plan", "--gpu-hours", 400, *rate, "--difficulty", "easy", "--json")[1]
    found = json.loads(out)
    assert found["budget"] == 2_000_000
    assert found["cost"]["gpu_hours"] == found["cost"]["rollouts"] / 5000
    priced = (*rate, "--price-per-gpu-hour", 2, "--tokens-per-rollout", 500)
    out = call("plan", "--gpu-hours", 400, *priced, "--difficulty", "easy")[1]
    assert "999,424,000 tokens, 399.8 GPU-hours, price 799.54" in out
    assert "39.7 GPU-hours, price 79.36" in out


def test_a_tuned_rate_is_scaled(call):
    out = call(*EASY, "--learning-rate", "4e-6", "--tuned-at", 512, "--json")[1]
    found = json.loads(out)
    assert found["learning_rate"] == pytest.approx(8e-6)
    assert "yours" in next(r["text"] for r in found["reasons"] if r["about"] == "learning_rate")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--difficulty", "easy"), "either --budget, or --gpu-hours"),
        (("--budget", 1e6, "--gpu-hours", 3), "either --budget, or --gpu-hours"),
        (("--gpu-hours", 3), "needs rollouts_per_gpu_hour"),
        (("--budget", 63, "--difficulty", "easy"), "at least 64 rollouts"),
        (("--budget", 127, "--difficulty", "hard"), "at least 128 rollouts"),
        (("--budget", 1e6, "--difficulty", "simple"), "easy, hard, mixed"),
        (("--budget", 1e6, "--metric", "best@8"), "mean, best@4, worst@4"),
        (("--budget", 1e6, "--learning-rate", 1e-5), "go together"),
        (("--budget", 1e6, "--profile", "nowhere"), "cannot be read as a profile"),
        (("--budget", 1e6, "--profile", ".", "--difficulty", "easy"), "either --difficulty"),
        (("--budget", 1e6, "--max-batch", 1), "--max-batch is 1"),
        (("--budget", 1e6, "--epochs", 2), "number of prompts"),
        (("--budget", "nan"), "budget is nan"),
        (("--budget", 1e6, "--out", "."), "is a folder"),
    ],
)
def test_mistakes_are_a_sentence(call, arguments, told):
    code, out, err = call("plan", *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_another_file_is_not_written_over(call, tmp_path):
    file = tmp_path / "notes.json"
    for content in ("[1, 2]", "words", '{"format": "apportion-profile"}'):
        file.write_text(content)
        code, _, err = call(*EASY, "--out", file)
        assert code == 2
        assert "no plan" in err
        assert file.read_text() == content
