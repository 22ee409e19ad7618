"""`apportion fit`, from tables, folders and logs to curves, crossovers and a law."""

from __future__ import annotations

import io
import json
import re
import sys

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from apportion.cli import fit as command
from apportion.cli import main
from apportion.cli.fit_content import fitted
from apportion.cli.fit_tables import best_of, print_fit
from apportion.errors import ApportionError
from apportion.plan.published import CROSSOVERS, CURVES
from apportion.plan.runs import Run
from apportion.run_log import RunLog
from apportion.training.config import TrainConfig

KEYS = ["version", "no_best", "curves", "crossovers", "frontier", "law", "rivals"]
KEYS += ["groups", "fixed_batch", "backtest", "warnings"]
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.fit_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})


def fit(*arguments):
    """Return the JSON of a fit, which must hold neither NaN nor infinity."""
    found = run(*arguments, "--draws", 10, "--json")
    if found.exception is not None:
        raise found.exception

    def refuse(name):
        raise AssertionError(name)

    answer = json.loads(found.output, parse_constant=refuse)
    assert list(answer) == KEYS
    assert answer["version"] == 1
    return answer


def table(path, rows, more=""):
    """Write a CSV of rows run, n, B_p, C, reward and whatever `more` names."""
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([f"run,n,B_p,C,reward{more}", *lines, ""]))
    return path


def published(difficulty):
    return [
        (f"n{c.rollouts_per_prompt}", c.rollouts_per_prompt, 32, compute, reward)
        for c in CURVES
        if c.difficulty == difficulty
        for compute in np.linspace(c.drawn_from * 1e6, c.drawn_to * 1e6, 20).tolist()
        for reward in [float(c.curve(compute))]
    ]


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    path = tmp_path_factory.mktemp("easy") / "runs.csv"
    return table(path, [(*row, 6000) for row in published("easy")], ",num_prompts")


@pytest.fixture(scope="module")
def answer(easy):
    return fit(easy)


@pytest.mark.parametrize("difficulty", ["easy", "hard"])
def test_published_crossovers_come_back(tmp_path, difficulty):
    """Within 3% of what the paper's drawn curves have."""
    found = fit(table(tmp_path / "runs.csv", published(difficulty)))["crossovers"]
    assert len(found) == len(CROSSOVERS[difficulty])
    for one, (leaving, entering, compute) in zip(found, CROSSOVERS[difficulty], strict=True):
        assert one["leaving"]["rollouts_per_prompt"] == leaving
        assert one["entering"]["rollouts_per_prompt"] == entering
        assert one["compute"]["value"] == pytest.approx(compute, rel=0.03)
        assert one["compute"]["low"] <= compute * 1.03
        assert one["compute"]["high"] >= compute * 0.97
        assert one["share_of_draws"] == 1
        assert one["passes"] is None


def test_passes_over_the_data_are_those_of_the_larger_n(answer):
    """The paper's crossovers lie after 0.8 to 1.4 passes of the n that is entered."""
    for one in answer["crossovers"]:
        n = one["entering"]["rollouts_per_prompt"]
        assert one["passes"] == pytest.approx(one["compute"]["value"] / (n * 6000))
        assert 0.8 < one["passes"] < 1.4


