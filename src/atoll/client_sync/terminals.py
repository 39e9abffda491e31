# Generated from client/terminals.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Terminals: programs on a pty, which live on while viewers come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsIndex

from atoll.client_sync.commands import Environment
from atoll.client_sync.handles import Handle
from atoll.client_sync.plumbing.exclusive import Exclusive
from atoll.client_sync.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.client_sync.plumbing.transport import CancelScope
from atoll.client_sync.plumbing.waiting import CANCELLATIONS
from atoll.client_sync.standard_input import Stdin, input_chunks
from atoll.protocol.arguments import Directory, Word, check_directory, check_variables, wrong_argument
from atoll.protocol.errors import AtollError, ErrorCode, as_id, error
from atoll.protocol.terminals import (
    DEFAULT_COLS,
    DEFAULT_ROWS,
    MAX_WRITE,
    AttachTerminal,
    CloseTerminal,
    CreateTerminal,
    ListTerminals,
    ResizeTerminal,
    TerminalEvent,
    TerminalInfo,
    TerminalLost,
    ViewFold,
    WaitTerminal,
    WriteTerminal,
    check_size,
    exit_code_of,
    to_words,
)


class Terminals:
    """The terminals of a sandbox, for it or a session. They start in the session's directory."""

    _sandbox: RemoteSandbox
    _session_id: str

    def create_terminal(
        self,
        cols: SupportsIndex = DEFAULT_COLS,
        rows: SupportsIndex = DEFAULT_ROWS,
        shell: Word | Sequence[Word] | None = None,
        cwd: Directory | None = None,
        env: Environment | None = None,
    ) -> Terminal:
        """A program with a terminal of its own, which runs until it ends or is closed, whoever looks.

        `shell` is a program, or a list of a program and its arguments; if not given, the sandbox's bash or sh.
        """
        width, height = check_size(cols, rows)
        words, directory, variables = to_words(shell), check_directory(cwd), check_variables(env)
        call = CreateTerminal(
            cols=width, rows=height, shell=words, cwd=directory, env=variables, session_id=self._session_id
        )
        return Terminal(self._sandbox, self._sandbox.ask(call))

    def list_terminals(self) -> list[TerminalInfo]:
        """The terminals of the sandbox that run, and the latest of those that have ended."""
        return list_terminals(self._sandbox)

    def get_terminal(self, id: str) -> Terminal:
        """The terminal with this id, which must exist."""
        return Terminal(self._sandbox, find_terminal(self._sandbox, id))


class Terminal(Handle):
    """A program on a pty. Any number of viewers may look at it, from anywhere, and write to it."""

    def __init__(self, sandbox: RemoteSandbox, info: TerminalInfo) -> None:
        self._sandbox = sandbox
        self._info = info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def pid(self) -> int:
        return self._info.pid

    @property
    def command(self) -> list[str]:
        return self._info.command

    def info(self) -> TerminalInfo:
        """Its size, its viewers, its exit code, as they are now."""
        return find_terminal(self._sandbox, self.id)

    def attach(self, stdin: Stdin | None = None) -> TerminalView:
        """Look at it: first the last 256 KiB of what it showed, then what comes.

            with terminal.attach() as view:
                for data in view:
                    ...

        Leaving ends nothing but the view. `stdin` goes to the program while the view is read: text, bytes, or an
        iterable of either; a pipe or terminal opened with `buffering=0` is passed on as it comes.
        """
        return TerminalView(self, self._sandbox, stdin)

    def write(self, data: str | bytes) -> None:
        """Type something. Returns once it has been taken; a program that does not read makes it wait."""
        raw = _to_bytes(data)
        for start in range(0, len(raw), MAX_WRITE):
            self._sandbox.ask(WriteTerminal(terminal_id=self.id, data=raw[start : start + MAX_WRITE]))

    def resize(self, cols: SupportsIndex, rows: SupportsIndex) -> None:
        width, height = check_size(cols, rows)
        self._sandbox.ask(ResizeTerminal(terminal_id=self.id, cols=width, rows=height))

    def wait(self) -> int:
        """Wait for its program to end; the exit code, 128 + signal if it was killed."""
        return exit_code_of(self._sandbox.ask(WaitTerminal(terminal_id=self.id)))

    def close(self) -> int:
        """End its program and all it started, and wait for that; the exit code. Twice is fine."""
        return exit_code_of(self._sandbox.ask(CloseTerminal(terminal_id=self.id)))

    def __repr__(self) -> str:
        return f"<Terminal {self.id!r} of sandbox {self._sandbox.id!r}>"


