"""The terminal this program was started on: every key passed through, its size followed, all as before in the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from queue import SimpleQueue

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.terminals import DEFAULT_COLS, DEFAULT_ROWS

SIGWINCH: int = getattr(signal, "SIGWINCH", 0)  # which Windows has not


def is_terminal(descriptor: int) -> bool:
    with suppress(OSError):
        return os.isatty(descriptor)
    return False


def size_of(descriptor: int) -> tuple[int, int]:
    """Columns and rows; the usual ones where it does not know its own."""
    with suppress(OSError):
        size = os.get_terminal_size(descriptor)
        return size.columns or DEFAULT_COLS, size.lines or DEFAULT_ROWS
    return DEFAULT_COLS, DEFAULT_ROWS


def check_raw_mode() -> None:
    """Windows' terminals are of another kind, which this program does not know."""
    if sys.platform == "win32":
        raise error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"a terminal of {sys.platform} cannot pass every key through: there is no termios",
            remedy="Use `atoll exec`, or run `atoll shell` on Linux, macOS or in WSL.",
            system=sys.platform,
        )


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Every key is a byte to read, Ctrl-C too, and nothing is echoed. However the block is left, it ends."""
    if sys.platform == "win32":
        raise NotImplementedError("see check_raw_mode")
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead is not lost
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class LeaveError(Exception):
    """The person at the keys wants to go, and leave the program running."""


class Escapes:
    """`~.` after Enter leaves, as people know it from ssh; `~~` is a tilde. Every other key is passed on."""

    def __init__(self) -> None:
        self._begins_line = True
        self._holds_tilde = False

    def take(self, typed: bytes) -> bytes:
        passed = bytearray()
        for key in typed:
            if self._begins_line and not self._holds_tilde and key == ord("~"):
                self._holds_tilde = True
                continue
            if self._holds_tilde and key == ord("."):
                raise LeaveError
            if self._holds_tilde and key != ord("~"):
                passed += b"~"
            self._holds_tilde = False
            passed.append(key)
            self._begins_line = key in b"\r\n"
        return bytes(passed)


class Keys(FileIO):
    """The keyboard: what is typed, as it comes."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb", closefd=False)
        self._escapes = Escapes()

    def read(self, size: int | None = -1, /) -> bytes | None:  # type: ignore[override]
        typed = super().read(-1 if size is None else size)
        return (self._escapes.take(typed) or None) if typed else typed  # None: nothing yet


class FollowedSize:
    """`tell(cols, rows)` now and after each change, in a thread: a signal may come while anything is under way."""

    def __init__(self, descriptor: int, tell: Callable[[int, int], None]) -> None:
        self._descriptor = descriptor
        self._tell = tell
        self._changes: SimpleQueue[bool] = SimpleQueue()  # which a signal handler may put into
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._before = signal.signal(SIGWINCH, lambda *_: self._changes.put(True))
        self._changes.put(True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """The thread is not waited for: its last message may be to a server that is gone."""
        signal.signal(SIGWINCH, self._before)
        self._changes.put(False)

    def _follow(self) -> None:
        told = None
        while self._changes.get():
            size = size_of(self._descriptor)
            if size != told:
                with suppress(AtollError):  # whoever reads the terminal hears of it as well
                    self._tell(*size)
                told = size
