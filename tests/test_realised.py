"""Realised variance is without bias, and savings are what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.gradient_variance import LAWS
from apportion.realised import sample_variance, saving_interval, saving_of, unit_variance
from apportion.recording import GroupTable, table_of_counts
from apportion.types import Forecast


def test_sample_variance_is_numpys():
    random = np.random.default_rng(0)
    reward_GN = random.normal(size=(50, 6))
    base = table_of_counts([f"q{i}" for i in range(50)], [0] * 50, [1] * 50, 6)
    values = {name: getattr(base, name) for name in GroupTable.__slots__}
    at = base.prompt_G
    table = GroupTable(
        **(
            values
            | {
                "reward_sum_G": reward_GN[at].sum(axis=1),
                "reward_sumsq_G": (reward_GN[at] ** 2).sum(axis=1),
            }
        )
    )
    np.testing.assert_allclose(sample_variance(table), reward_GN[at].var(axis=1, ddof=1))


def test_groups_of_one_have_no_variance_and_constant_ones_none():
    table = table_of_counts(["a", "b", "c"], [0, 0, 0], [1, 3, 0], [1, 3, 0])
    found = sample_variance(table)
    assert np.isnan(found[[0, 2]]).all()
    assert found[1] == 0.0


@pytest.mark.parametrize("law", ["rloo", "dr_grpo"])
def test_the_score_of_a_decision_has_no_bias(law):
    random = np.random.default_rng(1)
    success, recorded, asked = 0.3, 8, np.array([5])
    k = random.binomial(recorded, success, size=200_000)
    scored = sample_variance(
        table_of_counts(np.arange(len(k)).astype(str), np.zeros(len(k), int), k, recorded)
    )
    truth = LAWS[law](Forecast.of_success([success]), asked)[0]
    assert scored.mean() * unit_variance(law)(asked)[0] == pytest.approx(truth, rel=0.01)


def test_other_laws_are_refused_by_name():
    with pytest.raises(InvalidInputError, match="grpo_population_std"):
        unit_variance("grpo_population_std")
    with pytest.raises(InvalidInputError, match="rloo and dr_grpo"):
        unit_variance(LAWS["grpo"])


@given(st.floats(0.1, 5.0), st.floats(0.3, 3.0))
def test_a_power_law_gives_its_saving(level, power):
    share_S = [1.0, 0.85, 0.7, 0.55, 0.4]
    # variance = gain / share**power, gain below 1: reaches 1 at share gain**(1/power).
    gain = 0.5**power
    variance_S = level * gain * np.array(share_S) ** -power
    assert saving_of(share_S, variance_S, level) == pytest.approx(0.5, abs=0.01)


@given(st.lists(st.floats(0.01, 10.0), min_size=5, max_size=5), st.floats(0.01, 10.0))
def test_savings_are_bounded_and_fall_with_the_variance(variances, level):
    share_S = [1.0, 0.85, 0.7, 0.55, 0.4]
    variance_S = np.array(variances)
    saving = saving_of(share_S, variance_S, level)
    assert saving <= 0.6 + 1e-12
    assert saving_of(share_S, 1.1 * variance_S, level) <= saving + 1e-12


def test_nothing_to_save_where_nothing_varies():
    assert saving_of([1.0, 0.5], np.zeros(2), 0.0) == 0.0


def test_the_interval_covers():
    """Of 100 records of known saving, some 95 intervals hold it."""
    random = np.random.default_rng(2)
    share_S, held = [1.0, 0.5], 0
    for seed in range(100):
        prompt_G = np.repeat(np.arange(60), 4)
        even_G = random.exponential(size=240)
        variance_SG = np.array([0.7 * even_G, 1.4 * even_G]) * random.uniform(0.8, 1.2, 240)
        low, high = saving_interval(
            share_S, variance_SG, even_G, prompt_G, num_resamples=200, seed=seed
        )
        held += low <= saving_of(share_S, np.array([0.7, 1.4]), 1.0) <= high
    assert 88 <= held <= 100