class TerminalView(Exclusive, Iterator[bytes]):
    """A view of a terminal: what it shows, as it comes. Ends with its program; `exit_code` is known then.

    `bytes_lost` counts what a view that was read too slowly has missed. Whoever is cancelled while reading may read
    again, and misses nothing.
    """

    def __init__(self, terminal: Terminal, sandbox: RemoteSandbox, stdin: Stdin | None) -> None:
        super().__init__()
        self.terminal = terminal
        self.bytes_lost = 0
        self._sandbox = sandbox
        self._call = AttachTerminal(terminal_id=terminal.id)
        self._fold = ViewFold(self._call)
        self._stdin = None if stdin is None else input_chunks(stdin)
        self._scope = CancelScope()
        self._frames: Frames[TerminalInfo] | None = None
        self._is_over = False

    @property
    def exit_code(self) -> int | None:
        return self._fold.exit_code

    def read(self) -> bytes:
        """Some bytes as soon as there are some; none once the program has ended."""
        with self._lock.turn():
            self._check_uninterrupted()
            while not self._is_over:
                seen = self._next()
                if isinstance(seen, bytes):
                    return seen
                if isinstance(seen, TerminalLost):
                    self.bytes_lost += seen.bytes
        return b""

    def write(self, data: str | bytes) -> None:
        self.terminal.write(data)

    def resize(self, cols: SupportsIndex, rows: SupportsIndex) -> None:
        self.terminal.resize(cols, rows)

    def wait(self) -> int:
        """Read to the end, and forget it; the exit code."""
        while self.read():
            pass
        return self.terminal.wait() if self.exit_code is None else self.exit_code

    def close(self) -> None:
        self._is_over = True
        self._scope.cancel()

    def __iter__(self) -> TerminalView:
        return self

    def __next__(self) -> bytes:
        if data := self.read():
            return data
        raise StopIteration

    def __enter__(self) -> TerminalView:
        with self._lock.turn():
            self._check_uninterrupted()
            if not self._is_over:
                try:
                    self._open()
                except AtollError:
                    if not self._is_over:  # or it was closed by another task or thread
                        raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ended = "" if self.exit_code is None else f", exit_code={self.exit_code}"
        return f"<TerminalView of {self.terminal.id!r} of sandbox {self._sandbox.id!r}{ended}>"

    def _next(self) -> bytes | TerminalEvent | None:
        """The next piece of the view; None at its end."""
        try:
            seen = self._fold.take((self._open()).next())
            if seen is None:
                self._is_over = True
            return seen
        except AtollError:
            if self._is_over:  # closed by another task or thread
                return None
            self.close()
            raise
        except CANCELLATIONS:
            raise
        except BaseException as problem:
            self._was_interrupted = not isinstance(problem, Exception)  # an ordinary one is of its input
            self.close()
            raise

    def _open(self) -> Frames[TerminalInfo]:
        if self._frames is None:
            try:
                self._frames = self._sandbox.call(self._call, self._stdin, scope=self._scope)
            except CANCELLATIONS:
                # It can be opened again, but some of its input may have been sent, and that only once.
                self._was_interrupted = self._stdin is not None
                raise
        return self._frames


def list_terminals(sandbox: RemoteSandbox) -> list[TerminalInfo]:
    return (sandbox.ask(ListTerminals())).terminals


def find_terminal(sandbox: RemoteSandbox, id: str) -> TerminalInfo:
    if not isinstance(id, str) or not id:
        raise wrong_argument("id", id, "is not the id of a terminal", "Give one that list_terminals() shows.")
    for terminal in list_terminals(sandbox):
        if terminal.id == id:
            return terminal
    raise error(
        ErrorCode.TERMINAL_NOT_FOUND,
        f"sandbox {sandbox.id!r} has no terminal {id!r:.100}",
        remedy="create_terminal() makes one, list_terminals() shows those there are.",
        sandbox_id=sandbox.id,
        terminal_id=as_id(id),
    )


def _to_bytes(data: str | bytes) -> bytes:
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))
    except (TypeError, UnicodeEncodeError) as cause:
        remedy = "Give text that can be UTF-8, or bytes."
        raise wrong_argument("data", data, "cannot be typed", remedy=remedy) from cause
