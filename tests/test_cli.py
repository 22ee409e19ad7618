import json
import subprocess
import sys

import pytest
from cli_helpers import call

from apportion.errors import InvalidInputError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--pool", "easy"], "pool is 'easy'"),
        (["train", "--model", "m"], "--model is given without --dataset"),
        (["train", "--steps", "0"], "steps is 0"),
        (["train", "--lower", "8"], "lower is 8"),
        (["train", "--learning-rate", "-1"], "must not be negative"),
        (["train", "--compare", "adaptive,vip"], "needs uniform"),
        (["train", "--resume"], "--resume needs --out"),
        (["train", "--resume", "--out", "nowhere"], "holds no run"),
        (["train", "--out", "/dev/null"], "cannot be written"),
        (["train", "--compare", "uniform,vip", "--out", "/dev/null"], "cannot be written"),
        (["train", "--max-tokens", "0"], "--max-tokens is 0"),
        (["train", "--seed", "99999999999999999999"], "seed is"),
        (["train", "--held-out", "3"], "bring their own data"),
        (["train", "--estimator", "ppo"], "estimator is 'ppo'"),
        (["train", "--model", "m", "--dataset", "d", "--reward", "x"], "reward is 'x'"),
        (["train", "--objective", "speed"], "objective is 'speed'"),
        (["train", "--candidates", "many"], "candidates is 'many'"),
        (["train", "--candidates", "0x"], "candidates is 0"),
        (["train", "--objective", "variance", "--candidates", "3x"], "chooses no prompts"),
        (["train", "--arm", "uniform", "--candidates", "3x"], "you asked for uniform"),
        (["train", "--arm", "vip", "--objective", "progress"], "you asked for vip"),
        (["train", "--compare", "uniform,vip", "--candidates", "3"], "for uniform, vip"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    last = err.splitlines()[-1]
    assert last.startswith("apportion: ")
    assert message in last
    assert "Traceback" not in err
    assert out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_option_of_train_has_help(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(monkeypatch, capsys, "train", "--help")
    assert code == 0
    options = [line for line in out.splitlines() if line.strip(" │").startswith("--")]
    assert len(options) >= 30
    for line in options:
        assert len(line.strip(" │").split("  ")) >= 2, line


@pytest.mark.parametrize(
    ("options", "times", "shown"),
    [
        ([], 3, "chosen for coverage among up to 3 x 8 prompts"),
        (["--candidates", "2x"], 2, "chosen for coverage among up to 2 x 8 prompts"),
        (["--candidates", "4", "--objective", "coverage"], 4, "coverage among up to 4 x 8 prompts"),
        (["--objective", "variance"], 1, None),
        (["--arm", "vip"], 3, None),
    ],
)
def test_the_choice_of_prompts_stands_in_the_header(
    tmp_path, monkeypatch, capsys, options, times, shown
):
    begun = []

    def run(config, folder, **_):
        begun.append(config)
        raise InvalidInputError("enough")

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("apportion.training.run.run", run)
    arguments = ["train", "--prompts-per-step", "8", "--out", tmp_path / "run", *options]
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert begun[0].candidates == times
    assert ("chosen for" in err) == (shown is not None)
    assert shown is None or shown in err


def test_module_and_script_are_the_same_program():
    shown = subprocess.run(
        [sys.executable, "-m", "apportion", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in ("allocate", "train", "embedded"):
        assert command in shown


def test_importing_apportion_loads_no_framework():
    code = (
        "import sys, json, apportion, apportion.cli;"
        "print(json.dumps([m for m in ('scipy','torch','transformers','polars','trl') "
        "if m in sys.modules]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []
