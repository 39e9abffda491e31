"""A sandbox's agent that somebody took over, as a process, and the clients that it has.

    python -m tests.hostile.liar LIE AGENT_SOCKET SERVER_SOCKET

It listens where the agent of the sandbox `liar` should and tells one lie to everybody. Its clients read what the server
makes of that as fast as they can, and ask again when they have been answered. Both have the lowest priority: what a
neighbour feels is what the server does with it.
"""

from __future__ import annotations

import base64
import itertools
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.errors import ErrorBody
from atoll.protocol.files import ChangeType, FileChange, FileChanges, FileInfo, FileList, FileType, ListFiles
from atoll.protocol.frames import MAX_PAYLOAD, FrameKind, encode_frame, encode_lost
from atoll.protocol.messages import AnyCall, encode_message
from atoll.protocol.processes import MAX_ENTRIES, LogEntry, LogPart, OutputStream
from atoll.protocol.terminals import TerminalInfo, TerminalReady

SANDBOX = "liar"
CLIENTS = 4  # of the liar, at a time
BACKLOG = 16
ONLY_ONE = "host: localhost\r\nconnection: close\r\n"
NOW = datetime.now(UTC)
DONE = encode_frame(FrameKind.DONE, encode_message(ExecDone(exit_code=0, duration=1.0)))

Answer = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Lie:
    """What the agent does with a connection, and the requests that make it do so."""

    answer: Answer
    requests: tuple[bytes, ...]


