import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import call

from apportion.readers.runs import read_runs

TINY = ["--rollouts-per-prompt", "2,4", "--prompts-per-step", "4", "--budget", "320"]
TINY += ["--seeds", "1", "--evaluations", "3", "--limit", "40"]
OWN = ["--model", "Qwen/Qwen2.5-0.5B", "--dataset", "gsm8k", "--budget", "1e5"]


def test_printed_runs_are_made_by_a_shell_and_read_back(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my sweep"
    code, out, err = call(
        monkeypatch, capsys, "sweep", *TINY, "--out", folder, "--print", "apportion"
    )
    assert code == 0, err
    assert not folder.exists()
    assert "2 runs, one line each" in err
    script = tmp_path / "runs.sh"
    script.write_text(out)
    beside = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-e", script], env=environment, check=True, capture_output=True, timeout=240
    )
    runs, notes = read_runs([folder])
    assert notes == []
    assert [(run.rollouts_per_prompt, run.compute_T[-1]) for run in runs] == [(2, 320), (4, 320)]
    assert runs[0].compute_T.tolist() == [0, 160, 224, 320]  # two for each doubling


@pytest.mark.parametrize("kind", ["apportion", "trl"])
def test_json_names_each_run(tmp_path, monkeypatch, capsys, kind):
    flags = TINY if kind == "apportion" else OWN
    code, out, _ = call(
        monkeypatch, capsys, "sweep", *flags, "--out", tmp_path / "s", "--print", kind, "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert len(found) == (2 if kind == "apportion" else 6)
    assert all(one["run"] in one["command"] for one in found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quick", "--print", "slurm"], "--print is 'slurm', but must be one of apportion, trl"),
        (["--quick", "--print", "apportion", "--adaptive"], "cannot be printed beforehand"),
        (["--quick", "--print", "trl"], "The embedded model cannot be trained by trl"),
        (
            ["--quick", "--print", "apportion", "--prompts-per-step", "3000", "--budget", "1e7"],
            "there are 2000 to train on",
        ),
        ([*OWN, "--print", "verl"], "verl reads files"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, flags, message):
    code, out, err = call(monkeypatch, capsys, "sweep", *flags, "--out", tmp_path / "s")
    assert (code, out) == (2, "")
    assert message in err
