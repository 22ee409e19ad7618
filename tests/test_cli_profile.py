"""What `apportion profile` prints, and how it ends."""

import json

import pytest
from cli_helpers import call

from apportion.difficulty import BANDS, Profile
from apportion.errors import StateError
from apportion.training import profile as profiling

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUICK = ("profile", "--pool", "bimodal", "--limit", "24", "--samples", "4")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_a_profile_is_told_in_bars_bands_and_a_verdict(tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, *QUICK, "--out", tmp_path / "p")
    assert code == 0
    assert f"pool bimodal: 4 samples of every prompt -> {tmp_path / 'p'}" in err
    assert "prompts 24/24  mean success" in err
    found = profiling.read_profile(tmp_path / "p")
    lines = out.splitlines()
    at = lines.index("prompts by successes of 4 samples")
    assert [int(line.split()[-1]) for line in lines[at + 1 : at + 6]] == found.histogram.tolist()
    fullest = max(lines[at + 1 : at + 6], key=lambda line: line.count("\u2588"))
    assert int(fullest.split()[-1]) == found.histogram.max()
    for name, success in BANDS.items():
        assert any(name in line and success in line for line in lines)
    assert "no signal: share of groups of k" in out
    assert "verdict       mixed: the largest band is" in out
    assert f"mean success  {found.mean.value:.3f} [{found.mean.low:.3f}," in out
    assert f"--prior {tmp_path / 'p' / 'prior.parquet'}" in out


def test_json_has_the_same_numbers_and_nothing_else(tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, *QUICK, "--out", tmp_path / "p", "--json")
    assert code == 0
    assert err == ""
    described = json.loads(out)
    found = Profile.of_histogram(described["histogram"])
    assert described["summary"] == {
        **found.summary(),
        "num_rollouts": 96,
        "num_truncated": described["summary"]["num_truncated"],
        "num_unscored": 0,
    }
    assert described == json.loads((tmp_path / "p" / "profile.json").read_text())


def test_the_same_command_again_reads_and_others_are_refused(tmp_path, monkeypatch, capsys):
    _, first, _ = call(monkeypatch, capsys, *QUICK, "--out", tmp_path / "p")
    _, again, _ = call(monkeypatch, capsys, *QUICK, "--out", tmp_path / "p")
    assert again == first
    code, out, err = call(monkeypatch, capsys, *QUICK, "--seed", "1", "--out", tmp_path / "p")
    assert code == 2
    assert out == ""
    assert "with --seed 0, but this command has --seed 1" in err.splitlines()[-1]


def test_a_stop_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def stopping(*arguments):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(1)
        return scored(*arguments)

    done, scored = [], profiling.score_rows
    monkeypatch.setattr(profiling, "score_rows", stopping)
    options = (*QUICK, "--prompts-per-batch", "8", "--out", tmp_path / "p")
    code, out, err = call(monkeypatch, capsys, *options)
    assert code == 130
    assert out == ""
    assert f"Give --out {tmp_path / 'p'} to go on" in err
    assert err.splitlines()[-1] == "apportion: stopped."


def test_many_samples_share_bars(capsys):
    from rich.console import Console

    from apportion.cli.profile import _print_histogram

    _print_histogram(Console(), [5, *[0] * 63, 3])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 33
    assert lines[1].split() == ["0-1", "\u2588" * 40, "5"]
    assert lines[-1].split() == ["64", "\u2588" * 24, "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "1"], "samples is 1"),
        (["--limit", "0"], "limit is 0"),
        (["--pool", "easy"], "pool is 'easy'"),
        (["--model", "m"], "--model is given without --dataset"),
        (["--model", "m", "--dataset", "none.jsonl"], "no such file"),
        (["--reward", "math-verify"], "bring their own data"),
        (["--seed", "-1"], "seed is -1"),
        (["--out", "/dev/null"], "is a file. Name a folder."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, "profile", *arguments)
    assert code == 2
    assert err.splitlines()[-1].startswith("apportion: ")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_option_has_help(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "profile", "--help")
    assert code == 0
    options = [line for line in out.splitlines() if line.strip(" \u2502").startswith("--")]
    assert len(options) >= 15
    for line in options:
        assert len(line.strip(" \u2502").split("  ")) >= 2, line


def test_narrow_terminals_see_every_column(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = call(monkeypatch, capsys, *QUICK, "--out", tmp_path / "p")
    lines = [line.split() for line in out.splitlines()]
    assert ["k", "pass@k", "worst@k", "no", "signal"] in lines
    assert "\u2026" not in out
    for k in ("1", "2", "4"):
        assert any(line[:1] == [k] and line[-1].endswith(("]", "-")) for line in lines)


@pytest.mark.parametrize("inside", ["", "deeper/p"])
def test_a_file_in_place_of_the_folder_is_named(tmp_path, monkeypatch, capsys, inside):
    file = tmp_path / "file"
    file.write_text("mine")
    code, _, err = call(monkeypatch, capsys, *QUICK, "--out", file / inside)
    assert code == 2
    assert f"{file} is a file. Name a folder." in err
    assert "Errno" not in err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "told"), [(None, "it does not exist"), ('{"format": ', "is not whole JSON")]
)
def test_a_missing_or_torn_profile_has_a_way_out(tmp_path, content, told):
    if content is not None:
        (tmp_path / "profile.json").write_text(content)
    with pytest.raises(StateError, match=told) as caught:
        profiling.read_profile(tmp_path)
    assert "Errno" not in str(caught.value)
    assert "another --out" in str(caught.value)
