import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan.planning import plan_from_published
from apportion.sweep.listed import read_list
from apportion.sweep.settings import RateRule

RATES = [RateRule(learning_rate=1e-4, tuned_at=64, rule="sqrt")]


def listed(path, **changes):
    usual = {"rates": RATES, "allocators": ["uniform"], "seeds": [0, 1], "budget": 10_000}
    return read_list(path, **usual | changes)


def table(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    return path


def test_a_table_is_taken_as_it_stands(tmp_path):
    path = table(
        tmp_path,
        "rollouts_per_prompt,prompts_per_step,learning_rate,allocator,seed,num_steps\n"
        "4,16,3e-5,adaptive,7,30\n"
        "16,16,2e-5,uniform,0,40\n",
    )
    first, second = listed(path, seeds=[5], budget=None)
    assert (first.rollouts_per_prompt, first.learning_rate, first.seed) == (16, 2e-5, 0)
    assert (second.allocator, second.seed, second.num_steps) == ("adaptive", 7, 30)


def test_what_a_table_lacks_comes_from_the_flags(tmp_path):
    path = table(tmp_path, "\ufeffrollouts_per_prompt, prompts_per_step\n4,16\n16,16\n")
    found = listed(path)
    assert [(s.rollouts_per_prompt, s.learning_rate, s.seed, s.num_steps) for s in found] == [
        (4, 1e-4, 0, 156),
        (16, 2e-4, 0, 39),
        (4, 1e-4, 1, 156),
        (16, 2e-4, 1, 39),
    ]


def test_a_plan_brings_the_runs_to_make_first(tmp_path):
    plan = plan_from_published(2e6, difficulty="easy")
    runs = [
        {
            "rollouts_per_prompt": run.rollouts_per_prompt,
            "prompts_per_step": run.prompts_per_step,
            "num_steps": run.num_steps,
            "learning_rate": run.learning_rate,
            "tells": run.tells,
        }
        for run in plan.sweep_first
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"format": "apportion-plan", "sweep_first": runs}))
    found = listed(path, seeds=[0], budget=None)
    assert len(found) == len(runs) == 4
    assert [s.num_steps for s in found] == [run["num_steps"] for run in runs]
    assert [s.learning_rate for s in found] == [run["learning_rate"] for run in runs]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rollouts_per_prompt\n4\n", "lacks the column prompts_per_step"),
        ("rollouts_per_prompt,prompts_per_step,lr\n4,16,1\n", "has the column 'lr'"),
        ("rollouts_per_prompt,prompts_per_step\n", "holds no run"),
        ("rollouts_per_prompt,prompts_per_step\n4,many\n", "Run 1 .* prompts_per_step 'many'"),
        ("rollouts_per_prompt,prompts_per_step\n0,4\n", "rollouts_per_prompt '0'"),
        ("rollouts_per_prompt,prompts_per_step,learning_rate\n4,16,fast\n", "'fast'"),
        ("rollouts_per_prompt,prompts_per_step,seed\n4,16,-1\n", "at least 0"),
        ("rollouts_per_prompt,prompts_per_step,num_steps\n4,16,2\n", "2 steps"),
        ("{}", "neither a table nor a plan"),
        ("{", "neither a table nor a plan"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, text, says):
    with pytest.raises(InvalidInputError, match=says):
        listed(table(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read"):
        listed(tmp_path / "none.csv")


def test_steps_need_a_budget(tmp_path):
    with pytest.raises(InvalidInputError, match="add the column, or give --budget"):
        listed(table(tmp_path, "rollouts_per_prompt,prompts_per_step\n4,16\n"), budget=None)


@given(st.integers(20_000, 10**7), st.sampled_from(["easy", "hard", "mixed"]))
def test_what_a_plan_wants_first_can_be_swept(tmp_path_factory, budget, difficulty):
    plan = plan_from_published(budget, difficulty=difficulty)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps({"sweep_first": [asdict(run) for run in plan.sweep_first]}))
    if not plan.sweep_first:
        return
    found = read_list(path, rates=[], allocators=["uniform"], seeds=[0], budget=None)
    assert len(found) == len(plan.sweep_first)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,4,,", "has rollouts_per_prompt '1', but it must be a whole number of at least 2"),
        ("4,4,-1,", "has learning_rate '-1', but it must be a number above 0"),
        ("4,4,nan,", "has learning_rate 'nan'"),
        ("4,4,,vip", "has allocator 'vip', but it must be one of uniform, adaptive"),
    ],
)
def test_values_of_a_list_are_told_with_their_run(tmp_path, row, says):
    path = table(tmp_path, f"rollouts_per_prompt,prompts_per_step,learning_rate,allocator\n{row}\n")
    with pytest.raises(InvalidInputError, match=f"Run 1 of .*{says}"):
        listed(path)
