"""What a record cannot support, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from apportion.audit.filtering import Filtering
from apportion.recording import GroupTable, Recording

FEW_PROMPTS = 30
FEW_VISITS = 2.0
HOW_TO_LOG = (
    "Log single rollouts to learn the rest: TRL log_completions=True, verl "
    "trainer.rollout_data_dir=DIR, or this package's trainers with rollout_log_dir."
)


def limits_of_curves() -> tuple[str, ...]:
    """Say what scalar curves alone cannot tell."""
    return (
        "Only scalar curves were found: which prompts were wasted, whether they were all right or "
        "all wrong, other n, what allocation would save, and forgetting cannot be said.",
        HOW_TO_LOG,
    )


def limits_of_groups(
    recording: Recording, groups: GroupTable, *, is_binary: bool, filtering: Filtering | None
) -> tuple[str, ...]:
    """Say what these groups cannot support.

    Args:
        recording: the run.
        groups: its groups.
        is_binary: whether rewards take two values.
        filtering: whether groups without signal are missing; None if it could not be tested.
    """
    return (
        *_missing(groups, filtering),
        *_visits(recording, groups),
        *_sizes(groups, is_binary),
    )


def _missing(groups: GroupTable, filtering: Filtering | None) -> Iterator[str]:
    if filtering is not None and filtering.found:
        yield (
            "Groups without signal are missing beyond chance: the run threw them away before they "
            f"were recorded. Before that about {filtering.share_before:.0%} of groups had none; "
            "shares, other n and savings here speak of the rest alone. Log before filtering."
        )
    unscored = int((groups.num_requested_G - groups.num_rollouts_G).sum())
    if unscored:
        total = int(groups.num_requested_G.sum())
        yield (
            f"{unscored:,} of {total:,} rollouts ({unscored / total:.1%}) have no score; their "
            "groups are judged by the others."
        )
    if groups.num_tokens_G.sum() == 0:
        yield "Tokens are not recorded: waste is counted in rollouts, as if all were equally long."


def _visits(recording: Recording, groups: GroupTable) -> Iterator[str]:
    num_prompts = len(groups.id_Q)
    visits = len(groups) / num_prompts
    if visits < FEW_VISITS:
        yield (
            f"Prompts came {visits:.2g} times on average: forecasts are hardly ever checked "
            "against a second visit, so neither savings nor forgetting can be judged. Audit a "
            "longer run."
        )
    if num_prompts < FEW_PROMPTS:
        yield f"{num_prompts} prompts are too few for intervals, which take prompts as a sample."
    if not recording.has_steps:
        yield "Steps are not recorded: the visits of a prompt stand in for them."


def _sizes(groups: GroupTable, is_binary: bool) -> Iterator[str]:
    single = float((groups.num_rollouts_G == 1).mean())
    if single == 1.0:
        yield (
            "Every group has one scored rollout, so none can have signal. If several rollouts "
            "share a prompt and a step, name the columns: --prompt-column, --step-column."
        )
    elif single > 0.0:
        yield f"{single:.1%} of groups have one scored rollout and so no signal, whatever it was."
    if not is_binary:
        yield (
            "Rewards take more than two values: other n, the largest cut and forgetting need 0/1 "
            "rewards. Audit a 0/1 component with --reward-column."
        )
    elif single < 1.0:
        sizes = np.unique(groups.num_rollouts_G[groups.num_rollouts_G > 1])
        if len(sizes) == 1:
            yield (
                f"All groups have {sizes[0]} rollouts: shares at larger n are extrapolated, and "
                "their intervals hold every spread of success that the counts allow."
            )