def test_json_has_curves_frontier_law_and_rivals(answer):
    assert [curve["rollouts_per_prompt"] for curve in answer["curves"]] == [8, 32, 128, 256, 512]
    first = answer["curves"][0]
    assert (first["form"], first["runs"], first["num_evaluations"]) == ("exponential", ["n8"], 20)
    assert first["ceiling"]["value"] == pytest.approx(0.582, abs=1e-3)
    assert first["shape"]["rate"] == pytest.approx(4.57e-6, rel=1e-2)
    assert "Still rising" in first["advice"]
    frontier = answer["frontier"]
    assert len({len(values) for values in frontier.values()}) == 1
    for curve, n in zip(frontier["curve"], frontier["rollouts_per_prompt"], strict=True):
        assert answer["curves"][curve]["rollouts_per_prompt"] == n
    assert (np.diff(frontier["reward"]) > 0).all()
    law = answer["law"]
    assert (law["form"], list(law["parameters"])) == ("sigmoid", ["L", "k", "log10_C0", "b"])
    for one in law["parameters"].values():
        assert one["low"] <= one["value"] <= one["high"]
    assert law["parameters"]["log10_C0"]["value"] == pytest.approx(5.84, abs=0.15)  # the paper's
    errors = list(answer["rivals"].values())
    assert set(answer["rivals"]) == {"constant", "power", "one_pass", "sigmoid"}
    assert errors == sorted(errors)
    assert any("learning rates are unknown" in one for one in answer["warnings"])


def shown(content, width=80):
    text = io.StringIO()
    print_fit(content, Console(file=text, width=width, force_terminal=True), num_draws=10)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())


def test_tables_fit_a_terminal_and_say_it_all(answer):
    text = shown(answer)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "5 runs of 5 settings; intervals are 90%, from 10 refits" in flat
    assert "8 up to 265k, 32 up to 839k, 128 up to 1.26M, 256 up to 2.67M, 512 up to" in flat
    assert "n rollouts reward of draws passes" in flat
    assert "8 -> 32 265k [26" in flat
    assert "1: Still rising, 70% of the way" in flat
    assert "log2 n*(C) = L / (1 + exp(-k (log10 C - log10 C0))) + b" in flat
    assert "half-way (in doublings) at 8" in flat
    assert "What these runs cannot tell - " in flat
    best = flat.partition("doublings of n")[2].split()[1:3]
    assert best == ["one", "pass"]
    assert "Another law predicts better than the sigmoid" in flat


def test_the_command_prints_the_tables(easy):
    found = run(easy, "--draws", 10)
    assert found.exit_code == 0
    assert "Which n is best" in found.output
    assert not any(line.endswith(" ") for line in found.output.splitlines())


def test_a_parameter_without_end_is_not_identified(answer):
    one = {"value": 50.0, "error": None, "low": None, "high": None, "is_identified": False}
    told = {**answer["law"]["parameters"], "k": one}
    text = shown({**answer, "law": {**answer["law"], "parameters": told, "advice": "Read ranges."}})
    assert "50.00" in text
    assert "not identified" in text
    assert "Read ranges." in text


