from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.prompt_stream import candidates, prompt_stream


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_a_pass_visits_every_prompt_at_most_once(num_prompts, size, seed):
    if size > num_prompts:
        with pytest.raises(InvalidInputError, match="prompts_per_step"):
            next(prompt_stream(num_prompts, size, seed=seed))
        return
    steps_a_pass = num_prompts // size
    batches = list(islice(prompt_stream(num_prompts, size, seed=seed), 2 * steps_a_pass))
    for one_pass in (batches[:steps_a_pass], batches[steps_a_pass:]):
        rows = np.concatenate(one_pass)
        assert len(set(rows.tolist())) == len(rows) == steps_a_pass * size
    again = list(islice(prompt_stream(num_prompts, size, seed=seed), 2 * steps_a_pass))
    np.testing.assert_array_equal(batches, again)


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_step_needs_a_whole_number_of_prompts(size):
    with pytest.raises(InvalidInputError, match="prompts_per_step"):
        next(prompt_stream(4, size, seed=0))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 40), st.integers(0, 99))
def test_candidates_are_the_batch_and_others_of_the_pool(num_prompts, size, more, seed):
    size = min(size, num_prompts)
    batch_B = next(prompt_stream(num_prompts, size, seed=seed))
    num = size + more
    if num > num_prompts:
        with pytest.raises(InvalidInputError, match=f"{num} candidates"):
            candidates(batch_B, num_prompts, num, seed=seed, step=3)
        return
    rows = candidates(batch_B, num_prompts, num, seed=seed, step=3)
    np.testing.assert_array_equal(rows[:size], batch_B)
    assert len(set(rows.tolist())) == len(rows) == num
    assert set(rows.tolist()) <= set(range(num_prompts))
    np.testing.assert_array_equal(rows, candidates(batch_B, num_prompts, num, seed=seed, step=3))


def test_candidates_change_with_the_step_and_the_seed():
    batch_B = np.arange(10)
    drawn = [
        tuple(candidates(batch_B, 200, 30, seed=seed, step=step).tolist())
        for seed, step in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    assert len(set(drawn)) == 4
    assert candidates(batch_B, 200, 10, seed=0, step=0).tolist() == batch_B.tolist()


def test_every_row_of_the_rest_is_as_likely_a_candidate():
    batch_B = np.array([1, 5])
    count_Q = np.zeros(12)
    for step in range(600):
        count_Q[candidates(batch_B, 12, 7, seed=0, step=step)] += 1
    assert count_Q[batch_B].tolist() == [600, 600]
    rest_Q = np.delete(count_Q, batch_B)
    assert np.abs(rest_Q - 300).max() < 5 * np.sqrt(600 * 0.25)


@pytest.mark.parametrize("num", [0, 1.5, 2])
def test_candidates_are_a_whole_number_not_below_the_batch(num):
    with pytest.raises(InvalidInputError):
        candidates(np.arange(3), 10, num, seed=0, step=0)