def endlessly(piece: bytes, first: bytes = b"") -> Answer:
    """Say it again and again, a megabyte at a time."""
    many = piece * max(1, MAX_PAYLOAD // len(piece))

    def answer(peer: socket.socket) -> None:
        peer.sendall(first)
        while True:
            peer.sendall(many)

    return answer


def once(piece: bytes) -> Answer:
    def answer(peer: socket.socket) -> None:
        peer.sendall(piece)
        while peer.recv(65_536):
            pass

    return answer


def event(message: object) -> bytes:
    return encode_frame(FrameKind.EVENT, encode_message(message))


def never_read(peer: socket.socket) -> None:
    threading.Event().wait()


def hang_up(peer: socket.socket) -> None:
    """At once, whatever was asked."""


def answer_again(peer: socket.socket) -> None:
    """Each call once, and what nobody asked for."""
    for number in itertools.count(1):
        peer.recv(65_536)
        peer.sendall(DONE + encode_frame(FrameKind.LOST, encode_lost(number, b"")) * 20_000 + DONE * 1_000)


def get(path: str, accept: str = "*/*") -> bytes:
    return f"GET /v1/sandboxes/{SANDBOX}{path} HTTP/1.1\r\n{ONLY_ONE}accept: {accept}\r\n\r\n".encode()


def post(path: str, body: bytes, kind: str, accept: str = "*/*") -> bytes:
    head = f"POST /v1/sandboxes/{SANDBOX}{path} HTTP/1.1\r\n{ONLY_ONE}accept: {accept}\r\n"
    return f"{head}content-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def relayed(call: AnyCall) -> bytes:
    body = encode_frame(FrameKind.CALL, encode_message(call))
    return post("/call", body, "application/vnd.atoll.frames")


def dial() -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = f"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
    path = f"/v1/sandboxes/{SANDBOX}/terminals/t"
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n".encode()


EVENTS = "text/event-stream"
JSON_EXEC = post("/exec", b'{"command": "true", "max_output": 8388608, "timeout": 3}', "application/json")
STREAMED_EXEC = post("/exec", b'{"command": "true"}', "application/json", EVENTS)
SHELL = relayed(ExecShell(command="true"))
EXECS = (JSON_EXEC, STREAMED_EXEC, SHELL, relayed(Exec(argv=["true"])))
LOGS = (get("/processes/p/logs"), get("/processes/p/logs", EVENTS))
LISTS = (get("/files?path=/"), relayed(ListFiles(path=b"/")))
TERMINAL = TerminalInfo(id="t", pid=1, cols=80, rows=24, command=["sh"], created_at=NOW, viewers=1)
FILE = FileInfo(raw_path=b"/f", type=FileType.FILE, size=1, mode=0o644, modified_at=NOW)
CHANGE = FileChange(type=ChangeType.MODIFY, raw_path=b"/f")
ENTRY = LogEntry(number=1, time=1.0, stream=OutputStream.STDOUT, data=b"x")
PROBLEM = ErrorBody(code="NO_SPACE", message="m" * 400_000, context={f"c{n}": "c" * 50 for n in range(5_000)})

LIES = {
    "tiny output": Lie(endlessly(encode_frame(FrameKind.STDOUT, b"x")), EXECS),
    "empty output": Lie(endlessly(encode_frame(FrameKind.STDERR)), EXECS),
    "whole output": Lie(endlessly(encode_frame(FrameKind.STDOUT, b"x" * MAX_PAYLOAD)), EXECS),
    "waiting": Lie(endlessly(encode_frame(FrameKind.WAITING)), EXECS),
    "waiting and started": Lie(
        endlessly(encode_frame(FrameKind.WAITING) + encode_frame(FrameKind.STARTED)), (STREAMED_EXEC, SHELL)
    ),
    "unknown kinds": Lie(endlessly(struct.pack(">IB", 0, 99)), EXECS),
    "half frames": Lie(once(struct.pack(">IB", MAX_PAYLOAD, FrameKind.STDOUT) + b"x" * (MAX_PAYLOAD - 1)), EXECS),
    "never reads": Lie(never_read, EXECS),
    "huge lengths": Lie(endlessly(struct.pack(">IB", 2**32 - 1, FrameKind.STDOUT)), EXECS),
    "endless logs": Lie(endlessly(event(LogPart(number=1, entries=[ENTRY] * MAX_ENTRIES))), LOGS),
    "overfull logs": Lie(endlessly(event(LogPart(number=1, entries=[ENTRY] * 45_000))), LOGS),
    "empty logs": Lie(endlessly(event(LogPart(number=1))), LOGS),
    "endless lists": Lie(endlessly(event(FileList(files=[FILE] * 400))), LISTS),
    "overfull lists": Lie(endlessly(event(FileList(files=[FILE] * 9_000))), LISTS),
    "empty lists": Lie(endlessly(event(FileList(files=[]))), LISTS),
    "endless changes": Lie(endlessly(event(FileChanges(changes=[CHANGE] * 1_000))), (get("/files/watch?path=/"),)),
    "overfull changes": Lie(
        endlessly(event(FileChanges(changes=[CHANGE] * 18_000)), event(FileChanges(changes=[]))),
        (get("/files/watch?path=/"),),
    ),
    "terminal data": Lie(
        endlessly(encode_frame(FrameKind.DATA, b"x"), event(TerminalReady(terminal=TERMINAL))), (dial(),)
    ),
    "archive data": Lie(endlessly(encode_frame(FrameKind.DATA, b"x")), (get("/files/archive?path=/"),)),
    "answers to nobody": Lie(answer_again, EXECS),
    "calls lost": Lie(endlessly(encode_frame(FrameKind.LOST, encode_lost(0, b""))), EXECS),
    "hangs up": Lie(hang_up, EXECS),
    "long errors": Lie(endlessly(encode_frame(FrameKind.FAILED, encode_message(PROBLEM))), EXECS),
}


def listen(path: Path, answer: Answer) -> socket.socket:
    """Where the agent listened, at the first connection that it takes."""
    listener = socket.socket(socket.AF_UNIX)
    path.unlink()
    directory = os.open(path.parent, os.O_PATH)
    listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    listener.listen(BACKLOG)
    threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
    return listener


def serve(listener: socket.socket, answer: Answer) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=lie_to, args=(peer, answer), daemon=True).start()


def lie_to(peer: socket.socket, answer: Answer) -> None:
    with peer, suppress(OSError):
        answer(peer)


def ask(server: str, requests: Iterator[bytes], begun: threading.Semaphore) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as peer, suppress(OSError):
            peer.connect(server)
            peer.sendall(next(requests))
            begun.release()
            while peer.recv(2**20):
                pass


def main(lie: str, agent: str, server: str) -> None:
    os.nice(19)
    told = LIES[lie]
    begun = threading.Semaphore(0)
    with listen(Path(agent), told.answer):
        print("listens", flush=True)
        for number in range(CLIENTS):
            requests = itertools.cycle(told.requests[number % len(told.requests) :] + told.requests)
            threading.Thread(target=ask, args=(server, requests, begun), daemon=True).start()
        for _ in range(CLIENTS):
            begun.acquire()
        print("asked", flush=True)
        sys.stdin.read()  # until whoever started us has seen enough


if __name__ == "__main__":
    main(*sys.argv[1:])
