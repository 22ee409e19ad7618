"""The run folder: what a run did, step by step and group by group, safe against a kill at any byte.

``run.json`` (format version, configuration, seed, package versions), ``steps.jsonl`` (a line a
step), ``batches.jsonl`` (what an experiment knows of a step beside it), ``groups.jsonl`` (a line a
group, moved into ``groups/part-*.parquet`` at each checkpoint), ``prompts.parquet`` (features of
the prompts, so that a replay knows what the run knew; no words), ``evaluations.jsonl`` with
per-problem success in ``evaluations/*.parquet``, and a ``lock``.
A step's number is the policy step that sampled it; the checkpoint of step s keeps steps below s.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from apportion.errors import RunFolderError
from apportion.state_file import replace_file
from apportion.types import Forecast, Outcomes, Prompts

if TYPE_CHECKING:
    import polars as pl

    from apportion.validate import FloatArray

FORMAT = "apportion-run"
VERSION = 1
GROUP_COLUMNS = (
    "step",
    "prompt",
    "num_requested",
    "num_rollouts",
    "reward_sum",
    "reward_sumsq",
    "num_tokens",
    "num_truncated",
    "policy_step",
    "forecast_mean",
    "forecast_var",
)
PROMPTS_FILE = "prompts.parquet"
_MOST_FEATURES = 200_000
"""Prompts beyond it are logged without features: the file would weigh more than the run."""
_JSONL = ("steps.jsonl", "batches.jsonl", "groups.jsonl", "evaluations.jsonl")
_PACKAGES = ("apportion", "numpy", "torch", "transformers", "trl", "accelerate", "datasets")


class RunLog:
    """Writes one run folder; use as a context manager or call `close`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with RunLog.create(folder, {"seed": 0}) as log:
    ...     log.log_step(0, {"reward": 0.5})
    >>> read_lines(Path(folder) / "steps.jsonl")
    [{'step': 0, 'reward': 0.5}]
    """

    def __init__(self, folder: Path, lock: TextIO) -> None:
        """Use `RunLog.create`."""
        self.folder = folder
        self._lock = lock
        self._file = {name: open(folder / name, "a", encoding="utf-8") for name in _JSONL}  # noqa: SIM115
        self._feature_of = _read_features(folder / PROMPTS_FILE)
        self._num_written = len(self._feature_of)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        config: dict[str, Any],
        *,
        resume_step: int | None = None,
        lock: TextIO | None = None,
    ) -> RunLog:
        """Open a folder for writing and lock it against a second writer.

        Args:
            folder: the run folder; made if absent.
            config: everything that defines the run; written to ``run.json``.
            resume_step: continue a run from the checkpoint of this step: every file is cut back to
                what came before it, so that no step stands twice. 0 goes on with a run that has
                no checkpoint yet; None starts from nothing.
            lock: from `lock_folder`, if the caller already holds it.

        Raises:
            RunFolderError: another process writes there, or it holds a run and `resume_step` is
                None.
        """
        path = Path(folder)
        lock = lock_folder(path) if lock is None else lock
        try:
            if resume_step is not None:
                cut_back(path, resume_step)
            elif (path / "run.json").exists():
                raise holds_a_run(path)
            described = {
                "format": FORMAT,
                "version": VERSION,
                "packages": package_versions(),
                "config": config,
            }
            replace_file(path / "run.json", json.dumps(described, indent=2).encode() + b"\n")
            return cls(path, lock)
        except BaseException:
            lock.close()
            raise

    def log_step(self, step: int, values: dict[str, Any]) -> None:
        """Append one line to ``steps.jsonl``."""
        self._append("steps.jsonl", [{"step": step, **values}])

    def log_batch(self, step: int, values: dict[str, Any]) -> None:
        """Append one line to ``batches.jsonl``: exact success, seconds, whatever is at hand."""
        self._append("batches.jsonl", [{"step": step, **values}])

    def log_groups(self, outcomes: Outcomes, forecast: Forecast | None = None) -> None:
        """Append one line a group to ``groups.jsonl``; prompts by key, never by text."""
        rows = []
        for i, prompt in enumerate(outcomes.prompt_B.tolist()):
            mean = math.nan if forecast is None else float(forecast.mean_B[i])
            var = math.nan if forecast is None else float(forecast.var_B[i])
            values = (
                outcomes.step,
                prompt,
                int(outcomes.num_requested_B[i]),
                int(outcomes.num_rollouts_B[i]),
                float(outcomes.reward_sum_B[i]),
                float(outcomes.reward_sumsq_B[i]),
                int(outcomes.num_tokens_B[i]),
                int(outcomes.num_truncated_B[i]),
                int(outcomes.policy_step_B[i]),
                mean,
                var,
            )
            rows.append(dict(zip(GROUP_COLUMNS, values, strict=True)))
        self._append("groups.jsonl", rows)

    def log_prompts(self, prompts: Prompts) -> None:
        """Keep the features of prompts not logged yet, for the next checkpoint."""
        if prompts.feature_BD is None:
            return
        for key, feature_D in zip(prompts.id_B.tolist(), prompts.feature_BD, strict=True):
            if key not in self._feature_of and len(self._feature_of) < _MOST_FEATURES:
                self._feature_of[key] = feature_D.astype(np.float32)

    def log_evaluation(
        self,
        step: int,
        *,
        compute: int,
        split: str,
        values: dict[str, float],
        prompts: list[str] | None = None,
        success_Q: FloatArray | None = None,
    ) -> None:
        """Append one evaluation, and each problem's success rate beside it if given.

        Args:
            step: policy step that was evaluated.
            compute: rollouts spent before it.
            split: name of the problems, e.g. ``pool`` or ``held_out``.
            values: what was measured (num_problems, num_samples, avg, best@k, worst@k ...).
            prompts: keys of the problems.
            success_Q: success of each problem.
        """
        if prompts is not None and success_Q is not None:
            import polars as pl

            table = pl.DataFrame({"prompt": prompts, "success": success_Q})
            name = f"{split}-{step:08d}.parquet"
            replace_file(self.folder / "evaluations" / name, _parquet(table))
        line = {"step": step, "compute": compute, "split": split, **values}
        self._append("evaluations.jsonl", [line])

    def checkpoint(self) -> None:
        """Make everything so far durable and move the groups into a parquet part."""
        for file in self._file.values():
            file.flush()
            os.fsync(file.fileno())
        self._write_features()
        groups = read_lines(self.folder / "groups.jsonl")
        if not groups:
            return
        import polars as pl

        # Lines that a kill between rename and truncation left behind are in a part already.
        seen = _last_step(self.folder)
        fresh = [group for group in groups if group["step"] > seen]
        if fresh:
            last = max(group["step"] for group in fresh)
            table = pl.DataFrame(fresh, schema=_group_schema(), infer_schema_length=None)
            replace_file(self.folder / "groups" / f"part-{last:08d}.parquet", _parquet(table))
        self._file["groups.jsonl"].truncate(0)

    def close(self) -> None:
        """Checkpoint and release the lock."""
        if self._lock.closed:
            return
        try:
            self.checkpoint()
        finally:
            self._release()

    def __enter__(self) -> RunLog:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, whatever happened: nothing already computed is lost."""
        self.close()

    def _write_features(self) -> None:
        if len(self._feature_of) == self._num_written:
            return
        import polars as pl

        width = max(map(len, self._feature_of.values()))
        table = pl.DataFrame(
            {
                "prompt": list(self._feature_of),
                "feature": [feature_D.tolist() for feature_D in self._feature_of.values()],
            },
            schema={"prompt": pl.String, "feature": pl.Array(pl.Float32, width)},
        )
        replace_file(self.folder / PROMPTS_FILE, _parquet(table))
        self._num_written = len(self._feature_of)

    def _release(self) -> None:
        for file in (*self._file.values(), self._lock):
            file.close()

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(_plain(row)) + "\n" for row in rows)
        self._file[name].write(text)
        self._file[name].flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file of ours; a torn last line is dropped with a warning, NaN comes as null."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    bad = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    if bad == [len(lines)]:
        warnings.warn(f"{path}: dropped a torn last line.", stacklevel=2)
    elif bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        warnings.warn(f"{path}: dropped {len(bad)} unreadable lines ({shown}).", stacklevel=2)
    return rows


