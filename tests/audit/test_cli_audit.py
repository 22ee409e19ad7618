import json
import math

import pytest
from audit_helpers import (
    call,
    drawn_run,
    flat,
    kind_of,
    printed,
    recording_of,
    replay_result,
    write_run,
)

from apportion.audit import audit
from apportion.cli.audit import audit_as_json

KEYS = [
    "format",
    "version",
    "verdict",
    "summary",
    "waste",
    "prediction",
    "replayed",
    "replayed_bounds",
    "saved",
    "prompts",
    "settings",
    "curves",
    "limits",
]


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
    first = "\n".join(out.splitlines()[:5])
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
    out = call(monkeypatch, capsys, dump, "--json")[1]
    (groups, given), (_, left_out) = replays
    assert len(groups) == len(drawn_run(0))
    assert (given["lower"], given["upper"]) == (3, 12)
    answer = json.loads(out)
    assert [left_out["lower"], left_out["upper"]] == answer["replayed_bounds"]
    use = answer["settings"]
    if use["rollouts_per_prompt"] == 8:
        assert [use["lower"], use["upper"]] == answer["replayed_bounds"]
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
        (["--gpu-hours", -1], "--gpu-hours is -1"),
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
    assert "trainer_state.json" not in out
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
    said = "Unknown: most groups of this record have one rollout."
    assert f"wasted  {said}" in out
    assert out.count(said) == 2  # in the section as well
    for words in ("--group-column", "--prompt-column", "--step-column", "Nothing was replayed"):
        assert words in out
    for words in ("bought no gradient", "n = 2", "num_generations", "GPU-hours"):
        assert words not in out
    answer = json.loads(call(monkeypatch, capsys, path, "--json")[1])
    assert list(answer) == KEYS
    assert answer["waste"] is answer["settings"] is None
    assert not replays


def test_no_width_is_a_width_of_eighty(dump, replays, monkeypatch, capsys):
    out = call(monkeypatch, capsys, dump)[1]
    for width in ("0", "1", "19"):
        monkeypatch.setattr("audit_helpers.WIDTH", width)
        assert call(monkeypatch, capsys, dump)[1] == out


def test_the_record_does_not_steer_the_terminal(tmp_path, replays, monkeypatch, capsys):
    path = write_run(
        tmp_path / "a\x1b[2Jb.csv",
        [(f"\x1b]0;x\x07{group[0]}\u202e", *group[1:]) for group in drawn_run(0)]
        + [("\x1b[31m", 9, [1.0, math.nan])],
    )
    code, out, err = call(monkeypatch, capsys, path, "--full")
    assert (code, err) == (0, "")
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    for words in ("\\x1b]0;x\\x07prompt", "\\u202e", "a\\x1b[2Jb.csv"):
        assert words in out


def test_every_option_has_help_and_units(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--help")
    assert code == 0
    for words in ("--num-rollouts-column", "GPU-hours", "currency", "95%", "--json", "--out"):
        assert words in out


def test_away_from_a_terminal_a_sentence_is_a_line(dump, replays, monkeypatch, capsys):
    out = call(monkeypatch, capsys, dump)[1]
    lines = out.splitlines()
    for name, said in json.loads(call(monkeypatch, capsys, dump, "--json")[1])["verdict"].items():
        label = {"waste": "wasted", "saving": "saving", "set": "set   "}[name]
        assert f"{label}  {said}" in lines
    assert not any(line.endswith(" ") for line in lines)
    narrow = printed(audit(recording_of(drawn_run(1)), num_draws=5), 40, terminal=False)
    assert max(map(len, narrow.splitlines())) > 80


def test_there_is_no_negative_zero(dump, replays, monkeypatch, capsys):
    for bound in ("--lower", "--upper"):
        out = call(monkeypatch, capsys, dump, bound, 8)[1]
        name = bound.removeprefix("--")
        assert f"saving  Your bounds leave nothing to move: {name} = n." in out
    assert not replays
    found = audit(recording_of(drawn_run(1)), replay_result(saving=-0.0), num_draws=5)
    assert math.copysign(1.0, audit_as_json(found)["replayed"]["saving"]) == 1.0
    assert "-0.0" not in printed(found)


def test_a_record_of_nothing_is_named_by_its_path(tmp_path, replays, monkeypatch, capsys):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [{"step": 1, "loss": 0.5}]}))
    code, _, err = call(monkeypatch, capsys, path)
    assert code == 2
    assert str(path) in err
    assert "scalar curves holds" not in err


def test_help_is_clean_paragraphs(monkeypatch, capsys):
    out = call(monkeypatch, capsys, "--help")[1]
    assert "Intervals are 95%, over prompts." in flat(out)
    assert "\\" not in out


def test_the_readers_note_on_a_binary_column_is_taken_up(tmp_path, replays, monkeypatch, capsys):
    path = tmp_path / "shaped.csv"
    rows = [
        f"{prompt},{step},{right - 0.1 * at},{right}"
        for step in range(4)
        for prompt in "abcd"
        for at, right in enumerate((0, 1, 1))
    ]
    path.write_text("\n".join(["prompt,step,reward,acc", *rows]))
    out = call(monkeypatch, capsys, path)[1]
    assert "The column acc has them: see the notes of the reader." in out
    assert out.count("--reward-column") == 1


def test_the_readers_note_on_steps_is_taken_up(tmp_path, replays, monkeypatch, capsys):
    path = tmp_path / "untimed.csv"
    rows = [f"{group[0]},{int(sum(group[2]))},8" for group in drawn_run(0)]
    path.write_text("\n".join(["prompt,k,n", *rows]))
    assert call(monkeypatch, capsys, path)[1].count("Steps are not recorded") == 1


def test_the_readers_note_on_missing_rewards_is_taken_up(tmp_path, replays, monkeypatch, capsys):
    path = write_run(tmp_path / "holed.csv", [*drawn_run(0), ("prompt 000", 9, [1.0, math.nan])])
    out = call(monkeypatch, capsys, path)[1]
    assert out.count("no finite reward") == 1
    assert "no score" not in out
    assert "Groups are judged by the rollouts with a score alone." in out
