"""Commands: what a host asks of an agent, how a program ended, and what is made of the frames in between.

1. Each of a command's two streams brings as many bytes as its call allows, in frames that have some.
2. A command of a session may have to wait for its turn. It says so once, before all else, and then that it begins; in
   between comes nothing but its end.
3. An agent that does otherwise has misbehaved, and nothing more of it is taken.
4. Bytes are kept or passed on as they came. Text is made of them once, and only if somebody wants it (`Characters`).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec

from atoll.protocol.calls import MAX_SHOWN, Call, misbehaved, result
from atoll.protocol.characters import Characters
from atoll.protocol.durations import in_words
from atoll.protocol.errors import AtollError, Context, ErrorCode, error
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.printable import printable
from atoll.protocol.said import Duration, ExitCode
from atoll.protocol.sessions import DEFAULT_SESSION

TIMED_OUT_EXIT_CODE = 124  # as coreutils' timeout does
STDOUT, STDERR = "stdout", "stderr"
LARGE = 4096  # bytes of a piece that is kept by itself
_STREAMS = {FrameKind.STDOUT: STDOUT, FrameKind.STDERR: STDERR}
_ENDS = (FrameKind.DONE, FrameKind.FAILED)


class ExecDone(msgspec.Struct, frozen=True, kw_only=True):
    """A program's end. If a signal killed it, its exit code is 128 + signal, as in a shell."""

    exit_code: ExitCode
    duration: Duration
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False  # the shell is gone, as after `exit`; the next command gets a new one
    state_lost: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of how many commands before this one, answered


class Exec(Call[ExecDone], frozen=True, kw_only=True, tag="exec"):
    """Run a program, with no shell in between. In a session it runs at once, beside what its shell does.

    It starts in the session's directory and with its variables, as the session's last command left them.
    `env` is added to the sandbox's own variables; None takes one away. With `stdin` the host sends INPUT frames,
    without it the program reads end of file at once. Past `max_output` bytes a stream is read on and dropped.
    """

    argv: list[str]
    session_id: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None

    @property
    def subject(self) -> Context:
        return {"command": self.argv[0][:MAX_SHOWN], "session_id": self.session_id} if self.argv else {}

    @property
    def patience(self) -> float | None:
        return self.timeout


class ExecShell(Call[ExecDone], frozen=True, kw_only=True, tag="exec_shell"):
    """Run a command in the persistent shell of a session, after those that were asked for before.

    `cwd` and `env` hold for this command alone; None takes a variable away. `timeout` counts from the call: one whose
    turn has not come by then is SESSION_BUSY, and nothing of it was done. The rest is as in Exec.
    """

    command: str
    session_id: str = DEFAULT_SESSION
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None

    @property
    def subject(self) -> Context:
        return {"session_id": self.session_id[:MAX_SHOWN]}

    @property
    def patience(self) -> float | None:
        return self.timeout


def session_busy(call: ExecShell, other: str) -> AtollError:
    """The error for a command whose time was up before its turn had come; `other` is what its session is doing."""
    first, _, rest = other.strip().partition("\n")
    doing = printable(first[:MAX_SHOWN]) + ("…" if rest or len(first) > MAX_SHOWN else "")
    return error(
        ErrorCode.SESSION_BUSY,
        f"session {call.session_id!r} was busy for all of the {in_words(call.timeout or 0)} that this command had, "
        f"with: {doing}",
        remedy="Nothing ran. Give it more time, or another session; a list of words waits for nobody.",
        session_id=call.session_id,
        busy_with=doing,
        timeout=call.timeout,
    )


def session_of(call: Call[Any]) -> str | None:
    """The session in which a call waits for its turn, if it is a command in one."""
    return call.session_id if isinstance(call, Exec | ExecShell) else None


class _Queued(msgspec.Struct):
    """Of any call, what decides in whose queue it stands."""

    type: str
    session_id: str | None = None


def session_in(message: bytes) -> str | None:
    """The session in which this call waits for its turn, if it is a command in one."""
    try:
        call = _queued_decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # its agent will say so
    if call.type == "exec_shell":
        return call.session_id or DEFAULT_SESSION
    return call.session_id if call.type == "exec" else None


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished command with all it wrote."""

    stdout: bytes
    stderr: bytes
    done: ExecDone


class Piece(NamedTuple):
    """Some bytes of one stream, as they were written."""

    stream: str
    data: bytes


class CommandFold:
    """The answer to a command. If it `keeps` what comes, `output` has all of it in the end."""

    def __init__(self, call: Exec | ExecShell, *, keeps: bool = True) -> None:
        self.done: ExecDone | None = None
        self._call = call
        self._left = dict.fromkeys(_STREAMS.values(), call.max_output)
        self._kept = {STDOUT: Kept(), STDERR: Kept()} if keeps else None

    def take(self, frame: Frame) -> Piece | None:
        """The piece a frame brings; None if it is the end, and `done` says how."""
        stream = _STREAMS.get(frame.kind)
        if stream is None:
            self.done = result(self._call, frame)
            return None
        if not frame.payload:  # it costs nothing to send, and would be read for ever
            raise misbehaved(f"a {frame.kind.name} frame came without a byte in it")
        left = self._left[stream]
        if left is not None:
            self._left[stream] = left = left - len(frame.payload)
            if left < 0:
                raise misbehaved("more output came than was allowed")
        if self._kept:
            self._kept[stream].add(frame.payload)
        return Piece(stream, frame.payload)

    @property
    def output(self) -> CommandOutput:
        assert self.done and self._kept, "asked of a command that has ended, and was kept"
        return CommandOutput(stdout=self._kept[STDOUT].joined(), stderr=self._kept[STDERR].joined(), done=self.done)


class Kept:
    """Bytes of a stream. Large pieces stay as they came; many small ones would take many times the memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        if len(data) >= LARGE or not self._pieces:
            self._pieces.append(data)
            return
        last = self._pieces[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            self._pieces.append(bytearray(data))

    def joined(self) -> bytes:
        return b"".join(self._pieces)


class CommandText:
    """The two streams of a command, cut so that each piece can be made text, as they come."""

    def __init__(self) -> None:
        self._characters = {STDOUT: Characters(), STDERR: Characters()}

    def take(self, piece: Piece) -> bytes:
        """The characters that are whole by now: with the beginning that was kept back, without that of one cut now."""
        return self._characters[piece.stream].take(piece.data)

    def rest(self) -> list[Piece]:
        """Beginnings of characters that never became whole."""
        rest = (Piece(stream, characters.rest()) for stream, characters in self._characters.items())
        return [piece for piece in rest if piece.data]


class Turn:
    """The turn of a command that may have to wait for others of its session."""

    def __init__(self, *, may_wait: bool) -> None:
        self.is_waiting = False
        self._may_wait = may_wait

    def take(self, kind: FrameKind) -> None:
        """The frames WAITING and STARTED come in this order or not at all."""
        if kind is FrameKind.WAITING:
            if not self._may_wait:
                raise misbehaved("a command was said to wait that does not")
            self.is_waiting = True
        elif kind is FrameKind.STARTED:
            if not self.is_waiting:
                raise misbehaved("a command was said to begin that had not waited")
            self.is_waiting = False
        elif self.is_waiting and kind not in _ENDS:
            raise misbehaved(f"a {kind.name} frame came of a command that waits")
        self._may_wait = False


_queued_decoder = msgspec.msgpack.Decoder(_Queued)
