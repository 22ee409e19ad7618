"""The door to sweeps: runs with their learning curves, from whatever recorded them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from apportion.errors import InvalidInputError
from apportion.plan.runs import Run
from apportion.readers.found_runs import MEAN, Found, NotRecordedError, Wanted
from apportion.readers.logged_evaluations import is_output_folder, read_logged
from apportion.readers.own_evaluations import EVALUATIONS, check_one_task, read_own
from apportion.readers.run_folder import is_run_folder
from apportion.readers.run_tables import is_table_of_runs, read_table_of_runs
from apportion.readers.sources import check_exists, natural_key
from apportion.readers.tally import listed


def read_runs(
    paths: Sequence[Path],
    *,
    metric: str = MEAN,
    split: str = "held_out",
    rollouts_per_prompt: int | None = None,
    prompts_per_step: int | None = None,
    training_reward: bool = False,
) -> tuple[list[Run], list[str]]:
    r"""Read the runs of a sweep.

    Args:
        paths: CSV files of learning curves; run folders of `apportion train`; output folders of
            TRL; logs of verl; or folders that hold CSV files or folders of these kinds, at any
            depth.
        metric: ``mean``, ``best@k`` or ``worst@k`` as recorded, or the name of a column of the CSV
            or of a logged curve.
        split: problems of the evaluation, in run folders of ours.
        rollouts_per_prompt: n, for logs that do not tell it.
        prompts_per_step: B_p, for logs that do not tell it.
        training_reward: take the training reward of runs without a held-out one.

    Returns:
        The runs, and notes on what was left out or assumed.

    Raises:
        InvalidInputError: a path holds no runs, a file is damaged, settings are unknown, or the
            runs are of different tasks.
        RunFolderError: a run folder of ours is damaged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "curves.csv"
    >>> _ = path.write_text("run,n,B_p,C,reward\nmine,8,32,256,0.4\nmine,8,32,512,0.5\n")
    >>> runs, notes = read_runs([path])
    >>> runs[0].name, runs[0].num_steps, notes
    ('mine', 2.0, [])
    """
    wanted = Wanted(
        metric=metric,
        split=split,
        rollouts_per_prompt=rollouts_per_prompt,
        prompts_per_step=prompts_per_step,
        training_reward=training_reward,
    )
    found: list[Found] = []
    left_out: list[str] = []
    for source in _sources(paths):
        try:
            found += _read(source, wanted)
        except NotRecordedError as error:
            left_out.append(str(error))
    if not found:
        more = f" So it is with {len(left_out) - 1} more." if len(left_out) > 1 else ""
        raise InvalidInputError(f"{left_out[0]}{more}" if left_out else "There are no runs.")
    notes = [note for one in found for note in one.notes]
    notes += check_one_task(found)
    found = _without_repeats(found, notes)
    runs = _named_apart(found)
    notes += _about_training(found, runs)
    notes += [f"Left out: {reason}" for reason in left_out]
    return runs, list(dict.fromkeys(notes))


def _read(source: Path, wanted: Wanted) -> list[Found]:
    if source.is_file():
        is_table = is_table_of_runs(source)
        return read_table_of_runs(source, wanted) if is_table else [read_logged(source, wanted)]
    if _is_judged(source) or (is_run_folder(source) and not is_output_folder(source)):
        return [read_own(source, wanted)]
    return [read_logged(source, wanted)]


def _is_judged(folder: Path) -> bool:
    """Return whether a folder is a run of ours with evaluations of its own."""
    try:
        return is_run_folder(folder) and (folder / EVALUATIONS).stat().st_size > 0
    except OSError:
        return False


def _sources(paths: Sequence[Path]) -> list[Path]:
    """Return files and folders of one record each, every one once."""
    found: dict[Path, Path] = {}
    for path in paths:
        check_exists(path)
        inside = _runs_under(path) if path.is_dir() else []
        for one in inside or [path]:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _runs_under(folder: Path) -> list[Path]:
    """Return run folders, output folders of trainers and tables of runs in a folder.

    Each real folder is entered once; hidden ones and the inside of what was found are not.
    """
    found = []
    seen = set()
    for here, names, files in os.walk(folder, followlinks=True):
        place = Path(here)
        real = place.resolve()
        is_new = real not in seen
        seen.add(real)
        if not is_new or is_run_folder(place) or is_output_folder(place):
            found += [place] if is_new else []
            names.clear()
            continue
        names[:] = [name for name in names if not name.startswith(".")]
        tables = [place / name for name in files if name.lower().endswith(".csv")]
        found += [table for table in tables if is_table_of_runs(table)]
    return sorted(found, key=natural_key)


def _without_repeats(found: Sequence[Found], notes: list[str]) -> list[Found]:
    """Leave out runs that stand there twice: they would pass for two seeds."""
    kept: dict[tuple[object, ...], Found] = {}
    repeats: list[str] = []
    for one in found:
        run = one.run
        curve = (run.compute_T.tobytes(), run.reward_T.tobytes())
        first = kept.setdefault((*run.setting, run.seed, *curve), one)
        if first is not one:
            repeats.append(
                f"{run.name} in {one.place} repeats {first.run.name} in {first.place}, value for "
                "value, and was left out."
            )
    if repeats:
        more = f" So it is with {len(repeats) - 1:,} more." if len(repeats) > 1 else ""
        notes.append(f"{repeats[0]}{more}")
    return list(kept.values())


def _named_apart(found: Sequence[Found]) -> list[Run]:
    """Return the runs; of one name, each with its place."""
    num_of = Counter(one.run.name for one in found)
    return [
        one.run
        if num_of[one.run.name] == 1
        else replace(one.run, name=f"{one.run.name} in {_short(one)}")
        for one in found
    ]


def _short(one: Found) -> str:
    return str(one.place.parent if one.place.name == one.run.name else one.place)


def _about_training(found: Sequence[Found], runs: Sequence[Run]) -> list[str]:
    names = [run.name for one, run in zip(found, runs, strict=True) if one.is_training]
    if not names:
        return []
    others = (
        " The other runs were judged on held-out prompts: do not compare these with them."
        if len(names) < len(found)
        else ""
    )
    return [
        f"The reward of {listed(names)} is that of training prompts, which misleads: ranking by it "
        "favours small n, which go over the same prompts more often and come to know them. "
        f"Evaluate on held-out prompts.{others}"
    ]
