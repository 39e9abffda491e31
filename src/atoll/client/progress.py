"""Progress of a transfer: told to a function, or shown where a person watches."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from atoll.client.plumbing.waiting import settle
from atoll.protocol.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

NAME_WIDTH = 30
SHOWN_AFTER = 0.5  # seconds: what is done before is not worth a look

OnProgress = Callable[[int, int | None], object]

_terminal = threading.Lock()  # one bar at a time: two would write over each other


class Progress:
    """How far a transfer is: `on_progress` is told; without it there is a bar, if standard error is a terminal."""

    def __init__(self, path: bytes, on_progress: OnProgress | None, total: int | None = None) -> None:
        self.total = total
        self._on_progress = on_progress
        self._done = 0
        self._bar = None if on_progress or not is_watched() else Bar(os.fsdecode(path))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.close()

    async def add(self, count: int) -> None:
        self._done += count
        if self._on_progress:
            await settle(self._on_progress(self._done, self.total))
        elif self._bar:
            self._bar.show(self._done, self.total)


class Bar:
    """A bar on standard error, which is gone when it is closed. There is none while there is another."""

    def __init__(self, name: str, *, after: float | None = None) -> None:
        self._name = printable(name.rstrip("/").rpartition("/")[2])[:NAME_WIDTH]  # or there is no room for figures
        self._from = time.monotonic() + (SHOWN_AFTER if after is None else after)
        self._shown: RichProgress | None = None
        self._task: TaskID | None = None

    def show(self, done: int, total: int | None) -> None:
        if self._shown is None and time.monotonic() >= self._from and _terminal.acquire(blocking=False):
            try:
                self._begin()
            except BaseException:
                _terminal.release()
                raise
        if self._shown and self._task is not None:
            self._shown.update(self._task, completed=done, total=total)

    def close(self) -> None:
        if self._shown:
            try:
                self._shown.stop()
            finally:
                self._shown = None
                _terminal.release()

    def _begin(self) -> None:
        from rich import progress  # for this alone, and it takes longer than a command
        from rich.console import Console

        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        shown = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,  # which belong to the program that we are part of
            redirect_stderr=False,
        )
        self._task = shown.add_task(self._name, total=None)
        shown.start()
        self._shown = shown


def is_watched() -> bool:
    """Whether standard error is a terminal. It may be closed, or be no file at all."""
    try:
        return bool(sys.stderr) and sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
