"""The recipe against what the playbook printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan.prior import DIFFICULTIES
from apportion.plan.recipe import (
    Anchor,
    least_prompts,
    passes_of_best,
    rate_warnings,
    regularisation_of,
    regularisation_reason,
)


@pytest.mark.parametrize(
    ("batch", "rate"), [(1024, 1e-6), (8192, 2.83e-6), (16_384, 4e-6), (65_536, 8e-6)]
)
def test_the_rule_gives_the_printed_rates(batch, rate):
    assert Anchor().rate_at(batch) == pytest.approx(rate, rel=1e-3)


@given(st.floats(1e-9, 1e-3), st.floats(1 / 1024, 256.0), st.integers(1024, 10**6))
def test_the_rate_is_the_root_of_the_batch(rate, times, tuned_at):
    batch = int(np.ceil(times * tuned_at))
    anchor = Anchor(learning_rate=rate, batch=tuned_at)
    assert anchor.rate_at(tuned_at) == pytest.approx(rate)
    assert anchor.rate_at(4 * batch) == pytest.approx(2 * anchor.rate_at(batch))
    linear = rate * batch / tuned_at
    assert min(rate, linear) <= anchor.rate_at(batch) * (1 + 1e-12)
    assert anchor.rate_at(batch) <= max(rate, linear) * (1 + 1e-12)


def test_both_terms_on_easy_problems_neither_elsewhere():
    for name in DIFFICULTIES:
        found = regularisation_of(name)
        assert found.kl_term == found.entropy_term == (name == "easy")
        sizes = (found.kl_coefficient, found.entropy_coefficient)
        assert sizes == ((0.01, 0.001) if name == "easy" else (None, None))
    assert "not published" in regularisation_reason("easy").text


def test_the_rule_is_warned_of_outside_its_test():
    assert rate_warnings(Anchor(), 1024) == rate_warnings(Anchor(), 8192) == []
    assert "nobody tested" in rate_warnings(Anchor(), 1023)[0]
    beyond = rate_warnings(Anchor(), 8193)[0]
    assert "up to 8 times" in beyond
    assert "collapsed" not in beyond
    assert "collapsed" in rate_warnings(Anchor(), 16_384)[0]
    assert rate_warnings(Anchor(learning_rate=1e-5, batch=16_384), 16_384) == []


@given(st.floats(1 / 1024, 1024.0), st.integers(1024, 10**5))
def test_only_one_to_eight_times_the_tuned_batch_goes_without_a_warning(times, tuned_at):
    batch = min(int(np.ceil(times * tuned_at)), 1024 * tuned_at)
    is_tested = tuned_at <= batch <= 8 * tuned_at
    assert (rate_warnings(Anchor(batch=tuned_at), batch) == []) == is_tested


def test_prompts_and_passes():
    assert [least_prompts(name) for name in DIFFICULTIES] == [32, 64, 64]
    easy, hard, mixed = map(passes_of_best, DIFFICULTIES)
    assert easy == pytest.approx(0.394e6 / (8 * 6000))
    assert hard == pytest.approx(10e6 / (128 * 5000))
    assert mixed == min(easy, hard)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"learning_rate": 0.0}, "above 0"),
        ({"learning_rate": np.nan}, "finite"),
        ({"batch": 0}, "at least 1"),
        ({"batch": 1.5}, "whole"),
    ],
)
def test_mistakes_are_named(arguments, told):
    with pytest.raises(InvalidInputError, match=told):
        Anchor(**arguments)
    with pytest.raises(InvalidInputError, match="easy, hard, mixed"):
        regularisation_of("simple")


def test_the_rule_is_not_carried_far():
    yours = Anchor(learning_rate=2e-6, batch=1024)
    assert yours.reaches(1024**2)
    assert yours.reaches(1)
    for anchor, batch in ((yours, 1024**2 + 1), (Anchor(learning_rate=0.05, batch=8), 64)):
        assert not anchor.reaches(batch)
        with pytest.raises(InvalidInputError):
            anchor.rate_at(batch)
    assert Anchor().rate_at(2048 * 2000) > 0
