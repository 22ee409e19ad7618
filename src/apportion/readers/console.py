"""Reads console logs: verl's ``step:`` lines, or the dictionaries that TRL's trainers print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from apportion.readers import verl_log
from apportion.readers.scalars import Points, counted
from apportion.readers.step_rows import step_name
from apportion.readers.text_lines import lines

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRINTED = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(r"'([^']+)': ('[^']*'|[^,{}]+)")


def read(path: Path) -> Points | None:
    """Read a console log; None if no line of it is a logger's.

    A log with lines of verl's is verl's; else the printed dictionaries count. These carry no step:
    each one of training is a step, and an evaluation belongs to the step before it.
    """
    verl, printed = Points(), _Printed()
    num_bad, line = 0, "\n"
    for line in lines(path, verl):
        line = _COLOUR.sub("", line)
        if "step:" in line:
            num_bad += verl_log.add_line(line, verl)
        if "{'" in line:
            printed.add_line(line)
    torn = not line.endswith("\n")
    if len(verl):
        if num_bad:
            count = counted(num_bad, "piece", "pieces")
            verl.note(f"{count} of `step:` lines that hold no name and number were left out.")
        if torn and "step:" in line:
            verl.note("The last line has no end and may be torn; its last number was left out.")
        return verl
    if torn and line.rfind("{'") > line.rfind("}"):
        printed.points.note("The last line is torn and was left out.")
    return printed.finish()


class _Printed:
    """Numbers the dictionaries that a trainer prints."""

    def __init__(self) -> None:
        self.points = Points()
        self._num_train = 0
        self._num_counted = 0
        self._epoch = 0.0
        self._num_back = 0

    def add_line(self, line: str) -> None:
        for row in _dictionaries(line):
            if "epoch" not in row or len(row) < 2:
                continue
            name = step_name(row)
            if name is not None:
                self.points.add_row(row.pop(name), row)
                continue
            if not any(key.startswith(("eval_", "test_")) or key == "train_runtime" for key in row):
                self._num_train += 1
            self._num_counted += 1
            self._watch_epoch(row["epoch"])
            self.points.add_row(self._num_train, row)

    def finish(self) -> Points | None:
        if not len(self.points):
            return None
        if self._num_counted:
            self.points.note(
                "The printed dictionaries carry no step; steps are their order in the log."
            )
        if self._num_back:
            count = counted(self._num_back, "time", "times")
            self.points.note(
                f"The epoch falls back {count}, as after a resume; the order goes on counting."
            )
        return self.points

    def _watch_epoch(self, text: object) -> None:
        try:
            epoch = float(str(text))
        except ValueError:
            return
        self._num_back += epoch < self._epoch
        self._epoch = epoch


def _dictionaries(line: str) -> Iterator[dict[str, object]]:
    """Yield what was printed as a dictionary, numbers quoted or not."""
    for match in _PRINTED.finditer(line):
        texts = {name: text.strip().strip("'") for name, text in _PAIR.findall(match[0])}
        words: dict[str, object] = {"None": None, "True": True, "False": False}
        yield {name: words.get(text, text) for name, text in texts.items()}
