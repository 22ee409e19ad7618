"""The tables that readers make and replays walk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.recording import table_of_counts

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 8)), min_size=1, max_size=30
)


@given(ROWS)
def test_steps_cut_the_table_in_order(rows):
    keys, steps, solved = zip(*rows, strict=True)
    table = table_of_counts(keys, steps, solved, 8)
    found = list(table.steps())
    assert [step for step, _ in found] == sorted(set(steps))
    covered = [i for _, part in found for i in range(part.start, part.stop)]
    assert covered == list(range(len(rows)))
    for step, part in found:
        outcomes = table.outcomes(part)
        assert outcomes.step == step
        wanted = [(key, k) for key, s, k in rows if s == step]
        assert list(zip(outcomes.prompt_B, outcomes.reward_sum_B, strict=True)) == wanted


def test_rates_and_signal():
    table = table_of_counts(["a", "b", "c", "d"], [0] * 4, [0, 4, 2, 0], [4, 4, 4, 0])
    np.testing.assert_array_equal(table.rate_G, [0.0, 1.0, 0.5, np.nan])
    np.testing.assert_array_equal(table.signal_G, [False, False, True, False])


def test_texts_stand_beside_their_keys():
    table = table_of_counts(["b", "a"], [0, 0], [1, 2], 4, text_of={"a": "1+1", "b": "2+2"})
    assert table.id_Q.tolist() == ["a", "b"]
    assert table.text_Q == ("1+1", "2+2")
    assert table.prompts.text_B == table.text_Q


def test_an_empty_table_has_no_steps():
    table = table_of_counts([], [], [], 4)
    assert len(table) == 0
    assert list(table.steps()) == []


def test_more_successes_than_rollouts_are_refused():
    with pytest.raises(InvalidInputError, match=r"num_success_G\[1\] is 5, above .* = 4"):
        table_of_counts(["a", "b"], [0, 0], [4, 5], 4)
