from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.sweep.settings import RateRule, checked, grid

POWER = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}


def made(**changes):
    usual = {
        "rollouts_per_prompt": [4, 16],
        "prompts_per_step": [8],
        "rates": [RateRule(learning_rate=1e-4, tuned_at=64, rule="sqrt")],
        "allocators": ["uniform"],
        "seeds": [0, 1],
        "budget": 5000,
    }
    return grid(**usual | changes)


@given(
    sizes=st.lists(st.integers(2, 32), min_size=1, max_size=3, unique=True),
    prompts=st.lists(st.integers(1, 16), min_size=1, max_size=2, unique=True),
    rules=st.lists(st.sampled_from(list(POWER)), min_size=1, max_size=3, unique=True),
    seeds=st.integers(1, 3),
    budget=st.integers(20 * 32 * 16, 50_000),
)
def test_a_grid_holds_every_combination_within_its_budget(sizes, prompts, rules, seeds, budget):
    rates = [RateRule(learning_rate=3e-5, tuned_at=100, rule=rule) for rule in rules]
    found = made(
        rollouts_per_prompt=sizes,
        prompts_per_step=prompts,
        rates=rates,
        seeds=range(seeds),
        budget=budget,
    )
    wanted = {
        (n, b, float(f"{3e-5 * (n * b / 100) ** POWER[rule]:.3g}"), seed)
        for n, b, rule, seed in product(sizes, prompts, rules, range(seeds))
    }
    assert {
        (s.rollouts_per_prompt, s.prompts_per_step, s.learning_rate, s.seed) for s in found
    } == wanted
    for one in found:
        assert one.budget <= budget < one.budget + one.batch
    assert [one.seed for one in found] == sorted(one.seed for one in found)
    assert len({one.name for one in found}) == len(found)


def test_rules_that_agree_make_one_run():
    rules = [RateRule(learning_rate=1e-4, tuned_at=32, rule=rule) for rule in POWER]
    assert len(made(rollouts_per_prompt=[4], rates=rules, seeds=[0])) == 1


def test_too_few_steps_are_refused_with_the_way_out():
    assert made(rollouts_per_prompt=[16], budget=12 * 128)
    with pytest.raises(InvalidInputError, match=r"11 steps.* 1,536 rollouts\. Raise"):
        made(rollouts_per_prompt=[4, 16], budget=12 * 128 - 1)


def test_two_lengths_of_one_run_are_refused():
    one = made()[0]
    with pytest.raises(InvalidInputError, match="156 and 157"):
        checked([one, replace(one, num_steps=157)])
    assert checked([one, one]) == [one]


@pytest.mark.parametrize(
    "changes",
    [
        {"rollouts_per_prompt": [1]},
        {"prompts_per_step": [0]},
        {"budget": 0},
        {"rollouts_per_prompt": []},
        {"rates": [RateRule(learning_rate=1e-4, tuned_at=64, rule="cubic")]},
    ],
)
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(InvalidInputError):
        made(**changes)
