"""FilterBank after any history: legal, order-free, restorable, sound."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictor_helpers import (
    assert_equal_states,
    assert_legal,
    bank_of,
    outcomes,
    prompts,
)
from scipy.special import expit

from apportion.errors import InvalidInputError, StateError
from apportion.predictor import Beta, FilterBank

ROW = np.array([0])
TABLE = np.random.default_rng(1).normal(size=(6, 3))


# Properties of any history.

TABLES = {
    "none": None,
    "random": TABLE,
    "twins": np.repeat(TABLE[:3], 2, axis=0),
    "identical": np.ones((6, 2)),
    "huge": TABLE * 1e50,
    "huge and small": np.vstack([TABLE[:3] * 1e50, TABLE[3:]]),
}
group = st.tuples(
    st.integers(0, 8),
    st.sampled_from([1, 2, 4, 8, 64, 1_000, 10**6]),
    st.sampled_from([0.0, 1.0, 0.5, 1e-6, 1 - 1e-6]) | st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
batch = st.tuples(
    st.lists(group, max_size=5, unique_by=lambda g: g[0]),
    st.sampled_from([0, 1, 1, 3, 40, 1_000]),
    st.integers(0, 50),
)
histories = st.lists(batch, max_size=8)


def nine_prompts(name):
    """Six prompts of a table, one without features, two with offline pass rates."""
    bank = bank_of(TABLES[name], 6)
    bank.add(prompts(1))
    bank.add(prompts(2, prior_mean_B=[1.0, 0.3], prior_count_B=[1e6, 0.0]))
    return bank


def batch_of(groups, step, lateness):
    """Rows and outcomes whose sums of squares lie between their least and their most."""
    row_B = np.array([g[0] for g in groups], dtype=np.int64)
    count_B = np.array([g[1] for g in groups], dtype=np.int64)
    sum_B = np.array([g[1] * g[2] for g in groups], dtype=np.float64)
    share_B = np.array([g[3] for g in groups], dtype=np.float64)
    least_B = sum_B**2 / np.maximum(count_B, 1)
    found = outcomes(sum_B, count_B, step, np.full(len(groups), max(step - lateness, 0)))
    return row_B, dataclasses.replace(found, reward_sumsq_B=least_B + share_B * (sum_B - least_B))


def tell(bank, history):
    step = 0
    for groups, gap, lateness in history:
        step += gap
        bank.update(*batch_of(groups, step, lateness))
        assert_legal(bank.forecast(np.arange(9), step))
    return step


@settings(max_examples=150)
@given(st.sampled_from(sorted(TABLES)), histories)
def test_every_history_leaves_legal_forecasts(name, history):
    bank = nine_prompts(name)
    step = tell(bank, history)
    for ahead in (1, 1_000, 10**9):
        assert_legal(bank.forecast(np.arange(9), step + ahead))
    assert len(bank.forecast(np.zeros(0, dtype=np.int64), step).mean_B) == 0


@settings(max_examples=50)
@given(histories)
def test_one_prompt_alone(history):
    bank, step = bank_of(None, 1), 0
    for groups, gap, lateness in history:
        step += gap
        bank.update(*batch_of([(0, *g[1:]) for g in groups[:1]], step, lateness))
        assert_legal(bank.forecast(ROW, step + 1))


@settings(max_examples=40)
@given(st.sampled_from(sorted(TABLES)), histories, st.randoms(use_true_random=False))
def test_the_order_of_prompts_in_a_batch_does_not_matter(name, history, random):
    straight, shuffled = nine_prompts(name), nine_prompts(name)
    shuffled_history = [(random.sample(b[0], len(b[0])), *b[1:]) for b in history]
    step = tell(straight, history)
    tell(shuffled, shuffled_history)
    found, expected = (b.forecast(np.arange(9), step + 2) for b in (shuffled, straight))
    np.testing.assert_allclose(found.mean_B, expected.mean_B, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.var_B, expected.var_B, rtol=1e-4, atol=1e-9)


@settings(max_examples=40)
@given(st.sampled_from(sorted(TABLES)), histories, st.lists(st.integers(0, 8), max_size=9))
def test_a_forecast_changes_no_state_and_nothing_that_follows(name, history, row_B):
    asked, silent = nine_prompts(name), nine_prompts(name)
    step = 0
    for groups, gap, lateness in history:
        for now in (step, step + gap, step + 7):
            asked.forecast(np.array(row_B, dtype=np.int64), now)
            asked.forecast(np.array([g[0] for g in groups], dtype=np.int64), now)
        step += gap
        for bank in (asked, silent):
            bank.update(*batch_of(groups, step, lateness))
        assert_equal_states(asked, silent)


@settings(max_examples=40)
@given(st.sampled_from(sorted(TABLES)), histories, histories)
def test_a_restored_state_goes_on_bit_for_bit(name, before, after):
    bank = nine_prompts(name)
    tell(bank, before)
    restored = FilterBank()
    restored.load_state_dict(bank.state_dict())
    for one in (bank, restored):
        one.add(prompts(1))
        step = sum(gap for _, gap, _ in before)
        for groups, gap, lateness in after:
            step += gap
            one.update(*batch_of(groups, step, lateness))
    assert_equal_states(bank, restored)
    found, expected = (b.forecast(np.arange(10), step + 3) for b in (restored, bank))
    np.testing.assert_array_equal(found.mean_B, expected.mean_B)
    np.testing.assert_array_equal(found.var_B, expected.var_B)


@pytest.mark.parametrize("size", [300, 5_000])
def test_the_order_of_a_large_batch_does_not_matter(size):
    """First visits are scored on a sample of them; more than 4096 prompts are learned in parts."""
    rng = np.random.default_rng(0)
    success_B = rng.binomial(8, expit(rng.normal(size=size)))
    order = rng.permutation(size)
    straight, shuffled = bank_of(None, size), bank_of(None, size)
    for step in (1, 2):
        straight.update(np.arange(size), outcomes(success_B, np.full(size, 8), step))
        shuffled.update(order, outcomes(success_B[order], np.full(size, 8), step))
    found, expected = (b.forecast(np.arange(size), 3) for b in (shuffled, straight))
    np.testing.assert_allclose(found.mean_B, expected.mean_B, rtol=1e-6)
    np.testing.assert_allclose(found.var_B, expected.var_B, rtol=1e-6)


def test_a_saved_state_is_a_copy():
    bank = nine_prompts("random")
    bank.update(np.array([4, 1]), outcomes([1.0, 2.5], [4, 8], 3))
    before = bank.forecast(np.arange(9), 5)
    for array in bank.state_dict().values():
        array[...] = 0
    bank._latest = bank._population._solved = None
    after = bank.forecast(np.arange(9), 5)
    np.testing.assert_array_equal(after.mean_B, before.mean_B)
    np.testing.assert_array_equal(after.var_B, before.var_B)


def test_nothing_to_learn_changes_nothing():
    bank, same = bank_of(TABLE), bank_of(TABLE)
    bank.update(np.zeros(0, dtype=np.int64), outcomes([], [], 9))
    bank.add(prompts(0, np.zeros((0, 3))))
    assert_equal_states(bank, same)


def test_prompts_without_features_join_a_table_with_features():
    bank = bank_of(TABLE)
    bank.add(prompts(1))
    assert bank.forecast(np.array([6]), 0).mean_B[0] == pytest.approx(0.5)
    with pytest.raises(InvalidInputError, match="4 features"):
        bank.add(prompts(1, np.ones((1, 4))))


def damaged_states():
    """Every array of a state, damaged in every way that can be told."""
    bank = nine_prompts("random")
    bank.update(np.array([4, 1]), outcomes([1.0, 2.5], [4, 8], 3))
    state = bank.state_dict()
    for name, array in state.items():
        yield name, "dtype", array.astype(np.float32 if array.dtype == np.float64 else np.float64)
        yield name, "more rows", np.concatenate([array, array[:1]])
        yield name, "fewer rows", array[:-1]
        yield name, "an axis more", array[None]
        if array.ndim > 1:
            yield name, "fewer columns", array[..., :-1]
        if array.dtype == np.float64:
            for value in (np.nan, np.inf):
                broken = array.copy()
                broken.flat[0] = value
                yield name, str(value), broken
    may_not_be_negative = (
        "tau_QK slope_Q clock omega_Q share_step_Q strength_R share_clock trend_step gram_RMM "
        "reward_spread_Q reward_most_Q reward_sums bandwidth trend_cov"
    )
    for name in may_not_be_negative.split():
        yield name, "negative", np.full_like(state[name], -2)
    yield "slope_Q", "above 1", state["slope_Q"] + 1.5
    yield "last_Q", "after the clock", state["last_Q"] + 4
    yield "last_Q", "before all", state["last_Q"] - 4
    yield "share_step_Q", "after the clock", state["share_step_Q"] + 4
    yield "strength_R", "too large", state["strength_R"] + 1e6
    yield "share_clock", "another", state["share_clock"] + 10**6
    yield "trend_step", "another", state["trend_step"] + 10**6


@pytest.mark.parametrize(
    ("name", "array"),
    [pytest.param(name, array, id=f"{name}: {damage}") for name, damage, array in damaged_states()],
)
def test_a_damaged_state_is_refused_and_changes_nothing(name, array):
    bank, same = nine_prompts("random"), nine_prompts("random")
    for one in (bank, same):
        one.update(np.array([4, 1]), outcomes([1.0, 2.5], [4, 8], 3))
    with pytest.raises(StateError):
        bank.load_state_dict(bank.state_dict() | {name: array})
    assert_equal_states(bank, same)


def test_a_state_with_arrays_missing_or_unknown_is_refused():
    bank = bank_of(TABLE)
    state = bank.state_dict()
    for name in state:
        with pytest.raises(StateError, match=f"lacks {name}"):
            bank.load_state_dict({key: array for key, array in state.items() if key != name})
    with pytest.raises(StateError, match="holds more"):
        bank.load_state_dict(state | {"more": np.zeros(1)})
    with pytest.raises(StateError, match="holds"):
        bank.load_state_dict(Beta().state_dict())


# Very long runs.

STREAMS = {
    "all fail": lambda bank, row_B, step: np.zeros(len(row_B)),
    "all succeed": lambda bank, row_B, step: np.ones(len(row_B)),
    "alternating": lambda bank, row_B, step: np.full(len(row_B), float(step % 2)),
    "against every forecast": lambda bank, row_B, step: (
        bank.forecast(row_B, step).mean_B < 0.5
    ).astype(float),
}


def run_for(num_updates, stream):
    rng = np.random.default_rng(0)
    bank = bank_of(rng.normal(size=(24, 2)))
    for step in range(num_updates):
        row_B = rng.choice(24, 4, replace=False)
        count_B = rng.choice([1, 8, 64], 4)
        bank.update(row_B, outcomes(count_B * stream(bank, row_B, step), count_B, step))
    assert_legal(bank.forecast(np.arange(24), num_updates))
    assert_legal(bank.forecast(np.arange(24), num_updates + 1_000))
    FilterBank().load_state_dict(bank.state_dict())


@pytest.mark.parametrize("name", STREAMS)
def test_thousands_of_updates_leave_it_sound(name):
    run_for(2_000, STREAMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_hundred_thousand_updates_leave_it_sound(name):
    run_for(100_000, STREAMS[name])
