from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import RolloutAllocator
from apportion.errors import InvalidInputError
from apportion.metrics import best_at_k, worst_at_k
from apportion.predictor import Beta
from apportion.simulation import Population, Training, simulate
from apportion.simulation.evaluation import exact_scores, measured_scores
from apportion.types import Allocation

SMALL = Population(num_train=60, num_held_out=40, num_modes=4, num_features=6).problems()
QUICK = Training(rollouts_per_prompt=8, prompts_per_step=8, learning_rate=0.1)


def arrays_of(run):
    found = [run.compute_T, run.success_T, run.best_T, run.worst_T, run.train_T]
    if run.measured is not None:
        found += [run.measured.success_T, run.measured.best_T, run.measured.worst_T]
    return [*found, run.train_success_PQ]


def adaptive():
    return RolloutAllocator(Beta(), lower=2)


def choosing():
    return RolloutAllocator(Beta(), lower=2, objective="progress", do_no_harm=False)


class Recording:
    """An even split that keeps what it is shown."""

    def __init__(self):
        self.seen = []

    def allocate(self, prompts, budget):
        even_B = np.full(len(prompts), budget // len(prompts))
        return Allocation(
            num_rollouts_B=even_B,
            relaxed_B=even_B.astype(float),
            price=0.0,
            variance=0.0,
            uniform_variance=0.0,
        )

    def observe(self, outcomes):
        self.seen.append(outcomes)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"evaluation": (20, 4)}),
        ({"memory": 30.0, "estimator": "grpo"}, {"problems_at": [0, 1000, 2000]}),
        ({"optimizer": "sgd", "kl": 0.1, "schedule": "cosine"}, {}),
        ({"estimator": "rloo", "memory": 3.0}, {"allocator": adaptive}),
        ({"estimator": "grpo"}, {"allocator": choosing}),
    ],
)
def test_a_run_is_the_same_alone_and_beside_others(changes, options):
    training = replace(QUICK, **changes)
    together = simulate(SMALL, training, budget=4000, seeds=[5, 0, 9], **options)
    for run in together:
        (alone,) = simulate(SMALL, training, budget=4000, seeds=[run.seed], **options)
        for first, second in zip(arrays_of(run), arrays_of(alone), strict=True):
            np.testing.assert_array_equal(first, second)
    assert (together[0].success_T != together[1].success_T).any()


@settings(max_examples=40)
@given(
    n=st.integers(2, 40),
    prompts_per_step=st.integers(1, 60),
    budget=st.integers(1, 6000),
    estimator=st.sampled_from(["rloo", "dr_grpo", "grpo"]),
    optimizer=st.sampled_from(["adam", "sgd"]),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    rate=st.sampled_from([0.0, 0.02, 30.0, 1e6]),
    memory=st.sampled_from([0.0, 1.0, 300.0, 1e6]),
    kl=st.sampled_from([0.0, 0.01, 10.0]),
    shared=st.booleans(),
)
def test_whatever_the_settings(n, prompts_per_step, budget, rate, **settings):
    training = Training(
        rollouts_per_prompt=n, prompts_per_step=prompts_per_step, learning_rate=rate, **settings
    )
    batch = n * prompts_per_step
    if budget < batch:
        with pytest.raises(InvalidInputError, match="Raise it"):
            simulate(SMALL, training, budget=budget)
        return
    last = budget // batch * batch
    (run,) = simulate(
        SMALL, training, budget=budget, num_evaluations=5, evaluation=(40, 4), problems_at=[0, last]
    )
    assert run.compute_T[-1] == last
    assert (np.diff(run.compute_T) > 0).all()
    assert (run.compute_T % batch == 0).all()
    assert len(run.compute_T) <= 5
    for success_T in arrays_of(run)[1:]:
        assert ((success_T >= 0) & (success_T <= 1)).all()
    assert (run.worst_T <= run.success_T + 1e-12).all()
    assert (run.success_T <= run.best_T + 1e-12).all()
    np.testing.assert_allclose(run.train_success_PQ[0], SMALL.train.base_success_Q)
    if not settings["shared"]:
        np.testing.assert_allclose(run.success_T, SMALL.held_out.base_success_Q.mean())


