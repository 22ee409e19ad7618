import csv
import io
import json
import math
import sys

import numpy as np
import pytest
from audit_helpers import drawn_run, group_table, kind_of, recording_of, replay_result
from rich.console import Console

from apportion.audit import audit
from apportion.audit.waste import Rates
from apportion.cli import main
from apportion.cli.audit import audit_as_json
from apportion.cli.audit_tables import print_audit
from apportion.cli.audit_verdict import trust, verdict
from apportion.recording import Curve, Recording

KEYS = [
    "format",
    "version",
    "verdict",
    "summary",
    "waste",
    "prediction",
    "replayed",
    "prompts",
    "settings",
    "curves",
    "limits",
]


def write_run(path, groups):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "step", "reward"])
        for prompt, step, rewards, *_ in groups:
            writer.writerows([prompt, step, reward] for reward in rewards)
    return path


@pytest.fixture
def dump(tmp_path):
    return write_run(tmp_path / "rollouts.csv", drawn_run(0))


@pytest.fixture
def replays(monkeypatch):
    calls = []

    def replay_of(groups, **options):
        calls.append((groups, options))
        options["progress"](1, 6)
        return replay_result()

    monkeypatch.setattr("apportion.replay.replay_of", replay_of, raising=False)
    return calls


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["apportion", "audit", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def flat(text):
    return " ".join(text.split())


def printed(found, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_audit(found, console)
    return console.file.getvalue()


def test_json_is_the_audit_and_holds_no_nan(dump, replays, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, dump, "--json")
    assert (code, err) == (0, "")

    def refuse(name):
        raise AssertionError(name)

    answer = json.loads(out, parse_constant=refuse)
    assert list(answer) == KEYS
    assert (answer["format"], answer["version"]) == ("apportion-audit", 1)
    assert list(answer["verdict"]) == ["waste", "saving", "set"]
    groups = drawn_run(0)
    dead = sum(kind_of(group[2]) != "with_signal" for group in groups)
    assert answer["waste"]["num_rollouts"] == 8 * dead
    assert 1 - answer["waste"]["shares"]["with_signal"] == pytest.approx(dead / len(groups))
    assert answer["replayed"]["saving_interval"] == [0.1, 0.2]
    assert answer["replayed"]["forecast"] == [0.2, None]
    assert answer["curves"] is None
    assert [size["rollouts_per_prompt"] for size in answer["prediction"]["sizes"]] == [
        *(2, 4, 8, 16, 32, 64)
    ]


def test_first_screen_has_the_answer(dump, replays, monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys, dump, "--gpu-hours", 50, "--price-per-gpu-hour", 2, "--top", 2
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80
    first = "\n".join(lines[:14])
    for words in ("wasted", "bought no gradient", "GPU-hours", "saving", "15.0% [10.0, 20.0]"):
        assert words in first
    assert "set" in first
    assert "between 2 and" in first
    for words in (
        "What this record cannot support",
        "Groups without signal",
        "Share without signal at other n",
        "no promise of faster training",
        "Always wrong",
        "Forgotten",
        "args = AdaptiveGRPOConfig(",
        "actor_rollout_ref.rollout.n=8",
    ):
        assert words in out


def test_bounds_reach_the_replay(dump, replays, monkeypatch, capsys):
    call(monkeypatch, capsys, dump, "--lower", 3, "--upper", 12, "--json")
    call(monkeypatch, capsys, dump, "--json")
    (groups, given), (_, left_out) = replays
    assert len(groups) == len(drawn_run(0))
    assert (given["lower"], given["upper"]) == (3, 12)
    assert (left_out["lower"], left_out["upper"]) == (2, None)
    assert given["reward_range"] == (0.0, 1.0)


def test_columns_reach_the_reader(tmp_path, replays, monkeypatch, capsys):
    path = tmp_path / "odd.csv"
    path.write_text("who,when,k,of\na,1,3,8\nb,1,0,8\na,2,4,8\nb,2,0,8\n")
    names = ("--prompt-column", "who", "--step-column", "when")
    counts = ("--num-success-column", "k", "--num-rollouts-column", "of")
    code, out, _ = call(monkeypatch, capsys, path, *names, *counts, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["summary"]["num_rollouts"] == 32
    assert answer["waste"]["shares"]["all_wrong"] == 0.5
    assert answer["prompts"]["always_wrong"]["listed"][0]["prompt"] == "b"


def test_json_goes_to_a_file_as_well(dump, replays, tmp_path, monkeypatch, capsys):
    out_file = tmp_path / "new" / "audit.json"
    code, out, _ = call(monkeypatch, capsys, dump, "--out", out_file)
    assert code == 0
    assert "bought no gradient" in out
    assert list(json.loads(out_file.read_text())) == KEYS


def test_an_unwritable_file_loses_nothing(dump, replays, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, dump, "--json", "--out", "/dev/null/audit.json")
    assert code == 2
    assert list(json.loads(out)) == KEYS
    assert err.startswith("apportion: /dev/null/audit.json cannot be written")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lower", 1], "lower is 1"),
        (["--lower", 9, "--upper", 4], "upper is 4"),
        (["--gpu-hours", -1], "gpu_hours is -1"),
        (["--price-per-gpu-hour", 1], "without gpu_hours"),
        (["--top", -1], "top is -1"),
    ],
)
def test_mistakes_in_the_options_are_one_sentence(
    dump, replays, options, message, monkeypatch, capsys
):
    code, out, err = call(monkeypatch, capsys, dump, *options)
    assert (code, out) == (2, "")
    assert err.startswith("apportion: ")
    assert message in err
    assert not replays


def test_a_path_without_anything_is_one_sentence(tmp_path, replays, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, tmp_path / "none.jsonl")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_curves_alone_are_audited_without_a_replay(tmp_path, replays, monkeypatch, capsys):
    path = tmp_path / "trainer_state.json"
    history = [
        {"step": step, "reward": step / 10, "frac_reward_zero_std": 0.5} for step in range(1, 9)
    ]
    path.write_text(json.dumps({"global_step": 8, "log_history": history}))
    code, out, err = call(monkeypatch, capsys, path, "--gpu-hours", 10)
    assert (code, err) == (0, "")
    assert "50.0% of groups bought no gradient" in flat(out)
    assert "some 5.0 GPU-hours" in flat(out)
    assert "log_completions=True" in out
    assert not replays
    answer = json.loads(call(monkeypatch, capsys, path, "--json")[1])
    assert list(answer) == KEYS
    assert answer["waste"] is None
    assert answer["curves"]["without_signal"] == 0.5


def test_groups_of_one_are_audited_without_a_replay(tmp_path, replays, monkeypatch, capsys):
    path = write_run(tmp_path / "one.csv", drawn_run(7, n=1))
    code, out, err = call(monkeypatch, capsys, path)
    assert (code, err) == (0, "")
    assert "Every group has one scored rollout" in flat(out)
    assert "Nothing was replayed" in flat(out)
    assert not replays


@pytest.mark.parametrize("width", [60, 80, 120])
def test_prose_and_tables_fit_the_width(width):
    texts = {group[0]: "[bold]odd\ntext[/] " * 30 + group[0] for group in drawn_run(1)}
    recording = recording_of(group_table(drawn_run(1), texts=texts))
    text = printed(audit(recording, replay_result(), num_draws=5), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "[bold]odd text[/]" in text


def test_long_prompts_leave_the_numbers_whole():
    fall = [("z" * 300, step, [1.0] * 8 if step < 3 else [0.0] * 8) for step in range(6)]
    text = printed(audit(recording_of([*drawn_run(1), *fall]), num_draws=5))
    (row,) = (line for line in text.splitlines() if "zzz" in line)
    assert row.split()[:4] == ["1.00", "0.00", "1.7e-09", "6"]


def test_every_kind_of_waste_has_its_column():
    odd = [("p", 9, [0.5, 0.5]), ("q", 9, [math.nan, math.nan]), ("r", 9, [0.0, 1.0])]
    table = group_table([*drawn_run(2), *odd], hidden=[False] * 240 + [True, False, False])
    text = printed(audit(recording_of(table), num_draws=5))
    for words in ("in between", "not scored", "components", "more than two values"):
        assert words in text


def test_verdict_of_every_mode():
    run = recording_of(drawn_run(3))
    assert "adaptive" in verdict(audit(run, replay_result(), num_draws=5))["set"]
    losing = replay_result(saving=-0.1, saving_interval=(-0.2, 0.0))
    said = verdict(audit(run, losing, num_draws=5))
    assert "for every prompt" in said["set"]
    assert said["saving"].startswith("None: -10.0%")
    once = verdict(audit(recording_of(drawn_run(3, visits=1)), replay_result(), num_draws=5))
    assert once["saving"].startswith("Cannot be judged")
    assert "shadow" in once["set"]
    kept = [group for group in drawn_run(4, prompts=300) if kind_of(group[2]) == "with_signal"]
    assert verdict(audit(recording_of(kept), num_draws=5))["waste"].startswith("Unknown")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "can be trusted: 80% less squared error"),
        ({"standardised_sq": 3.0}, "too sure"),
        ({"standardised_sq": 0.3}, "surer than they say"),
        ({"standardised_sq": math.nan}, "The forecasts help: 80%"),
        ({"error": 0.1}, "no more than the mean"),
        ({"error": math.nan}, "no more than the mean"),
        ({"baseline_error": 0.0}, "no more than the mean"),
    ],
)
def test_trust_follows_error_and_doubt(changes, words):
    assert words in trust(replay_result(**changes))


def test_costs_are_said_where_they_are_known():
    recording = recording_of(drawn_run(5))
    found = audit(recording, rates=Rates(price_per_million_tokens=4.0), num_draws=5)
    text = flat(printed(found))
    assert "in the currency of the price" in text
    assert "tokens" in text
    assert "GPU-hours" not in text


def test_undefined_numbers_become_null():
    found = audit(
        recording_of(drawn_run(6)), replay_result(error=math.nan, coverage=math.inf), num_draws=5
    )
    answer = audit_as_json(found)
    assert answer["replayed"]["error"] is None
    assert answer["replayed"]["coverage"] is None
    json.dumps(answer, allow_nan=False)


def test_a_curve_of_the_reward_alone_says_so():
    reward = Curve(step_T=np.arange(5), value_T=np.arange(5.0))
    text = printed(audit(Recording(source="A log"), curves={"reward": reward}))
    assert "was not logged" in text
    assert "0 in the first fifth, 4 in the last" in text


def test_every_option_has_help_and_units(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--help")
    assert code == 0
    for words in ("--num-rollouts-column", "GPU-hours", "currency", "95%", "--json", "--out"):
        assert words in out
