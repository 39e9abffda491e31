"""Servers for the SDK's tests, over real sockets: one that misbehaves as it is told, one that follows the contract."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from atoll.protocol.commands import ExecDone
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import Frame, FrameDecoder, FrameKind, encode_frame
from atoll.protocol.limits import Limits
from atoll.protocol.messages import AnyCall, decode_call, encode_message
from atoll.protocol.sandboxes import (
    MUST_EXIST,
    EventList,
    SandboxEvent,
    SandboxInfo,
    SandboxList,
    SandboxOptions,
    SandboxState,
    ServerInfo,
)
from atoll.protocol.sessions import SessionInfo, SessionRequest
from atoll.protocol.versions import PROTOCOL_VERSION

FRAMES_FOLLOW = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.atoll.frames\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
STATUS = {"SANDBOX_NOT_FOUND": 404, "INVALID_API_KEY": 401, "SANDBOX_START_FAILED": 500}


class RawServer:
    """Each connection is handed to `behave`, in a thread; it is closed when that returns."""

    def __init__(self, behave: Callable[[socket.socket], None], path: Path | None = None) -> None:
        self.accepted = 0
        self._behave = behave
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self._listener.listen(64)
        self.url = f"unix://{path}" if path else f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Listener and connections are gone, as if the process had been killed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._peers.append(peer)
            self._threads.append(threading.Thread(target=self._converse, args=(peer,)))
            self._threads[-1].start()

    def _converse(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            self._behave(peer)


def read_request(peer: socket.socket) -> bytes:
    """The head of a request and, if it has a length, its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(peer)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += receive(peer)
    return head + b"\r\n\r\n" + body


def receive(peer: socket.socket) -> bytes:
    if not (data := peer.recv(65536)):
        raise ConnectionResetError
    return data


def answering(*pieces: bytes) -> Callable[[socket.socket], None]:
    """One request, one answer in these pieces, hang up."""

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        for piece in pieces:
            peer.sendall(piece)

    return behave


