"""Contract: every arm sees the same batches, spends the same budget, and learning is visible."""

from __future__ import annotations

import numpy as np
import pytest

from apportion import Forecast, RolloutAllocator, allocate, controls
from apportion.embedded.loop import train_loop
from apportion.embedded.model import load
from apportion.embedded.pools import pool
from apportion.errors import InvalidInputError
from apportion.predictor import Beta

PROBLEMS = pool("mixed").problems[:160]
SMALL = {"prompts_per_step": 16, "rollouts_per_prompt": 4, "evaluate_every": 2}


def _uniform(step):
    return controls.uniform(Forecast.of_success(np.full(len(step), 0.5)), step.budget)


def _oracle(step):
    return allocate(step.success_B, step.budget).num_rollouts_B


def _run(arm, **kwargs):
    steps = []
    model, tokenizer = load()
    result = train_loop(model, tokenizer, PROBLEMS, arm, on_step=steps.append, **SMALL | kwargs)
    return result, steps, model


def test_learning_raises_exact_success():
    result, _, _ = _run(_uniform, prompts_per_step=40, num_steps=16, seed=1)
    success = result.success_T["train"]
    assert success[0] == pytest.approx(pool("mixed").success_Q[: len(PROBLEMS)].mean(), abs=1e-4)
    assert success[-1] > success[0] + 0.02


def test_arms_share_batches_and_spend_the_budget_exactly():
    allocator = RolloutAllocator(Beta(), do_no_harm=False)
    runs = [_run(arm, num_steps=3, seed=2) for arm in (_uniform, _oracle, allocator)]
    for steps in zip(*(run[1] for run in runs), strict=True):
        assert len({tuple(s.row_B) for s in steps}) == 1
        assert {s.num_rollouts_B.sum() for s in steps} == {64}
        assert all((s.reward_sum_B <= s.num_rollouts_B).all() for s in steps)
    assert set(runs[0][1][0].num_rollouts_B) == {4}
    assert len(set(runs[1][1][0].num_rollouts_B)) > 1
    assert len(allocator) == 48
    assert allocator.step == 3


def test_result_axes():
    result, _, _ = _run(_uniform, num_steps=3, evaluation={"a": PROBLEMS[:9], "b": PROBLEMS[9:12]})
    assert result.step_T.tolist() == [0, 2, 3]
    assert result.compute_T.tolist() == [0, 128, 192]
    assert {k: v.shape for k, v in result.success_T.items()} == {"a": (3,), "b": (3,)}


def test_runs_are_reproducible_and_depend_on_the_seed():
    first, again, other = (
        _run(_uniform, num_steps=2, seed=s)[0].success_T["train"] for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert first[-1] != other[-1]


@pytest.mark.parametrize("estimator", ["dr_grpo", "grpo"])
def test_other_estimators_move_the_weights(estimator):
    result, steps, _ = _run(_oracle, num_steps=2, estimator=estimator)
    assert all(s.gradient_norm > 0 for s in steps)
    assert result.success_T["train"][0] != result.success_T["train"][-1]


def test_zero_steps_leave_the_model_alone():
    result, steps, model = _run(_uniform, num_steps=0)
    before = load()[0].state_dict()
    assert all((before[k] == v).all() for k, v in model.state_dict().items())
    assert steps == []
    assert result.step_T.tolist() == [0]


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match="no rollout at all"):
        _run(lambda step: np.zeros(len(step)), num_steps=1)
    with pytest.raises(InvalidInputError, match="160 prompts"):
        _run(_uniform, prompts_per_step=161, num_steps=1)
    with pytest.raises(InvalidInputError, match="estimator"):
        _run(_uniform, num_steps=1, estimator="ppo")


def test_prompts_without_rollouts_are_left_out_and_the_others_weigh_the_same():
    def first_four(step):
        return np.array([16] * 4 + [0] * (len(step) - 4))

    _, (chosen,), _ = _run(first_four, num_steps=1, candidates_per_step=48, seed=3)
    assert chosen.row_B.shape == (48,)
    assert chosen.trained_B.tolist() == [0, 1, 2, 3]

    def only_four(step):
        step.keep(np.arange(len(step)) < 4)
        return np.array([16] * 4 + [4] * (len(step) - 4))

    _, (kept,), _ = _run(
        only_four, num_steps=2, candidates_per_step=12, seed=3, prompts_per_step=12
    )
    assert kept.trained_B.tolist() == [0, 1, 2, 3]
    assert kept.num_rollouts_B.sum() == 96


