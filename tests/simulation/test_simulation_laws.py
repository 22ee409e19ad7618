"""What the simulation is known to do, on problems like those of a published easy set."""

import itertools

import numpy as np
import pytest

from apportion.simulation import Population, Training, simulate

NUM_TRAIN = 6000
STRONG = 268.0
TIE = 0.001


@pytest.fixture(scope="module")
def easy():
    return Population(num_train=NUM_TRAIN).problems()


def curve(problems, compute_C, *, seeds=2, **settings):
    """Mean over seeds of the highest success up to each compute."""
    runs = simulate(
        problems,
        Training(**settings),
        budget=float(compute_C[-1]),
        seeds=range(seeds),
        num_evaluations=150,
    )
    best = [
        np.interp(compute_C, run.compute_T, np.maximum.accumulate(run.success_T)) for run in runs
    ]
    return np.mean(best, axis=0)


def ceiling(problems, n, **settings):
    """What two passes with strong memory reach."""
    compute_C = np.array([2.0 * n * NUM_TRAIN])
    return curve(problems, compute_C, rollouts_per_prompt=n, memory=STRONG, **settings)[0]


def test_without_memory_more_rollouts_a_prompt_never_win(easy):
    compute_C = np.geomspace(3e4, 6e5, 20)
    curves = [curve(easy, compute_C, rollouts_per_prompt=n) for n in (8, 32, 128, 512)]
    for small, large in itertools.pairwise(curves):
        assert (large < small + TIE).all()


def test_with_a_constant_rate_the_ceiling_does_not_rise_with_rollouts(easy):
    found = [ceiling(easy, n, rate_power=0.0) for n in (8, 32, 128)]
    assert np.ptp(found) < 0.006
    rising = [ceiling(easy, n, rate_power=0.5) for n in (8, 32, 128)]
    assert rising == sorted(rising)
    assert np.ptp(rising) > 0.09


@pytest.mark.parametrize(("n", "expected"), [(8, 0.554), (32, 0.612), (128, 0.653)])
def test_ceilings_are_those_of_another_implementation(easy, n, expected):
    # A compiled one in single precision, with another order of draws and other random numbers.
    assert ceiling(easy, n) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("reach", [1.0, 4.0, 8.0])
def test_ceilings_depend_on_rate_times_steps_of_one_pass_alone(easy, reach):
    found = []
    for n in (8, 64, 512):
        rate = reach * 32 / NUM_TRAIN / np.sqrt(32 * n / 1024)
        found.append(ceiling(easy, n, learning_rate=rate))
    assert np.ptp(found) < 0.006


def test_crossovers_follow_the_closed_form(easy):
    # C(n1 -> n2) = D n1^a n2^(1-a) for a = 1/2 and problems that teach once; 5 to 8% late here.
    sizes = (8, 16, 32, 64, 128)
    compute_C = np.geomspace(3e4, 8e5, 300)
    curves = [
        curve(easy, compute_C, seeds=3, rollouts_per_prompt=n, memory=STRONG, learning_rate=0.01)
        for n in sizes
    ]
    for at, (small, large) in enumerate(itertools.pairwise(sizes)):
        is_ahead_C = curves[at + 1] > curves[at] + TIE
        crossover = compute_C[np.flatnonzero(~is_ahead_C)[-1] + 1]
        assert crossover / (NUM_TRAIN * np.sqrt(small * large)) == pytest.approx(1.06, abs=0.06)


def test_strong_memory_is_one_limit(easy):
    budget = 2.0 * 32 * NUM_TRAIN
    found = []
    for memory in (45.0, 268.0, 10_000.0):
        settings = Training(rollouts_per_prompt=32, memory=memory)
        (run,) = simulate(easy, settings, budget=budget)
        found.append(run.success_T.max())
        assert run.train_T[-1] > 0.99
    assert np.ptp(found) < 0.002


def test_one_run_cannot_follow_the_best_size_of_each_budget(easy):
    # Each size takes over where it overtakes the last between runs; within a run, problems have
    # spent their lesson by then at the small rate of a small size.
    ends = {8: 0.07e6, 16: 0.15e6, 32: 0.31e6, 64: 0.59e6, 128: 1e6}

    def growing(compute):
        return next((n for n, end in ends.items() if compute < end), 128)

    training = Training(rollouts_per_prompt=128, memory=STRONG)
    (grown,) = simulate(easy, training, budget=1e6, group_size_of=growing)
    (fixed,) = simulate(easy, training, budget=1e6)
    assert grown.success_T.max() == pytest.approx(0.555, abs=0.01)
    assert fixed.success_T.max() == pytest.approx(0.6525, abs=0.01)
