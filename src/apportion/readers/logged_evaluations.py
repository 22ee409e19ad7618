"""The learning curve of a run that TRL or verl logged: its held-out reward over rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.errors import InvalidInputError
from apportion.plan.runs import Run
from apportion.readers import curves
from apportion.readers.found_runs import (
    MEAN,
    Found,
    NotRecordedError,
    Wanted,
    allocator_of,
    averaged,
    is_choosing,
    rate,
    seed,
    sizes_of,
    whole,
)
from apportion.readers.logged_settings import trl_settings, verl_settings
from apportion.readers.own_evaluations import told_by
from apportion.readers.run_tables import NEEDED
from apportion.readers.sources import files_under
from apportion.readers.tally import Tally, listed
from apportion.recording import Curve
from apportion.validate import FloatArray, IntArray

STATE = "trainer_state.json"
VERL_LOG = "verl.log"
"""What the commands of a sweep call verl's console log, in a folder a run."""
_HELD_OUT = (
    r"eval[_/]reward",
    r"eval_(?!frac_)[^/]+_reward",
    r"val-core/.+/mean@\d+",
    r"val/test_score/.+",
    r"val-aux/.+/(?:acc|reward|score)/mean@\d+",
)
"""Names of a mean held-out reward, TRL's and verl's; the first that fits any curve counts."""
_ROUNDS = "train/num_gen_batches"
"""Rounds of sampling that a step of verl's dynamic sampling took."""
_LEAST_EXPECTED = 5.0
"""Groups without signal to be expected by chance before their absence means something."""


def is_output_folder(folder: Path) -> bool:
    """Return whether a folder is the output of one run of a trainer, or one of its checkpoints.

    That is TRL's output folder, or one where verl's console log is ``verl.log``.
    """
    return _is_of_trl(folder) or (folder / VERL_LOG).is_file()


def read_logged(path: Path, wanted: Wanted) -> Found:
    """Read the held-out reward of one run from whatever logged it.

    Args:
        path: output folder of TRL, console or file log of verl, or anything else that
            `apportion.readers.curves.read` reads.
        wanted: metric, what logs do not tell, and whether the training reward will do.

    Raises:
        NotRecordedError: it holds no such reward.
        InvalidInputError: it is no log, n or B_p is unknown, or a reward is outside [0, 1].
    """
    given, path = path, _log_in(path)
    found = curves.read(path)
    if found is None:
        raise InvalidInputError(
            f"{path} holds no runs. Give run folders, output folders of TRL, logs of verl, or a "
            f"CSV with the columns {', '.join(NEEDED)}."
        )
    curve_of, notes = found
    if any("carry no step" in note for note in notes):
        raise InvalidInputError(
            f"{path} holds what a trainer printed, without steps, so its compute is unknown. Give "
            f"its output folder with {STATE}."
        )
    settings = _settings(path)
    n, prompts = sizes_of(settings, wanted, path)
    name = _held_out(path, curve_of, wanted)
    is_training = name is None
    curve = curve_of[name] if name is not None else _training(path, curve_of)
    is_known = np.isfinite(curve.value_T)
    step_T, reward_T = curve.step_T[is_known], curve.value_T[is_known]
    spent_T = _spent(step_T, n, prompts, settings, curve_of.get(_ROUNDS))
    evaluation, is_filtered = None, False
    if is_training:
        spent_T, reward_T, num_steps = averaged(spent_T, reward_T)
        evaluation = (prompts * num_steps, n)
        is_filtered = _is_filtered(curve_of, settings, n, prompts)
    run = Run(
        name=_name(given),
        rollouts_per_prompt=n,
        prompts_per_step=prompts,
        compute_T=spent_T,
        reward_T=reward_T,
        seed=seed(settings.get("seed")),
        learning_rate=settings.get("learning_rate") or _highest_rate(curve_of),
        num_prompts=_num_prompts(curve_of, n, settings),
        evaluation=evaluation,
        allocator=settings.get("allocator", "uniform"),
        is_filtered=is_filtered,
    )
    return Found(
        run=run,
        place=given,
        is_training=is_training,
        told=settings.get("told", {}),
        notes=tuple(f"{path}: {note}" for note in notes),
    )


def _is_of_trl(folder: Path) -> bool:
    return (folder / STATE).is_file() or any(folder.glob(f"checkpoint-*/{STATE}"))


def _log_in(path: Path) -> Path:
    """Return the console log of verl where a folder holds one, else what was given."""
    log = path / VERL_LOG
    return log if log.is_file() and not _is_of_trl(path) else path


