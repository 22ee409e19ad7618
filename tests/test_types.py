import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import errors
from apportion.errors import ApportionError, InvalidInputError, MissingExtraError
from apportion.types import Allocation, Forecast, Outcomes, Prompts


def test_prompts_take_keeps_every_field():
    prompts = Prompts(
        id_B=["a", "b", "c"],
        feature_BD=np.eye(3),
        prior_mean_B=[0.1, 0.2, 0.3],
        prior_count_B=[1, 2, 3],
        text_B=("x", "y", "z"),
    )
    part = prompts.take([2, 0])
    assert part.id_B.tolist() == ["c", "a"]
    assert part.text_B == ("z", "x")
    np.testing.assert_array_equal(part.feature_BD, np.eye(3)[[2, 0]])
    np.testing.assert_array_equal(part.prior_mean_B, [0.3, 0.1])
    np.testing.assert_array_equal(part.prior_count_B, [3, 1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feature_BD": [1.0, 2.0]}, "two axes"),
        ({"feature_BD": np.zeros((3, 1))}, "3 values, but there are 2"),
        ({"feature_BD": [[np.nan], [1.0]]}, "finite"),
        ({"prior_mean_B": [0.5, 0.5]}, "come together"),
        ({"prior_mean_B": [0.5, 1.5], "prior_count_B": [1, 1]}, "outside"),
        ({"prior_mean_B": [0.5, 0.5], "prior_count_B": [1, -1]}, "negative"),
        ({"text_B": ("one",)}, "1 texts"),
        ({"id_B": [["a", "b"]]}, "one axis"),
        ({"id_B": [["a"], ["b", "c"]]}, "one axis"),
        ({"id_B": ["a", "a\0"]}, r"id_B\[1\] .* NUL"),
        ({"id_B": np.array(["a\0b", "c"])}, r"id_B\[0\] .* NUL"),
        ({"feature_BD": [[1.0], [1.0, 2.0]]}, "feature_BD must be numbers"),
        ({"feature_BD": [[1.0, 2.0], [1.0, -1e160]]}, r"feature_BD\[1, 1\] is -1e\+160"),
        ({"feature_BD": np.ones((2, 2)) * 1j}, "feature_BD must be numbers"),
    ],
)
def test_malformed_prompts_are_named(fields, message):
    with pytest.raises(InvalidInputError, match=message):
        Prompts(**({"id_B": ["a", "b"]} | fields))


@given(st.floats(0, 1), st.floats(0, 1))
def test_forecast_splits_the_variance_of_a_reward(mean, share):
    doubt = share * mean * (1 - mean)
    forecast = Forecast.of_success([mean], [doubt])
    total = forecast.var_B + forecast.reward_var_B
    assert total[0] == pytest.approx(mean * (1 - mean))


@pytest.mark.parametrize(
    ("success", "doubt", "message"),
    [
        ([0.5, 1.2], None, r"success\[1\] is 1.2"),
        ([0.5, -0.1], None, "outside"),
        ([0.5, np.nan], None, "finite"),
        ([0.5], [0.3], r"doubt\[0\] is 0.3"),
        ([0.5], [-0.1], "doubt"),
        ([0.5], [0.1, 0.1], "2 values, but there are 1"),
        (0.5, None, "one axis"),
        (["x"], None, "must be numbers"),
    ],
)
def test_malformed_success_is_named(success, doubt, message):
    with pytest.raises(InvalidInputError, match=message):
        Forecast.of_success(success, doubt)


def test_forecast_parts_must_agree():
    with pytest.raises(InvalidInputError, match="reward_var_B"):
        Forecast(mean_B=[0.5], var_B=[0.0], reward_var_B=[0.3])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, np.nan])), max_size=30))