def test_simulated_curves_are_fitted(tmp_path):
    out = tmp_path / "curves.csv"
    sizes = ("--rollouts-per-prompt", "8,64", "--seeds", "2", "--evaluation", "300x4")
    simulated = ("simulate", "--problems", "300", "--budget", "60000", *sizes, "--out", str(out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["apportion", *simulated])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    answer = fit(out)
    assert [len(curve["runs"]) for curve in answer["curves"]] == [2, 2]
    assert answer["frontier"]["compute"][-1] == pytest.approx(60_000, rel=0.1)
    assert answer["law"] is None
    assert answer["rivals"] == {}
    said = " ".join(answer["warnings"])
    assert "Only n = 8 and 64 were run: a law needs 3 or more" in said
    assert "learning rate of its own" in said


def test_run_folders_are_fitted(tmp_path):
    for n in (4, 16):
        for arm in ("uniform", "adaptive"):
            sizes = {"rollouts_per_prompt": n, "prompts_per_step": 8, "steps": 80}
            told = TrainConfig(arm=arm, objective="progress", candidates=3, **sizes)
            with RunLog.create(tmp_path / f"n{n}" / arm, {"train": told.to_dict()}) as log:
                for step in range(0, 81, 10):
                    reward = 0.7 - 0.5 * np.exp(-step / 200 * n**0.25)
                    values = {"avg": reward, "num_problems": 500}
                    log.log_evaluation(step, compute=step * n * 8, split="pool", values=values)
                    log.log_evaluation(step, compute=step * n * 8, split="held_out", values=values)
    answer = fit(tmp_path)
    assert [curve["allocator"] for curve in answer["curves"]] == [
        *("adaptive (progress, 3 x)", "uniform") * 2
    ]
    assert {curve["num_evaluations"] for curve in answer["curves"]} == {9}
    assert any("several allocators" in one for one in answer["warnings"])
    text = shown(answer)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "#1 adaptive (progress, 3 x), #2 uniform" in flat
    assert "By rollouts spent: 4 #" in flat


def test_prompts_per_step_picks_or_all_are_told(tmp_path):
    rows = [
        (f"r{prompts}", 1024, prompts, compute, 0.5 - 0.3 * np.exp(-compute / scale))
        for prompts, scale in [(512, 5e5), (1024, 2e6)]
        for compute in np.geomspace(1e5, 1e7, 8)
    ]
    path = table(tmp_path / "runs.csv", rows)
    both = fit(path)
    assert any("several prompts per step (512, 1024)" in one for one in both["warnings"])
    assert "By rollouts spent: 1024 x 512 up to" in " ".join(shown(both).split())
    one = fit(path, "--prompts-per-step", 512)
    assert [curve["prompts_per_step"] for curve in one["curves"]] == [512]
    assert "has 64" not in str(run(path, "--prompts-per-step", 64).exception)
    assert "but the runs have 512, 1024" in str(run(path, "--prompts-per-step", 64).exception)


def test_settings_that_n_does_not_tell_apart_are_numbered(tmp_path):
    rows = [
        (f"r{rate}", 2048, 1024, compute, 0.5 - 0.3 * np.exp(-compute / scale), rate)
        for rate, scale in [(1.41421e-6, 5e5), (2e-6, 2e6)]
        for compute in np.geomspace(1e5, 1e7, 8)
    ]
    text = shown(fit(table(tmp_path / "runs.csv", rows, ",learning_rate")))
    assert max(map(len, text.splitlines())) <= 80
    assert "2048 #1" in text


def test_a_curve_that_ends_early_is_told_where_it_leads(tmp_path):
    rows = [
        (f"r{n}", n, 32, compute, ceiling - 0.3 * np.exp(-compute / 1e5))
        for n, ceiling, end in [(8, 0.6, 4e5), (32, 0.5, 4e6)]
        for compute in np.geomspace(1e4, end, 12)
    ]
    (said,) = (
        one for one in fit(table(tmp_path / "r.csv", rows))["warnings"] if "extrapolated" in one
    )
    assert "n = 8, B_p = 32 is on the frontier up to 4,000,000 rollouts" in said
    assert "was run to 400,000 alone" in said


@pytest.mark.parametrize(
    "curves",
    [
        {8: [(256, 0.5)]},
        {8: [(256, 0.5)], 16: [(256, 0.25)]},
        {8: [(256, 0.5), (512, 0.5)]},
        {8: [(0, 0.1), (256, 0.5)], 16: [(0, 0.1), (512, 0.25)]},
        {8: [(256 * k, 0.5) for k in range(1, 9)]},
        {8: [(256 * k, 0.5 - 0.05 * k) for k in range(1, 9)], 4: [(256, 0.0)]},
        {n: [(256 * k, 1.0) for k in range(1, 9)] for n in (2, 4, 8, 16)},
    ],
)
def test_few_runs_still_say_something(tmp_path, curves):
    rows = [(f"r{n}", n, 4, *point) for n, points in curves.items() for point in points]
    path = table(tmp_path / "r.csv", rows)
    answer = fit(path)
    assert len(answer["curves"]) == len(curves)
    assert answer["law"] is None
    assert answer["warnings"]
    assert run(path, "--draws", 3).exit_code == 0


def test_what_was_left_out_is_told(tmp_path):
    path = table(tmp_path / "r.csv", [("a", 8, 4, 0, 0.5), ("b", 8, 4, 256, 0.5)])
    assert "Left out: a was not evaluated after its first rollout." in fit(path)["warnings"]
    alone = table(tmp_path / "s.csv", [("a", 8, 4, 0, 0.5)])
    with pytest.raises(ApportionError, match="Give runs with evaluations along the way"):
        fit(alone)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("run,n,B_p,C,reward\na,8,32,256,1.5\n", [], "line 2: reward is '1.5'"),
        ("hello\n", [], "holds no runs"),
        ("run,n,B_p,C,reward\na,8,32,256,0.5\n", ["--draws", "0"], "draws is 0"),
        ("run,n,B_p,C,reward\na,8,32,256,0.5\n", ["--metric", "best@4"], "lacks best@4"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path, monkeypatch, capsys, content, arguments, message
):
    path = tmp_path / "runs.csv"
    path.write_text(content)
    monkeypatch.setattr(sys, "argv", ["apportion", "fit", str(path), *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("apportion: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_best_of_one_setting(answer):
    last = answer["frontier"]["curve"][-1]
    curve = [last] * len(answer["frontier"]["curve"])
    alone = {**answer, "crossovers": [], "frontier": {**answer["frontier"], "curve": curve}}
    said = best_of(alone, answer["curves"])
    assert said == "512 up to 4.09M, where the runs end (reward 0.679)"


def test_crossovers_in_doubt_are_not_claimed(answer):
    first, *others = answer["crossovers"]
    in_doubt = {**answer, "crossovers": [{**first, "share_of_draws": 0.4}, *others]}
    left, entered = (first[side]["rollouts_per_prompt"] for side in ("leaving", "entering"))
    assert best_of(in_doubt, answer["curves"]).startswith(f"{left} or {entered} up to")
    assert best_of(answer, answer["curves"]).startswith(f"{left} up to")


def curves_of(tmp_path, reward_of, *, computes=tuple(range(1000, 21_000, 1000))):
    lines = ["run,n,B_p,C,reward,seed"]
    rng = np.random.default_rng(3)
    for n in (8, 32, 128):
        for c in computes:
            lines.append(f"r{n},{n},8,{c},{reward_of(n, c, rng):.5f},0")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("reward_of", "told"),
    [
        (lambda n, c, rng: 0.5, "No run improved"),
        (lambda n, c, rng: 0.5 + rng.normal(0, 0.01), "No run improved"),
        (lambda n, c, rng: 0.5 - n * c / 1e7, "No run improved"),
        (lambda n, c, rng: 0.7 - 0.3 * np.exp(-c / 5e3) + rng.normal(0, 0.01), "no difference"),
    ],
)
def test_flat_falling_and_tied_runs_have_no_best_n(tmp_path, reward_of, told):
    path = curves_of(tmp_path, reward_of)
    found = fit(path)
    assert told in found["no_best"]
    assert (found["crossovers"], found["law"]) == ([], None)
    assert told in " ".join(run(path, "--draws", 5).output.split())


def test_runs_that_differ_have_a_best_n(tmp_path):
    path = curves_of(tmp_path, lambda n, c, rng: 0.7 - 0.3 * np.exp(-c * n / 1e5))
    assert fit(path)["no_best"] == ""


def test_single_evaluations_cross_nothing(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("run,n,B_p,C,reward\na,8,8,1000,0.4\nb,32,8,2000,0.6\n")
    found = fit(path)
    assert (found["no_best"], found["crossovers"]) == ("", [])


SWEEP = st.dictionaries(
    st.tuples(st.sampled_from([2, 8, 64]), st.sampled_from([1, 16])),
    st.dictionaries(
        st.integers(0, 10**7), st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=6
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12)
@given(SWEEP)
def test_any_runs_give_plain_values_and_a_page(sweep):
    runs = [
        Run(
            name=f"{n} {prompts}",
            rollouts_per_prompt=n,
            prompts_per_step=prompts,
            compute_T=np.array(sorted(curve), dtype=float),
            reward_T=np.array([curve[compute] for compute in sorted(curve)]),
        )
        for (n, prompts), curve in sweep.items()
    ]
    try:
        kept = command.begun(runs, [])
    except ApportionError:
        assert not any(run.compute_T[-1] for run in runs)
        return
    content = fitted(kept, [], num_draws=2)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert "Learning curves" in shown(content)


def several_batches(tmp_path):
    """Runs of three n at two B_p, of which 8 x 64 and 32 x 16 share a batch."""
    rows = []
    for prompts in (16, 64):
        for n, ceiling, rate in ((8, 0.5, 8e-6), (32, 0.65, 4e-6), (128, 0.8, 2e-6)):
            for compute in np.geomspace(5e3, 2e6, 30).tolist():
                reward = ceiling * (1 - np.exp(-rate * compute))
                rows.append((f"n{n}-p{prompts}", n, prompts, compute, reward))
    return table(tmp_path / "runs.csv", rows)


def test_groups_fixed_batches_and_the_test_are_told(tmp_path):
    path = several_batches(tmp_path)
    found = fit(path)
    assert [one["prompts_per_step"] for one in found["groups"]] == [16, 64]
    for one in found["groups"]:
        assert {found["curves"][s]["prompts_per_step"] for s in one["frontier"]["curve"]} == {
            one["prompts_per_step"]
        }
        assert one["frontier"]["rollouts_per_prompt"][-1] == 128
    batches = {one["batch"]: one for one in found["fixed_batch"]}
    assert list(batches) == [512, 2048]
    (crossing,) = batches[512]["crossovers"]
    # 0.65 (1 - exp(-4e-6 C)) passes 0.5 (1 - exp(-8e-6 C)) where exp(-4e-6 C) is 0.3.
    assert crossing["steps"]["value"] == pytest.approx(np.log(0.3) / -4e-6 / 512, rel=0.01)
    assert batches[512]["frontier"]["prompts_per_step"][0] == 64
    assert batches[512]["frontier"]["prompts_per_step"][-1] == 16
    assert found["frontier"]["prompts_per_step"][-1] in (16, 64)
    test = found["backtest"]
    assert (test["known_to"], test["best"]["rollouts_per_prompt"]) == (2e5, 128)
    page = run(path, "--draws", 3).output
    assert "Which n is best for each B_p and allocator" in page
    assert "512 rollouts a step: 8 x 64" in page
    assert "Known up to 200k rollouts, judged at 2.00M" in page


def test_a_plain_sweep_has_neither(easy, answer):
    assert answer["groups"] == answer["fixed_batch"] == []
    page = run(easy, "--draws", 3).output
    assert "for each B_p" not in page
    assert "fixed batch" not in page


def test_where_the_published_law_levels_off(easy, answer):
    law = answer["law"]
    top = law["parameters"]["L"]["value"] + law["parameters"]["b"]["value"]
    assert law["saturation"]["value"] == pytest.approx(2**top)
    assert law["saturation"]["low"] < 512
    assert law["saturation"]["high"] is None  # 512 is the largest n of these curves
    assert "Published: 512, 64, 16 on easy problems and 128, 32 or" in run(easy).output


def test_curves_that_cross_to_and_fro_pass_once(answer):
    front = answer["frontier"]
    first, second = (answer["crossovers"][0][side] for side in ("leaving", "entering"))
    numbers = [
        next(i for i, c in enumerate(answer["curves"])
             if c["rollouts_per_prompt"] == one["rollouts_per_prompt"])
        for one in (first, second)
    ]  # fmt: skip
    told = answer["crossovers"][0]
    passing = [
        {**told, "compute": {**told["compute"], "value": 1e5}},
        {**told, "leaving": second, "entering": first},
        {**told, "compute": {**told["compute"], "value": 3e5}},
    ]
    part = {"crossovers": passing, "frontier": {**front, "curve": numbers * 2}}
    n, m = first["rollouts_per_prompt"], second["rollouts_per_prompt"]
    assert best_of(part, answer["curves"]).startswith(f"{n} or {m} up to 300k, {m} up to")
