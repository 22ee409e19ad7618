"""A plan as the defaults of a run."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from apportion.cli import app
from apportion.errors import InvalidInputError


@pytest.fixture
def configs(monkeypatch):
    seen = []
    monkeypatch.setattr("apportion.cli.train._train", lambda config, *rest: seen.append(config))
    return seen


def plan(tmp_path, *options):
    path = tmp_path / "plan.json"
    command = ["plan", "--budget", "2e5", "--max-batch", "1024", "--out", str(path), *options]
    assert CliRunner().invoke(app, command).exit_code == 0
    return path, json.loads(path.read_text())


def test_a_run_takes_the_plan_whole(tmp_path, configs):
    path, content = plan(tmp_path, "--difficulty", "hard")
    found = CliRunner().invoke(app, ["train", "--plan", str(path)])
    assert found.exit_code == 0
    (config,) = configs
    assert config.rollouts_per_prompt == content["rollouts_per_prompt"]
    assert config.prompts_per_step == content["prompts_per_step"]
    assert config.steps == content["num_steps"]
    assert config.learning_rate == content["learning_rate"]
    assert config.kl == config.entropy == 0
    assert "--kl" not in found.output


def test_flags_go_before_the_plan(tmp_path, configs):
    path, content = plan(tmp_path, "--difficulty", "hard")
    options = ["--steps", "7", "--learning-rate", "0.5"]
    for command in (["--plan", str(path), *options], [*options, "--plan", str(path)]):
        assert CliRunner().invoke(app, ["train", *command]).exit_code == 0
        assert (configs[-1].steps, configs[-1].learning_rate) == (7, 0.5)
        assert configs[-1].rollouts_per_prompt == content["rollouts_per_prompt"]


def test_loss_terms_are_those_of_the_plan(tmp_path, configs):
    path, content = plan(tmp_path, "--difficulty", "easy")
    assert CliRunner().invoke(app, ["train", "--plan", str(path)]).exit_code == 0
    sizes = content["regularisation"]
    assert configs[-1].kl == sizes["kl_coefficient"] > 0
    assert configs[-1].entropy == sizes["entropy_coefficient"] > 0
    CliRunner().invoke(app, ["train", "--plan", str(path), "--kl", "0", "--entropy", "0"])
    assert configs[-1].kl == configs[-1].entropy == 0


def test_a_sweep_of_a_plan_has_its_loss_terms(tmp_path, configs):
    path, content = plan(tmp_path, "--difficulty", "easy")
    command = ["sweep", "--list", str(path), "--print", "apportion"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    lines = [line for line in found.stdout.splitlines() if line.startswith("apportion train")]
    assert len(lines) == 2 * len(content["sweep_first"])  # seeds
    assert all("--kl 0.01 --entropy 0.001" in line for line in lines)
    plain = CliRunner().invoke(app, [*command, "--kl", "0", "--entropy", "0"])
    assert "--kl" not in plain.stdout


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "is no plan"),
        ('{"format": "apportion-plan"}', "lacks a number for rollouts_per_prompt"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, configs, content, match):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    found = CliRunner().invoke(app, ["train", "--plan", str(path)])
    assert isinstance(found.exception, InvalidInputError)
    assert match in str(found.exception)
    assert not configs
