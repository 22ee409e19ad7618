"""Live progress of a leaderboard, on a terminal; plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from apportion.cli.progress import progress_bars

_LINES_A_STAGE = 20


class BoardDisplay:
    """Shows what is being prepared and, stage by stage, how many runs are done."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self._console, self._bars = console, bars

    def tell(self, what: str) -> None:
        """Say what is being prepared."""
        self._console.print(what)

    def stage(self, name: str) -> Callable[[int, int, str], None]:
        """Return what is called with the runs done, all runs and the name of the last one."""
        bar = self._bars.add_task(name, total=None)

        def on_done(done: int, total: int, last: str) -> None:
            self._bars.update(bar, completed=done, total=total, description=f"{name} {last}")
            every = max(total // _LINES_A_STAGE, 1)
            if not self._console.is_terminal and last and (done % every == 0 or done == total):
                self._console.print(f"{name}: {done}/{total}, last {last}")

        return on_done


@contextmanager
def board_display() -> Iterator[BoardDisplay]:
    """Show a leaderboard on standard error."""
    console = Console(stderr=True)
    with progress_bars(console) as bars:
        yield BoardDisplay(console, bars)
