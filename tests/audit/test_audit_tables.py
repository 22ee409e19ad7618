import json
import math
import re

import numpy as np
import pytest
from audit_helpers import drawn_run, flat, group_table, printed, recording_of, replay_result
from rich.cells import cell_len

from apportion.audit import audit
from apportion.audit.waste import Rates
from apportion.cli.audit import audit_as_json
from apportion.prompt_key import prompt_key
from apportion.recording import Curve, Recording


@pytest.mark.parametrize("width", [60, 80, 120])
def test_prose_and_tables_fit_the_width(width):
    texts = {group[0]: group[0] + " [bold]odd\ntext[/]" * 30 + "." for group in drawn_run(1)}
    texts["prompt 000"] = "Other \x1b[31mwords"
    recording = recording_of(group_table(drawn_run(1), texts=texts))
    text = printed(audit(recording, replay_result(), num_draws=5), width)
    lines = text[: text.index("from apportion")].splitlines()
    assert max(len(line) for line in lines) <= width
    assert "[bold]odd text[/]" in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_long_prompts_leave_the_numbers_whole():
    fall = [("z" * 300, step, [1.0] * 8 if step < 3 else [0.0] * 8) for step in range(6)]
    text = printed(audit(recording_of([*drawn_run(1), *fall]), num_draws=5))
    (row,) = (line for line in text.splitlines() if "zzz" in line)
    assert row.split()[:4] == ["1.00", "0.00", "1.7e-09", "6"]


def test_every_kind_of_waste_has_its_column():
    odd = [("p", 9, [0.5, 0.5]), ("q", 9, [math.nan, math.nan]), ("r", 9, [0.0, 1.0])]
    table = group_table([*drawn_run(2), *odd], hidden=[False] * 240 + [True, False, False])
    text = printed(audit(recording_of(table), num_draws=5))
    for words in ("in between", "not scored", "components", "more than two values"):
        assert words in text


def test_costs_are_said_where_they_are_known():
    recording = recording_of(drawn_run(5))
    found = audit(recording, rates=Rates(price_per_million_tokens=4.0), num_draws=5)
    text = flat(printed(found))
    assert "at your price" in text
    assert "tokens" in text
    assert "GPU-hours" not in text


def test_undefined_numbers_become_null():
    found = audit(
        recording_of(drawn_run(6)), replay_result(error=math.nan, coverage=math.inf), num_draws=5
    )
    answer = audit_as_json(found)
    assert answer["replayed"]["error"] is None
    assert answer["replayed"]["coverage"] is None
    json.dumps(answer, allow_nan=False)


def test_a_curve_of_the_reward_alone_says_so():
    reward = Curve(step_T=np.arange(5), value_T=np.arange(5.0))
    text = printed(audit(Recording(source="A log"), curves={"reward": reward}))
    assert "was not logged" in text
    assert "0 in the first fifth, 4 in the last" in text


def test_details_come_with_full():
    fall = [("zz", step, [1.0] * 8 if step < 3 else [0.0] * 8) for step in range(6)]
    found = audit(recording_of([*drawn_run(1), *fall]), replay_result(), num_draws=5)
    short, full = printed(found, full=False), printed(found)
    for words in ("mean forecast", "p-value", "stated variance", "Fisher", "Check at the run's"):
        assert words in full
        assert words not in short
    assert "--full" in short
    assert "--full" not in full
    assert flat(short).count("Forgotten: 1 of ") == 1
    assert len(short.splitlines()) < len(full.splitlines())


def test_nothing_is_said_twice():
    note = "Steps are not recorded: the v-th visit of a prompt stands for step v."
    recording = recording_of(drawn_run(1), has_steps=False, notes=(note,))
    found = audit(recording, replay_result(), rates=Rates(gpu_hours=9.0), num_draws=5)
    sentences = [one for one in re.split(r"[.:;]\s+", flat(printed(found))) if len(one) > 30]
    assert len(set(sentences)) == len(sentences)
    assert flat(printed(found)).count("Steps are not recorded") == 1


def test_too_few_second_visits_show_no_figure_of_the_replay():
    recording = recording_of(drawn_run(3, visits=1))
    found = audit(recording, replay_result(), rates=Rates(gpu_hours=10.0), num_draws=5)
    text = flat(printed(found))
    assert "Too few second visits to judge: --json has the replay." in text
    assert "Forgotten: too few second visits to judge." in text
    assert "prompts came once on average" in text
    assert "median 1 visit," in text
    for words in (
        "15.0%",
        "squared error",
        "Saving",
        "mean forecast",
        "would have saved",
        "Fisher",
    ):
        assert words not in text
    answer = audit_as_json(found)
    assert answer["replayed"]["saving"] == 0.15
    assert answer["saved"] is None
    assert answer["verdict"]["saving"].startswith("Cannot be judged: prompts came once on average")
    assert answer["settings"]["rollouts_per_prompt"] == 8


@pytest.mark.parametrize("visits", [1, 2])
def test_nothing_is_counted_wrongly_where_it_is_one(visits):
    groups = [("only", step, [1.0] * 8) for step in range(visits)]
    text = flat(printed(audit(recording_of(groups), replay_result(num_steps=1), num_draws=5)))
    assert not re.search(r"(?<![\d,.])1 (times|visits|steps|prompts|groups|rollouts|GPUs)\b", text)
    assert "1 prompt," in text


def test_few_prompts_have_no_interval():
    found = audit(recording_of(drawn_run(3, prompts=20)), replay_result(), num_draws=5)
    text = flat(printed(found))
    assert "20 prompts are too few for intervals" in text
    assert "95%" not in text
    assert not re.search(r"\[\d", text)


def test_prompts_known_by_keys_alone_are_not_listed():
    groups = [(prompt_key(group[0]), *group[1:]) for group in drawn_run(1)]
    found = audit(recording_of(groups), replay_result(), num_draws=5)
    text = printed(found)
    assert not re.search(r"[0-9a-f]{16}", text)
    assert "Always right: " in text
    assert audit_as_json(found)["prompts"]["always_right"]["listed"]


def test_wide_letters_are_cut_to_what_the_line_leaves():
    groups = [("数" * 60 + str(at), step, [1.0] * 8) for step in range(3) for at in range(40)]
    text = printed(audit(recording_of(groups), num_draws=5), 60)
    rows = [line for line in text.splitlines() if "数" in line]
    assert rows
    assert all(cell_len(row) <= 60 and row.endswith("...") for row in rows)
