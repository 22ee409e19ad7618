import json
import os
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from apportion.cli import main
from apportion.cli.allocate import allocate_command, forecast_of, read_columns
from apportion.errors import ApportionError

SUCCESS = "[0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99]"
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(allocate_command)


def run(*arguments, text=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], input=text)


def refused(*arguments, text=None):
    error = run(*arguments, text=text).exception
    assert isinstance(error, ApportionError), error
    return str(error)


@pytest.mark.parametrize(
    ("variance", "expected"),
    [("rloo", [4, 7, 10, 11, 12, 10, 6, 4]), ("dr_grpo", [4, 7, 10, 12, 12, 10, 5, 4])],
)
def test_json_answer(variance, expected):
    result = run(
        *("--budget", 64, "--lower", 4, "--upper", 12, "--variance", variance, "--json"),
        text=f'{{"success": {SUCCESS}}}',
    )
    answer = json.loads(result.output)
    assert list(answer) == [
        "num_rollouts",
        "price",
        "variance",
        "uniform_variance",
        "variance_ratio",
    ]
    assert answer["num_rollouts"] == expected
    assert answer["variance_ratio"] == pytest.approx(
        answer["variance"] / answer["uniform_variance"]
    )


@pytest.mark.parametrize(
    "text",
    [
        SUCCESS,
        f'{{"success": {SUCCESS}}}',
        "\ufeff" + SUCCESS,
        SUCCESS.strip("[]").replace(", ", "\n"),
        "success\n" + SUCCESS.strip("[]").replace(", ", "\r\n"),
    ],
)
def test_every_form_of_input_gives_the_same(text, tmp_path):
    file = tmp_path / "prompts"
    file.write_bytes(text.encode())
    from_file = run(file, "--budget", 64, "--json").output
    assert json.loads(from_file)["num_rollouts"] == [3, 8, 10, 12, 12, 10, 6, 3]
    assert run("--budget", 64, "--json", text=text).output == from_file
    assert run("-", "--budget", 64, "--json", text=text).output == from_file


def test_table_shows_ids_and_closes_with_the_saving():
    text = "id,successes,attempts\n[b]sum,3,4\nsort,0,6\n"
    output = run("--budget", 24, text=text).output
    assert "[b]sum" in output
    assert "0.667" in output
    assert "24 rollouts over 2 prompts:" in output
    assert output.strip().endswith("% less gradient variance than an even split.")


def test_long_table_shows_its_ends():
    output = run("--budget", 40_000, text="\n".join(["0.25"] * 10_000)).output
    assert "... 9,980 more" in output
    assert "9999" in output
    assert len(output.splitlines()) < 30
    assert "0.0% less" in output


def test_counts_are_evidence_on_a_flat_prior():
    forecast = forecast_of({"num_success": [3, 0], "num_rollouts": [4, 0]})
    assert forecast.mean_B == pytest.approx([4 / 6, 1 / 2])
    assert forecast.var_B == pytest.approx([4 * 2 / (6**2 * 7), 1 / 12])


def test_doubt_is_read():
    forecast = forecast_of(read_columns("success,doubt\n0.5,0.05\n0.2,0"))
    assert np.allclose(forecast.reward_var_B, [0.2, 0.16])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "input is empty"),
        ("  \n ", "input is empty"),
        ("[]", "batch is empty"),
        ("{}", "has nothing"),
        ("[0.5", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[NaN]", r"success[0] is nan"),
        ("[1e999]", "finite"),
        ("[null]", "finite"),
        ("[1.5]", "outside [0, 1]"),
        ('["high"]', "must be numbers"),
        ("[[0.5]]", "one axis"),
        ('{"success": 0.5}', "must be a list"),
        ('{"succes": [0.5]}', "names 'succes'"),
        ('{"success": [0.5], "num_success": [1], "num_rollouts": [2]}', "either success"),
        ('{"num_success": [1]}', "come together"),
        ('{"num_success": [1], "successes": [1]}', "num_success twice"),
        ('{"successes": [3], "attempts": [2]}', "above num_rollouts[0] = 2"),
        ('{"successes": [3, 1], "attempts": [4]}', "num_success has 2 values"),
        ('{"successes": [1.5], "attempts": [4]}', "whole number"),
        ('{"success": [0.5], "doubt": [0.3]}', "doubt[0]"),
        ('{"success": [0.5], "id": ["a", "b"]}', "id has 2 values"),
        ("0.5\nhigh", "must be numbers"),
        ("[0.5, true]", "success[1] is true"),
        ('["0.5"]', 'success[0] is "0.5"'),
        ('{"successes": [1], "attempts": ["4"]}', 'num_rollouts[0] is "4"'),
        ('{"success": [0.5], "success": [0.9]}', "'success' twice"),
        ("[" + "1" * 401 + "]", "must be numbers below"),
        ("[[0.5], [0.5, 0.1]]", "must be numbers"),
        ("successes,attempts\n1,1e300", "at most 2^53"),
        ("0.5,0.2", "one number a line"),
        ("id,success\na,0.5\nb", "Row 3 has 1 values"),
        ('success\n"0.5"x', "not valid CSV"),
        ("[0.5, 0.5]", "budget is 2"),
    ],
)
def test_mistakes_in_the_input_are_one_sentence(text, words):
    message = refused("--budget", 2, text=text)
    assert words in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", -1], "budget is -1"),
        (["--budget", "1" * 401], "budget must be numbers below"),
        (["--budget", 9, "--upper", 3], "allow only 6"),
        (["--budget", 9, "--variance", "ppo"], "must be one of"),
        (["--budget", 9, "--variance", "dr_grpo"], "it is from 3"),
    ],
)
def test_mistakes_in_the_options_are_one_sentence(options, words):
    assert words in refused(*options, text="[0.5, 0.2]")


