# Generated from client/plumbing/remote_sandbox.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""A sandbox at its server: what it is asked to do goes there, and what its agent answers comes back.

The options that it is made with, if there are any, are sent before the first operation. Whoever destroys the sandbox
later need not be us: so every request says that it is for a sandbox that exists, and one that is refused for that did
nothing. The options are sent again then, and so is the request, unless its input can be read only once: then they are
sent before it in any case.

What only asks makes no sandbox: no options go before it, and where there is none it is SANDBOX_NOT_FOUND.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from atoll.client_sync.plumbing.network import NotYet
from atoll.client_sync.plumbing.server import Server
from atoll.client_sync.plumbing.transport import CancelScope, Response, SilenceError, Upload
from atoll.client_sync.plumbing.waiting import pause
from atoll.protocol.calls import Answer, Call, encode_call, failure, misbehaved, out_of_place, result
from atoll.protocol.commands import Turn, session_of
from atoll.protocol.errors import ErrorCode, NotFoundError, error
from atoll.protocol.frames import (
    FRAMES,
    QUEUEING,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode_frame,
    encode_header,
)
from atoll.protocol.sandboxes import MUST_EXIST, SandboxInfo, SandboxOptions
from atoll.protocol.versions import may_need_later
from atoll.values.sandboxes import warn_of_ignored

INPUT_CHUNK = 256 * 1024
FOR_ONE_THAT_EXISTS = f"{MUST_EXIST[0]}: {MUST_EXIST[1]}\r\n"
ANSWERING = (FrameKind.STDOUT, FrameKind.STDERR, FrameKind.DATA, FrameKind.EVENT, *QUEUEING)

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview
Input = bytes | Iterator[bytes | NotYet]  # what is bytes fits one frame


class RemoteSandbox:
    """A sandbox, for itself and its sessions."""

    def __init__(
        self, server: Server, sandbox_id: str, options: SandboxOptions | None = None, *, attaches_only: bool = False
    ) -> None:
        self.server = server
        self.id = sandbox_id
        self._options = options
        self._has_sent_options = options is None
        self._headers = FOR_ONE_THAT_EXISTS if options or attaches_only else ""
        self._has_ended = False
        self._path = f"/v1/sandboxes/{sandbox_id}"
        self._calls = f"{server.prefix}{self._path}/call"

    @property
    def place(self) -> tuple[str, str]:
        """The place of a sandbox: its server and its id. The key it is asked for with does not count."""
        return self.server.place, self.id

    def ask(self, call: Call[Answer], content: bytes | None = None) -> Answer:
        """The answer to a call that streams nothing. `content` fits one frame."""
        return (self.call(call, content)).result()

    def call(
        self, call: Call[Answer], stdin: Input | None = None, *, scope: CancelScope | None = None
    ) -> Frames[Answer]:
        """Have the agent do something; `stdin` is for a call that has one."""
        if call.asks:
            return self._call(call, stdin, scope)
        if stdin is None or isinstance(stdin, bytes):
            return self._do(lambda: self._call(call, stdin, scope), scope)
        self._send_options(scope)
        return self._call(call, stdin, scope)

    def _call(self, call: Call[Answer], stdin: Input | None, scope: CancelScope | None) -> Frames[Answer]:
        response = self.server.transport.request(
            "POST",
            self._calls,
            body=_body(self._call_frame(call), stdin),
            content_type=FRAMES,
            accept=FRAMES,
            headers=FOR_ONE_THAT_EXISTS if call.asks else self._headers,
            scope=scope,
        )
        patience = None if call.patience is None else call.patience + self.server.answer_grace
        return answer_of(call, self.server, response, patience)

    def begin_call(self, call: Call[Answer]) -> CallInput[Answer]:
        """A call whose input comes piece by piece, begun."""
        self._send_options()
        first = self._call_frame(call)
        begin = self.server.transport.begin
        upload = begin("POST", self._calls, content_type=FRAMES, accept=FRAMES, headers=self._headers)
        upload.send(first)
        return CallInput(call, self.server, upload)

    def _call_frame(self, call: Call[Answer]) -> bytes:
        message = encode_call(call)
        if may_need_later(call):
            self.server.check_version(message)
        return encode_frame(FrameKind.CALL, message)

    def request(self, method: str, answer: type[T], *, path: str = "", body: object = None) -> T:
        return self._do(lambda: self.server.ask(method, self._path + path, answer, body, headers=self._headers))

    def ask_server(self, answer: type[T], path: str = "") -> T:
        """The record of it that a path leads to."""
        return self.server.ask("GET", self._path + path, answer, headers=FOR_ONE_THAT_EXISTS)

    def remove(self, path: str) -> None:
        """Something of it."""
        self.server.tell("DELETE", self._path + path, headers=FOR_ONE_THAT_EXISTS)

    def stream(self, path: str, accept: str, scope: CancelScope | None = None) -> Response:
        """The same as a stream: what was, then what comes."""
        return self.server.stream(self._path + path, accept, scope)

    def destroy(self) -> None:
        """Its next operation makes a new one, with the same options."""
        self.server.tell("DELETE", self._path)
        self._has_sent_options = self._options is None

    def end(self) -> None:
        """There is no next operation: one would make a sandbox that nobody destroys."""
        self._has_ended = True

    def _do(self, work: Callable[[], T], scope: CancelScope | None = None) -> T:
        """The result of `work`, for a sandbox with the options there are."""
        if not self._has_sent_options or self._has_ended:
            self._send_options(scope)
        try:
            return work()
        except NotFoundError as problem:
            if self._options is None or problem.code is not ErrorCode.SANDBOX_NOT_FOUND:
                raise
        self._send_options(scope)
        return work()

    def _send_options(self, scope: CancelScope | None = None) -> None:
        if self._has_ended:
            raise error(
                ErrorCode.SANDBOX_NOT_FOUND,
                f"the temporary sandbox {self.id!r} was destroyed at the end of its block",
                remedy="Use it inside the block, or take get_sandbox() for one that stays.",
            )
        if self._options is not None:
            found = self.server.ask("PUT", self._path, SandboxInfo, self._options, scope=scope)
            self._has_sent_options = True
            if found.ignored:
                warn_of_ignored(self.id, found.ignored)


class Frames(Generic[Answer]):
    """The frames of a call's answer, DONE last.

    The agent is waited for `patience` seconds in all, but for as long as it takes while others of the session come
    first. The server sees to it that there are such.
    """

    def __init__(self, call: Call[Answer], server: Server, response: Response, patience: float | None) -> None:
        self._call = call
        self._server = server
        self._response = response
        self._patience = self._left = patience
        self._turn = Turn(may_wait=session_of(call) is not None)
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()

    def next(self) -> Frame:
        """The next frame of output, or the result. A call that failed raises its error here.

        Whoever is cancelled here has lost nothing, and may ask again.
        """
        while (frame := self._next()).kind in QUEUEING:
            pass
        return frame

    def _next(self) -> Frame:
        while not self._frames:
            chunk = self._next_chunk()
            if not chunk:
                raise self._server.transport.lost("ended its answer before the result")
            self._feed(chunk)
        frame = self._frames[0]
        if frame.kind in (FrameKind.DONE, FrameKind.FAILED):
            self._response.finish()
        self._frames.popleft()  # not before: whoever is cancelled meanwhile and asks again must get it
        if frame.kind is FrameKind.FAILED:
            raise failure(frame)
        if frame.kind is not FrameKind.DONE and frame.kind not in ANSWERING:
            raise out_of_place(frame)
        self._turn.take(frame.kind)
        return frame

    def _next_chunk(self) -> bytes:
        if self._left is None or self._turn.is_waiting:
            return self._response.next_chunk(None)
        began = time.monotonic()
        try:
            chunk = self._response.next_chunk(self._left)
        except SilenceError as cause:
            message = f"the sandbox's agent was waited for longer than {self._patience:g} seconds"
            remedy = (
                "Something may have stopped it, or left it no cpu. Ask again; if that fails too, sleep(stop=True) ends "
                "what runs in the sandbox and keeps its files, destroy() ends both."
            )
            raise error(ErrorCode.AGENT_TIMEOUT, message, remedy=remedy) from cause
        waited = time.monotonic() - began
        if waited < self._left:  # or it was we who stood still
            self._left -= waited
        return chunk

    def result(self) -> Answer:
        """The answer to the call, if it streams nothing."""
        try:
            return result(self._call, self.next())
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what is under way, if anything is."""
        self._response.close()

    def _feed(self, chunk: bytes) -> None:
        try:
            self._frames.extend(self._decoder.feed(chunk))
        except FrameError as cause:
            raise misbehaved(str(cause)) from cause


def answer_of(call: Call[Answer], server: Server, response: Response, patience: float | None = None) -> Frames[Answer]:
    """The answer to a call, unless the server refused it."""
    if not response.is_good(FRAMES):
        raise server.problem(response)
    return Frames(call, server, response, patience)


class CallInput(Generic[Answer]):
    """The input of a call, sent piece by piece. Left before its end, the call is cancelled."""

    def __init__(self, call: Call[Answer], server: Server, upload: Upload) -> None:
        self._call = call
        self._server = server
        self._upload = upload

    def send(self, data: Bytes) -> None:
        """Raises the call's error, if it has failed meanwhile."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), INPUT_CHUNK):
            piece = view[start : start + INPUT_CHUNK]
            if not self._upload.send(encode_header(FrameKind.INPUT, len(piece)), piece):
                self._result()
                raise misbehaved("it was done before it had everything")
            pause(0)  # a server that takes everything at once must not keep us from everyone else

    def finish(self) -> Answer:
        """The answer to the call, after the end of its input."""
        self._upload.send(encode_frame(FrameKind.INPUT))
        return self._result()

    def _result(self) -> Answer:
        response = self._upload.finish()
        return (answer_of(self._call, self._server, response)).result()

    def close(self) -> None:
        self._upload.close()


def _body(first: bytes, stdin: Input | None) -> bytes | tuple[bytes, ...] | Iterator[bytes | NotYet]:
    if stdin is None:
        return first
    if isinstance(stdin, bytes):
        given = (encode_header(FrameKind.INPUT, len(stdin)), stdin) if stdin else ()
        return first, *given, encode_frame(FrameKind.INPUT)
    return _input_frames(first, stdin)


def _input_frames(first: bytes, stdin: Iterator[bytes | NotYet]) -> Iterator[bytes | NotYet]:
    yield first
    for chunk in stdin:
        yield chunk if isinstance(chunk, NotYet) else encode_frame(FrameKind.INPUT, chunk)
    yield encode_frame(FrameKind.INPUT)
