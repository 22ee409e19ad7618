"""What the tests of the embedded model need beyond the minimal install."""

from __future__ import annotations

import importlib.util
import os


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(p) is not None for p in packages)


collect_ignore_glob = [] if _installed("torch", "transformers", "reasoning_gym") else ["test_*.py"]
if collect_ignore_glob and os.environ.get("APPORTION_FULL_INSTALL"):
    raise RuntimeError("this job promises the extra `train`, but a part of it is missing")