def test_unreadable_files_are_one_sentence(tmp_path):
    assert "cannot be read" in refused(tmp_path / "none.json", "--budget", 4)
    assert "cannot be read" in refused(tmp_path, "--budget", 4)
    (tmp_path / "binary").write_bytes(b"\xff\xfe0\x00")
    assert "is not UTF-8 text" in refused(tmp_path / "binary", "--budget", 4)


def test_a_terminal_without_a_file_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    with pytest.raises(ApportionError, match="pipe numbers in"):
        allocate_command(budget=4)
    monkeypatch.setattr("sys.stdin", None)  # closed
    with pytest.raises(ApportionError, match="pipe numbers in"):
        allocate_command(budget=4)


def program(*arguments, redirection="", **options):
    command = [sys.executable, "-m", "apportion", *map(str, arguments)]
    if redirection:
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    return subprocess.run(command, capture_output=True, **options)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_ids_that_a_terminal_cannot_show_are_escaped(encoding):
    text = json.dumps({"success": [0.5, 0.2], "id": ["\ud800x", "\u65e5\u672c"]})
    result = program(
        *("allocate", "--budget", 8),
        input=text.encode(),
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert result.returncode == 0, result.stderr
    assert b"\\ud800x" in result.stdout
    assert b"8 rollouts over 2 prompts" in result.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_full_disk_is_one_sentence(options):
    result = program(
        *("allocate", "--budget", 8, *options), redirection=">/dev/full", input=b"[0.5, 0.2]"
    )
    assert result.returncode == 2
    assert result.stderr.startswith(b"apportion: The output cannot be written")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_reader_that_left_is_no_error(options):
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "apportion", "allocate", "--budget", "8", *options]
    result = subprocess.run(
        command, input=b"[0.5, 0.2]", stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_closed_standard_input_is_one_sentence():
    result = program("allocate", "--budget", 8, redirection="<&-")
    assert result.returncode == 2
    assert result.stderr.startswith(b"apportion: No input.")


def test_an_interrupt_is_one_sentence_and_exit_code_130(monkeypatch, capsys):
    def interrupted(file):
        raise KeyboardInterrupt

    monkeypatch.setattr("apportion.cli.allocate._read", interrupted)
    monkeypatch.setattr(sys, "argv", ["apportion", "allocate", "--budget", "8"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert capsys.readouterr() == ("", "apportion: stopped.\n")


def test_a_mistake_in_the_options_keeps_its_box():
    result = program("allocate", "--budgte", 8, input=b"")
    assert result.returncode == 2
    assert b"Usage:" in result.stderr


@pytest.mark.parametrize("objective", ["progress", "coverage"])
def test_an_objective_leaves_prompts_out(objective):
    result = run("--budget", 12, "--objective", objective, "--json", text="[0, 0.5, 0.4, 1]")
    answer = json.loads(result.output)
    assert list(answer) == ["num_rollouts", "price", "gain", "bound", "gap"]
    assert answer["num_rollouts"] == [0, 6, 6, 0]
    assert 0.0 < answer["gain"] <= answer["bound"]
    table = run("--budget", 12, "--objective", objective, text="[0, 0.5, 0.4, 1]").output
    assert "12 rollouts over 4 prompts: 2 chosen, an expected gain of" in table.replace("\n", " ")


def test_a_budget_of_tokens_serves_short_rollouts():
    text = '{"success": [0.5, 0.5], "tokens": [50, 200], "id": ["short", "long"]}'
    answer = json.loads(run("--token-budget", 2000, "--json", text=text).output)
    assert list(answer) == [
        *("num_rollouts", "price", "variance", "bound", "gap", "num_tokens", "unspent"),
    ]
    assert answer["num_rollouts"] == [12, 7]
    assert (answer["num_tokens"], answer["unspent"]) == (2000.0, 0.0)
    assert answer["bound"] <= answer["variance"]
    table = run("--token-budget", 2000, text=text).output.replace("\n", " ")
    assert "19 rollouts over 2 prompts: 2,000 of 2,000 tokens" in table
    assert "of it avoidable." in table
    from_csv = run("--token-budget", 2000, "--json", text="success,tokens\n0.5,50\n0.5,200")
    assert json.loads(from_csv.output) == answer


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        ([], "[0.5]", "no budget"),
        (["--budget", 8, "--token-budget", 80], '{"success": [0.5], "tokens": [5]}', "instead of"),
        (
            ["--token-budget", 80, "--objective", "progress"],
            '{"success": [0.5], "tokens": [5]}',
            "with --objective variance alone",
        ),
        (["--token-budget", 80], "[0.5]", "needs tokens"),
        (["--token-budget", 9], '{"success": [0.5], "tokens": [5]}', "need 10 tokens"),
        (["--token-budget", 80], '{"success": [0.5], "tokens": ["5"]}', 'tokens[0] is "5"'),
        (["--budget", 8, "--objective", "gain"], "[0.5]", "objective is 'gain'"),
        (["--budget", 8, "--objective", "progress", "--variance", "grpo"], "[0.5]", "--variance"),
        (["--budget", 9, "--objective", "progress", "--upper", 4], "[0.5, 0.1]", "budget is 9"),
    ],
)
def test_mistakes_in_the_new_options_are_one_sentence(options, text, words):
    assert words in refused(*options, text=text)
