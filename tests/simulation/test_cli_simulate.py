import csv
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from apportion.cli import simulate as command
from apportion.cli.simulate_files import COLUMNS
from apportion.difficulty import Profile
from apportion.errors import ApportionError
from apportion.simulation import Population, Training, simulate

SMALL = ("--problems", 200, "--budget", 20_000, "--rollouts-per-prompt", "8,16", "--seeds", 2)
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.simulate_command)


def run(*arguments, width=80):
    environment = {"COLUMNS": str(width), "TERM": "dumb"}
    return CliRunner().invoke(app, [str(a) for a in arguments], env=environment)


def refused(*arguments):
    error = run(*arguments).exception
    assert isinstance(error, ApportionError), error
    return str(error)


@pytest.fixture(scope="module")
def runs_of():
    problems = Population(num_train=200).problems()
    return [
        simulate(
            problems,
            Training(rollouts_per_prompt=n, memory=100.0),
            budget=20_000,
            seeds=[0, 1],
            evaluation=(300, 4),
        )
        for n in (8, 16)
    ]


def test_json_is_what_the_runs_reached(runs_of):
    answer = json.loads(run(*SMALL, "--json").output)
    assert "collapse" in answer["caveat"]
    assert answer["start"] == pytest.approx(0.44, abs=0.01)
    for found, runs in zip(answer["sizes"], runs_of, strict=True):
        n = runs[0].training.rollouts_per_prompt
        assert found["rollouts_per_prompt"] == n
        assert found["num_steps"] == 20_000 // (32 * n)
        assert found["passes"] == found["compute"] / n / 200
        final = [run.success_T[-1] for run in runs]
        assert found["success"]["final"]["mean"] == pytest.approx(np.mean(final))
        error = np.std(final, ddof=1) / np.sqrt(2)
        assert found["success"]["final"]["standard_error"] == pytest.approx(error)
        worst = [run.worst_T.max() for run in runs]
        assert found["worst_at_4"]["highest"]["mean"] == pytest.approx(np.mean(worst))


@pytest.mark.parametrize("is_measured", [False, True])
def test_the_table_of_curves_holds_every_evaluation(tmp_path, runs_of, is_measured):
    out = tmp_path / "new" / "curves.csv"
    size = ("--evaluation", "300x4") if is_measured else ()
    assert run(*SMALL, *size, "--out", out).exit_code == 0
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    expected = [(run, at) for runs in runs_of for run in runs for at in range(len(run.compute_T))]
    for row, (one, at) in zip(rows, expected, strict=True):
        n = one.training.rollouts_per_prompt
        assert row["run"] == f"n{n}-seed{one.seed}"
        assert (int(row["rollouts_per_prompt"]), int(row["prompts_per_step"])) == (n, 32)
        assert (int(row["seed"]), int(row["compute"])) == (one.seed, one.compute_T[at])
        curve_T = one.measured.success_T if is_measured else one.success_T
        assert float(row["reward"]) == curve_T[at]
        assert (row["problems"], row["samples"]) == (("300", "4") if is_measured else ("", ""))
        assert float(row["learning_rate"]) == pytest.approx(0.02 * np.sqrt(32 * n / 1024))
    assert run(*SMALL, "--out", out).exit_code == 0  # its own table may be replaced


def test_the_table_says_what_it_is_not():
    shown = run(*SMALL).output
    assert "200 easy problems; 20,000 rollouts a run, 2 seeds" in " ".join(shown.split())
    assert "never take a learning rate from it" in " ".join(shown.split())
    assert "reached most" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "±" in shown
    assert "±" not in run(*SMALL[:-1], 1).output
    told = " ".join(run("--help", width=200).output.split())
    assert "it must not be used to choose one" in told


def test_the_smallest_size_that_is_as_good_is_named():
    def row(n, value):
        return {"rollouts_per_prompt": n, "success": {"highest": {"mean": value}}}

    said = command._verdict([row(8, 0.60), row(32, 0.6995), row(128, 0.7)])
    assert said.startswith("n = 128 reached most, 0.700; n = 32 is within 0.001 of it.")
    assert command._verdict([row(8, 0.7), row(32, 0.6)]).startswith("n = 8 reached most, 0.700. ")


