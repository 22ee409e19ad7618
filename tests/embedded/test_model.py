"""Contract: the shipped checkpoint is small, loads offline by the Auto classes, spells exactly."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion.embedded.cells import CHARACTERS, MAX_ANSWER_CHARS, MAX_PROMPT_CHARS
from apportion.embedded.model import (
    NUM_POSITIONS,
    build_model,
    build_tokenizer,
    checkpoint_path,
    load,
)
from apportion.errors import InvalidInputError


def test_auto_classes_load_the_shipped_checkpoint():
    model = AutoModelForCausalLM.from_pretrained(checkpoint_path(), local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(), local_files_only=True)
    num_parameters = sum(p.numel() for p in model.parameters())
    assert 450_000 < num_parameters < 550_000
    assert model.config.vocab_size == len(tokenizer) == len(CHARACTERS) + 2
    assert tokenizer("gcd(12,18)=").input_ids == build_tokenizer()("gcd(12,18)=").input_ids
    assert tokenizer.padding_side == "left"


def test_load_gives_float32_in_evaluation_mode():
    model, tokenizer = load()
    assert next(model.parameters()).dtype == torch.float32
    assert not model.training
    assert (model.config.pad_token_id, model.config.eos_token_id) == (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )


def test_shipped_files_are_few_small_and_free_of_pickle():
    files = {f.name: f.stat().st_size for f in checkpoint_path().iterdir()}
    assert set(files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "pools.csv",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 1_500_000


def test_generation_works_with_left_padding():
    model, tokenizer = load()
    prompts = ["rev(hay)=", "ang(75,40)="]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    together = model.generate(**inputs, do_sample=False, max_new_tokens=9)
    for prompt, row in zip(prompts, together, strict=True):
        alone = model.generate(
            **{k: v for k, v in tokenizer(prompt, return_tensors="pt").items() if k in inputs},
            do_sample=False,
            max_new_tokens=9,
        )
        text = tokenizer.decode(row, skip_special_tokens=True)
        assert text == tokenizer.decode(alone[0], skip_special_tokens=True)
        assert text.startswith(prompt)


@given(st.text(alphabet=CHARACTERS, max_size=30))
def test_tokenizer_is_one_token_a_character_and_loses_nothing(text: str):
    tokenizer = build_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@given(
    st.text(alphabet=CHARACTERS, max_size=MAX_PROMPT_CHARS),
    st.text(alphabet=CHARACTERS, max_size=MAX_ANSWER_CHARS),
)
def test_tokenizer_concatenates(prompt: str, answer: str):
    tokenizer = build_tokenizer()
    joined = tokenizer(prompt + answer)["input_ids"]
    assert joined == tokenizer(prompt)["input_ids"] + tokenizer(answer)["input_ids"]


def test_tokenizer_refuses_other_characters():
    with pytest.raises(Exception, match="UNK"):
        build_tokenizer()("A B")


def test_fresh_model_depends_on_its_seed_alone():
    before = torch.get_rng_state()
    a, b, c = (build_model(seed=s).state_dict() for s in (0, 0, 1))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(a[name], b[name])
    assert not torch.equal(a[name], c[name])
    assert torch.equal(before, torch.get_rng_state())
    assert MAX_PROMPT_CHARS + MAX_ANSWER_CHARS + 1 <= NUM_POSITIONS


def test_loading_an_empty_folder_names_the_command(tmp_path):
    with pytest.raises(InvalidInputError, match="apportion embedded build"):
        load(tmp_path)


def test_tasks_and_pools_do_not_import_torch():
    code = (
        "import sys; from apportion.embedded import tasks, pools; pools.pool('hard'); "
        "sys.exit('torch' in sys.modules or 'reasoning_gym' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
