"""The embedded language model: a Llama of half a million parameters over characters.

The class is Hugging Face's own ``LlamaForCausalLM``, so that ``AutoModelForCausalLM`` and
``AutoTokenizer`` load the checkpoint anywhere; this file only fixes the shape, the character
tokenizer and the place of the shipped checkpoint.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from apportion.embedded.cells import CHARACTERS
from apportion.errors import InvalidInputError

PAD_TOKEN, EOS_TOKEN = "<pad>", "<eos>"
NUM_POSITIONS = 64  # prompts and completions need 27; the rest is room for experiments


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The character tokenizer: one token a character, padding on the left, no start token.

    Returns:
        A tokenizer of ``len(CHARACTERS) + 2`` tokens. It refuses other characters.

    >>> tokenizer = build_tokenizer()
    >>> tokenizer.decode(tokenizer("gcd(12,18)=")["input_ids"])
    'gcd(12,18)='
    """
    vocabulary = {t: i for i, t in enumerate((PAD_TOKEN, EOS_TOKEN, *CHARACTERS))}
    backend = Tokenizer(WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="left",
        model_max_length=NUM_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(*, seed: int = 0) -> LlamaForCausalLM:
    """A freshly initialised model: 3 layers of width 128, 4 heads, SwiGLU 256, tied embeddings.

    Args:
        seed: of the initial weights; torch's global generator is left as it was.

    Returns:
        The model in float32.
    """
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=NUM_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        rms_norm_eps=1e-6,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def checkpoint_path() -> Path:
    """Folder of the shipped checkpoint, in Hugging Face format."""
    return Path(str(resources.files("apportion.embedded"))) / "checkpoint"


def load(path: str | Path | None = None) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load the embedded model and its tokenizer, offline.

    Args:
        path: folder of a checkpoint; the shipped one by default.

    Returns:
        The model in float32 and evaluation mode, and the tokenizer.

    Raises:
        InvalidInputError: the folder holds no checkpoint.
    """
    folder = checkpoint_path() if path is None else Path(path)
    if not (folder / "config.json").is_file():
        raise InvalidInputError(
            f"{folder} holds no config.json; "
            f"build a checkpoint with `apportion embedded build --out {folder}`."
        )
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer
