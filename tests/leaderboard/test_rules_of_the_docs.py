"""Contract: the rules that docs/choosing.md shows run as they stand, within the budget."""

import re
from pathlib import Path

import numpy as np
import pytest

from apportion.allocator import RolloutAllocator
from apportion.embedded import step as steps
from apportion.embedded.loop import train_loop
from apportion.embedded.model import load
from apportion.embedded.pools import pool
from apportion.leaderboard.arms import arm_of
from apportion.predictor import Beta
from apportion.types import Prompts

PAGE = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")


@pytest.fixture
def rules(tmp_path, monkeypatch):
    blocks = re.findall(r"```\n(# my_rules\.py\n.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "rules_of_the_docs.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["nearest_half", "pilot"])
def test_a_rule_of_the_page_spends_what_it_is_given(name, rules):
    known = Prompts(id_B=["a", "b"], feature_BD=np.eye(2))
    rule = arm_of(f"rules_of_the_docs:{name}", known, np.zeros, rollouts_per_prompt=4).decides
    seen = []
    model, tokenizer = load()
    train_loop(
        model,
        tokenizer,
        pool("mixed").problems[:60],
        rule,
        belief=RolloutAllocator(Beta()),
        prompts_per_step=8,
        rollouts_per_prompt=4,
        candidates_per_step=24,
        num_steps=3,
        evaluation={"few": pool("held_out").problems[:2]},
        on_step=seen.append,
    )
    spent = [int(record.num_rollouts_B.sum()) for record in seen]
    assert sum(spent) == 3 * 32
    assert set(spent) <= {16, 32}  # 16: the pilots all agreed
    if name == "pilot":
        at = seen[0].trained_B
        assert (seen[0].num_rollouts_B[at] > 2).all()
        assert (seen[0].num_rollouts_B[:8] >= 2).all()


def test_the_page_names_all_that_a_step_has():
    table = PAGE.partition("| of a `step` |")[2].partition("\n\n")[0]
    public = {name for name in vars(steps.Step) if not name.startswith("_")}
    told = {*re.findall(r"`(\w+)", table)}
    # For oracles, for one published rule, and for the loop itself.
    assert public - told == {"success_B", "score_norm_B", "trained_B", "trained", "outcomes"}
