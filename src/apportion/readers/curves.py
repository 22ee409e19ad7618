"""The door to scalar logs: which logger wrote a path, and the curves that an audit needs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from apportion.errors import InvalidInputError, first_line
from apportion.readers import (
    console,
    rows,
    tensorboard,
    trainer_state,
    wandb_binary,
    wandb_history,
)
from apportion.readers.scalars import Points
from apportion.readers.text_lines import head_text, is_text, json_array, json_lines, whole_json
from apportion.recording import Curve

_LOGS = ("steps.jsonl", "metrics.jsonl", "logging.jsonl")
"""What a run folder calls its scalars: ours, tinker-cookbook's and prime-rl's, ms-swift's."""

_TRL = {
    "reward": ("reward",),
    "share_without_signal": ("frac_reward_zero_std",),
    "completion_length": ("completions/mean_length", "completion_length"),
    "truncated_share": ("completions/clipped_ratio",),
    "num_tokens": ("num_tokens", "num_input_tokens_seen"),
    "step_seconds": ("step_time",),
    "entropy": ("entropy",),
    "kl": ("kl",),
    "learning_rate": ("learning_rate",),
}
_VERL = {
    "reward": ("critic/score/mean", "critic/rewards/mean"),
    "completion_length": ("response_length/mean",),
    "truncated_share": ("response_length/clip_ratio",),
    "step_seconds": ("timing_s/step", "perf/time_per_step", "timing/step"),
    "generation_seconds": ("timing_s/gen", "timing/gen"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl"),
    "learning_rate": ("actor/lr",),
}
_OURS = {
    "reward": ("reward_prompt_mean",),
    "share_without_signal": ("frac_groups_without_signal",),
}
# What our adapter logs counts prompts alike, however many rollouts each got: it goes first.
_PREFIXED = (
    (("", "rollouts/", "train/rollouts/"), _OURS),
    (("", "train/"), _TRL),
    (("",), _VERL),
    (("eval_", "eval/"), _TRL),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCurves:
    """What an audit looks for in a log; None where the log does not tell.

    Attributes:
        reward: mean reward.
        share_without_signal: share of groups (TRL: of rollouts) whose rewards are all equal.
        completion_length: mean tokens of a completion.
        truncated_share: share of completions that hit the length limit.
        num_tokens: tokens so far, prompts included.
        step_seconds: time of a step.
        generation_seconds: the part of it that sampling took.
        entropy: of the policy, per token.
        kl: divergence from the reference policy.
        learning_rate: of the step.
    """

    reward: Curve | None = None
    share_without_signal: Curve | None = None
    completion_length: Curve | None = None
    truncated_share: Curve | None = None
    num_tokens: Curve | None = None
    step_seconds: Curve | None = None
    generation_seconds: Curve | None = None
    entropy: Curve | None = None
    kl: Curve | None = None
    learning_rate: Curve | None = None


def read(path: Path) -> tuple[dict[str, Curve], list[str]] | None:
    r"""Read the scalar log at a path.

    Reads ``trainer_state.json`` or an output folder of transformers and TRL; verl's ``file`` log
    and console lines; dictionaries that a trainer printed; TensorBoard event files or folders; W&B
    history as a table of any form, JSON or a run folder; and plain rows with a ``step``.

    Args:
        path: a file or a folder.

    Returns:
        Curves by the logger's own names and notes on what was left out; None if the path holds no
        scalar log.

    Raises:
        InvalidInputError: the path cannot be read, or holds several W&B runs.
        MissingExtraError: an event file without tensorboard, a ``.wandb`` file without wandb.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "train.log"
    >>> _ = log.write_text("step:1 - critic/score/mean:0.25 - actor/lr:1e-06\n")
    >>> curves, notes = read(log)
    >>> curves["critic/score/mean"].value_T, notes
    (array([0.25]), [])
    """
    try:
        points = _read_folder(path) if path.is_dir() else _read_file(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {first_line(error)}.") from error
    return None if points is None else points.finish()


def known(curves: dict[str, Curve]) -> KnownCurves:
    """Pick the curves that an audit needs, by the names that TRL, verl and we give them.

    Names of training go before names of evaluation; a curve without a finite value is passed over.

    >>> from apportion.validate import FloatArray
    >>> curve = Curve(step_T=np.array([1]), value_T=np.array([0.5]))
    >>> found = known({"train/reward": curve, "timing_s/gen": curve})
    >>> found.reward is curve, found.generation_seconds is curve, found.kl
    (True, True, None)
    """
    found: dict[str, Curve] = {}
    for prefixes, names_of in _PREFIXED:
        for wanted, names in names_of.items():
            for name in (prefix + name for name in names for prefix in prefixes):
                curve = curves.get(name)
                if curve is not None and np.isfinite(curve.value_T).any():
                    found.setdefault(wanted, curve)
    return KnownCurves(**{one.name: found.get(one.name) for one in fields(KnownCurves)})


def _read_file(path: Path) -> Points | None:
    if not path.is_file():
        if not path.exists():
            raise InvalidInputError(f"{path} does not exist.")
        return None
    if tensorboard.is_event_file(path):
        return tensorboard.read([path], path.parent)
    if wandb_binary.is_log(path):
        return wandb_binary.read(path)
    if path.name == "wandb-summary.json":
        return None
    if not is_text(path):
        return rows.read_table(path)
    found = rows.read_csv(path) if path.suffix.lower() == ".csv" else _read_text(path)
    return rows.read_table(path, rows.SEPARATED) if found is None else found


def _read_text(path: Path) -> Points | None:
    head = head_text(path)
    points = Points()
    if trainer_state.is_state(head):
        return trainer_state.read(path)
    if wandb_history.is_columns(head):
        return wandb_history.read_columns(whole_json(path), points)
    if rows.is_jsonl(head):
        return rows.read(json_lines(path, points), points)
    if head.startswith("[") and head[1:].lstrip().startswith("{"):
        return rows.read(json_array(path, points), points)
    if head.startswith("{") and path.suffix.lower() == ".json":
        return None
    return console.read(path)


def _read_folder(path: Path) -> Points | None:
    points = trainer_state.read_folder(path)
    if points is not None:
        return points
    wandb_log = wandb_binary.find(path)
    if wandb_log is not None:
        return _read_file(wandb_log)
    events = tensorboard.find(path)
    if events:
        return tensorboard.read(events, path)
    for name in _LOGS:
        if (path / name).is_file():
            return _read_file(path / name)
    return None