def _settings(path: Path) -> dict[str, Any]:
    """Return what is known of a run beside its log; a run folder of ours inside tells it best."""
    folder = path if path.is_dir() else path.parent
    if not _is_of_trl(folder) or (path.is_file() and path.name != STATE):
        return verl_settings(path) if path.is_file() else {}
    settings = trl_settings(folder)
    ours = files_under(folder, Tally())[1]
    if len(ours) == 1:
        told = told_by(ours[0])
        settings |= {"allocator": allocator_of(told), "told": told}
        for name in ("rollouts_per_prompt", "prompts_per_step", "seed"):
            settings[name] = settings.get(name) or told.get(name)
        settings["learning_rate"] = settings.get("learning_rate") or rate(told.get("learning_rate"))
    return settings


def _held_out(path: Path, curve_of: Mapping[str, Curve], wanted: Wanted) -> str | None:
    """Return the name of the curve of the metric; None if the training reward has to do."""
    known = [name for name, curve in curve_of.items() if np.isfinite(curve.value_T).any()]
    if wanted.metric in known:
        return wanted.metric
    patterns: Sequence[str] = _HELD_OUT
    if wanted.metric != MEAN:
        patterns = (rf"val-(?:core|aux)/.+/{re.escape(wanted.metric)}(?:/mean)?",)
    fitting: Sequence[str] = ()
    for pattern in patterns:
        fitting = fitting or [name for name in known if re.fullmatch(pattern, name)]
    if len(fitting) > 1:
        raise InvalidInputError(
            f"{path} has several held-out rewards: {listed(sorted(fitting))}. Give the name of one "
            "as --metric."
        )
    if not fitting and not wanted.training_reward:
        raise NotRecordedError(
            f"{path} has no held-out {'reward' if wanted.metric == MEAN else wanted.metric}. "
            "Evaluate on prompts that are not trained on, name another curve with --metric, or "
            "take what there is with --training-reward."
        )
    return fitting[0] if fitting else None


def _training(path: Path, curve_of: Mapping[str, Curve]) -> Curve:
    curve = curves.known(dict(curve_of)).reward
    if curve is None:
        raise NotRecordedError(f"{path} has no reward: of held-out prompts or of training.")
    return curve


def _spent(
    step_T: IntArray, n: int, prompts: int, settings: Mapping[str, Any], rounds: Curve | None
) -> FloatArray:
    """Return the rollouts spent before each evaluation.

    Dynamic sampling draws a step's prompts in rounds until enough groups have signal, and all of
    them cost. Where steps were not logged, the mean number of rounds stands in.
    """
    if rounds is None or not (np.isfinite(rounds.value_T) & (rounds.step_T > 0)).any():
        spent_T: FloatArray = step_T.astype(np.float64)
        spent_T *= settings.get("rollouts_per_step", n * prompts)
        return spent_T
    is_known = np.isfinite(rounds.value_T) & (rounds.step_T > 0)
    value_S = rounds.value_T[is_known]
    num_T = np.searchsorted(rounds.step_T[is_known], step_T, side="right")
    logged_T = np.concatenate([[0.0], np.cumsum(value_S)])[num_T]
    drawn_T: FloatArray = logged_T + float(value_S.mean()) * (step_T - num_T)
    return drawn_T * float(settings.get("prompts_per_round", prompts)) * n


def _is_filtered(
    curve_of: Mapping[str, Curve], settings: Mapping[str, Any], n: int, prompts: int
) -> bool:
    """Return whether a training reward is that of groups which were kept for their signal.

    Either the settings say so, or no group without signal was logged although chance alone makes
    them: at a mean reward m a share of at least ``m^n + (1-m)^n``.
    """
    if settings.get("is_filtered") or _ROUNDS in curve_of:
        return True
    if is_choosing(settings.get("allocator", "uniform")):
        return True
    known = curves.known(dict(curve_of))
    if known.share_without_signal is None or known.reward is None:
        return False
    share_T, mean_T = known.share_without_signal.value_T, known.reward.value_T
    mean_T = np.clip(mean_T[np.isfinite(mean_T)], 0.0, 1.0)
    expected = prompts * float((mean_T**n + (1.0 - mean_T) ** n).sum())
    return bool(np.nanmax(share_T) == 0.0) and expected > _LEAST_EXPECTED


def _highest_rate(curve_of: Mapping[str, Curve]) -> float | None:
    """Return the learning rate after warm-up."""
    curve = curves.known(dict(curve_of)).learning_rate
    return None if curve is None else rate(float(np.nanmax(curve.value_T)))


def _num_prompts(curve_of: Mapping[str, Curve], n: int, settings: Mapping[str, Any]) -> int | None:
    """Return D from how far TRL's epoch has come: ``rollouts / (n epochs)``."""
    epoch = curve_of.get("epoch")
    spent = settings.get("rollouts_per_step")
    if spent is None or epoch is None or is_choosing(settings["allocator"]):
        return None
    at, value = float(epoch.step_T[-1]), float(epoch.value_T[-1])
    return whole(at * float(spent) / (n * value)) if value > 0.0 else None


def _name(path: Path) -> str:
    place = path.resolve()
    if place.name == STATE:
        place = place.parent
    return place.parent.name if re.fullmatch(r"checkpoint-\d+", place.name) else place.name
