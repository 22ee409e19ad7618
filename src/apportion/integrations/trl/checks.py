"""What a trainer is told at construction: what cannot work, and what will be ignored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from apportion.allocator import EXPLORATION
from apportion.errors import InvalidInputError

from .config import AdaptiveRolloutConfig, check_bounds
from .rows import check_group_column, row_key

_MOST_COUNTED = 200_000
"""Rows up to which the distinct prompts of a data set are counted beforehand."""


def check_setup(trainer: Any, allocator: Any | None, extra_rows: Any | None = None) -> None:
    """Raise on settings that cannot work together; warn of those that have no effect.

    Raises:
        InvalidInputError: the configuration lacks our fields, the allocator's own bounds leave no
            split, it does not choose prompts though there are candidates, or the loss runs in a
            fused kernel that cannot weight its rows.
    """
    args: Any = trainer.args
    if not isinstance(trainer.args, AdaptiveRolloutConfig):
        raise InvalidInputError(
            f"args is a {type(args).__name__}, but adaptive rollouts need the fields of "
            "AdaptiveRolloutConfig. Use AdaptiveGRPOConfig or AdaptiveRLOOConfig: every other "
            "argument stays as it is."
        )
    # Newer releases only patch layers by this option; older ones compute the loss in it.
    fused = getattr(args, "use_liger_kernel", False) and hasattr(trainer, "compute_liger_loss")
    if fused and args.allocator_mode == "adaptive":
        raise InvalidInputError(
            "use_liger_kernel is True, but this TRL release computes the loss in a fused kernel "
            "that weights neither tokens nor KL by prompt. Set it to False, or upgrade TRL."
        )
    if args.allocator_mode == "uniform":
        if allocator is not None:
            _warn('allocator_mode is "uniform", so the allocator is not used.')
        return
    chooses = args.goal != "variance" if allocator is None else _chooses(allocator)
    if not chooses and (args.candidates > 1 or extra_rows is not None):
        raise InvalidInputError(
            f"There are prompts to choose from (candidates {args.candidates}"
            f"{' and extra_rows' if extra_rows is not None else ''}), but the allocator gives "
            'every prompt rollouts. Set its objective to "coverage", or candidates to 1.'
        )
    if allocator is None:
        return
    lower = getattr(allocator, "lower", args.lower)
    upper = getattr(allocator, "upper", args.upper)
    if (lower, upper) != (args.lower, args.upper) and (args.lower, args.upper) != (2, None):
        _warn(
            f"lower {args.lower} and upper {args.upper} of the configuration are ignored: the "
            f"allocator brings its own ({lower} and {upper})."
        )
    own_range = getattr(allocator, "reward_range", None)
    if own_range is not None and (args.reward_low, args.reward_high) not in (own_range, (0.0, 1.0)):
        _warn(
            f"reward_low {args.reward_low:g} and reward_high {args.reward_high:g} are ignored: the "
            f"allocator brings its own range {own_range}."
        )
    for name, default in (("objective", None), ("exploration", EXPLORATION)):
        wanted, own = getattr(args, name), getattr(allocator, name, None)
        if own is not None and wanted not in (default, own):
            _warn(f"{name} {wanted} is ignored: the allocator brings its own ({own}).")
    batch = args.generation_batch_size
    check_bounds(lower, batch if upper is None else upper, args.num_generations, batch)


def check_dataset(args: Any, dataset: Any, *, draws: bool = False) -> None:
    """Raise if a column that the configuration names is not there, or one would be overwritten.

    Args:
        args: a configuration with the fields of `AdaptiveRolloutConfig`.
        dataset: the training set.
        draws: whether candidates are drawn from it.

    Raises:
        InvalidInputError: names the missing column and those there are, or the one to rename; or
            the data set has too few prompts to draw candidates from, or no length.
    """
    if draws:
        _check_size(args, dataset)
    present = getattr(dataset, "column_names", None)
    if present is not None:
        _check_columns(args, present)
    if draws:
        _check_distinct(args, dataset)
    if args.prompt_key_column is None and {"image", "images"} & set(present or ()):
        _warn(
            "Prompts with images are remembered by a hash of their words alone. Name a column "
            "with a key of their own in prompt_key_column."
        )


def _check_columns(args: Any, present: Sequence[str]) -> None:
    if args.allocator_mode == "adaptive":
        check_group_column(present)
    for name in ("prompt_key_column", "prior_mean_column", "prior_count_column"):
        column = getattr(args, name)
        if column is not None and column not in present:
            raise InvalidInputError(
                f"{name} is {column!r}, but the data set has {', '.join(sorted(present))}."
            )


def _chooses(allocator: Any) -> bool:
    return bool(getattr(allocator, "chooses", False))


def _check_size(args: Any, dataset: Any) -> None:
    num_prompts = args.generation_batch_size // args.num_generations
    try:
        size = len(dataset)
    except TypeError as error:
        raise InvalidInputError(
            f"candidates is {args.candidates}, but the training set is a stream, of which no "
            "further rows can be drawn. Give one with a length, or set candidates to 1 and choose "
            'within the batch: objective="coverage" and a small num_generations.'
        ) from error
    if size < args.candidates * num_prompts:
        raise InvalidInputError(
            f"candidates is {args.candidates}, so a batch of {num_prompts} prompts chooses from "
            f"{args.candidates * num_prompts}, but the data set has {size} rows. Lower candidates "
            "or the batch, or give more prompts."
        )


def _check_distinct(args: Any, dataset: Any) -> None:
    """Raise if there are too few different prompts; looks no further than there are enough."""
    size = len(dataset)
    if size > _MOST_COUNTED:
        return
    num_prompts = args.generation_batch_size // args.num_generations
    needed = args.candidates * num_prompts
    keys: set[str] = set()
    for index in range(size):
        keys.add(row_key(dict(dataset[index]), args.prompt_key_column))
        if len(keys) == needed:
            return
    raise InvalidInputError(
        f"candidates is {args.candidates}, so a batch of {num_prompts} prompts chooses from "
        f"{needed}, but the {size} rows of the data set hold {len(keys)} distinct prompts. Lower "
        "candidates or the batch, or give more prompts."
    )


def described(trainer: Any) -> dict[str, Any]:
    """Return what defines the run, for ``run.json``; numbers are counted as apportion does."""
    args = trainer.args
    allocator = None if trainer.planner is None else trainer.planner.allocator
    rollouts_per_step = (
        args.per_device_train_batch_size
        * trainer.accelerator.num_processes
        * args.gradient_accumulation_steps
    )
    names = (
        *("allocator_mode", "lower", "weighting", "reward_low", "reward_high", "seed"),
        *("candidates", "exploration"),
        *("learning_rate", "loss_type", "scale_rewards", "beta", "num_iterations", "temperature"),
        *("max_completion_length", "steps_per_generation"),
    )
    return {
        "trainer": type(trainer).__name__,
        "model": getattr(trainer.model.config, "_name_or_path", ""),
        "rollouts_per_prompt": args.num_generations,
        "prompts_per_step": rollouts_per_step / args.num_generations,
        "num_steps": trainer.state.max_steps,
        "upper": args.most,
        "objective": getattr(allocator, "objective", args.goal),
        **{name: getattr(args, name, None) for name in names},
    }


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=4)
