"""Contract: every arm is charged the same, records resume, tables pair by seed and hide nothing."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
from rich.console import Console

from apportion.cli import main
from apportion.cli.board_tables import print_board
from apportion.embedded.pools import pool, write_pools
from apportion.errors import InvalidInputError, RunFolderError
from apportion.leaderboard import page as pages
from apportion.leaderboard import table
from apportion.leaderboard.arms import ARMS, arm_of, check_arms
from apportion.leaderboard.board import BASE, Board, execute_all, read
from apportion.leaderboard.large_pools import write_large_pools
from apportion.leaderboard.runs import POOLS_FILE, Run, execute
from apportion.types import Prompts


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The shipped pools in place of the large ones, which take a minute to draw."""
    folder = tmp_path_factory.mktemp("board")
    names = ("mixed", "hard", "bimodal", "held_out")
    write_pools(folder / POOLS_FILE, {name: pool(name) for name in names})
    return folder


def _run(arm, **changes):
    of = {"pool": "bimodal", "rollouts_per_prompt": 4, "schedule": "constant", "rate": 2e-4}
    return Run(arm=arm, **(of | {"seed": 0, "budget": 1024} | changes))


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_within_the_budget_and_leaves_a_whole_record(arm, out):
    record = execute(_run(arm, budget=512, num_evaluations=1), out)
    assert record["num_rollouts"] <= 512
    if arm != "dapo":
        assert record["num_rollouts"] == 512
    assert record["compute_T"][0] == 0
    assert record["compute_T"][-1] == 512
    assert 0.0 < record["held_out_T"][-1] < 1.0
    assert record["num_updates"] >= 1
    assert record["touched"] > 0.0
    assert json.loads(_run(arm, budget=512).path(out).read_text()) == record


def test_equal_runs_leave_equal_records(out):
    first = execute(_run("progress", seed=5), out)
    again = execute(_run("progress", seed=5), out)
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


def test_the_gradient_is_held_against_the_exact_one(out):
    record = execute(_run("oracle_progress", seed=6, num_gradients=2), out)
    assert len(record["gradient_cosine"]) == len(record["curriculum_cosine"]) == 2
    assert all(-1.0 <= cosine <= 1.0 for cosine in record["gradient_cosine"])


def _fabricated(board, ends):
    """Write records with known ends: `ends[arm]` minus a hundredth a seed."""
    for run in (*board.tuning(), *(board.paired() if _tuned(board) else ())):
        _write(board, run, ends)
    for run in (*board.paired(), *board.shorter()):
        _write(board, run, ends)


def _tuned(board):
    return all(run.path(board.out).exists() for run in board.tuning())


def _write(board, run, ends):
    end = ends[run.arm] * min(run.budget / board.budget * 1.25, 1.0) - 0.01 * (run.seed % 1000)
    if run.seed == 1000:
        end += run.rate * 10.0 * (-1 if run.arm == "vip" else 1)
    steps = np.linspace(0, run.budget, 7)
    record = {
        "run": {"rate": run.rate},
        "commit": "abc1234",
        "compute_T": steps.tolist(),
        "held_out_T": (end * steps / run.budget).tolist(),
        "pool_end": 0.5,
        "best@8": 0.6,
        "worst@8": 0.1,
        "seconds": 1.0,
        "touched": 0.2,
        "num_updates": 60,
        "prompts_per_update": 64.0,
        "num_rollouts": run.budget,
        "gradient_cosine": [0.5] * run.num_gradients,
        "curriculum_cosine": [0.9] * run.num_gradients,
    }
    run.path(board.out).parent.mkdir(parents=True, exist_ok=True)
    run.path(board.out).write_text(json.dumps(record))


@pytest.fixture
def board(tmp_path):
    board = Board(arms=("progress", "vip"), pools=("mixed",), seeds=3, budget=15_360, out=tmp_path)
    _fabricated(board, {"uniform": 0.40, "progress": 0.50, "vip": 0.35})
    return board


def test_rates_are_the_best_of_the_tuning_seed_and_follow_the_square_root(board):
    rates = board.rates()
    assert rates["progress", "constant"] == 2e-4
    assert rates["vip", "constant"] == 1e-4
    assert rates["vip", "linear"] == 2e-4
    by_size = {run.rollouts_per_prompt: run.rate for run in board.paired() if run.arm == "progress"}
    assert by_size[8] == pytest.approx(2e-4 * 2**0.5, rel=1e-2)
    assert BASE in board.arms


