"""What the peers spend, on whom, and what they remember: on a bare step, then in the loop."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import RolloutAllocator
from apportion.embedded import peers
from apportion.embedded.loop import train_loop
from apportion.embedded.model import load
from apportion.embedded.pools import pool
from apportion.embedded.step import prompts_of
from apportion.errors import InvalidInputError
from apportion.predictor import Beta
from apportion.types import Forecast, Outcomes, Prompts


class FakeStep:
    """Candidates of known success; the first rollouts of a draw are the right ones."""

    def __init__(self, success, prompts_per_step, rollouts_per_prompt, *, number=0, keys=None):
        size = len(success)
        self.success_B = np.asarray(success, dtype=np.float64)
        self.number, self.num_left = number, 10**6
        self.prompts_per_step, self.rollouts_per_prompt = prompts_per_step, rollouts_per_prompt
        self.budget = prompts_per_step * rollouts_per_prompt
        keys = [f"q{i}" for i in range(size)] if keys is None else keys
        self.prompts = Prompts(id_B=keys, text_B=[f"{key}+1=" for key in keys])
        self.rng = np.random.default_rng(number)
        self.forecast = Forecast.of_success(success)
        self.num_rollouts_B = np.zeros(size, dtype=np.int64)
        self.num_correct_B = np.zeros(size, dtype=np.int64)
        self.is_kept_B = None
        self.draws = []

    def __len__(self):
        return len(self.success_B)

    def draw(self, num_rollouts_B):
        num_B = np.asarray(num_rollouts_B)
        assert num_B.shape == (len(self),)
        before_B = self.num_correct_B
        self.num_rollouts_B = self.num_rollouts_B + num_B
        self.num_correct_B = np.floor(self.success_B * self.num_rollouts_B + 0.5).astype(np.int64)
        self.num_left -= int(num_B.sum())
        self.draws.append(num_B)
        return self.num_correct_B - before_B

    def keep(self, is_kept_B):
        self.is_kept_B = np.asarray(is_kept_B)

    def score_norm_B(self):
        return np.where(self.num_rollouts_B > 0, 1.0 + np.arange(len(self)), 0.0)

    def outcomes(self):
        at = np.flatnonzero(self.num_rollouts_B)
        num = self.num_rollouts_B[at]
        rewards = np.concatenate(
            [np.arange(n) < k for n, k in zip(num, self.num_correct_B[at], strict=True)]
        )
        groups = np.repeat(np.arange(len(at)), num)
        return Outcomes.of_rewards(
            self.prompts.id_B[at], rewards.astype(float), groups, step=self.number
        )

    def run(self, rule):
        wanted = rule(self)
        if wanted is not None:
            self.draw(wanted)
        return self.num_rollouts_B.tolist()


EXACT = {
    "uniform": lambda prompts: peers.uniform,
    "gvm": lambda prompts: peers.gvm,
    "equal_n": lambda prompts: peers.equal_n,
    "proportional": lambda prompts: peers.proportional,
    "knapsack": lambda prompts: peers.Knapsack(),
    "reinforce_ada": lambda prompts: peers.ReinforceAda(),
    "pilot_commit": lambda prompts: peers.PilotCommit(),
    "mopps": lambda prompts: peers.Mopps(),
    "vip": peers.Vip,
    "vip_code": peers.VipCode,
}


@pytest.mark.parametrize("name", EXACT)
@given(
    success=st.lists(
        st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=6, max_size=9
    ),
    group=st.integers(3, 9),
    size=st.integers(2, 3),
)
def test_every_step_costs_exactly_the_budget(name, success, group, size):
    rule = EXACT[name](FakeStep(success, size, group).prompts)
    for number in range(3):
        step = FakeStep(success, size, group, number=number)
        assert sum(step.run(rule)) == step.budget
        drawn_B = step.num_rollouts_B
        assert (drawn_B >= 2).any()
        if step.is_kept_B is not None:
            assert (drawn_B[step.is_kept_B] >= 2).all()


def test_uniform_takes_the_batch():
    assert FakeStep([0.5] * 5, 3, 8).run(peers.uniform) == [8, 8, 8, 0, 0]


def test_dapo_draws_until_enough_groups_are_mixed():
    step = FakeStep([0.0, 0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5], 2, 4)
    assert step.run(peers.dapo) == [4] * 6 + [0, 0]
    assert np.flatnonzero(step.is_kept_B).tolist() == [1, 4]


def test_dapo_makes_do_when_candidates_or_rollouts_run_out():
    step = FakeStep([0.0, 0.5, 1.0], 2, 4)
    assert step.run(peers.dapo) == [4, 4, 4]
    assert np.flatnonzero(step.is_kept_B).tolist() == [1]
    step = FakeStep([0.0, 0.5, 0.5, 0.5], 2, 4)
    step.num_left = 12
    assert step.run(peers.dapo) == [4, 4, 0, 0]


def test_gvm_by_hand():
    # Pilots of 4 show 0, .5, .75; 12 left for 2/sqrt(.502) = 2.82 and 3/sqrt(.75133) = 3.46.
    step = FakeStep([0.0, 0.5, 0.75, 0.5], 3, 8)
    assert step.run(peers.gvm) == [4, 4 + 5, 4 + 7, 0]
    assert step.draws[0].tolist() == [4, 4, 4, 0]


def test_controls_go_by_the_forecast():
    success = [0.0, 0.5, 1.0, 0.4]
    assert FakeStep(success, 2, 8).run(peers.equal_n) == [0, 8, 0, 8]
    assert FakeStep([0.5, 0.0, 0.1], 1, 34).run(peers.proportional) == [25, 0, 9]


def test_knapsack_is_even_at_first_and_then_by_what_it_saw():
    rule = peers.Knapsack()
    success = [1.0, 0.5, 0.0]
    assert FakeStep(success, 3, 8).run(rule) == [8, 8, 8]
    # Lower bounds take 6 of 24; .5 needs 3 more; the other 15 go to the never solved one.
    assert FakeStep(success, 3, 8, number=1).run(rule) == [2, 5, 17]
    # A prompt that is new gets an even group.
    assert FakeStep(success, 3, 8, keys=["new", "q1", "q2"]).run(rule)[0] == 8


def test_knapsack_looks_back_over_two_even_groups():
    rule = peers.Knapsack()
    for success in ([1.0, 1.0], [0.5, 0.5], [0.0, 0.0]):
        FakeStep(success, 2, 4).run(rule)
    assert rule._rate("q0", 8) == pytest.approx(0.25)


def test_reinforce_ada_gives_more_to_what_it_saw_fail():
    rule = peers.ReinforceAda()
    success = [0.0, 1.0]
    assert FakeStep(success, 2, 8).run(rule) == [8, 8]
    # Rates 1/25 and 9/25: 5 to 5/3.
    assert FakeStep(success, 2, 8, number=1).run(rule) == [12, 4]


def test_pilot_commit_keeps_what_is_in_between_and_evicts_for_good():
    # Half of 4 * 8 pilots 8 candidates with 2 each; q2 and q5 split the other 16.
    success = [0.0, 1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 0.0, 0.5]
    rule = peers.PilotCommit()
    step = FakeStep(success, 4, 8)
    assert step.run(rule) == [2, 2, 10, 2, 2, 10, 2, 2, 0]
    assert np.flatnonzero(step.is_kept_B).tolist() == [2, 5]
    # The solved ones are gone, so that the pilots reach the last candidate.
    assert FakeStep(success, 4, 8, number=1).run(rule) == [2, 0, 8, 2, 0, 8, 2, 2, 8]


def test_pilot_commit_spends_what_is_left_although_nothing_is_in_between():
    assert FakeStep([0.0, 0.0, 1.0, 1.0], 2, 8).run(peers.PilotCommit()) == [6, 6, 2, 2]
    assert FakeStep([1.0, 1.0], 1, 8).run(peers.PilotCommit()) == [4, 4]


def test_mopps_settles_on_prompts_near_one_half():
    success = [0.0, 1.0, 0.5, 0.5, 0.0, 1.0]
    rule = peers.Mopps()
    taken = [
        np.flatnonzero(FakeStep(success, 2, 8, number=t).run(rule)).tolist() for t in range(30)
    ]
    assert taken[-5:] == [[2, 3]] * 5
    assert len({i for pair in taken for i in pair}) == 6


def test_vip_moves_rollouts_once_it_has_seen_outcomes():
    success = [0.0, 0.5, 1.0]
    prompts = FakeStep(success, 3, 8).prompts
    for rule, least in ((peers.Vip(prompts), 3), (peers.VipCode(prompts), 4)):
        assert FakeStep(success, 3, 8).run(rule) == [8, 8, 8]
        assert FakeStep(success, 3, 8, number=1).run(rule)[1] == 16
        assert min(FakeStep(success, 3, 8, number=2).run(rule)) >= least


def test_vip_learns_of_prompts_that_were_not_sampled():
    keys = ["a" * 9, "b" * 9, "a" * 8 + "c"]
    prompts = FakeStep([0.5] * 3, 2, 8, keys=keys).prompts
    rule = peers.Vip(prompts)
    FakeStep([0.0, 0.5], 2, 8, keys=keys[:2]).run(rule)
    assert rule._belief.forecast(prompts.take([2])).mean_B[0] < 0.5


def test_vip_needs_something_to_compare_prompts_by():
    with pytest.raises(InvalidInputError, match="feature_BD is None"):
        peers.Vip(Prompts(id_B=["a"]))


@pytest.mark.parametrize("name", EXACT)
def test_equal_runs_give_equal_rollouts(name):
    runs = []
    for _ in range(2):
        rule = EXACT[name](FakeStep([0.5] * 6, 3, 8).prompts)
        runs.append(
            [FakeStep([0, 0.2, 0.5, 0.7, 1, 1], 3, 8, number=t).run(rule) for t in range(4)]
        )
    assert all(one == other for one, other in pairwise(runs))


@pytest.mark.parametrize("name", [*EXACT, "dapo"])
def test_every_peer_runs_in_the_loop(name):
    problems = pool("mixed").problems[:24]
    prompts = prompts_of(problems)
    rule = peers.dapo if name == "dapo" else EXACT[name](prompts)
    belief = RolloutAllocator(Beta())
    belief.add(prompts)
    steps = []
    train_loop(
        *load(),
        problems,
        rule,
        belief=belief,
        prompts_per_step=4,
        rollouts_per_prompt=4,
        candidates_per_step=12,
        num_steps=3,
        evaluation={},
        on_step=steps.append,
    )
    spent = [int(step.num_rollouts_B.sum()) for step in steps]
    assert spent == [16] * 3 if name != "dapo" else 16 <= sum(spent) <= 48
