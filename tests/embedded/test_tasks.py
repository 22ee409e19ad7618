"""Contract: cells render to the vocabulary, split by hash, and accept exactly one string."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_dataset

from apportion.embedded.cells import CELLS, CHARACTERS, MAX_ANSWER_CHARS, MAX_PROMPT_CHARS, Cell
from apportion.embedded.tasks import Problem, generate, is_held_out, score, scores, split
from apportion.errors import InvalidInputError

EQUIVALENTS = ("0{}", "00{}", "+{}", "-{}", "{}.", "{}.0", "{}.00", "{}e0", "({})", "{},", "={}")


def test_there_are_many_cells_over_many_tasks():
    assert len(CELLS) >= 15
    assert len({c.dataset for c in CELLS.values()}) >= 8
    assert all(0 <= c.noise <= 1 for c in CELLS.values())


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_prompts_and_answers_fit_and_gold_scores_one(cell: Cell):
    problems = generate(cell, 100, seed=3)
    assert len(problems) >= 20
    assert len({p.prompt for p in problems}) == len(problems)
    for p in problems:
        assert 0 < len(p.prompt) <= MAX_PROMPT_CHARS
        assert 0 < len(p.answer) <= MAX_ANSWER_CHARS
        assert set(p.prompt + p.answer) <= set(CHARACTERS)
    assert scores(problems, [p.answer for p in problems]) == [1] * len(problems)


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_scorer_accepts_exactly_one_string_of_the_vocabulary(cell: Cell):
    """Every string of up to two characters, every single edit, and the usual numeric spellings."""
    short = ["", *CHARACTERS, *map("".join, itertools.product(CHARACTERS, repeat=2))]
    for p in generate(cell, 6, seed=4):
        tried = {*short, *_single_edits(p.answer), *(e.format(p.answer) for e in EQUIVALENTS)}
        accepted = [text for text in tried | {p.answer} if score(p, text)]
        assert accepted == [p.answer]


@pytest.mark.parametrize("dataset", sorted({c.dataset for c in CELLS.values()}))
def test_scorer_compares_strings(dataset: str):
    """The shared scorer gives 1.0 only on equality; the one exception compares lower case."""
    own = DATASETS[dataset][0].score_answer is not ProceduralDataset.score_answer
    assert own == (dataset == "spell_backward")
    assert CHARACTERS.lower() == CHARACTERS


def test_plain_sums_are_left_out_because_their_scorer_is_lenient():
    lenient = create_dataset("chain_sum", size=1, seed=0)
    assert lenient.score_answer("07", {"answer": "7"}) == 1.0


@pytest.mark.parametrize(
    ("cell", "prompt", "answer"),
    [
        ("gcd_20", "gcd(12,18)=", "6"),
        ("sum_2x2", "12-47=", "-35"),
        ("base_31", "1b,16>2=", "11011"),
        ("backward_6", "rev(canoe)=", "eonac"),
        ("equation_1", "x+9=22?", "13"),
        ("angle_3", "ang(55,26)=", "99"),
    ],
)
def test_notation(cell: str, prompt: str, answer: str):
    problem = Problem(cell, prompt, answer)
    assert score(problem, answer) == 1
    assert score(problem, answer + "0") == 0


@pytest.mark.parametrize(
    ("cell", "solve"),
    [
        ("sum_3x2", lambda p: eval(p[:-1])),
        ("product_2", lambda p: eval(p[:-1])),
        ("base_255", lambda p: _base(p)),
        ("backward_6", lambda p: p[4:-2][::-1]),
        ("bits_511", lambda p: int(p[5:-2]).bit_count()),
        ("angle_4", lambda p: 360 - sum(map(int, p[4:-2].split(",")))),
    ],
)
def test_rendered_prompt_still_determines_the_answer(cell, solve):
    for p in generate(CELLS[cell], 50, seed=5):
        assert str(solve(p.prompt)) == p.answer


def test_generation_is_reproducible_and_depends_on_the_seed():
    cell = CELLS["sum_2x3"]
    assert generate(cell, 30, seed=1) == generate(cell, 30, seed=1)
    assert generate(cell, 30, seed=1) != generate(cell, 30, seed=2)


def test_a_renderer_refuses_a_question_it_does_not_know():
    with pytest.raises(InvalidInputError, match=r"reasoning-gym 0\.1\.25"):
        CELLS["gcd_20"].render("What is love?")


def test_errors_name_the_way_out():
    with pytest.raises(InvalidInputError, match="num_draws"):
        generate(CELLS["gcd_20"], 0)
    with pytest.raises(InvalidInputError, match="gcd_20"):
        score(Problem("nope", "1", "2"), "2")
    with pytest.raises(InvalidInputError, match="one problem for each"):
        scores([Problem("gcd_20", "gcd(2,2)=", "2")], [])


@given(st.text(alphabet=CHARACTERS, max_size=MAX_PROMPT_CHARS))
def test_split_is_a_function_of_the_text(prompt: str):
    assert split(prompt) == split(prompt)
    assert is_held_out(prompt) == (split(prompt) == "held_out")


def test_split_shares():
    kinds = [split(f"gcd({a},{b})=") for a in range(100) for b in range(100)]
    assert kinds.count("held_out") / len(kinds) == pytest.approx(0.1, abs=0.01)
    assert kinds.count("pool") / len(kinds) == pytest.approx(0.2, abs=0.015)


def _base(prompt: str) -> str:
    digits, bases = prompt[:-1].split(",")
    source, target = map(int, bases.split(">"))
    value, out = int(digits, source), ""
    while value:
        out, value = "0123456789abcdef"[value % target] + out, value // target
    return out


def _single_edits(text: str) -> set[str]:
    cuts = [(text[:i], text[i:]) for i in range(len(text) + 1)]
    return (
        {a + c + b for a, b in cuts for c in CHARACTERS}
        | {a + c + b[1:] for a, b in cuts if b for c in CHARACTERS}
        | {a + b[1:] for a, b in cuts if b}
        | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    )
