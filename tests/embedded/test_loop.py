"""Contract: every arm sees the same batches, spends the same budget, and learning is visible."""

from __future__ import annotations

import numpy as np
import pytest

from apportion import RolloutAllocator, allocate, controls
from apportion.embedded.loop import train_loop
from apportion.embedded.model import load
from apportion.embedded.pools import pool
from apportion.errors import InvalidInputError
from apportion.predictor import Beta

PROBLEMS = pool("mixed").problems[:160]
SMALL = {"prompts_per_step": 16, "rollouts_per_prompt": 4, "evaluate_every": 2}


def _oracle(forecast, budget):
    return allocate(forecast, budget).num_rollouts_B


def _run(arm, **kwargs):
    steps = []
    model, tokenizer = load()
    result = train_loop(model, tokenizer, PROBLEMS, arm, on_step=steps.append, **SMALL | kwargs)
    return result, steps, model


def test_learning_raises_exact_success():
    result, _, _ = _run(controls.uniform, prompts_per_step=40, num_steps=16, seed=1)
    success = result.success_T["train"]
    assert success[0] == pytest.approx(pool("mixed").success_Q[: len(PROBLEMS)].mean(), abs=1e-4)
    assert success[-1] > success[0] + 0.02


def test_arms_share_batches_and_spend_the_budget_exactly():
    allocator = RolloutAllocator(Beta(), do_no_harm=False)
    runs = [_run(arm, num_steps=3, seed=2) for arm in (controls.uniform, _oracle, allocator)]
    for steps in zip(*(run[1] for run in runs), strict=True):
        assert len({tuple(s.row_B) for s in steps}) == 1
        assert {s.num_rollouts_B.sum() for s in steps} == {64}
        assert all((s.reward_sum_B <= s.num_rollouts_B).all() for s in steps)
    assert set(runs[0][1][0].num_rollouts_B) == {4}
    assert len(set(runs[1][1][0].num_rollouts_B)) > 1
    assert len(allocator) == 48
    assert allocator.step == 3


def test_result_axes():
    result, _, _ = _run(
        controls.uniform, num_steps=3, evaluation={"a": PROBLEMS[:9], "b": PROBLEMS[9:12]}
    )
    assert result.step_T.tolist() == [0, 2, 3]
    assert result.compute_T.tolist() == [0, 128, 192]
    assert {k: v.shape for k, v in result.success_T.items()} == {"a": (3,), "b": (3,)}


def test_runs_are_reproducible_and_depend_on_the_seed():
    first, again, other = (
        _run(controls.uniform, num_steps=2, seed=s)[0].success_T["train"] for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert first[-1] != other[-1]


@pytest.mark.parametrize("estimator", ["dr_grpo", "grpo"])
def test_other_estimators_move_the_weights(estimator):
    result, steps, _ = _run(_oracle, num_steps=2, estimator=estimator)
    assert all(s.gradient_norm > 0 for s in steps)
    assert result.success_T["train"][0] != result.success_T["train"][-1]


def test_zero_steps_leave_the_model_alone():
    result, steps, model = _run(controls.uniform, num_steps=0)
    before = load()[0].state_dict()
    assert all((before[k] == v).all() for k, v in model.state_dict().items())
    assert steps == []
    assert result.step_T.tolist() == [0]


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="budget is 64"):
        _run(lambda forecast, budget: np.full(len(forecast), 2), num_steps=1)
    with pytest.raises(InvalidInputError, match="160 prompts"):
        _run(controls.uniform, prompts_per_step=161, num_steps=1)
    with pytest.raises(InvalidInputError, match="estimator"):
        _run(controls.uniform, num_steps=1, estimator="ppo")
