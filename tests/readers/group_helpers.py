"""An oracle for groups: plain dictionaries."""

import json
import math

import numpy as np


def rollouts(seed, *, num_steps=3, num_prompts=5, texts=False):
    """Random rollouts of a run: rows with step, prompt and reward, groups of unequal sizes."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, num_steps + 1):
        chosen = rng.permutation(num_prompts)[: rng.integers(1, num_prompts + 1)]
        for prompt in chosen.tolist():
            words = f"Problem {prompt}: what is {prompt} + 1? " + "Explain. " * (prompt * 5)
            kind = rng.integers(0, 3)
            for _ in range(rng.integers(1, 6)):
                reward = [float(rng.integers(0, 2)), 0.5, rng.integers(-4, 5) / 4][kind]
                row = {
                    "step": step,
                    "prompt": words if texts else f"p{prompt}",
                    "reward": reward,
                    "num_tokens": int(rng.integers(1, 50)),
                    "truncated": bool(rng.integers(0, 2)),
                }
                rows.append(row)
    return rows


def record(steps, *, seed=0, num_prompts=20, a_step=5, n=4):
    """Rollouts of a run that permutes its prompts anew at each pass."""
    rng = np.random.default_rng(seed)
    order, rows = [], []
    for step in steps:
        order = order if len(order) >= a_step else rng.permutation(num_prompts).tolist()
        chosen, order = order[:a_step], order[a_step:]
        for prompt in chosen:
            for reward in (rng.random(n) < (1 + prompt) / (2 + num_prompts)).tolist():
                rows.append({"step": step, "prompt": f"p{prompt}", "reward": float(reward)})
    return rows


def write(path, rows):
    """Write rows as JSON lines; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def oracle(rows):
    """Aggregate with dictionaries: (step, prompt) to the fields of a group, in order."""
    groups = {}
    for row in rows:
        one = groups.setdefault(
            (row["step"], row["prompt"]),
            {"requested": 0, "rewards": [], "tokens": 0, "truncated": 0},
        )
        one["requested"] += 1
        if row["reward"] is not None and math.isfinite(row["reward"]):
            one["rewards"].append(row["reward"])
        one["tokens"] += row.get("num_tokens", 0)
        one["truncated"] += row.get("truncated", False)
    return {key: _summary(**groups[key]) for key in sorted(groups, key=lambda key: key[0])}


def _summary(requested, rewards, tokens, truncated):
    return {
        "requested": requested,
        "num": len(rewards),
        "sum": round(math.fsum(rewards), 9),
        "sumsq": round(math.fsum(r * r for r in rewards), 9),
        "signal": bool(rewards) and max(rewards) - min(rewards) > 1e-9,
        "tokens": tokens,
        "truncated": truncated,
    }


def as_dict(groups, *, by_text=False):
    """Return a `GroupTable` as the oracle does."""
    names = groups.text_Q if by_text else groups.id_Q.tolist()
    assert (np.diff(groups.step_G) >= 0).all()
    assert len({(int(s), int(p)) for s, p in zip(groups.step_G, groups.prompt_G, strict=True)}) <= (
        len(groups)
    )
    table = zip(
        groups.step_G.tolist(),
        groups.prompt_G.tolist(),
        groups.num_requested_G.tolist(),
        groups.num_rollouts_G.tolist(),
        groups.reward_sum_G.round(9).tolist(),
        groups.reward_sumsq_G.round(9).tolist(),
        groups.signal_G.tolist(),
        groups.num_tokens_G.tolist(),
        groups.num_truncated_G.tolist(),
        strict=True,
    )
    fields = ("requested", "num", "sum", "sumsq", "signal", "tokens", "truncated")
    return {(step, names[at]): dict(zip(fields, rest, strict=True)) for step, at, *rest in table}
