"""Contract: a checkpoint is built from nothing, reproducibly; noise is what the table says."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.embedded.build import build, corrupt, draw_problems, noisy_demonstrations
from apportion.embedded.cells import CELLS, CHARACTERS, MAX_ANSWER_CHARS
from apportion.embedded.exact import exact_success
from apportion.embedded.model import load
from apportion.embedded.pools import read_pools
from apportion.errors import InvalidInputError

TINY = {"clean_steps": 40, "noisy_steps": 8, "draws_per_cell": 200}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    torch.set_num_threads(1)
    calls = []
    out = build(
        tmp_path_factory.mktemp("built"), **TINY, seed=1, progress=lambda *call: calls.append(call)
    )
    return out, calls


def test_a_tiny_build_learns_and_reports_progress(built):
    _, calls = built
    assert [c[:3] for c in calls[:2]] == [("clean", 1, 40), ("clean", 2, 40)]
    assert calls[-1][:3] == ("noisy", 8, 8)
    losses = [c[3] for c in calls if c[0] == "clean"]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_build_is_a_loadable_checkpoint_with_pools(built):
    out, _ = built
    model, tokenizer = load(out)
    assert (out / "model.safetensors").stat().st_size < 1_100_000
    mixed = read_pools(out / "pools.csv")["mixed"]
    success = exact_success(model, tokenizer, mixed.prompts, mixed.answers)
    assert success == pytest.approx(mixed.success_Q, abs=1e-6)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_build_is_reproducible_from_nothing_and_from_its_clean_stage(built, tmp_path, reuse):
    out, _ = built
    again = build(tmp_path, **TINY, seed=1, clean_checkpoint=out / "clean" if reuse else None)
    for name in ("model.safetensors", "pools.csv"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    assert (again / "clean").exists() != reuse


def test_wrong_counts_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="clean_steps"):
        build(tmp_path, clean_steps=0)
    with pytest.raises(InvalidInputError, match="no config"):
        build(tmp_path, draws_per_cell=5, clean_checkpoint=tmp_path)


def test_prompts_are_distinct_across_cells():
    prompts = [p.prompt for p in draw_problems(100)]
    assert len(set(prompts)) == len(prompts)


def test_noise_rates_are_those_of_the_cells():
    problems = draw_problems(300, seed=2)
    noisy = noisy_demonstrations(problems, seed=0)
    for name, cell in CELLS.items():
        pairs = [(a, b) for a, b in zip(problems, noisy, strict=True) if a.cell == name]
        wrong = sum(a.answer != b.answer for a, b in pairs) / len(pairs)
        assert all(a.prompt == b.prompt for a, b in pairs)
        assert wrong == pytest.approx(cell.noise, abs=0.2)
        if cell.noise == 0:
            assert wrong == 0


@given(
    st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=8),
    st.integers(0, 10_000),
)
def test_corruption_is_always_wrong_and_always_writable(answer, seed):
    wrong = corrupt(answer, random.Random(seed))
    assert wrong != answer
    assert 0 < len(wrong) <= MAX_ANSWER_CHARS
    assert set(wrong) <= set(CHARACTERS)