def test_rewards_are_exact_draws_at_the_base_success():
    # At a rate of 0 a pass of training rewards is sum_q Binomial(n, p_q) / (n Q).
    still = Training(rollouts_per_prompt=4, prompts_per_step=20, learning_rate=0.0)
    runs = simulate(SMALL, still, budget=4 * 60, seeds=range(2000), num_evaluations=1)
    reward_R = np.array([run.train_T[0] for run in runs])
    success_Q = SMALL.train.base_success_Q
    var = (success_Q * (1 - success_Q)).sum() / 4 / 60**2
    assert abs(reward_R.mean() - success_Q.mean()) < 4 * np.sqrt(var / 2000)
    assert reward_R.var() == pytest.approx(var, rel=4 * np.sqrt(2 / 2000))


def test_a_pass_takes_every_problem_once():
    allocators = []

    def make():
        allocators.append(Recording())
        return allocators[-1]

    simulate(SMALL, replace(QUICK, prompts_per_step=20), budget=8 * 20 * 6, allocator=make)
    (allocator,) = allocators
    keys = np.array([outcomes.prompt_B for outcomes in allocator.seen]).reshape(2, 60)
    for one in keys:
        assert sorted(one.astype(int).tolist()) == list(range(60))
    assert (keys[0] != keys[1]).any()
    assert [outcomes.step for outcomes in allocator.seen] == list(range(6))
    for outcomes in allocator.seen:
        assert (outcomes.num_rollouts_B == 8).all()
        assert ((outcomes.reward_sum_B >= 0) & (outcomes.reward_sum_B <= 8)).all()


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo", "grpo"])
def test_an_even_allocator_changes_nothing(estimator):
    training = replace(QUICK, estimator=estimator, memory=2.0)
    (plain,) = simulate(SMALL, training, budget=3000)
    (allocated,) = simulate(SMALL, training, budget=3000, allocator=Recording)
    for first, second in zip(arrays_of(plain), arrays_of(allocated), strict=True):
        np.testing.assert_array_equal(first, second)


