"""Progress of a transfer: a bar where a person watches, and nowhere else."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atoll.client import progress as async_progress
from atoll.client_sync import progress as sync_progress
from tests.client.halves import Half
from tests.client.peers import ContractServer
from tests.client.test_files import FileAgent, sandbox_of


class Terminal:
    """A terminal that takes the place of standard error, and somebody who reads along."""

    def __init__(self) -> None:
        self._master, far = os.openpty()
        self.file = open(far, "w")  # noqa: SIM115 (closed by the fixture)
        self._seen = bytearray()
        self._has_more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that nobody has it open any more
            while data := os.read(self._master, 65536):
                with self._has_more:
                    self._seen += data
                    self._has_more.notify_all()

    def shown(self) -> bytes:
        """What was shown since it was asked last."""
        self.file.write("<so far>")
        self.file.flush()
        with self._has_more:
            self._has_more.wait_for(lambda: b"<so far>" in self._seen)
            shown, _, rest = bytes(self._seen).partition(b"<so far>")
            self._seen = bytearray(rest)
        return shown

    @contextmanager
    def as_stderr(self) -> Iterator[None]:
        """In the test itself: pytest sets its own before."""
        ours, sys.stderr = sys.stderr, self.file
        try:
            yield
        finally:
            sys.stderr = ours

    def close(self) -> None:
        self.file.close()
        self._reader.join()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    for module in (async_progress, sync_progress):
        monkeypatch.setattr(module, "SHOWN_AFTER", 0.0)
    yield terminal
    terminal.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large file"
    path.write_bytes(bytes(3_000_000))
    return path


async def test_a_bar_is_shown_in_a_terminal_and_taken_away_again(
    half: Half, stub: ContractServer, terminal: Terminal, file: Path
) -> None:
    stub.on_call = FileAgent(b"x" * 3_000_000)
    with terminal.as_stderr():
        await half.run(sandbox_of(half, stub).upload, file, "a")
        shown = terminal.shown()
        assert b"large file" in shown and b"MB" in shown
        assert b"\x1b[?25h" in shown  # the cursor is there again
        await half.run(sandbox_of(half, stub).download, "a.txt", file)
        assert b"a.txt" in terminal.shown()


async def test_whoever_is_told_sees_no_bar(half: Half, stub: ContractServer, terminal: Terminal, file: Path) -> None:
    stub.on_call = FileAgent()
    told: list[Any] = []
    with terminal.as_stderr():
        await half.run(sandbox_of(half, stub).upload, file, "a", on_progress=lambda *how_far: told.append(how_far))
    assert told[-1][0] == told[-1][1]
    assert terminal.shown() == b""


@pytest.mark.parametrize("stderr", [io.StringIO(), None, object()], ids=["a file", "closed", "something else"])
async def test_there_is_no_bar_where_nobody_watches(
    half: Half, stub: ContractServer, file: Path, monkeypatch: pytest.MonkeyPatch, stderr: Any
) -> None:
    stub.on_call = FileAgent()
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is about colours in logs
    monkeypatch.setattr(sys, "stderr", stderr)
    await half.run(sandbox_of(half, stub).upload, file, "a")
    assert not isinstance(stderr, io.StringIO) or stderr.getvalue() == ""


async def test_a_transfer_that_is_done_at_once_shows_nothing(
    half: Half, stub: ContractServer, terminal: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (async_progress, sync_progress):
        monkeypatch.setattr(module, "SHOWN_AFTER", 3600.0)
    stub.on_call = FileAgent()
    with terminal.as_stderr():
        await half.run(sandbox_of(half, stub).upload, file, "a")
    assert terminal.shown() == b""


def test_there_is_one_bar_at_a_time(terminal: Terminal) -> None:
    first, second = sync_progress.Bar("first"), sync_progress.Bar("second")
    with terminal.as_stderr():
        for bar in (first, second):
            bar.show(1, 2)
        first.close()
        assert b"second" not in terminal.shown()
        second.show(2, 2)
        second.close()
        assert b"second" in terminal.shown()
