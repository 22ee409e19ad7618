import math
from dataclasses import replace

import numpy as np
import pytest
from audit_helpers import drawn_run, group_table, kind_of, share_of_kinds
from hypothesis import given
from hypothesis import strategies as st

from apportion.audit.waste import Rates, kinds, waste_of
from apportion.errors import InvalidInputError

NAMES = ("with_signal", "all_wrong", "all_right", "in_between", "not_scored")
REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, math.nan]), min_size=1, max_size=4)
GROUPS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 9), REWARDS, st.integers(0, 99)),
    min_size=1,
    max_size=30,
)


@given(GROUPS)
def test_every_number_agrees_with_plain_python(groups):
    waste = waste_of(group_table(groups), (0.0, 1.0), Rates())
    expected = share_of_kinds(groups)
    for name in NAMES:
        assert getattr(waste.shares, name) == pytest.approx(expected[name])
    no_signal = 1.0 - expected["with_signal"] - expected["not_scored"]
    assert waste.shares.without_signal == pytest.approx(no_signal)
    dead = [group for group in groups if kind_of(group[2]) not in ("with_signal", "not_scored")]
    assert waste.num_rollouts == sum(len(group[2]) for group in dead)
    assert waste.total_rollouts == sum(len(group[2]) for group in groups)
    is_told = sum(group[3] > 0 for group in groups) >= 0.99 * len(groups)
    tokens = sum(group[3] for group in groups) if is_told else 0
    assert waste.total_tokens == (tokens or None)
    assert waste.num_tokens == (sum(group[3] for group in dead) if tokens else None)
    alive = {group[0] for group in groups if kind_of(group[2]) == "with_signal"}
    assert waste.num_prompts_without_signal == len({group[0] for group in dead} - alive)
    by_prompt = {}
    for group in dead:
        by_prompt[group[0]] = by_prompt.get(group[0], 0) + len(group[2])
    worst = max(by_prompt.values(), default=0)  # a tenth of at most five prompts is one
    assert waste.worst_tenth_share == pytest.approx(worst / max(waste.num_rollouts, 1))


@given(GROUPS)
def test_shares_are_shares_and_parts_make_the_whole(groups):
    waste = waste_of(group_table(groups), (0.0, 1.0), Rates())
    assert sum(getattr(waste.shares, name) for name in NAMES) == pytest.approx(1.0)
    assert waste.num_rollouts <= waste.total_rollouts
    assert 0.0 <= waste.share_of_sampling <= 1.0
    low, high = waste.interval
    assert 0.0 <= low <= waste.shares.without_signal + 1e-12
    assert waste.shares.without_signal - 1e-12 <= high <= 1.0
    assert sum(part.shares.num_groups for part in waste.parts) == len(groups)
    for name in NAMES:
        total = sum(part.shares.num_groups * getattr(part.shares, name) for part in waste.parts)
        assert total / len(groups) == pytest.approx(getattr(waste.shares, name))
    for part in waste.parts:
        mine = [group for group in groups if part.first_step <= group[1] <= part.last_step]
        assert part.shares.num_groups == len(mine)
        assert part.shares.all_wrong == pytest.approx(share_of_kinds(mine)["all_wrong"])


@given(GROUPS, st.permutations("abcde"))
def test_names_of_prompts_do_not_matter(groups, names):
    name = dict(zip("abcde", names, strict=True))
    renamed = [(name[group[0]], *group[1:]) for group in groups]
    one = waste_of(group_table(groups), (0.0, 1.0), Rates())
    other = waste_of(group_table(renamed), (0.0, 1.0), Rates())
    assert one.interval == pytest.approx(other.interval)
    assert replace(one, interval=other.interval) == other


def test_interval_is_that_of_prompts_resampled():
    groups = group_table(drawn_run(3, prompts=80, visits=5))
    waste = waste_of(groups, (0.0, 1.0), Rates())
    dead_G = ~groups.signal_G
    rng = np.random.default_rng(0)
    dead_Q = np.bincount(groups.prompt_G, weights=dead_G)
    draws = [dead_Q[rng.integers(0, 80, 80)].sum() / len(groups) for _ in range(4_000)]
    assert waste.interval == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.01)


@pytest.mark.parametrize(
    ("rewards", "reward_range", "kind"),
    [
        ([0.1 + 0.2] * 3, (0.0, 0.3), 2),
        ([-1.0, -1.0], (-1.0, 1.0), 1),
        ([0.2, 0.2], (0.0, 1.1), 3),
        ([1.1, 1.1], (0.0, 1.1), 2),
        ([0.0, 0.0], (0.0, 0.0), 1),
        ([1.0, 1.0], (1.0, 1.0), 2),
        ([-1.0, -1.0], (-1.0, -1.0), 1),
        ([math.nan], (0.0, 1.0), 4),
        ([0.0, 1.0], (0.0, 1.0), 0),
    ],
)
def test_kinds(rewards, reward_range, kind):
    assert kinds(group_table([("a", 0, rewards)]), reward_range).tolist() == [kind]


def test_hidden_signal_is_a_share_of_the_groups_without():
    groups = [("a", 0, [1.0, 1.0]), ("b", 0, [1.0, 1.0]), ("c", 1, [0.0, 1.0])]
    assert waste_of(group_table(groups), (0.0, 1.0), Rates()).hidden_share is None
    table = group_table(groups, hidden=[True, False, False])
    assert waste_of(table, (0.0, 1.0), Rates()).hidden_share == 0.5


def test_cost_follows_tokens_and_rollouts_without_them():
    groups = [("a", 0, [1.0, 1.0], 900), ("b", 0, [0.0, 1.0], 100)]
    rates = Rates(gpu_hours=10.0, price_per_gpu_hour=2.0)
    waste = waste_of(group_table(groups), (0.0, 1.0), rates)
    assert (waste.gpu_hours, waste.cost) == pytest.approx((9.0, 18.0))
    waste = waste_of(
        group_table(groups), (0.0, 1.0), Rates(price_per_million_tokens=5.0, gpu_hours=10.0)
    )
    assert (waste.gpu_hours, waste.cost) == pytest.approx((9.0, 900 * 5e-6))
    bare = [group[:3] for group in groups]
    waste = waste_of(group_table(bare), (0.0, 1.0), rates)
    assert (waste.gpu_hours, waste.cost) == pytest.approx((5.0, 10.0))
    waste = waste_of(group_table(bare), (0.0, 1.0), Rates(price_per_million_tokens=5.0))
    assert waste.cost is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpu_hours": -1.0}, "gpu_hours is -1"),
        ({"gpu_hours": math.inf}, "must be finite"),
        ({"gpu_hours": math.nan}, "must be finite"),
        ({"price_per_gpu_hour": 2.0}, "without gpu_hours"),
        (
            {"gpu_hours": 1.0, "price_per_gpu_hour": 2.0, "price_per_million_tokens": 1.0},
            "Keep one",
        ),
    ],
)
def test_rates_that_make_no_sense_are_refused(values, message):
    with pytest.raises(InvalidInputError, match=message):
        Rates(**values)