def test_tables_pair_by_seed(board):
    rows = {row.arm: row for row in table.rows_of(board)["mixed", 4, "constant"]}
    assert rows["progress"].difference.mean == pytest.approx(0.1)
    assert rows["progress"].difference.low == pytest.approx(0.1)  # seeds shift both arms alike
    assert rows["progress"].share.mean == pytest.approx((0.40 - 0.01) / (0.50 - 0.01), abs=1e-6)
    assert rows["vip"].share.mean == np.inf
    assert rows["progress"].cosine == pytest.approx(0.5)
    ranking = table.over_cells(board)
    assert [arm for arm, _ in ranking] == ["progress", "uniform", "vip"]
    assert ranking[2][1].mean == pytest.approx(-0.05)


def test_smaller_budgets_are_compared_by_their_own_ends(board):
    rows = {row.arm: row for row in table.shorter_of(board)}
    assert rows["uniform"].share == pytest.approx(0.8)
    assert rows["progress"].end_K[-1] == pytest.approx(0.49)
    assert rows["progress"].share == pytest.approx(0.64, abs=0.01)


def test_the_page_names_every_arm_cell_and_origin(board):
    page = pages.markdown(board, command="apportion leaderboard")
    for needed in (
        "abc1234",
        "## mixed, n = 4, constant rate",
        "## mixed, n = 8",
        "| vip |",
        "inf",
    ):
        assert needed in page
    parsed = json.loads(json.dumps(table.as_json(board)))
    assert len(parsed["cells"]) == len(board.cells) == 3
    assert parsed["cells"][0]["arms"][2]["share"]["mean"] is None


def printed(board, width=100):
    file = io.StringIO()
    print_board(board, Console(file=file, width=width))
    return file.getvalue()


def test_a_terminal_gets_tables_and_no_markdown(board):
    text = printed(board)
    assert "mixed, n = 4, constant rate: held-out success, 3 seeds, 15,360 rollouts each" in text
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text.splitlines()
        if line.startswith("│")
    ]
    assert ["progress", "0.4900", "+0.1000 [+0.1000, +0.1000]", "0.80 [0.79, 0.80]"] in cells
    assert ["vip", "0.3400", "-0.0500 [-0.0500, -0.0500]", "never"] in cells
    assert ["uniform", "0.3900", "", "1.00 [1.00, 1.00]"] in cells
    assert ["vip", "0.6000", "0.1000", "0.50 [0.90]", "20%", "64", "0.0001"] in cells
    assert ["progress", "mixed", "0.2400", "0.3650", "0.4900", "0.4900", "0.64"] in cells
    assert text.index("mean over 3 cells") > text.index("n = 8")
    for sign in ("|--", "##", "*", "inf"):
        assert sign not in text
    assert str(board.out).split("/")[-1] in text


def test_one_seed_is_one_seed(tmp_path):
    board = Board(arms=("progress",), pools=("mixed",), seeds=1, out=tmp_path)
    _fabricated(board, {"uniform": 0.40, "progress": 0.50})
    for text in (printed(board), pages.markdown(board, command="apportion leaderboard")):
        assert "1 seed" in text
        assert "1 seeds" not in text
    assert "[" not in printed(board).partition("rollouts to uniform's end:")[0].replace(
        "[95%]", ""
    ).replace("[0.90]", "")