def num_logged_steps(folder: Path) -> int:
    """Return how many steps a run has logged; cheap enough to be asked again and again."""
    try:
        return (folder / "steps.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def read_groups(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Read all groups of a run, from its parts and from the lines after them, in step order."""
    import polars as pl

    path = Path(folder)
    tables = [pl.read_parquet(part) for part in _parts(path)]
    seen = _last_step(path)
    rest = [row for row in read_lines(path / "groups.jsonl") if row["step"] > seen]
    tables.append(pl.DataFrame(rest, schema=_group_schema(), infer_schema_length=None))
    return pl.concat(tables)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the configuration that a run was started with.

    Raises:
        RunFolderError: there is no readable run of ours in the folder.
    """
    path = Path(folder) / "run.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder} holds no readable run: {error}") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise RunFolderError(f"{path} was not written by apportion.")
    version, config = described.get("version"), described.get("config")
    if isinstance(version, int) and version > VERSION:
        raise RunFolderError(
            f"{path} has version {version}, but this apportion reads up to {VERSION}. "
            "Upgrade apportion."
        )
    if not isinstance(version, int) or not isinstance(config, dict):
        raise RunFolderError(f"{path} is damaged: it lacks its version or configuration.")
    return config


def _read_features(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the features of prompts that an earlier part of the run logged."""
    if not path.exists():
        return {}
    import polars as pl

    try:
        table = pl.read_parquet(path)
        feature_QD = table["feature"].to_numpy().astype(np.float32)
        return dict(zip(table["prompt"].to_list(), feature_QD, strict=True))
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        warnings.warn(f"{path} cannot be read and is written anew: {error}", stacklevel=2)
        return {}


def cut_back(folder: Path, step: int) -> None:
    """Drop everything that a run logged at `step` or later."""
    import polars as pl

    for name in _JSONL:
        if (folder / name).exists():
            # An evaluation of the checkpointed weights belongs to what is kept.
            last = step if name == "evaluations.jsonl" and step > 0 else step - 1
            kept = [row for row in read_lines(folder / name) if row["step"] <= last]
            text = "".join(json.dumps(row) + "\n" for row in kept)
            replace_file(folder / name, text.encode())
    for part in _parts(folder):
        table = pl.read_parquet(part)
        kept_groups = table.filter(pl.col("step") < step)
        if len(kept_groups) == len(table):
            continue
        if len(kept_groups):
            last = int(kept_groups["step"].max())  # type: ignore[arg-type]
            replace_file(part.with_name(f"part-{last:08d}.parquet"), _parquet(kept_groups))
        part.unlink()
    for table_file in (folder / "evaluations").glob("*.parquet"):
        if int(table_file.stem.rpartition("-")[2]) > step:
            table_file.unlink()


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages that a result may depend on."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "groups").glob("part-*.parquet"))


def _last_step(folder: Path) -> int:
    parts = _parts(folder)
    return int(parts[-1].stem.removeprefix("part-")) if parts else -1


def _group_schema() -> dict[str, Any]:
    import polars as pl

    kinds: dict[str, Any] = dict.fromkeys(GROUP_COLUMNS, pl.Int64)
    floats = ("reward_sum", "reward_sumsq", "forecast_mean", "forecast_var")
    return kinds | {"prompt": pl.String} | dict.fromkeys(floats, pl.Float64)


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return dict(_finite(row.items()))


def _finite(items: Any) -> Iterator[tuple[str, Any]]:
    for name, value in items:
        number = value.item() if hasattr(value, "item") else value
        bad = isinstance(number, float) and not math.isfinite(number)
        yield name, None if bad else number


def holds_a_run(folder: str | os.PathLike[str]) -> RunFolderError:
    """Return the error of a writer that would begin a run where one already is."""
    return RunFolderError(f"{folder} already holds a run. Resume it, or choose another folder.")


def lock_folder(folder: str | os.PathLike[str]) -> TextIO:
    """Make a folder if need be and lock it; the lock falls when the file is closed or we die.

    Raises:
        RunFolderError: it cannot be written, or another process holds the lock.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / "lock", "a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise RunFolderError(
            f"The run folder {path} cannot be written: {error.strerror}. Name another folder."
        ) from error
    try:
        import fcntl
    except ImportError:  # no such locks on this system: the folder is then not guarded
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RunFolderError(
            f"{path} is being written by another process. "
            "Wait for it, stop it, or choose another folder."
        ) from error
    return file
