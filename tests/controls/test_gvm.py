import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import controls
from apportion.errors import InvalidInputError


def test_formula_by_hand():
    # Weights: 2/sqrt(.25 + .001/.25) = 3.968, 1/sqrt(1.001) = .9995, 3/sqrt(.5 + .002) = 4.2342;
    # of 46: 19.83, 5.00, 21.17.
    weights = [2 / math.sqrt(0.254), 1 / math.sqrt(1.001), 3 / math.sqrt(0.502)]
    assert [round(46 * w / sum(weights), 2) for w in weights] == [19.84, 5.0, 21.17]
    assert controls.gvm([0.25, 1.0, 0.5], [2.0, 1.0, 3.0], 46).tolist() == [20, 5, 21]


def test_penalty_holds_back_prompts_that_are_hardly_ever_solved():
    # Without: 1/sqrt(.001) = 31.6 against 1.41; with: 1/sqrt(1.001) = 1 against 1.41.
    assert controls.gvm([0.001, 0.5], [1.0, 1.0], 100, alpha=0.0).tolist() == [96, 4]
    assert controls.gvm([0.001, 0.5], [1.0, 1.0], 100).tolist() == [41, 59]


def test_no_acceptance_or_no_gradient_gets_nothing():
    assert controls.gvm([0.0, 0.5, 0.5], [9.0, 0.0, 1.0], 7).tolist() == [0, 0, 7]


def test_nothing_to_go_by_is_split_evenly():
    assert controls.gvm([0.0, 0.0, 0.5], [1.0, 1.0, 0.0], 7).tolist() == [3, 2, 2]


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 50)), min_size=1, max_size=12),
    budget=st.integers(0, 300),
)
def test_on_budget_and_zero_where_it_should_be(pairs, budget):
    success, norm = map(np.array, zip(*pairs, strict=True))
    num = controls.gvm(success, norm, budget)
    assert num.sum() == budget
    is_open = (success > 0) & (norm > 0)
    if is_open.any():
        assert (num[~is_open] == 0).all()


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="gradient_norm_B holds -1"):
        controls.gvm([0.5], [-1.0], 4)
    with pytest.raises(InvalidInputError, match="2 prompts"):
        controls.gvm([0.5, 0.5], [1.0], 4)
    with pytest.raises(InvalidInputError, match="alpha is -1"):
        controls.gvm([0.5], [1.0], 4, alpha=-1.0)
