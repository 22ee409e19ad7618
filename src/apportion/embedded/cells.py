"""The cells of the embedded model's world: reasoning-gym datasets at graded levels.

A *cell* is one dataset at one level of difficulty, with a renderer from its English question to a
prompt of at most 18 characters (``gcd(12,18)=``), short enough for a model of half a million
parameters. Only datasets whose scorer accepts exactly one string of the vocabulary are used: the
plain sum and product datasets take ``07`` and ``7.0`` for ``7``, so arithmetic comes from
``basic_arithmetic``, which compares strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion.errors import InvalidInputError

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*(),=>?."
MAX_PROMPT_CHARS = 18
MAX_ANSWER_CHARS = 8


@dataclass(frozen=True)
class Cell:
    """One reasoning-gym dataset at one level.

    Attributes:
        name: key of the cell, task and level.
        dataset: reasoning-gym's name of the dataset.
        render: English question to short prompt.
        noise: share of wrong demonstrations in the second training stage, in [0, 1].
        weight: relative frequency in the training data.
        config: keyword arguments of the dataset, the level of difficulty.
    """

    name: str
    dataset: str
    render: Callable[[str], str] = field(repr=False)
    noise: float
    weight: float
    config: Mapping[str, Any]


def _without_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


def _search(pattern: str, question: str) -> tuple[str, ...]:
    match = re.search(pattern, question)
    if match is None:
        raise InvalidInputError(
            f"cannot find /{pattern}/ in the question {question!r}; this version of reasoning-gym "
            "words the task differently. Install reasoning-gym 0.1.25."
        )
    return match.groups()


def _arithmetic(question: str) -> str:
    return _without_spaces(_search(r"Calculate (.*)\.$", question)[0]) + "="


def _gcd(question: str) -> str:
    return f"gcd({_without_spaces(_search(r': ([0-9, ]+)', question)[0])})="


def _lcm(question: str) -> str:
    return f"lcm({_without_spaces(_search(r': ([0-9, ]+)', question)[0])})="


def _count_bits(question: str) -> str:
    return f"bits({_search(r'number ([0-9]+)', question)[0]})="


def _count_primes(question: str) -> str:
    start, end = _search(r"between ([0-9]+) and ([0-9]+)", question)
    return f"primes({start},{end})="


def _base(question: str) -> str:
    source, digits, target = _search(r"the (\S+) number (\S+) to (\S+)", question)
    number = {"binary": "2", "hexadecimal": "16"}
    source, target = (number.get(b, b.removeprefix("base-")) for b in (source, target))
    return f"{digits},{source}>{target}="


def _backward(question: str) -> str:
    (word,) = _search(r": (\S+)$", question)
    return f"rev({word})="


def _equation(question: str) -> str:
    variable, equation = _search(r"(?:value of|for) ([a-z])(?: .*?)?: (.*)$", question)
    return _without_spaces(equation).replace(variable, "x") + "?"


def _alternation(question: str) -> str:
    return f"swap({_search(r'alternating: ([01]+)', question)[0]})="


def _angle(question: str) -> str:
    angles = _search(r"are: ([-0-9.,° ]+)\.", question)[0]
    return f"ang({_without_spaces(angles).replace('.0°', '')})="


def _terms(num_terms: int, num_digits: int, operators: str) -> dict[str, Any]:
    return {
        "min_terms": num_terms,
        "max_terms": num_terms,
        "min_digits": num_digits,
        "max_digits": num_digits,
        "operators": list(operators),
        "allow_parentheses": False,
    }


def _between(unit: str, low: int, high: int) -> dict[str, Any]:
    return {f"min_{unit}": low, f"max_{unit}": high}


def _sequence(low: int, high: int, max_complexity: int) -> dict[str, Any]:
    return _between("terms", low, high) | {"max_complexity": max_complexity}


_BASES = _between("base", 2, 16)
_SMALL_EQUATION = _between("terms", 2, 2) | _between("value", 1, 20)
_PLUS_MINUS = {"operators": ("+", "-"), "operators_weights": [0.5, 0.5]}

# name, dataset, renderer, noise, weight, level. The noise rates were chosen so that the success of
# the shipped checkpoint covers all of [0, 1]: cells without noise stay mastered, cells with much
# noise get nearly hopeless although the model once knew the answers. Cells that a model of this
# size does not learn anyway have a small weight: they are the truly hopeless ones.
_TABLE: tuple[tuple[str, str, Callable[[str], str], float, float, dict[str, Any]], ...] = (
    ("sum_2x1", "basic_arithmetic", _arithmetic, 0.0, 0.5, _terms(2, 1, "+-")),
    ("sum_2x2", "basic_arithmetic", _arithmetic, 0.5, 3.0, _terms(2, 2, "+-")),
    ("sum_2x3", "basic_arithmetic", _arithmetic, 0.5, 0.3, _terms(2, 3, "+-")),
    ("sum_3x1", "basic_arithmetic", _arithmetic, 0.0, 2.0, _terms(3, 1, "+-")),
    ("sum_3x2", "basic_arithmetic", _arithmetic, 0.5, 0.2, _terms(3, 2, "+-")),
    ("product_1", "basic_arithmetic", _arithmetic, 0.3, 0.4, _terms(2, 1, "*")),
    ("product_2", "basic_arithmetic", _arithmetic, 0.3, 0.2, _terms(2, 2, "*")),
    ("gcd_20", "gcd", _gcd, 0.4, 0.6, _between("value", 1, 20)),
    ("gcd_99", "gcd", _gcd, 0.9, 0.8, _between("value", 21, 99)),
    ("lcm_12", "lcm", _lcm, 0.3, 0.4, _between("value", 1, 12)),
    ("lcm_30", "lcm", _lcm, 0.3, 0.2, _between("value", 13, 30)),
    ("bits_511", "count_bits", _count_bits, 0.5, 0.8, _between("n", 1, 511)),
    ("bits_4095", "count_bits", _count_bits, 0.8, 0.6, _between("n", 512, 4095)),
    ("primes_60", "count_primes", _count_primes, 0.4, 0.8, _between("n", 1, 60)),
    ("primes_200", "count_primes", _count_primes, 0.6, 0.3, _between("n", 61, 200)),
    ("base_31", "base_conversion", _base, 0.5, 1.0, _BASES | _between("value", 1, 31)),
    ("base_255", "base_conversion", _base, 0.5, 0.2, _BASES | _between("value", 32, 255)),
    ("backward_4", "spell_backward", _backward, 0.0, 0.4, _between("word_len", 3, 4)),
    ("backward_6", "spell_backward", _backward, 0.0, 0.7, _between("word_len", 5, 6)),
    ("backward_8", "spell_backward", _backward, 0.7, 0.7, _between("word_len", 7, 8)),
    ("sequence_1", "number_sequence", _without_spaces, 0.3, 0.8, _sequence(4, 4, 1)),
    ("sequence_2", "number_sequence", _without_spaces, 0.3, 0.5, _sequence(4, 5, 2)),
    ("equation_1", "simple_equations", _equation, 0.6, 1.0, _SMALL_EQUATION | _PLUS_MINUS),
    ("equation_2", "simple_equations", _equation, 0.3, 0.6, _SMALL_EQUATION),
    ("swaps_8", "binary_alternation", _alternation, 0.0, 0.6, _between("n", 5, 8)),
    ("swaps_11", "binary_alternation", _alternation, 0.5, 0.5, _between("n", 9, 11)),
    ("angle_3", "simple_geometry", _angle, 0.4, 0.7, _between("sides", 3, 3)),
    ("angle_4", "simple_geometry", _angle, 0.6, 0.15, _between("sides", 4, 4)),
)

CELLS: Mapping[str, Cell] = {row[0]: Cell(*row) for row in _TABLE}
"""The cells by name, easy levels of a task before hard ones."""