def test_outcomes_sum_what_was_scored(rows):
    group_N = [group for group, _ in rows]
    reward_N = np.array([reward for _, reward in rows])
    out = Outcomes.of_rewards(list("abcd"), reward_N, group_N, step=5, policy_step=3)
    assert out.num_requested_B.sum() == len(rows)
    assert out.num_rollouts_B.sum() == np.isfinite(reward_N).sum()
    assert out.reward_sum_B.sum() == pytest.approx(np.nansum(reward_N))
    assert out.reward_sumsq_B.sum() == pytest.approx(np.nansum(reward_N**2))
    assert (out.policy_step_B == 3).all()
    assert out.step == 5


@pytest.mark.parametrize("make", ["prompts", "forecast", "outcomes"])
def test_take_knows_positions_and_masks_and_refuses_the_rest(make):
    table = {
        "prompts": Prompts(id_B=["a", "b", "c"], text_B=("x", "y", "z")),
        "forecast": Forecast.of_success([0.1, 0.2, 0.3]),
        "outcomes": Outcomes.of_rewards(["a", "b", "c"], [1, 0, 1], [0, 1, 2], step=0),
    }[make]

    def keys(part):
        name = {"prompts": "id_B", "forecast": "mean_B", "outcomes": "prompt_B"}[make]
        return getattr(part, name).tolist()

    assert keys(table.take([True, False, True])) == keys(table.take([0, 2]))
    assert keys(table.take(np.array([False, True, False]))) == keys(table.take([1]))
    assert keys(table.take([-1])) == keys(table.take([2]))
    assert keys(table.take([])) == []
    for wrong in ([True, False], [0.0, 1.0], [0.5], ["0"], [3], [-4], 0, [[0]], None):
        with pytest.raises(InvalidInputError, match="index_B"):
            table.take(wrong)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward_N": ["good", "bad"]}, "reward_N must be numbers"),
        ({"reward_N": ["1", "0"]}, "reward_N must be numbers"),
        ({"reward_N": [1j, 0]}, "reward_N must be numbers"),
        ({"reward_N": [[1], [1, 2]]}, "reward_N must be numbers"),
        ({"num_tokens_N": [3]}, "num_tokens_N has 1 values, but there are 2 rewards"),
        ({"num_tokens_N": [3, 2.5]}, r"num_tokens_N\[1\] is 2.5"),
        ({"truncated_N": [True]}, "truncated_N has 1 values"),
        ({"step": 0.5}, "step is 0.5"),
        ({"step": np.nan}, "step is nan, but must be finite"),
        ({"step": None}, "step is nan"),
        ({"policy_step": 1.5}, "policy_step is 1.5"),
        ({"prompt_B": ["a", "a\0"]}, "NUL"),
    ],
)
def test_malformed_outcomes_are_named(changed, message):
    fields = {"prompt_B": ["a", "b"], "reward_N": [1, 0], "group_N": [0, 1], "step": 3}
    with pytest.raises(InvalidInputError, match=message):
        Outcomes.of_rewards(**(fields | changed))


def test_outcomes_refuse_a_group_without_prompt():
    with pytest.raises(InvalidInputError, match="group_N holds 2"):
        Outcomes.of_rewards(["a", "b"], [1.0], [2], step=0)


def test_allocation_ratio_without_any_variance():
    nothing = Allocation(
        num_rollouts_B=np.array([2, 2]),
        relaxed_B=np.array([2.0, 2.0]),
        price=0.0,
        variance=0.0,
        uniform_variance=0.0,
    )
    assert nothing.variance_ratio == 1.0
    assert nothing.group_N.tolist() == [0, 0, 1, 1]


def test_errors_are_picklable_and_also_standard_errors():
    children = [
        child
        for child in vars(errors).values()
        if isinstance(child, type)
        and issubclass(child, ApportionError)
        and child is not ApportionError
    ]
    assert len(children) >= 7
    for child in children:
        args = ("pkg", "extra") if child is MissingExtraError else ("text",)
        error = child(*args)
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error)
        assert issubclass(child, ValueError | OSError | RuntimeError | ImportError)
    assert "pip install 'apportion[train]'" in str(MissingExtraError("torch", "train"))
