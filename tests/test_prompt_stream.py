from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.prompt_stream import prompt_stream


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