def reset(peer: socket.socket) -> None:
    """Hang up with a reset instead of an end."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def wait_for_hang_up(peer: socket.socket) -> None:
    while peer.recv(65536):
        pass


class Conversation:
    """A call under way, from the agent's side."""

    def __init__(self, handler: ContractHandler, call: AnyCall) -> None:
        self.call = call
        self._handler = handler
        self._has_begun = False

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        self.send_raw(encode_frame(kind, payload))

    def send_raw(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def begin(self) -> None:
        self._write(b"")

    def _write(self, data: bytes) -> None:
        """At once, so that no client waits between the head of an answer and what follows it."""
        head, self._has_begun = b"" if self._has_begun else FRAMES_FOLLOW, True
        self._handler.wfile.write(head + data)

    def stdout(self, data: bytes) -> None:
        self.send(FrameKind.STDOUT, data)

    def stderr(self, data: bytes) -> None:
        self.send(FrameKind.STDERR, data)

    def done(self, exit_code: int = 0, **fields: Any) -> None:
        self.answer(ExecDone(exit_code=exit_code, duration=0.25, **fields))

    def answer(self, message: msgspec.Struct) -> None:
        self.send(FrameKind.DONE, encode_message(message))
        self.end()

    def failed(self, problem: AtollError) -> None:
        self.send(FrameKind.FAILED, encode_message(problem.to_body()))
        self.end()

    def end(self) -> None:
        self._handler.wfile.write(b"0\r\n\r\n")

    def input(self) -> Iterator[bytes]:
        for frame in self._handler.frames():
            assert frame.kind is FrameKind.INPUT
            if frame.payload:
                yield frame.payload

    def wait_for_hang_up(self) -> None:
        wait_for_hang_up(self._handler.connection)


class ContractServer(socketserver.ThreadingUnixStreamServer):
    """Follows the HTTP contract. Sandboxes are records; what their agents do is up to `on_call`."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, path: Path, api_key: str | None = None) -> None:
        self.url = f"unix://{path}"
        self.api_key = api_key
        self.sandboxes: dict[str, SandboxInfo] = {}
        self.options: dict[str, SandboxOptions] = {}
        self.preparing: list[str] = []
        self.protocol_version = PROTOCOL_VERSION
        self.has_any = True  # sandbox that somebody asks about, whether or not it was made
        self.sessions: dict[str, SessionInfo] = {}
        self.requests: list[tuple[str, str, bytes]] = []
        self.connections: list[socket.socket] = []
        self.on_call: Callable[[Conversation], None] = lambda conversation: conversation.done()
        super().__init__(str(path), ContractHandler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.hang_up()
        self.server_close()

    def hang_up(self) -> None:
        connections, self.connections = self.connections, []  # a client that notices may be back while we are here
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up on us meant to."""

    def create(self, id: str, options: SandboxOptions) -> SandboxInfo:
        now = datetime.now(UTC)
        self.options[id] = options
        self.sandboxes[id] = SandboxInfo(
            id=id, state=SandboxState.RUNNING, since=now, cause="created", created_at=now,
            image=options.image or "host", image_state="1", isolation="native", limits=Limits(),
            labels=options.labels or {}, env=sorted(options.env or {}), sleep_after=600.0,
            keep_alive=bool(options.keep_alive),
        )  # fmt: skip
        return self.sandboxes[id]


class ContractHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ContractServer

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        self.client_address = ("", 0)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._has_ended = False  # whether all of the body has been read
        super().handle_one_request()

    def answer(self, status: int, body: object = None) -> None:
        content = b"" if body is None else msgspec.json.encode(body)
        self.send_response(status)
        if status != 204:
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def respond(self) -> None:
        try:
            self.route()
        except AtollError as problem:
            self.answer(STATUS.get(problem.code, 400), problem.to_body())

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = respond

    def route(self) -> None:
        url = urlsplit(self.path)
        if self.server.api_key and self.headers["authorization"] != f"Bearer {self.server.api_key}":
            raise error(ErrorCode.INVALID_API_KEY, "the API key is not known", remedy="Check ATOLL_API_KEY.")
        if url.path.endswith("/call"):
            self.server.requests.append((self.command, self.path, b""))
            self.call(url.path.split("/")[3])
            return
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.requests.append((self.command, self.path, body))
        match self.command, url.path.split("/")[2:]:
            case "GET", ["server"]:
                self.answer(
                    200,
                    ServerInfo(
                        version="0",
                        protocol_version=self.server.protocol_version,
                        pid=os.getpid(),
                        started_at=datetime.now(UTC),
                        preparing=self.server.preparing,
                    ),
                )
            case "GET", ["sandboxes"]:
                wanted = dict(label.split("=", 1) for label in parse_qs(url.query).get("label", []))
                after, limit = (
                    parse_qs(url.query).get(name, [usual])[0] for name, usual in (("after", ""), ("limit", "100"))
                )
                found = [one for one in self.server.sandboxes.values() if wanted.items() <= one.labels.items()]
                found = sorted((one for one in found if one.id > after), key=lambda one: one.id)
                page = found[: int(limit)]
                self.answer(200, SandboxList(sandboxes=page, next=page[-1].id if len(found) > len(page) else None))
            case "PUT", ["sandboxes", id]:
                options = msgspec.json.decode(body, type=SandboxOptions)
                self.answer(201, self.server.sandboxes.get(id) or self.server.create(id, options))
            case "GET", ["sandboxes", id]:
                self.answer(200, self.sandbox(id))
            case "DELETE", ["sandboxes", id]:
                self.server.sandboxes.pop(id, None)
                self.answer(204)
            case "PUT", ["sandboxes", id, "labels"]:
                changed = msgspec.structs.replace(self.sandbox(id), labels=json.loads(body))
                self.server.sandboxes[id] = changed
                self.answer(200, changed)
            case "PATCH", ["sandboxes", id, "env"]:
                self.answer(200, self.sandbox(id))
            case "POST", ["sandboxes", id, "sessions"]:
                asked = msgspec.json.decode(body, type=SessionRequest)
                assert asked.id
                made = SessionInfo(id=asked.id, cwd=asked.cwd, created_at=datetime.now(UTC), commands_waiting=0)
                self.server.sessions[asked.id] = made
                self.answer(201, made)
            case "DELETE", ["sandboxes", id, "sessions", session]:
                if not self.server.has_any:
                    self.sandbox(id)
                if self.server.sessions.pop(session, None) is None:
                    raise error(ErrorCode.SESSION_NOT_FOUND, f"no session {session!r}")
                self.answer(204)
            case "GET", ["sandboxes", id, "events"]:
                self.events(int(parse_qs(url.query)["since"][0]))
            case _:
                raise error(ErrorCode.INVALID_REQUEST, f"{self.path} is no route")

    def sandbox(self, id: str) -> SandboxInfo:
        if id not in self.server.sandboxes:
            raise error(ErrorCode.SANDBOX_NOT_FOUND, f"there is no sandbox {id!r}", remedy="Use it first.")
        return self.server.sandboxes[id]

    def events(self, since: int) -> None:
        now = datetime.now(UTC)
        happened = [
            SandboxEvent(number=number, time=now, what=what, cause="asked", by="test")
            for number, what in enumerate(("created", "started", "stopped"), 1)
            if number > since
        ]
        if self.headers["accept"] != "text/event-stream":
            self.answer(200, EventList(events=happened))
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        text = b"".join(b"id: %d\ndata: %b\n\n" % (one.number, msgspec.json.encode(one)) for one in happened)
        for piece in (text[:7], text[7:50], text[50:]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def call(self, id: str) -> None:
        frame = next(self.frames())
        assert frame.kind is FrameKind.CALL
        if id not in self.server.sandboxes:
            if self.headers[MUST_EXIST[0]] == MUST_EXIST[1] and not self.server.has_any:
                self.sandbox(id)
            self.server.create(id, SandboxOptions())
        self.server.on_call(Conversation(self, decode_call(frame.payload)))
        for _ in self.frames():  # what nobody has read of this request is not to be taken for the next
            pass

    def frames(self) -> Iterator[Frame]:
        """The frames in the body, which has a length or comes in chunks."""
        while True:
            while self._frames:
                yield self._frames.pop(0)
            if self._has_ended:
                return
            if self.headers["transfer-encoding"] == "chunked":
                data = self.rfile.read(int(self.rfile.readline(), 16))
                self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers["content-length"]))
                self.headers.replace_header("content-length", "0")  # that was all of it
            self._has_ended = not data
            self._frames += self._decoder.feed(data)