def test_the_options_reach_the_runs(monkeypatch):
    seen = []

    def spy(problems, training, **options):
        seen.append((problems, training, options))
        return simulate(problems, training, **options)

    monkeypatch.setattr("apportion.simulation.simulate", spy)
    options = {
        "--difficulty": "hard",
        "--prompts-per-step": 16,
        "--learning-rate": 0.5,
        "--rate-rule": "linear",
        "--memory": 2,
        "--schedule": "cosine",
        "--optimizer": "sgd",
        "--estimator": "rloo",
        "--allocator": "adaptive",
        "--signal": 0.5,
    }
    arguments = [part for pair in options.items() for part in pair]
    assert run(*SMALL, *arguments).exit_code == 0
    problems, training, called = seen[0]
    assert training == Training(
        rollouts_per_prompt=8,
        prompts_per_step=16,
        learning_rate=0.5,
        rate_power=1.0,
        memory=2.0,
        schedule="cosine",
        optimizer="sgd",
        estimator="rloo",
    )
    assert problems.train.base_success_Q.mean() < 0.03
    allocator = called["allocator"]()
    assert len(allocator) == 200
    assert (allocator.lower, allocator.upper) == (2, 32)
    alike = Population(difficulty="hard", num_train=200, signal=0.5).problems()
    np.testing.assert_array_equal(problems.train.correct_Q, alike.train.correct_Q)


@pytest.mark.parametrize("is_folder", [False, True])
def test_difficulty_may_be_measured(tmp_path, monkeypatch, is_folder):
    path = tmp_path / "profile"
    if is_folder:
        path.mkdir()
        profile = Profile(num_success_Q=[0, 1, 8, 8], num_samples=8)
        monkeypatch.setattr("apportion.training.profile.read_profile", lambda _: profile)
    else:
        path.write_text("id,successes,attempts\na,0,8\nb,1,8\nc,8,8\nd,8,8\n")
    answer = json.loads(run(*SMALL, "--difficulty", path, "--json").output)
    assert answer["start"] == pytest.approx(17 / 32, abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--difficulty", "medium"), "neither easy nor hard"),
        (("--rollouts-per-prompt", "8;16"), "must be whole numbers"),
        (("--rollouts-per-prompt", "1"), "rollouts_per_prompt is 1"),
        (("--rate-rule", "cubic"), "rate_rule is 'cubic'"),
        (("--allocator", "vip"), "allocator is 'vip'"),
        (("--evaluation", "300"), "must be problems x samples"),
        (("--evaluation", "300x0"), "samples is 0"),
        (("--seeds", "0"), "seeds is 0"),
        (("--budget", "100"), "the first step takes 256"),
        (("--problems", "10"), "there are 10 prompts"),
        (("--out", "."), "is a folder"),
    ],
)
def test_mistakes_are_named(arguments, message):
    assert message in refused(*SMALL, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("success\n0.5\n", "needs num_success and num_rollouts"),
        ("num_success,num_rollouts\n1,8\n1,4\n", "4 to 8 rollouts"),
        ("num_success,num_rollouts\n9,8\n", "above num_samples"),
        ("num_success,num_rollouts\n", "num_success_Q is empty"),
    ],
)
def test_counts_that_do_not_fit_are_named(tmp_path, text, message):
    path = tmp_path / "counts.csv"
    path.write_text(text)
    assert message in refused(*SMALL, "--difficulty", path)


@pytest.mark.parametrize("content", ["run,reward\n", "\xff".encode("latin-1").decode("latin-1")])
def test_nothing_else_is_written_over(tmp_path, content):
    out = tmp_path / "mine.csv"
    out.write_bytes(content.encode("latin-1"))
    assert "would overwrite" in refused(*SMALL, "--out", out)
    assert out.read_bytes() == content.encode("latin-1")
