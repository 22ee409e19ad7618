"""TRL's own trainer writes the dumps that are read here."""

import os
import warnings

os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")

import numpy as np
import polars as pl
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key
from apportion.readers import Columns, read
from apportion.readers.trl import TOTAL, find_components

torch.set_num_threads(1)
CHARACTERS = "abcdefghijklmnop0123456789=:? "


def tokenizer(*, chat=False):
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    vocabulary |= {character: 3 + i for i, character in enumerate(CHARACTERS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tok = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    if chat:
        tok.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return tok


def policy(tok):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tok),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
        )
    )


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def early(completions, **_):
    return [float(text_of(one)[:1] in tuple("abcdefgh")) for one in completions]


def even(completions, **_):
    return [float(len(text_of(one)) % 2 == 0) for one in completions]


def late(completions, **_):
    return [1.0 - value for value in early(completions)]


def none_of_some(completions, **_):
    return [None if text_of(one)[:1] in tuple("op0") else 1.0 for one in completions]


def run(folder, reward_funcs, *, chat=False, eval_rows=0, **options):
    """Train for a few steps; return the reward matrices that the trainer computed, by call."""
    tok = tokenizer(chat=chat)
    prompts = [f"{at:02d}=?" for at in range(8)]
    asked = [[{"role": "user", "content": one}] for one in prompts] if chat else prompts
    data = Dataset.from_dict({"prompt": asked})
    defaults = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "log_completions": True,
        "learning_rate": 1e-2,
        "beta": 0.0,
        "seed": 1,
    }
    caught = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            policy(tok),
            reward_funcs,
            args=GRPOConfig(str(folder), **(defaults | options)),
            train_dataset=data,
            eval_dataset=data.select(range(eval_rows)) if eval_rows else None,
            processing_class=tok,
        )
        stock = trainer._calculate_rewards

        def traced(inputs, *rest):
            rewards = stock(inputs, *rest)
            rows = [one["prompt"] for one in inputs]
            caught.append((trainer.model.training, rows, rewards.numpy().copy()))
            return rewards

        trainer._calculate_rewards = traced
        trainer.train()
    return caught


def expected(caught, weight_K):
    """Groups as a dictionary: (step, key) to n scored, sum, whether the reward or parts differ."""
    groups = {}
    batches = [(rows, rewards) for training, rows, rewards in caught if training]
    for step, (rows, reward_NK) in enumerate(batches, start=1):
        for prompt, reward_K in zip(rows, reward_NK, strict=True):
            key = prompt if isinstance(prompt, str) else prompt_key(prompt)
            groups.setdefault((step, key), []).append(reward_K)
    return {
        name: summary(np.array(reward_NK), np.asarray(weight_K))
        for name, reward_NK in groups.items()
    }


def summary(reward_NK, weight_K):
    known = ~np.isnan(reward_NK).all(axis=1)
    total_N = (np.nan_to_num(reward_NK) @ weight_K)[known]
    differs = bool(len(total_N) and np.ptp(total_N) > 1e-9)
    parts_NK = np.nan_to_num(reward_NK[known])
    hidden = not differs and len(total_N) > 0 and bool((np.ptp(parts_NK, axis=0) > 0).any())
    return len(reward_NK), len(total_N), round(float(total_N.sum()), 5), differs, hidden


def found(groups):
    hidden_G = groups.hidden_G if groups.hidden_G is not None else np.zeros(len(groups), bool)
    rows = zip(
        groups.step_G.tolist(),
        groups.id_Q[groups.prompt_G].tolist(),
        groups.num_requested_G.tolist(),
        groups.num_rollouts_G.tolist(),
        groups.reward_sum_G.round(5).tolist(),
        groups.signal_G.tolist(),
        hidden_G.tolist(),
        strict=True,
    )
    return {(step, key): tuple(rest) for step, key, *rest in rows}


def test_one_reward_function(tmp_path):
    caught = run(tmp_path, early)
    recording = read([tmp_path])
    assert recording.source == "TRL completions"
    assert found(recording.groups) == expected(caught, [1.0])
    assert recording.groups.hidden_G is None
    assert recording.groups.text_Q is not None
    assert set(recording.groups.text_Q) == {f"{at:02d}=?" for at in range(8)}
    assert recording.has_steps
    assert recording.notes == ()
    for path in (tmp_path / "completions", tmp_path / "completions" / "completions_00002.parquet"):
        part = found(read([path]).groups)
        assert part.items() <= found(recording.groups).items()
        assert {step for step, _ in part} == ({2} if path.suffix else {1, 2, 3})


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_weights_follow_from_the_advantages(tmp_path, scale):
    weights = [1.0, 0.25]
    caught = run(tmp_path, [early, even], scale_rewards=scale, reward_weights=weights, max_steps=4)
    recording = read([tmp_path])
    assert found(recording.groups) == expected(caught, weights)
    assert any("1 early + 0.25 even" in note for note in recording.notes)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_equal_weights_are_confirmed(tmp_path, scale):
    caught = run(tmp_path, [early, even], scale_rewards=scale)
    recording = read([tmp_path])
    assert found(recording.groups) == expected(caught, [1.0, 1.0])
    assert recording.notes == (
        "The reward is the sum of early and even; the recorded advantages agree.",
        "early and even in this dump are 0 or 1: audit one of them with --reward-column early.",
    )


def test_components_that_cancel_are_hidden_and_chats_are_keyed(tmp_path):
    caught = run(tmp_path, [early, late], chat=True)
    recording = read([tmp_path])
    groups = recording.groups
    assert found(groups) == expected(caught, [1.0, 1.0])
    assert not groups.signal_G.any()
    assert groups.hidden_G.any()
    assert set(groups.text_Q) == {f"{at:02d}=?" for at in range(8)}
    assert any("plain sum of early and late" in note for note in recording.notes)
    alone = read([tmp_path], Columns(reward="early"))
    assert found(alone.groups) == {
        name: (*rest[:4], False)
        for name, rest in expected(
            [(*one, all_NK[:, :1]) for *one, all_NK in caught], [1.0]
        ).items()
    }


def test_unscorable_completions(tmp_path):
    caught = run(tmp_path, none_of_some, max_steps=4)
    recording = read([tmp_path])
    assert found(recording.groups) == expected(caught, [1.0])
    num = sum(np.isnan(rewards).sum() for _, _, rewards in caught)
    assert num > 0
    (note,) = (one for one in recording.notes if "have no finite reward" in one)
    assert note.startswith(f"{num} of ")


def test_a_batch_that_serves_several_steps_counts_once(tmp_path):
    caught = run(tmp_path, early, max_steps=4, num_iterations=2)
    assert len(caught) == 2
    recording = read([tmp_path])
    assert np.unique(recording.groups.step_G).tolist() == [1, 3]
    assert int(recording.groups.num_rollouts_G.sum()) == 32
    assert any("2 files repeat the batch before" in note for note in recording.notes)


def test_completions_of_evaluations_are_left_out(tmp_path):
    caught = run(
        tmp_path,
        early,
        eval_rows=4,
        max_steps=5,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=16,
        save_strategy="steps",
        save_steps=5,
    )
    recording = read([tmp_path])
    # The trainer evaluates after the last step too.
    assert {step for step, _ in found(recording.groups)} == {1, 3}
    assert found(recording.groups).items() <= expected(caught, [1.0]).items()
    assert "reward" in recording.curves
    assert any("3 files hold completions of an evaluation" in note for note in recording.notes)


def test_steps_between_logs_are_said_to_be_missing(tmp_path):
    run(tmp_path, early, max_steps=6, logging_steps=2)
    recording = read([tmp_path])
    assert np.unique(recording.groups.step_G).tolist() == [2, 4, 6]
    assert any("one step in 2" in note for note in recording.notes)


@given(st.data())
def test_weights_are_found_whatever_the_scaling(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    size = data.draw(st.integers(2, 4))
    weight_K = np.array(data.draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), min_size=size)))
    weight_K = weight_K[:size]
    reward_NK = rng.integers(0, 3, (160, size)) / 2
    chunk = {"step": [1] * 160, "prompt": [f"p{at // 8}" for at in range(160)]}
    total_N = reward_NK @ weight_K
    group_N = total_N.reshape(-1, 8)
    centred = group_N - group_N.mean(axis=1, keepdims=True)
    kind = data.draw(st.sampled_from(["group", "batch", "none"]))
    scale = {
        "group": group_N.std(axis=1, ddof=1, keepdims=True) + 1e-4,
        "batch": total_N.std() + 1e-4,
        "none": 1.0,
    }[kind]
    chunk["advantage"] = (centred / scale).ravel().astype(np.float32).tolist()
    names = [f"f{at}" for at in range(size)] + ["extra"]
    columns = [*reward_NK.T, rng.normal(size=160)]
    chunk |= {name: column.tolist() for name, column in zip(names, columns, strict=True)}
    components = find_components(names, [chunk])
    assert components.names == tuple(names[:-1])
    np.testing.assert_allclose(components.weight_K, weight_K / weight_K.max(), atol=1e-4)


def test_nothing_is_claimed_where_the_advantages_do_not_tell():
    chunk = {"step": [1, 1], "prompt": ["a", "a"], "advantage": [0.0, None]}
    chunk |= {"f": [1.0, 0.0], "g": [0.0, 1.0]}
    components = find_components(["f", "g"], [chunk])
    assert components.weight_K.tolist() == [1.0, 1.0]
    assert "plain sum" in components.sentence
    assert find_components(["f"], []).sentence == ""


@given(st.data())
def test_odd_columns_never_raise_anything_else(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("trl")
    value = st.one_of(
        st.none(), st.floats(), st.integers(), st.text(max_size=5), st.booleans(), st.just([1.0])
    )
    names = ["step", "prompt", "completion", "f", "g", "advantage"]
    for at in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.lists(st.tuples(*[value] * len(names)), max_size=4))
        columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        frame = {name: pl.Series(name, column, strict=False) for name, column in columns.items()}
        path = folder / f"completions_{at:05d}.parquet"
        pl.DataFrame({k: v for k, v in frame.items() if v.dtype != pl.Object}).write_parquet(path)
    try:
        recording = read([folder])
    except InvalidInputError:
        return
    assert recording.groups is not None or recording.curves
    assert TOTAL not in " ".join(recording.notes)
