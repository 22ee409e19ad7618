"""Dispersion: closed forms, and the moments of Beta-distributed rewards by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import StateError
from apportion.predictor.dispersion import Dispersion


def dispersion_of(size):
    dispersion = Dispersion()
    dispersion.add(size)
    return dispersion


def learn(dispersion, row_B, reward_BN):
    """Learn from groups of equal size."""
    reward_BN = np.asarray(reward_BN, dtype=float)
    dispersion.learn(
        np.asarray(row_B),
        np.full(len(reward_BN), float(reward_BN.shape[1])),
        reward_BN.sum(axis=1),
        (reward_BN**2).sum(axis=1),
    )


groups = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 10**6), st.floats(0, 1)), min_size=1, max_size=30
)


@given(groups)
def test_it_is_one_for_rewards_of_0_and_1(history):
    dispersion = dispersion_of(5)
    for row, num, rate in history:
        success = np.array([np.round(num * rate)])
        dispersion.learn(np.array([row]), np.array([float(num)]), success, success)
        np.testing.assert_allclose(dispersion.of(np.arange(5)), 1.0, rtol=0, atol=1e-12)


def test_the_sums_match_those_over_pairs_of_rewards():
    reward_N = np.array([0.1, 0.4, 0.4, 0.9, 1.0])
    dispersion = dispersion_of(2)
    learn(dispersion, [0], [reward_N])
    num = len(reward_N)
    different = ~np.eye(num, dtype=bool)
    # Over pairs of different rewards: E[R (1 - R')] = m(1-m), E[(R - R')^2] / 2 = Var(R).
    most = (reward_N[:, None] * (1 - reward_N))[different].mean()
    spread = ((reward_N[:, None] - reward_N) ** 2)[different].mean() / 2
    state = dispersion.state_dict()
    assert state["reward_most_Q"].tolist() == pytest.approx([(num - 1) * most, 0.0])
    assert state["reward_spread_Q"].tolist() == pytest.approx([(num - 1) * spread, 0.0])
    everyone = (0.99 + (num - 1) * spread) / (0.99 + (num - 1) * most)
    own = ((num - 1) * spread + everyone) / ((num - 1) * most + 1.0)
    np.testing.assert_allclose(dispersion.of(np.arange(2)), [own, everyone])


@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (0.5, 0.5), (9.0, 1.0)])
@pytest.mark.parametrize("num", [2, 8])
def test_both_sums_are_unbiased_for_beta_rewards(a, b, num):
    size = 40_000
    reward_BN = np.random.default_rng(0).beta(a, b, (size, num))
    dispersion = dispersion_of(size)
    learn(dispersion, np.arange(size), reward_BN)
    state = dispersion.state_dict()
    mean, variance = a / (a + b), a * b / (a + b) ** 2 / (a + b + 1)
    for name, expected in (("spread", variance), ("most", mean * (1 - mean))):
        found_Q = state[f"reward_{name}_Q"] / (num - 1)
        error = found_Q.std() / np.sqrt(size)
        assert found_Q.mean() == pytest.approx(expected, abs=4 * error)
    # Var(R) / m(1-m) of a Beta is 1 / (a + b + 1).
    assert dispersion.of(np.zeros(0, dtype=int)).shape == (0,)
    unseen = Dispersion()
    unseen.add(size + 1)
    learn(unseen, np.arange(size), reward_BN)
    assert unseen.of(np.array([size]))[0] == pytest.approx(1 / (a + b + 1), rel=0.03)


def test_a_prompt_comes_to_its_own_dispersion():
    rng = np.random.default_rng(1)
    dispersion = dispersion_of(3)
    for _ in range(60):
        coarse, fine = (rng.random(16) < 0.5).astype(float), rng.beta(20, 20, 16)
        learn(dispersion, [0, 1], [coarse, fine])
    coarse, fine, unseen = dispersion.of(np.arange(3))
    assert coarse > 0.95
    assert fine == pytest.approx(1 / 41, abs=0.03)
    assert fine < unseen < coarse


def test_few_rewards_are_shrunk_to_what_all_prompts_show():
    rng = np.random.default_rng(2)
    dispersion = dispersion_of(42)
    learn(dispersion, np.arange(40), rng.beta(4, 4, (40, 16)))
    everyone = dispersion.of(np.array([41]))[0]
    distance = []
    for num in (2, 8, 64):
        other = Dispersion.of_state(dispersion.state_dict(), size=42)
        learn(other, [40], [np.resize([0.0, 1.0], num)])
        distance.append(abs(other.of(np.array([40]))[0] - everyone))
    assert 0.0 < distance[0] < distance[1] < distance[2]


@pytest.mark.parametrize("value", [0.1, 0.5, 1 / 3])
def test_constant_rewards_between_0_and_1_come_to_the_floor(value):
    dispersion = dispersion_of(2)
    for _ in range(500):
        learn(dispersion, [0], [[value] * 16])
    np.testing.assert_array_equal(dispersion.of(np.arange(2)), 0.01)


def test_single_rewards_tell_nothing():
    dispersion = dispersion_of(2)
    before = dispersion.state_dict()
    learn(dispersion, [0, 1], [[0.3], [0.9]])
    learn(dispersion, np.zeros(0, dtype=int), np.zeros((0, 4)))
    for name, array in dispersion.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_both_forget():
    rng = np.random.default_rng(3)
    dispersion = dispersion_of(2)
    for _ in range(400):
        learn(dispersion, [0], [rng.beta(20, 20, 16)])
    assert (dispersion.of(np.arange(2)) < 0.1).all()
    for _ in range(400):
        learn(dispersion, [0], [(rng.random(16) < 0.5).astype(float)])
    assert (dispersion.of(np.arange(2)) > 0.9).all()


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=1, max_size=20))
def test_it_stays_between_its_floor_and_1(history):
    dispersion = dispersion_of(2)
    for reward_N in history:
        learn(dispersion, [0], [reward_N])
        found = dispersion.of(np.arange(2))
        assert ((found >= 0.01) & (found <= 1.0)).all()


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_its_own_state_fits_after_any_number_of_constant_groups(value):
    dispersion = dispersion_of(1)
    row, num, total = np.zeros(1, dtype=int), np.full(1, 8.0), np.full(1, 8.0 * value)
    square = np.full(1, 8.0 * value**2)
    for _ in range(80_000):
        dispersion.learn(row, num, total, square)
    expected = 1.0 if value in (0.0, 1.0) else 0.01
    assert dispersion.of(row)[0] == pytest.approx(expected)
    Dispersion.of_state(dispersion.state_dict(), size=1)


def test_a_restored_state_goes_on_bit_for_bit_and_is_a_copy():
    rng = np.random.default_rng(4)
    dispersion = dispersion_of(5)
    learn(dispersion, np.arange(4), rng.random((4, 8)))
    restored = Dispersion.of_state(dispersion.state_dict(), size=5)
    reward_BN = rng.random((2, 3))
    for one in (dispersion, restored):
        one.add(1)
        learn(one, [3, 5], reward_BN)
    before = dispersion.of(np.arange(6))
    np.testing.assert_array_equal(restored.of(np.arange(6)), before)
    for array in dispersion.state_dict().values():
        array[...] = 0.0
    np.testing.assert_array_equal(dispersion.of(np.arange(6)), before)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("reward_spread_Q", np.full(3, -1.0)),
        ("reward_spread_Q", np.zeros(2)),
        ("reward_most_Q", np.full(3, np.nan)),
        ("reward_most_Q", np.zeros((3, 1))),
        ("reward_most_Q", np.zeros(3, dtype=np.int64)),
        ("reward_sums", np.array([1.0, 0.0])),
        ("reward_sums", np.ones(3)),
        ("reward_sums", np.array([1.0, np.inf])),
    ],
)
def test_a_damaged_state_is_refused(name, array):
    with pytest.raises(StateError, match=name):
        Dispersion.of_state(dispersion_of(3).state_dict() | {name: array}, size=3)
