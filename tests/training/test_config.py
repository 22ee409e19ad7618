import pytest

from apportion.errors import InvalidInputError, StateError
from apportion.training.config import TrainConfig


def test_defaults_are_valid_and_round_trip():
    config = TrainConfig()
    assert config.budget == 64 * 4 * 60
    assert config.most == 16
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.with_arm("vip", 3).least == 3


def test_only_some_arms_choose():
    config = TrainConfig(prompts_per_step=8)
    assert (config.goal, config.num_candidates) == ("coverage", 24)
    for arm in ("uniform", "vip"):
        other = config.with_arm(arm, 0)
        assert (other.goal, other.chooses, other.num_candidates) == ("variance", False, 8)
    split = TrainConfig(prompts_per_step=8, objective="variance")
    assert (split.chooses, split.num_candidates) == (False, 8)


def test_runs_from_before_there_was_an_objective_had_variance():
    values = TrainConfig().to_dict()
    del values["objective"], values["candidates"]
    assert TrainConfig.from_dict(values) == TrainConfig(objective="variance", candidates=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arm": "best"}, "arm is 'best', but must be one of"),
        ({"estimator": "ppo"}, "estimator"),
        ({"pool": "easy"}, "pool"),
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"candidates": 0}, "candidates is 0"),
        ({"steps": 0}, "steps is 0, but must be at least 1"),
        ({"rollouts_per_prompt": 1}, "at least 2"),
        ({"lower": 1}, "lower is 1"),
        ({"lower": 5}, "lower is 5, but the mean"),
        ({"arm": "vip", "rollouts_per_prompt": 2, "upper": 8}, "the vip arm needs 3"),
        ({"upper": 3}, "upper is 3, but the mean"),
        ({"learning_rate": -1.0}, "must not be negative"),
        ({"learning_rate": float("nan")}, "finite"),
        ({"micro_batch": 7}, "must divide the 256"),
        ({"model": "m"}, "--model is given without --dataset"),
        ({"dataset": "d"}, "--dataset is given without --model"),
        ({"reward": "math-verify"}, "bring their own data and scorer"),
        ({"held_out": 5}, "bring their own data"),
        ({"seed": 2**32}, "seed is 4294967296, but must be at most"),
        ({"reward_low": 1.0}, "reward_low is 1 and reward_high 1"),
        ({"model": "m", "dataset": "d", "answer_column": "prompt"}, "are both 'prompt'"),
        ({"arm": "oracle", "model": "m", "dataset": "d"}, "only the embedded"),
    ],
)
def test_each_mistake_is_one_sentence_with_the_way_out(fields, message):
    with pytest.raises(InvalidInputError, match=message):
        TrainConfig(**fields)


def test_a_field_of_another_version_is_named():
    with pytest.raises(StateError, match="temperature"):
        TrainConfig.from_dict({"temperature": 1.0})
    for damaged in ([1], None, {"steps": None}, {"steps": "x"}):
        with pytest.raises((StateError, InvalidInputError)):
            TrainConfig.from_dict(damaged)
