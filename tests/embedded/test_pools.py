"""Contract: the frozen pools have their sizes, their ranges of success, and never leak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.embedded.cells import CELLS
from apportion.embedded.pools import POOL_NAMES, choose_pools, pool, read_pools, write_pools
from apportion.embedded.tasks import Problem, score, split
from apportion.errors import InvalidInputError


@pytest.mark.parametrize("name", POOL_NAMES)
def test_shipped_pool_is_well_formed(name):
    shipped = pool(name)
    assert shipped.name == name
    assert len(shipped) >= (1_000 if name == "held_out" else 1_500)
    assert len(set(shipped.prompts)) == len(shipped)
    assert set(shipped.cells) <= set(CELLS)
    assert shipped.success_Q.shape == (len(shipped),)
    assert np.all((shipped.success_Q >= 0) & (shipped.success_Q <= 1))
    expected = "held_out" if name == "held_out" else "pool"
    assert {split(p) for p in shipped.prompts} == {expected}


def test_every_cell_is_in_mixed_and_held_out():
    assert set(pool("mixed").cells) == set(CELLS) == set(pool("held_out").cells)


def test_mixed_success_spreads_over_the_unit_interval():
    p = pool("mixed").success_Q
    assert np.mean(p < 0.02) >= 0.10
    assert np.mean(p > 0.90) >= 0.05
    assert np.mean((p > 0.1) & (p < 0.9)) >= 0.30
    assert np.mean(p > 0.98) > 0
    assert np.all(np.histogram(p, 10, (0, 1))[0] > 0)


def test_hard_range():
    p = pool("hard").success_Q
    assert np.all((p >= 0.005) & (p <= 0.3))


def test_bimodal_shares():
    p = pool("bimodal").success_Q
    edge, middle = (p < 0.02) | (p > 0.98), (p >= 0.15) & (p <= 0.85)
    assert np.all(edge | middle)
    assert np.mean(edge) == pytest.approx(0.8, abs=0.005)
    assert np.any(p < 0.02)
    assert np.any(p > 0.98)


def test_held_out_is_like_mixed():
    gap = pool("held_out").success_Q.mean() - pool("mixed").success_Q.mean()
    assert abs(gap) < 0.05


@pytest.mark.parametrize("name", POOL_NAMES)
def test_frozen_success_is_that_of_the_shipped_checkpoint(name):
    pytest.importorskip("torch")
    from apportion.embedded.exact import exact_success
    from apportion.embedded.model import load

    shipped = pool(name)
    success = exact_success(*load(), shipped.prompts, shipped.answers)
    np.testing.assert_allclose(success, shipped.success_Q, atol=2e-4)


def test_frozen_answers_score_one():
    pytest.importorskip("reasoning_gym")
    assert all(score(p, p.answer) == 1 for name in POOL_NAMES for p in pool(name).problems)


def test_unknown_pool_lists_the_names():
    with pytest.raises(InvalidInputError, match="bimodal"):
        pool("easy")


def _candidates(num: int) -> list[Problem]:
    cells = list(CELLS)
    problems = [Problem(cells[i % 3], f"{i}+{i}=", str(2 * i)) for i in range(num)]
    return [p for p in problems if split(p.prompt) != "demonstration"]


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(30, 300))
def test_choice_keeps_ranges_and_never_mixes_splits(seed, num):
    candidates = _candidates(num)
    success = np.random.default_rng(seed).beta(0.3, 0.3, len(candidates))
    pools = choose_pools(candidates, success, seed=seed)
    training = {p for n in ("mixed", "hard", "bimodal") for p in pools[n].prompts}
    assert not training & set(pools["held_out"].prompts)
    edge = [p < 0.02 or p > 0.98 for p in pools["bimodal"].success_Q]
    assert sum(edge) == pytest.approx(4 * (len(edge) - sum(edge)), abs=4)
    assert all(0.005 <= p <= 0.3 for p in pools["hard"].success_Q)
    assert (
        dict(zip(pools["mixed"].prompts, pools["mixed"].success_Q, strict=True)).items()
        <= dict(zip((p.prompt for p in candidates), success, strict=True)).items()
    )


def test_pools_survive_the_file(tmp_path):
    candidates = _candidates(400)
    success = np.random.default_rng(0).random(len(candidates))
    pools = choose_pools(candidates, success)
    write_pools(tmp_path / "pools.csv", pools)
    for name, back in read_pools(tmp_path / "pools.csv").items():
        assert back.problems == pools[name].problems
        np.testing.assert_allclose(back.success_Q, pools[name].success_Q, rtol=1e-7)


def test_wrong_candidates_are_refused(tmp_path):
    shown = next(p for i in range(99) if split(p := f"{i}+1=") == "demonstration")
    with pytest.raises(InvalidInputError, match="demonstrated"):
        choose_pools([Problem("sum_2x1", shown, "1")], np.array([0.5]))
    with pytest.raises(InvalidInputError, match="success values"):
        choose_pools([], np.array([0.5]))
    with pytest.raises(InvalidInputError, match="missing"):
        read_pools(tmp_path / "pools.csv")
