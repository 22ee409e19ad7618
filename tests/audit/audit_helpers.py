"""Small recorded runs, made from lists of rewards."""

import csv
import io
import math
from collections import Counter

import cli_helpers
import numpy as np
from rich.console import Console

from apportion.audit.settings import RunFacts, recommend
from apportion.cli.audit_tables import print_audit
from apportion.metrics import has_signal
from apportion.recording import GroupTable, Recording
from apportion.replay import ReplayResult
from apportion.success_distribution import SuccessDistribution, grid

WIDTH = "80"


def group_table(groups, *, hidden=None, texts=None):
    """Make a table of (prompt, step, rewards[, tokens]); NaN rewards are not scored."""
    groups = sorted(groups, key=lambda group: group[1])
    ids = sorted({group[0] for group in groups})
    scored = [[r for r in group[2] if not math.isnan(r)] for group in groups]
    return GroupTable(
        id_Q=np.array(ids, dtype=np.str_),
        text_Q=None if texts is None else tuple(texts[one] for one in ids),
        prompt_G=np.array([ids.index(group[0]) for group in groups], dtype=np.int64),
        step_G=np.array([group[1] for group in groups], dtype=np.int64),
        policy_step_G=np.array([group[1] for group in groups], dtype=np.int64),
        num_requested_G=np.array([len(group[2]) for group in groups], dtype=np.int64),
        num_rollouts_G=np.array([len(rewards) for rewards in scored], dtype=np.int64),
        reward_sum_G=np.array([float(sum(rewards)) for rewards in scored]),
        reward_sumsq_G=np.array([float(sum(r * r for r in rewards)) for rewards in scored]),
        signal_G=np.array(
            [
                bool(rewards) and bool(has_signal(rewards, [0] * len(rewards))[0])
                for rewards in scored
            ]
        ),
        num_tokens_G=np.array(
            [group[3] if len(group) > 3 else 0 for group in groups], dtype=np.int64
        ),
        num_truncated_G=np.zeros(len(groups), dtype=np.int64),
        hidden_G=None if hidden is None else np.array(hidden),
    )


def drawn_run(seed=0, *, prompts=40, visits=6, n=8, tokens=True):
    """Draw a run in which every prompt keeps its success."""
    rng = np.random.default_rng(seed)
    success = rng.beta(0.5, 0.5, prompts)
    return [
        (
            f"prompt {at:03}",
            step,
            [float(r) for r in rng.random(n) < success[at]],
            int(rng.integers(50, 500)) if tokens else 0,
        )
        for step in range(visits)
        for at in range(prompts)
    ]


def recording_of(groups, *, reward_range=(0.0, 1.0), **options):
    table = groups if isinstance(groups, GroupTable) else group_table(groups)
    return Recording(source="test", groups=table, reward_range=reward_range, **options)


def replay_result(**changes):
    values = {
        "num_groups": 240,
        "num_steps": 6,
        "num_uniform_steps": 1,
        "rollouts_per_prompt": 8.0,
        "variance": 8.0,
        "uniform_variance": 10.0,
        "oracle_variance": 7.0,
        "saving": 0.15,
        "saving_interval": (0.1, 0.2),
        "oracle_saving": 0.25,
        "error": 0.02,
        "baseline_error": 0.1,
        "standardised_sq": 1.1,
        "coverage": 0.91,
        "edge_M": np.array([0.0, 0.5, 1.0]),
        "forecast_M": np.array([0.2, math.nan]),
        "observed_M": np.array([0.25, math.nan]),
        "num_rollouts_M": np.array([640, 0]),
        "notes": ("The truth is smoothed.",),
    }
    return ReplayResult(**(values | changes))


def kind_of(rewards, low=0.0, high=1.0):
    """Name a group in plain Python."""
    scored = [r for r in rewards if not math.isnan(r)]
    if not scored:
        return "not_scored"
    if max(scored) > min(scored):
        return "with_signal"
    return {low: "all_wrong", high: "all_right"}.get(scored[0], "in_between")


def share_of_kinds(groups, **ends):
    count = Counter(kind_of(group[2], **ends) for group in groups)
    names = ("with_signal", "all_wrong", "all_right", "in_between", "not_scored")
    return {name: count[name] / len(groups) for name in names}


def distribution_of(weight_J):
    weight_J = np.asarray(weight_J, dtype=float) / np.sum(weight_J)
    return SuccessDistribution(
        success_J=grid(len(weight_J)),
        weight_J=weight_J,
        weight_DJ=weight_J[None],
        num_moments=8,
        num_independent=100.0,
        all_wrong=0.0,
        all_right=0.0,
    )


FLAT = distribution_of([1] * 11)
ENDS = distribution_of([8, 1, 1, 1, 1, 1, 8])


def advised(distribution=FLAT, replayed=None, *, lower=None, upper=None, bounds=None, **changes):
    values = {
        "source": "CSV",
        "num_prompts": 100,
        "mean_rollouts": 8.0,
        "rollouts_per_step": 512.0,
        "mean_visits": 6.0,
    }
    run = RunFacts(**(values | changes))
    return recommend(distribution, replayed, run, lower=lower, upper=upper, replayed_bounds=bounds)


def write_run(path, groups):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "step", "reward"])
        for prompt, step, rewards, *_ in groups:
            writer.writerows([prompt, step, reward] for reward in rewards)
    return path


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", WIDTH)
    return cli_helpers.call(monkeypatch, capsys, "audit", *arguments)


def flat(text):
    return " ".join(text.split())


def printed(found, width=80, *, terminal=True, full=True):
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=terminal)
    print_audit(found, console, full=full)
    return file.getvalue()