def test_the_command_prints_tables_and_writes_markdown(board, tmp_path, monkeypatch, capsys):
    (board.out / POOLS_FILE).write_text("not read, for nothing is left to run")
    monkeypatch.setenv("COLUMNS", "100")
    words = ["apportion", "leaderboard", "--arms", "progress,vip", "--pools", "mixed"]
    words += ["--seeds", "3", "--out", str(board.out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="0"):
        main()
    text = capsys.readouterr().out
    assert "┃ arm " in text
    assert "|---" not in text
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", [*words, "--write", str(page)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == f"The tables are in {page}.\n"
    assert page.read_text().startswith("# Leaderboard of allocators\n")
    assert "|---" in page.read_text()


def test_a_cell_without_a_whole_seed_is_left_out(board):
    for run in board.paired():
        if run.arm == "vip" and run.rollouts_per_prompt == 8:
            run.path(board.out).unlink()
    assert ("mixed", 8, "constant") not in table.rows_of(board)
    assert table.over_cells(board) == []


def test_finished_runs_are_not_run_again(board):
    seen = []
    execute_all(board.paired(), board.out, num_processes=1, on_done=lambda *what: seen.append(what))
    assert seen == [(27, 27, "")]


def test_a_rule_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "def even(step):\n    return [step.rollouts_per_prompt] * len(step)\n"
        "class Counting:\n    def __call__(self, step):\n        return even(step)\n"
        "nothing = 3\n"
    )
    (tmp_path / "broken.py").write_text("def rule(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_arms(["my_rules:even", "my_rules:Counting", "uniform"])
    for wrong, why in (
        ("my_rules:missing", "cannot be imported"),
        ("no_such_module:rule", "cannot be imported"),
        ("my_rules:nothing", "must be a function"),
        (":rule", "cannot be imported"),
        ("broken:rule", "SyntaxError"),
        ("unifrom", "Choose from uniform"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            check_arms([wrong])
    board = Board(arms=("my_rules:even",), pools=("mixed",), out=tmp_path)
    run = next(run for run in board.tuning() if run.digest)
    assert run.path(tmp_path).name.startswith(f"my_rules-even-{run.digest}-")


STATEFUL = """
import threading
from functools import partial

class Counting:
    def __init__(self, start=0):
        self.seen = [start]
    def __call__(self, step):
        self.seen.append(step)
        return len(self.seen)

counting, bound = Counting(5), Counting(7).__call__
part = partial(Counting.__call__, Counting())

class Locked(Counting):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

locked = Locked()
"""


@pytest.mark.parametrize("name", ["Counting", "counting", "bound", "part", "Locked"])
def test_no_state_goes_from_run_to_run(name, tmp_path, monkeypatch):
    (tmp_path / "stateful.py").write_text(STATEFUL)
    monkeypatch.chdir(tmp_path)
    prompts = Prompts(id_B=["a", "b"], feature_BD=np.eye(2))
    for _ in range(3):
        rule = arm_of(f"stateful:{name}", prompts, np.zeros, rollouts_per_prompt=4).decides
        assert [rule(None) for _ in range(3)] == [2, 3, 4]


def test_an_object_that_cannot_be_copied_is_refused(tmp_path, monkeypatch):
    (tmp_path / "stateful.py").write_text(STATEFUL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"Locked that cannot be copied.*Name its class"):
        check_arms(["stateful:locked"])


def test_a_rule_that_is_not_the_one_asked_for_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "edited.py").write_text("def rule(step):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="was edited"):
        execute(_run("edited:rule", digest="00000000"), tmp_path)


def test_a_failing_run_is_named_and_a_damaged_record_too(tmp_path, monkeypatch, out):
    (tmp_path / "failing.py").write_text("def rule(step):\n    raise ValueError('no idea')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"failing:rule bimodal n=4.*seed 0.*no idea"):
        execute_all(
            [_run("failing:rule", budget=512)], out, num_processes=1, on_done=lambda *what: None
        )
    path = _run("vip").path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('{"run": ')
    with pytest.raises(RunFolderError, match="Delete it"):
        read(_run("vip"), tmp_path)


def test_unknown_cells_are_refused(tmp_path):
    for wrong, why in (
        ({"pools": ("easy",)}, "pool"),
        ({"schedules": ("cosine",)}, "schedule"),
        ({"group_sizes": (1,)}, "at least 2"),
        ({"group_sizes": (2,)}, "vip arms need 3"),
        ({"pools": ()}, "no cell"),
        ({"group_sizes": (8,), "schedules": ("linear",)}, "no cell"),
        ({"budget": 15_000}, "14848 and 15360"),
        ({"seeds": 2000}, "at most 1000"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            Board(arms=ARMS, out=tmp_path, **wrong)
    assert Board(arms=ARMS, out=tmp_path, group_sizes=(4, 4)).group_sizes == (4,)
    assert Board(arms=ARMS, out=tmp_path, budget=1024).short_budgets == [512, 768]


def test_arms_have_their_published_candidates():
    prompts = Prompts(id_B=["a", "b"], feature_BD=np.eye(2))

    def of(name):
        return arm_of(name, prompts, lambda keys: np.full(len(keys), 0.5), rollouts_per_prompt=4)

    assert {name: of(name).candidates for name in ("uniform", "variance", "progress", "dapo")} == {
        "uniform": 1,
        "variance": 1,
        "progress": 3,
        "dapo": 10,
    }
    assert of("equal_n").belief is not None


def test_pools_that_are_there_are_not_drawn_again(tmp_path):
    path = tmp_path / POOLS_FILE
    path.write_text("as it was")
    write_large_pools(path, pytest.fail)
    assert path.read_text() == "as it was"
