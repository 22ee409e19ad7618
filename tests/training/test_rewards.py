import pytest

from apportion.errors import InvalidInputError
from apportion.training.rewards import load_reward


def test_exact_and_math_verify():
    chat = [[{"role": "assistant", "content": "12 "}], [{"role": "assistant", "content": "13"}]]
    assert load_reward("exact")(completions=chat, answer=["12", "12"]) == [1.0, 0.0]
    reward = load_reward("math-verify", "gold")
    completions = ["so it is $0.5$", r"\boxed{\frac{1}{3}}", "no idea"]
    assert reward(completions=completions, gold=["1/2", "1/2", "1/2"]) == [1.0, 0.0, 0.0]


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def length(completions, **columns):\n    return [len(c) for c in completions]\n"
        "def short(completions, **columns):\n    return [1.0]\n"
        "def words(completions, **columns):\n    return ['good' for _ in completions]\n"
        "def broken(completions, **columns):\n    return 1 / 0\n"
        "def unscorable(completions, **columns):\n    return [None for _ in completions]\n"
        "def infinite(completions, **columns):\n    return [float('inf'), 1.0]\n"
        "number = 3\n"
    )
    (tmp_path / "bad_syntax.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)


def test_own_reward_from_the_working_folder(user_module):
    assert load_reward("my_rewards:length")(completions=["ab", "c"]) == [2.0, 1.0]
    assert load_reward("my_rewards:unscorable")(completions=["ab"]) == [None]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "must be exact, math-verify or package.module:function"),
        ("no_such_module:f", "cannot be imported"),
        ("bad_syntax:f", "cannot be imported .SyntaxError"),
        ("my_rewards:none", "has no function 'none'"),
        ("my_rewards:number", "has no function 'number'"),
    ],
)
def test_reward_that_cannot_be_found(user_module, name, message):
    with pytest.raises(InvalidInputError, match=message):
        load_reward(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rewards:short", "returned 1 values for 2 completions"),
        ("my_rewards:words", "no number"),
        ("my_rewards:broken", "ZeroDivisionError"),
        ("my_rewards:infinite", "returned inf, but a reward must be finite"),
    ],
)
def test_reward_that_misbehaves(user_module, name, message):
    with pytest.raises(InvalidInputError, match=message):
        load_reward(name)(completions=["ab", "c"])
