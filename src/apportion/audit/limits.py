"""What a record cannot support, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from apportion.audit.filtering import Filtering
from apportion.audit.waste import Rates, is_mostly_single, tokens_of
from apportion.recording import GroupTable, Recording
from apportion.words import counted

FEW_PROMPTS = 30
FEW_VISITS = 2.0
_NO_STEPS = "Steps are not recorded"
_NO_REWARD = "no finite reward"
"""Words of the reader's own notes: a fact is said once."""
_BINARY = re.compile(r"0 or 1: audit .*--reward-column (.+)\.$")
"""How the reader's note on a column of 0 and 1 ends."""
_CHOSEN = (
    "The run chose its prompts, and those it left out are not recorded: this is no random sample "
    "of the data. Shares, other n, the largest cut, the replay and the trust in forecasts speak of "
    "the chosen prompts alone; equal groups over all of the data would as a rule waste more.",
    "What choosing bought is not in the record. Train evenly at the same budget, and compare "
    "held-out success.",
    "Whether a prompt came again depends on how it went: what is said of prompts that are always "
    "right, always wrong or forgotten rests on few looks at those left out.",
)
HOW_TO_LOG = (
    "Log single rollouts to learn the rest: TRL log_completions=True, verl "
    "trainer.rollout_data_dir=DIR, or this package's trainers with rollout_log_dir."
)


def limits_of_curves(rates: Rates) -> tuple[str, ...]:
    """Say what scalar curves alone cannot tell.

    Args:
        rates: what sampling costs, as far as the user said.
    """
    return (
        *_unpriced(rates),
        "Only scalar curves were found: which prompts were wasted, whether they were all right or "
        "all wrong, other n, what allocation would save, and forgetting cannot be said.",
        HOW_TO_LOG,
    )


def limits_of_groups(
    recording: Recording,
    groups: GroupTable,
    rates: Rates,
    *,
    is_binary: bool,
    filtering: Filtering | None,
    was_chosen: bool = False,
) -> tuple[str, ...]:
    """Say what these groups cannot support.

    Args:
        recording: the run.
        groups: its groups.
        rates: what sampling costs, as far as the user said.
        is_binary: whether rewards take two values.
        filtering: whether groups without signal are missing; None if it could not be tested.
        was_chosen: whether the record holds chosen prompts alone.
    """
    return (
        *(_CHOSEN if was_chosen else ()),
        *_missing(recording, groups, filtering),
        *(() if is_mostly_single(groups) else _tokens(groups, rates)),
        *_visits(recording, groups),
        *_sizes(recording, groups, is_binary),
    )


def _missing(
    recording: Recording, groups: GroupTable, filtering: Filtering | None
) -> Iterator[str]:
    if filtering is not None and filtering.found:
        yield (
            "Shares, other n and savings speak of the groups that were kept alone: those without "
            "signal are missing beyond chance. Log before filtering."
        )
    unscored = int((groups.num_requested_G - groups.num_rollouts_G).sum())
    if unscored:
        total = int(groups.num_requested_G.sum())
        have = "has" if unscored == 1 else "have"
        said = f"{unscored:,} of {total:,} rollouts ({unscored / total:.1%}) {have} no score. "
        yield (
            f"{'' if _is_noted(recording, _NO_REWARD) else said}Groups are judged by the rollouts "
            "with a score alone."
        )


def _tokens(groups: GroupTable, rates: Rates) -> Iterator[str]:
    if tokens_of(groups) is not None:
        return
    known = float((groups.num_tokens_G > 0).mean())
    some = f"Tokens are recorded for {known:.1%} of groups alone"
    said = some if known > 0.0 else "Tokens are not recorded"
    yield f"{said}: waste is counted in rollouts, as if all were equally long."
    yield from _unpriced(rates)


def _unpriced(rates: Rates) -> Iterator[str]:
    if rates.price_per_million_tokens is not None:
        yield (
            "The price per million tokens is not used, for the tokens are not known. Name their "
            "column with --tokens-column, or give --gpu-hours and --price-per-gpu-hour."
        )


def _visits(recording: Recording, groups: GroupTable) -> Iterator[str]:
    num_prompts = len(groups.id_Q)
    visits = len(groups) / num_prompts
    if visits < FEW_VISITS:
        yield (
            "So few second visits tell neither the saving nor what was forgotten. Audit a longer "
            "run, of two passes or more."
        )
    if num_prompts < FEW_PROMPTS:
        too_few = "is too few" if num_prompts == 1 else "are too few"
        yield (
            f"{counted(num_prompts, 'prompt')} {too_few} for intervals, which take prompts as a "
            "sample: none are shown."
        )
    if not recording.has_steps and not _is_noted(recording, _NO_STEPS):
        yield f"{_NO_STEPS}: the visits of a prompt stand in for them."


def _sizes(recording: Recording, groups: GroupTable, is_binary: bool) -> Iterator[str]:
    single = float((groups.num_rollouts_G == 1).mean())
    if 0.0 < single < 1.0:
        yield f"{single:.1%} of groups have one scored rollout and so no signal, whatever it was."
    if not is_binary:
        yield (
            "Rewards take more than two values: other n, the largest cut and forgetting need 0/1 "
            f"rewards. {_where_binary(recording.notes)}"
        )
    elif not is_mostly_single(groups):
        sizes = np.unique(groups.num_rollouts_G[groups.num_rollouts_G > 1])
        if len(sizes) == 1:
            yield (
                f"All groups have {sizes[0]} rollouts: shares at larger n are extrapolated, and "
                "their intervals hold every spread of success that the counts allow."
            )


def _is_noted(recording: Recording, words: str) -> bool:
    return any(words in note for note in recording.notes)


def _where_binary(notes: Sequence[str]) -> str:
    """Say which column has 0/1 rewards, if the reader's notes name one."""
    named = next((found[1] for note in notes if (found := _BINARY.search(note))), None)
    if named is not None:
        return f"The column {named} has them: see the notes of the reader."
    return (
        "If the record has a 0/1 column beside, such as whether the answer is right, name it with "
        "--reward-column."
    )
