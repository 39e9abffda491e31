"""Servers for streams of every kind: they say what they are told to, when they are told to."""

from __future__ import annotations

import contextlib
import importlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from atoll.protocol.commands import ExecDone
from atoll.protocol.files import ChangeType, FileChange, FileChanges, FileDone, FileInfo, FileType
from atoll.protocol.frames import FRAMES, FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.processes import LogEntry, LogPart, OutputStream, ProcessInfo, ProcessStatus
from atoll.protocol.sandboxes import SandboxEvent
from atoll.protocol.terminals import TerminalInfo
from tests.client.peers import FRAMES_FOLLOW, RawServer, read_request, wait_for_hang_up

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TERMINAL = TerminalInfo(id="t", pid=2, command=["sh"], cols=80, rows=24, viewers=0, created_at=NOW)
PROCESS = ProcessInfo(
    id="web", pid=7, command="serve", status=ProcessStatus.RUNNING, start_time=NOW, session_id="default"
)
FILE = FileInfo(raw_path=b"/workspace/a", size=1, type=FileType.FILE, mode=0o644, modified_at=NOW)


class Narrator(RawServer):
    """Takes requests, and answers the latest with what it is told."""

    def __init__(self, path: Path) -> None:
        self.requests: list[bytes] = []
        self.was_asked, self.was_left = threading.Event(), threading.Event()
        self._conversations: list[queue.SimpleQueue[bytes | None]] = []
        super().__init__(self._narrate, path)

    def tell(self, *data: bytes) -> None:
        """To whoever asked last."""
        assert self.was_asked.wait(60)
        for piece in data:
            self._conversations[-1].put(piece)

    def stop(self) -> None:
        for told in self._conversations:
            told.put(None)
        super().stop()

    def _narrate(self, peer: socket.socket) -> None:
        request, told = read_request(peer), queue.SimpleQueue[bytes | None]()
        self._conversations.append(told)
        self.requests.append(request)
        self.was_asked.set()
        watching = threading.Thread(target=self._watch, args=(peer, told))
        watching.start()
        try:
            while (data := told.get()) is not None:
                peer.sendall(data)
        finally:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            watching.join()

    def _watch(self, peer: socket.socket, told: queue.SimpleQueue[bytes | None]) -> None:
        with contextlib.suppress(OSError):
            wait_for_hang_up(peer)
        self.was_left.set()
        told.put(None)


@dataclass(frozen=True)
class Kind:
    """A kind of stream: how it is opened, and what a server sends for its items, which are numbered from 1."""

    open: Callable[[Any], Any]
    item: Callable[[int], bytes]
    number: Callable[[Any], int]
    end: bytes
    opening: bytes = FRAMES_FOLLOW

    def items(self, first: int, last: int) -> bytes:
        return b"".join(map(self.item, range(first, last + 1)))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(kind: FrameKind, payload: bytes | msgspec.Struct) -> bytes:
    return chunk(encode_frame(kind, payload if isinstance(payload, bytes) else encode_message(payload)))


def attach(sandbox: Any, **options: Any) -> Any:
    """The view of a terminal, which need not be made for it."""
    prefix, package = ("Async", "client") if "Async" in type(sandbox).__name__ else ("", "client_sync")
    terminals = importlib.import_module(f"atoll.{package}.terminals")
    return getattr(terminals, f"{prefix}Terminal")(sandbox._sandbox, TERMINAL).attach(**options)


def _log(number: int) -> LogPart:
    return LogPart(number=number, entries=[LogEntry(number=number, time=0.0, stream=OutputStream.STDOUT, data=b"x")])


def _change(number: int) -> FileChanges:
    return FileChanges(changes=[FileChange(raw_path=b"%d" % number, type=ChangeType.CREATE)])


def _event(number: int) -> bytes:
    event = SandboxEvent(number=number, time=NOW, what="created", cause="asked", by="test")
    return chunk(b"data: %b\n\n" % msgspec.json.encode(event))


END = b"0\r\n\r\n"
KINDS = {
    "a command": Kind(
        open=lambda sandbox: sandbox.exec_stream("x"),
        item=lambda number: frame(FrameKind.STDOUT, b"%d" % number),
        number=lambda event: int(event.data or 0),
        end=frame(FrameKind.DONE, ExecDone(exit_code=0, duration=0.25)) + END,
    ),
    "a log": Kind(
        open=lambda sandbox: sandbox.stream_process_logs("web"),
        item=lambda number: frame(FrameKind.EVENT, _log(number)),
        number=lambda event: event.number,
        end=frame(FrameKind.DONE, PROCESS) + END,
    ),
    "a timeline": Kind(
        open=lambda sandbox: sandbox.follow_events(),
        item=_event,
        number=lambda event: event.number,
        end=END,
        opening=FRAMES_FOLLOW.replace(FRAMES.encode(), b"text/event-stream"),
    ),
    "a watch": Kind(
        open=lambda sandbox: sandbox.watch("."),
        item=lambda number: frame(FrameKind.EVENT, _change(number)),
        number=lambda change: int(change.path),
        end=frame(FrameKind.DONE, FileDone()) + END,
    ),
    "a file": Kind(
        open=lambda sandbox: sandbox.read_file_stream("a"),
        item=lambda number: frame(FrameKind.DATA, b"%d" % number),
        number=int,
        end=frame(FrameKind.DONE, FileDone()) + END,
        opening=FRAMES_FOLLOW + frame(FrameKind.EVENT, FILE),
    ),
    "a terminal": Kind(
        open=attach,
        item=lambda number: frame(FrameKind.DATA, b"%d" % number),
        number=int,
        end=frame(FrameKind.DONE, msgspec.structs.replace(TERMINAL, exit_code=3)) + END,
    ),
}
