"""Terminals: what a host asks of an agent, what both say about them, and what a viewer makes of the frames.

A terminal is a program with a pty. It lives until its program ends or it is closed, whoever looks at it: viewers come
and go. What it shows is bytes, counted from its beginning; the last REPLAY_BYTES of them are kept for a new viewer.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, cast

import msgspec

from atoll.protocol.arguments import to_text, to_whole, wrong_argument
from atoll.protocol.calls import MAX_SHOWN, Call, event, misbehaved, result
from atoll.protocol.durations import Moment
from atoll.protocol.errors import Context, ErrorCode
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.ids import SaidId
from atoll.protocol.plain import Plain
from atoll.protocol.said import Count, ExitCode, Pid

REPLAY_BYTES = 256 * 1024
MAX_WRITE = 64 * 1024  # of one WriteTerminal
MAX_SIZE = 65_535  # columns or rows, as the kernel counts them
MAX_LISTED = 256  # terminals, of which an agent keeps some 40
Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
DEFAULT_COLS, DEFAULT_ROWS = 80, 24


class TerminalInfo(Plain, frozen=True, kw_only=True):
    """`exit_code` is None while its program runs."""

    id: SaidId
    pid: Pid
    cols: Size
    rows: Size
    command: list[str]
    created_at: Moment
    viewers: Count
    exit_code: ExitCode | None = None


class TerminalList(msgspec.Struct, frozen=True, kw_only=True):
    terminals: Annotated[list[TerminalInfo], msgspec.Meta(max_length=MAX_LISTED)]


class TerminalCall(Call[TerminalInfo], frozen=True, kw_only=True):
    """A call about one terminal."""

    asks = True

    terminal_id: str

    @property
    def subject(self) -> Context:
        return {"terminal_id": self.terminal_id[:MAX_SHOWN]}


class CreateTerminal(Call[TerminalInfo], frozen=True, kw_only=True, tag="create_terminal"):
    """Answered once its program runs.

    Without `shell` that is bash, or sh where there is none. `cwd` counts from the directory of the session, or from
    /workspace. `env` is added to the session's variables; None takes one away.
    """

    cols: int = DEFAULT_COLS
    rows: int = DEFAULT_ROWS
    shell: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    session_id: str | None = None


class AttachTerminal(TerminalCall, frozen=True, kw_only=True, tag="attach_terminal"):
    """DATA with the last of what it showed, EVENT TerminalReady, then DATA as it comes; answered at its end.

    INPUT goes to the program. Between DATA there may be EVENT TerminalLost and TerminalResized.
    """

    @property
    def patience(self) -> float | None:
        return None


class WriteTerminal(TerminalCall, frozen=True, kw_only=True, tag="write_terminal"):
    """Input for its program, MAX_WRITE bytes at most. Answered once there is room for it."""

    data: bytes

    @property
    def patience(self) -> float | None:
        return None


class ResizeTerminal(TerminalCall, frozen=True, kw_only=True, tag="resize_terminal"):
    """Its program gets SIGWINCH."""

    cols: int
    rows: int


class WaitTerminal(TerminalCall, frozen=True, kw_only=True, tag="wait_terminal"):
    """Answered once its program has ended."""

    changes: ClassVar[bool] = False

    @property
    def patience(self) -> float | None:
        return None


class CloseTerminal(TerminalCall, frozen=True, kw_only=True, tag="close_terminal"):
    """End its program and all it started, but daemons: SIGHUP, then SIGKILL. Twice is fine."""


class ListTerminals(Call[TerminalList], frozen=True, kw_only=True, tag="list_terminals"):
    """The terminals that run, and the latest of those that have ended."""

    changes: ClassVar[bool] = False

    asks = True


class TerminalReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The point between the replay and what happens: from here on it is live."""

    terminal: TerminalInfo


class TerminalLost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The viewer is so slow that it missed this many bytes here."""

    bytes: Count


class TerminalResized(msgspec.Struct, frozen=True, kw_only=True, tag="resized"):
    """By whom is not said: perhaps by this viewer."""

    cols: Size
    rows: Size


TerminalEvent = TerminalReady | TerminalLost | TerminalResized


def check_size(cols: object, rows: object) -> tuple[int, int]:
    return _check_length("cols", cols), _check_length("rows", rows)


def _check_length(name: str, value: object) -> int:
    number = to_whole(value)
    if number is None or not 1 <= number <= MAX_SIZE:
        raise wrong_argument(name, value, "is no size of a terminal", remedy=f"Give 1 to {MAX_SIZE}.")
    return number


def to_words(shell: object) -> list[str] | None:
    """The program that `shell=` names, alone or with its arguments."""
    if shell is None:
        return None
    words = [to_text(word) for word in (shell if isinstance(shell, list | tuple) else [shell])]
    if not words or not words[0] or None in words:
        remedy = 'Give a program such as "zsh", or a list such as ["python3", "-q"].'
        raise wrong_argument("shell", shell, "is no program", remedy=remedy, code=ErrorCode.INVALID_COMMAND)
    return [word for word in words if word is not None]


class ViewFold:
    """Bytes and events as they come; in the end `exit_code`."""

    def __init__(self, call: AttachTerminal) -> None:
        self.exit_code: int | None = None
        self._call = call

    def take(self, frame: Frame) -> bytes | TerminalEvent | None:
        """The output or event a frame brings; None if it is the end."""
        if frame.kind is FrameKind.DATA:
            if not frame.payload:  # it costs nothing to send, and would be read for ever
                raise misbehaved("a DATA frame came without a byte in it")
            return frame.payload
        if frame.kind is FrameKind.DONE:
            self.exit_code = exit_code_of(result(self._call, frame))
            return None
        return event(cast("type[TerminalEvent]", TerminalEvent), frame)


def exit_code_of(ended: TerminalInfo) -> int:
    if ended.exit_code is None:
        raise misbehaved("a terminal that has ended has no exit code")
    return ended.exit_code
