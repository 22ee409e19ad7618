"""What verl writes to ``trainer.rollout_data_dir``: a file a step, a line a rollout.

Fields `input`, `output`, `gts`, `score`, `step`, then whatever the reward function told, and
`uid` from verl 0.9 on. A `uid` is new at every step: it tells groups apart, not prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from apportion.readers.columns import Columns
from apportion.readers.rollouts import Chunk
from apportion.readers.tally import Tally

_FIELDS = {"input", "output", "score", "step"}
TRAJECTORY = "traj_uid"
"""Where veRL-agent tells trajectories apart, a row a turn."""
_UID = re.compile(r"(.+)_\d+_\d+")
_VALIDATION = re.compile(r"(val|valid|validation|eval|evaluation|test)(?![a-z])", re.IGNORECASE)


def is_verl(names: Sequence[str]) -> bool:
    """Return whether a table has the columns of verl's dump of rollouts."""
    return set(names) >= _FIELDS


def verl_columns(names: Sequence[str], columns: Columns) -> Columns:
    """Return the columns as verl means them, where the user named none."""
    return replace(
        columns,
        prompt=columns.prompt or "input",
        reward=columns.reward or "score",
        step=columns.step or "step",
        group=columns.group or ("uid" if "uid" in names else None),
    )


def one_group_a_uid(chunk: Chunk, tally: Tally, file: str) -> Chunk:
    """Cut session and output from ``{uid}_{session}_{output}``, and leave out rows of padding.

    >>> one_group_a_uid({"uid": ["4f_0_0", "4f_1_0", "pad7_0_0"]}, Tally(), "1.jsonl")
    {'uid': ['4f', '4f']}
    """
    uids = [uid if isinstance(uid, str) else "" for uid in chunk["uid"]]
    kept = [at for at, uid in enumerate(uids) if not uid.startswith("pad")]
    tally.add("rows", "are padding of verl and were left out", file, len(uids) - len(kept))
    rest = {name: [values[at] for at in kept] for name, values in chunk.items()}
    groups = [(_UID.fullmatch(uids[at]), uids[at]) for at in kept]
    return rest | {"uid": [found[1] if found else uid or None for found, uid in groups]}


class LastTurns:
    """Keeps the last row of each trajectory, where each turn of an agent is a row.

    The prompt is that of the first row: what later turns see differs between rollouts.

    >>> chunk = {"traj_uid": ["a", "a", "b"], "input": ["1", "2", "1"], "score": [0, 1, 0]}
    >>> turns = LastTurns([chunk], "input")
    >>> turns.of(chunk)
    {'traj_uid': ['a', 'b'], 'input': ['1', '1'], 'score': [1, 0]}
    """

    def __init__(self, chunks: Iterable[Chunk], prompt: str) -> None:
        """Read through the rows once, to learn where each trajectory ends.

        Args:
            chunks: rows with `TRAJECTORY` and the prompt.
            prompt: column of the prompt.
        """
        self._prompt = prompt
        self._first: dict[str, object] = {}
        self._last: dict[str, int] = {}
        self._num_turns = self._at = 0
        num_rows = 0
        for chunk in chunks:
            for uid, words in zip(chunk[TRAJECTORY], chunk[prompt], strict=True):
                if uid is not None:
                    self._first.setdefault(str(uid), words)
                    self._last[str(uid)] = num_rows
                    self._num_turns += 1
                num_rows += 1

    def of(self, chunk: Chunk) -> Chunk:
        """Return the last rows of trajectories among the next rows."""
        uids = chunk[TRAJECTORY]
        start, self._at = self._at, self._at + len(uids)
        kept = [
            at
            for at, uid in enumerate(uids)
            if uid is None or self._last.get(str(uid)) == start + at
        ]
        found = {name: [values[at] for at in kept] for name, values in chunk.items()}
        pairs = zip(found[TRAJECTORY], found[self._prompt], strict=True)
        found[self._prompt] = [
            words if uid is None else self._first[str(uid)] for uid, words in pairs
        ]
        return found

    def say(self, file: str, tally: Tally) -> None:
        """Count the rows that are not the last of their trajectory."""
        what = "are earlier turns of a trajectory, which counts once, by its last row"
        tally.add("rows", what, file, self._num_turns - len(self._last))


def is_validation(path: PurePath) -> bool:
    """Return whether a path below a folder names validation, in any of its parts.

    >>> is_validation(PurePath("val_rollouts/20.jsonl")), is_validation(PurePath("valley/2.jsonl"))
    (True, False)
    """
    return any(_VALIDATION.match(part) for part in path.parts)