def test_an_allocator_spends_the_same_and_shifts_rollouts():
    made = []

    def make():
        made.append(adaptive())
        made[-1].add(SMALL.train.prompts())
        return made[-1]

    runs = simulate(SMALL, QUICK, budget=10_000, seeds=[0, 1], allocator=make)
    assert len(made) == 2
    assert all(run.compute_T[-1] == 10_000 // 64 * 64 for run in runs)
    assert all(allocator.share_touched == 1.0 for allocator in made)
    assert (runs[0].success_T != runs[1].success_T).any()


def test_an_allocator_that_misses_the_budget_is_refused():
    class Stingy(Recording):
        def allocate(self, prompts, budget):
            return super().allocate(prompts, budget // 2)

    with pytest.raises(InvalidInputError, match="gave 32 rollouts, but a step has 64"):
        simulate(SMALL, QUICK, budget=1000, allocator=Stingy)


def test_the_group_size_may_follow_compute():
    def growing(compute):
        return 4 if compute < 500 else 16

    plan = QUICK.plan(2000, growing)
    sizes = plan.rollouts_per_prompt_M.tolist()
    assert sizes == [4] * 16 + [16] * 11
    assert plan.compute_M[-1] == 8 * sum(sizes) <= 2000
    assert plan.learning_rate_M[-1] == pytest.approx(QUICK.rate_at(8 * 16))
    (run,) = simulate(SMALL, QUICK, budget=2000, group_size_of=growing)
    assert run.compute_T[-1] == plan.compute_M[-1]
    (always,) = simulate(SMALL, QUICK, budget=2000, group_size_of=lambda _: 8)
    (plain,) = simulate(SMALL, QUICK, budget=2000)
    np.testing.assert_array_equal(always.success_T, plain.success_T)


def test_the_rate_follows_batch_warm_up_and_schedule():
    training = replace(QUICK, learning_rate=0.01, warmup=4)
    assert training.rate_at(1024) == 0.01
    assert replace(training, rate_power=0.0).rate_at(64) == 0.01
    assert replace(training, rate_power=1.0).rate_at(2048) == 0.02
    rate_M = training.plan(64 * 8).learning_rate_M
    np.testing.assert_allclose(rate_M, 0.0025 * np.minimum(1, np.arange(1, 9) / 4))
    linear = replace(training, schedule="linear", warmup=0).plan(64 * 8).learning_rate_M
    np.testing.assert_allclose(linear, 0.0025 * (1 - np.arange(8) / 8))
    cosine = replace(training, schedule="cosine", warmup=0).plan(64 * 8).learning_rate_M
    np.testing.assert_allclose(cosine, 0.00125 * (1 + np.cos(np.pi * np.arange(8) / 8)))


def test_success_of_each_problem_is_kept_where_asked_for():
    problems_at = [0, 640, 699, 2000]
    (run,) = simulate(SMALL, QUICK, budget=2000, problems_at=problems_at)
    assert run.problems_at_P.tolist() == [0, 640, 640, 1984]
    np.testing.assert_array_equal(run.train_success_PQ[1], run.train_success_PQ[2])
    assert run.train_success_PQ[3].mean() > run.train_success_PQ[0].mean()


def test_exact_scores_are_those_of_endless_samples():
    success_V = np.array([0.0, 0.2, 0.7, 1.0])
    num = 1000
    correct_V = np.rint(num * success_V).astype(int)
    reward_N = np.concatenate([np.repeat([1.0, 0.0], [c, num - c]) for c in correct_V])
    group_N = np.repeat(np.arange(4), num)
    scores = exact_scores(success_V)
    assert scores.mean == pytest.approx(success_V.mean())
    assert scores.best == pytest.approx(best_at_k(reward_N, group_N, 4).mean(), abs=1e-3)
    assert scores.worst == pytest.approx(worst_at_k(reward_N, group_N, 4).mean(), abs=1e-3)


@pytest.mark.parametrize("num_samples", [4, 7])
def test_measured_scores_are_unbiased_and_as_noisy_as_they_should_be(num_samples):
    success_V = np.random.default_rng(0).beta(1, 2, size=30)
    num = 4000
    rng = np.random.default_rng(1)
    drawn = measured_scores(np.tile(success_V, (num, 1)), num_samples, rng)
    exact = exact_scores(success_V)
    for name in ("mean", "best", "worst"):
        value = getattr(drawn, name)
        assert abs(value.mean() - getattr(exact, name)) < 4 * value.std() / np.sqrt(num)
    var = (success_V * (1 - success_V)).sum() / num_samples / 30**2
    assert drawn.mean.var() == pytest.approx(var, rel=4 * np.sqrt(2 / num))


def test_measurements_are_of_the_first_problems_and_leave_the_run_alone():
    (plain,) = simulate(SMALL, QUICK, budget=4000)
    (measured,) = simulate(SMALL, QUICK, budget=4000, evaluation=(10, 100_000))
    np.testing.assert_array_equal(plain.success_T, measured.success_T)
    assert plain.measured is None
    first = SMALL.held_out.base_success_Q[:10].mean()
    still = replace(QUICK, learning_rate=0.0)
    (run,) = simulate(SMALL, still, budget=4000, evaluation=(10, 100_000))
    np.testing.assert_allclose(run.measured.success_T, first, atol=0.003)
    assert len(np.unique(run.measured.success_T)) > 1
    (few,) = simulate(SMALL, QUICK, budget=1000, evaluation=(10, 3))
    assert np.isnan(few.measured.best_T).all()
    assert np.isnan(few.measured.worst_T).all()


def test_progress_is_told():
    seen = []
    simulate(SMALL, QUICK, budget=300, on_step=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"rollouts_per_prompt": 1}, {}, "rollouts_per_prompt is 1"),
        ({"prompts_per_step": 61}, {}, "there are 60 prompts"),
        ({"learning_rate": -1.0}, {}, "learning_rate is -1"),
        ({"learning_rate": 1e7}, {}, r"lie in \[0, 1e\+06\]"),
        ({"beta2": 1.0}, {}, "beta2 is 1"),
        ({"schedule": "step"}, {}, "schedule is 'step'"),
        ({"optimizer": "lion"}, {}, "optimizer is 'lion'"),
        ({"estimator": "ppo"}, {}, "estimator is 'ppo'"),
        ({}, {"budget": 63}, "the first step takes 64"),
        ({}, {"budget": np.inf}, "must be finite"),
        ({}, {"seeds": []}, "seeds is empty"),
        ({}, {"seeds": [-1]}, "at least 0"),
        ({}, {"num_evaluations": 0}, "num_evaluations is 0"),
        ({}, {"evaluation": (41, 4)}, "has 40 held-out"),
        ({}, {"evaluation": (10, 0)}, "samples is 0"),
        ({}, {"evaluation": (10,)}, "two numbers"),
        ({}, {"problems_at": [2000]}, r"lie in \[0, 1000\]"),
        ({}, {"group_size_of": lambda _: 1}, "is 1"),
    ],
)
def test_mistakes_are_named(changes, options, message):
    with pytest.raises(InvalidInputError, match=message):
        simulate(SMALL, replace(QUICK, **changes), **{"budget": 1000, **options})
