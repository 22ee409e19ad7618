"""What the README shows runs as it stands and prints what it says."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_five_lines(capsys):
    exec(blocks()[0], {})
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*\)\s+# (.*)", blocks()[0])
    assert printed[: len(promised)] == promised
    assert len(promised) == 2


def test_a_loop_of_your_own():
    rng = np.random.default_rng(0)
    success = rng.random(40)
    weights = []

    def sample_and_score(batch, group_N):
        return (rng.random(len(group_N)) < success[batch][group_N]).astype(float)

    names = {
        "texts": [f"{i}+{i}=" for i in range(40)],
        "ids": [f"q{i}" for i in range(40)],
        "batches": [rng.choice(40, 16, replace=False) for _ in range(6)],
        "sample_and_score": sample_and_score,
        "update_policy": weights.append,
    }
    exec(blocks()[1], names)
    assert len(weights) == 6
    assert all(len(weight_N) == 8 * 4 for weight_N in weights)
    assert names["allocator"].step == 6


def test_it_is_short_and_without_placeholders():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert "@@" not in text
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (README.parent / link).exists(), link


def test_choosing(capsys):
    page = (README.parent / "docs" / "choosing.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)\s+# (.*)", block)
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (README.parent / "docs" / link).exists() or "LEADERBOARD" in link, link
