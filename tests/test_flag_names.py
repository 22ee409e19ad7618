import pytest
from cli_helpers import call
from hypothesis import given
from hypothesis import strategies as st

from apportion.cli.flag_names import by_flag


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sweep", "--budget", "1e5", "--seed", "-1"], "--seed is -1, but must be at least 0."),
        (["sweep", "--budget", "1e5", "--prompts-per-step", "0"], "--prompts-per-step is 0"),
        (["train", "--learning-rate", "-1"], "--learning-rate is -1"),
        (["plan", "--budget", "-1"], "--budget is -1"),
        (["simulate", "--seeds", "-1"], "--seeds is -1"),
    ],
)
def test_mistakes_name_the_flag(monkeypatch, capsys, arguments, says):
    code, _, error = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert error.startswith(f"apportion: {says}")


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_other_messages_stay(message, flag_of):
    found = by_flag(message, flag_of)
    assert found == message or any(
        message.startswith(f"{name} is ") and found == flag + message[len(name) :]
        for name, flag in flag_of.items()
    )
