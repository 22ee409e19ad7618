"""Mistakes told by the names of flags, where the library tells them by those of its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOLD = re.compile(r"(\w+)(?= is )")


def by_flag(message: str, flag_of: Mapping[str, str]) -> str:
    """Return a message about an argument as one about the flag that gave it.

    Args:
        message: of an error.
        flag_of: flag of each argument.

    >>> by_flag("prompts_per_step is 0.", {"prompts_per_step": "--prompts-per-step"})
    '--prompts-per-step is 0.'
    >>> by_flag("The rate is 0.", {"rate": "--rate"})
    'The rate is 0.'
    """
    found = _TOLD.match(message)
    if found is None or found[1] not in flag_of:
        return message
    return flag_of[found[1]] + message[found.end() :]
