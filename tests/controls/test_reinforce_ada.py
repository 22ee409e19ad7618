import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import controls
from apportion.controls.reinforce_ada import DECAY, PRIOR
from apportion.errors import InvalidInputError


def test_formula_by_hand():
    # 1/sqrt: 5, 2, 1; of 40: 25, 10, 5.
    assert controls.reinforce_ada([0.04, 0.25, 1.0], 40).tolist() == [25, 10, 5]
    # Of 16: 10, 4, 2; at least 3 each leaves 13 for 5 to 2: 9.3, 3.7.
    assert controls.reinforce_ada([0.04, 0.25, 1.0], 16, lower=3).tolist() == [9, 4, 3]


def test_moving_rate_by_hand():
    # Two visits of 4 with 1, then 3 right: counts .9 * 1 + 3 of .9 * 4 + 4, prior 1 of 17.
    belief = controls.BetaPosterior.of_prior(1, prior=PRIOR)
    for correct in (1, 3):
        belief = belief.update([correct], [4], prior=PRIOR, decay=DECAY)
    assert belief.mean_B[0] == pytest.approx((3.9 + 1) / (7.6 + 17))


@given(success=st.lists(st.floats(0, 1), min_size=1, max_size=15), extra=st.integers(0, 99))
def test_on_budget_and_harder_prompts_never_get_fewer(success, extra):
    budget = len(success) + extra
    num = controls.reinforce_ada(success, budget)
    assert num.sum() == budget
    assert num.min() >= 1
    order = np.argsort(np.maximum(success, 1e-6), kind="stable")
    assert (np.diff(num[order]) <= 0).all()


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="success_B"):
        controls.reinforce_ada([2.0], 4)