def test_the_gradient_is_that_of_the_chosen_prompts():
    """Many rollouts of two prompts: their gradient, unequal groups or not, is the exact one."""
    from apportion.embedded.exact import exact_gradient

    problems = [p for p, s in zip(PROBLEMS, pool("mixed").success_Q, strict=False) if 0.3 < s < 0.7]

    def two(step):
        return np.array([3000, 1000] + [0] * (len(step) - 2))

    steps = []
    model, tokenizer = load()
    train_loop(
        model,
        tokenizer,
        problems[:8],
        two,
        prompts_per_step=4,
        rollouts_per_prompt=1000,
        num_steps=1,
        learning_rate=0.0,
        on_step=steps.append,
    )
    chosen = [problems[q] for q in steps[0].row_B[:2]]
    exact = exact_gradient(model, tokenizer, [p.prompt for p in chosen], [p.answer for p in chosen])
    error = float((steps[0].gradient - exact).norm() / exact.norm())
    assert error < 0.25


def test_a_rule_is_charged_for_every_draw_and_the_run_ends_on_budget():
    def pilot(step):
        right_B = step.draw(np.full(len(step), 4))
        assert (right_B == step.num_correct_B).all()
        step.keep((right_B > 0) & (right_B < 4))
        return np.full(len(step), 2)

    result, steps, _ = _run(pilot, num_steps=4, evaluate_every=1)
    assert [s.compute for s in steps] == [96, 192, 256]  # what is left pays for the pilot alone
    assert result.compute_T.tolist() == [0, 96, 192, 256]
    assert result.step_T.tolist() == [0, 1, 2, 3]
    assert [s.num_rollouts_B.max() for s in steps] == [6, 6, 4]
    with pytest.raises(InvalidInputError, match="first step"):
        _run(lambda step: np.full(len(step), 10**6), num_steps=2)


def test_a_linear_schedule_moves_less_in_the_end_than_a_constant_one():
    moved = {}
    for schedule in ("constant", "linear"):
        _, _, model = _run(_uniform, num_steps=4, schedule=schedule, num_warmup_steps=1)
        start = load()[0].state_dict()
        moved[schedule] = sum(
            float((value - start[name]).norm()) for name, value in model.state_dict().items()
        )
    assert moved["linear"] < moved["constant"]
    with pytest.raises(InvalidInputError, match="schedule"):
        _run(_uniform, num_steps=1, schedule="cosine")


def test_an_allocator_that_chooses_spends_the_budget_on_some_of_the_candidates():
    from apportion.predictor import Oracle
    from apportion.prompt_key import prompt_key

    truth = dict(
        zip((prompt_key(p.prompt) for p in PROBLEMS), pool("mixed").success_Q, strict=False)
    )
    arm = RolloutAllocator(
        Oracle(lambda keys: np.array([truth[str(key)] for key in keys])),
        objective="progress",
        exploration=0.0,
        do_no_harm=False,
    )
    _, steps, _ = _run(arm, num_steps=2, candidates_per_step=48)
    for step in steps:
        num_B = step.num_rollouts_B
        assert num_B.sum() == 64
        assert ((num_B == 0) | (num_B >= 2)).all()
        success_B = np.array([truth[prompt_key(PROBLEMS[q].prompt)] for q in step.row_B])
        spread_B = success_B * (1 - success_B)
        assert spread_B[num_B > 0].min() >= spread_B[num_B == 0].max() * 0.5


def test_a_rule_sees_forecasts_only_with_a_belief():
    def by_forecast(step):
        assert len(step.forecast) == len(step)
        return np.full(len(step), 4)

    belief = RolloutAllocator(Beta())
    _run(by_forecast, num_steps=2, belief=belief)
    assert belief.step == 2
    with pytest.raises(InvalidInputError, match="belief"):
        _run(by_forecast, num_steps=1)


def test_score_norms_are_those_of_the_output_layer():
    import torch

    from apportion.embedded.likelihood import log_likelihood
    from apportion.embedded.policy_gradient import score_norm
    from apportion.embedded.sampler import sample

    model, tokenizer = load()
    rollouts = sample(
        model, tokenizer, [p.prompt for p in PROBLEMS[:3]], 2, generator=torch.Generator()
    )
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # apart from the input layer
    norms = []
    for n in range(len(rollouts)):
        value = log_likelihood(model, rollouts.tokens.rows(torch.tensor([n])))
        norms.append(float(torch.autograd.grad(value.sum(), head.weight)[0].norm()))
    np.testing.assert_allclose(score_norm(model, rollouts), norms, rtol=1e-4)
