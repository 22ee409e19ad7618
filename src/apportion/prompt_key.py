"""What tells prompts apart, and what they say: a stable key, and the words."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def prompt_key(prompt: Any) -> str:
    """Return 16 hexadecimal digits that depend on the prompt's content alone.

    The same in every process and on every machine; a list of chat messages is hashed as JSON.

    >>> prompt_key("12+7=") == prompt_key("12+7=") != prompt_key("12+8=")
    True
    """
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def prompt_text(prompt: Any) -> str:
    r"""Return the words of a prompt: a string as it is, a conversation line by line.

    >>> prompt_text([{"role": "user", "content": "12+7="}])
    '12+7='
    """
    if isinstance(prompt, str):
        return prompt
    words = []
    for message in prompt:
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        words += [part["text"] for part in parts if part.get("text")]
    return "\n".join(words)
