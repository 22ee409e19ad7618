"""A tiny policy, its tokenizer, a data set whose difficulty is set by a number, and fakes."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")

import numpy as np
import pytest
import torch
from datasets import Dataset
from packaging.version import Version
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import __version__ as trl_version

from apportion.integrations.trl import (
    AdaptiveGRPOConfig,
    AdaptiveGRPOTrainer,
    AdaptiveRLOOConfig,
    AdaptiveRLOOTrainer,
)
from apportion.types import Allocation, Forecast

torch.set_num_threads(1)

CHARACTERS = "abcdefghijklmnop0123456789=:? "
LETTERS = "abcdefghijklmnop"


def tokenizer():
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    vocabulary |= {character: 3 + i for i, character in enumerate(CHARACTERS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def chat_tokenizer():
    """Just enough of a chat for TRL to believe in tools: an answer from a to h calls `peek`."""
    tok = tokenizer()
    tok.chat_template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{{ m.content }}{% endfor %}"
    )
    tok.response_schema = {"type": "object"}

    def parse_response(ids, **_):
        text = tok.decode(ids, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "peek", "arguments": {}}}
        asked = {"tool_calls": [call]} if text[:1] in tuple("abcdefgh") else {}
        return {"role": "assistant", "content": text, **asked}

    tok.parse_response = parse_response
    return tok


def model(tok, seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tok),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def dataset(num_prompts=24):
    """The first character must be among the first d letters: a pass rate of about d / 33."""
    rows = []
    for i in range(num_prompts):
        d = [1, 2, 4, 8, 16, 16][i % 6]
        prompt, ok = f"{i:02d}:{d:02d}=?", LETTERS[:d]
        rows.append({"prompt": prompt, "ok": ok, "problem": f"p{i}", "level": d})
    return Dataset.from_list(rows)


def reward(completions, ok, **_):
    return [float(len(c) > 0 and c[0] in o) for c, o in zip(completions, ok, strict=True)]


def reward_or_none(completions, ok, **_):
    values = reward(completions, ok)
    return [None if c[:1] in "op0" else v for c, v in zip(completions, values, strict=True)]


def needs_trl(version):
    old = Version(trl_version) < Version(version)
    return pytest.mark.skipif(old, reason=f"stock TRL has it since {version}")


class FixedAllocator:
    """Cycles through a fixed pattern of sizes; remembers what it was asked and told."""

    lower, upper, reward_range = 2, None, (0.0, 1.0)

    def __init__(self, sizes):
        self.sizes, self.asked, self.told = list(sizes), [], []

    def allocate(self, prompts, budget, *, step=None):
        self.asked.append((tuple(prompts.id_B.tolist()), budget, step))
        size_B = np.array([self.sizes[i % len(self.sizes)] for i in range(len(prompts))])
        flat = Forecast.of_success(np.full(len(prompts), 0.5))
        return Allocation(
            num_rollouts_B=size_B,
            relaxed_B=size_B.astype(float),
            price=0.0,
            variance=0.5,
            uniform_variance=1.0,
            forecast=flat,
        )

    def observe(self, outcomes):
        self.told.append(outcomes)

    def state_dict(self):
        return {"count": np.array([len(self.told)])}

    def load_state_dict(self, state):
        self.told = [None] * int(state["count"][0])


class FixedChooser(FixedAllocator):
    """Gives fixed sizes, zeros among them, to heads and further candidates."""

    chooses, objective = True, "progress"

    def __init__(self, sizes):
        super().__init__(sizes)
        self.num_even = []

    def allocate(self, prompts, budget, *, step=None, prompts_per_step=None):
        self.num_even.append(prompts_per_step)
        rising = Forecast.of_success(0.2 + 0.05 * np.arange(len(prompts)))
        return replace(
            super().allocate(prompts, budget, step=step),
            forecast=rising,
            variance=np.nan,
            uniform_variance=np.nan,
            gain=1.5,
            uniform_gain=1.0,
        )


DEFAULTS = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 4,
    "max_steps": 3,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "seed": 1,
}
TRAINERS = {
    "grpo": (AdaptiveGRPOTrainer, AdaptiveGRPOConfig),
    "rloo": (AdaptiveRLOOTrainer, AdaptiveRLOOConfig),
}


class Trace:
    """Keeps a copy of every generation batch that a trainer made."""

    def __init__(self, trainer):
        self.batches = []
        stock = trainer._generate_and_score_completions

        def traced(inputs):
            output = stock(inputs)
            kept = {k: v.clone() for k, v in output.items() if isinstance(v, torch.Tensor)}
            self.batches.append(kept)
            return output

        trainer._generate_and_score_completions = traced

    def __getitem__(self, name):
        return [batch[name] for batch in self.batches]


class Gradients(TrainerCallback):
    """Sums the gradients before each step of the optimizer."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        flat = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        self.total, self.count = self.total + flat, self.count + 1


def build(folder, kind="grpo", *, stock=False, allocator=None, train_dataset=None, **options):
    """Make a trainer, ours or TRL's own of the same settings."""
    tok = options.pop("tok", None) or tokenizer()
    policy = options.pop("model", None) or model(tok)
    reward_funcs = options.pop("reward_funcs", reward)
    parts = ("callbacks", "rollout_func", "environment_factory", "tools", "eval_dataset")
    parts += ("extra_rows",)
    extra = {name: options.pop(name) for name in parts if name in options}
    trainer_class, config_class = TRAINERS[kind]
    if kind == "grpo":
        options.setdefault("scale_rewards", "batch")
    options = {**DEFAULTS, **options}
    if stock:
        trainer_class, config_class = trainer_class.__mro__[2], config_class.__mro__[2]
    else:
        extra["allocator"] = allocator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = config_class(str(folder), **options)
        return trainer_class(
            policy,
            reward_funcs,
            args=args,
            train_dataset=dataset() if train_dataset is None else train_dataset,
            processing_class=tok,
            **extra,
        )


def trained(trainer, **options):
    """Train, and return the final weights as one vector."""
    set_seed(trainer.args.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(**options)
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def logged(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


class Echo:
    """An environment that says which problem it was given and rewards it afterwards."""

    def reset(self, problem, **_):
        self.problem = problem
        return f"{problem}?"

    def peek(self) -> str:
        """Say nothing.

        Returns:
            A space.
        """
        return " "

    def _score(self):
        return float(self.problem in ("p0", "p3", "p4"))
