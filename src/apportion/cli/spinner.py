"""A sign of life for what takes longer than two seconds and cannot say how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_SECONDS = 2.0


@contextmanager
def late_spinner() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done, if it takes longer than two seconds."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    progress = Progress(
        SpinnerColumn("line"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task("reading", total=None)
    timer = threading.Timer(_QUIET_SECONDS, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda what: progress.update(task, description=what)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
