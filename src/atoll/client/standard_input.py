"""Standard input as users give it, whatever it is, in pieces of bytes.

What may be waited for must keep neither output nor the end of the command waiting: a pipe is looked at before it is
read, and an iterator is moved into a socket by a thread, or by a task if it is awaited. What these have read ahead when
the command is done is lost.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator

from atoll.client.plumbing.network import NotYet
from atoll.client.plumbing.waiting import begin_making, is_awaited, is_readable, start_making_awaited
from atoll.protocol.arguments import wrong_argument
from atoll.protocol.errors import AtollError

INPUT_CHUNK = 64 * 1024

Bytes = bytes | bytearray | memoryview
Piece = str | Bytes
Stdin = Piece | Iterable[Piece] | AsyncIterable[Piece]


def input_chunks(stdin: Stdin) -> Iterator[bytes | NotYet]:
    """Standard input in pieces of a size that fits a frame. An empty one would mean its end."""
    if isinstance(stdin, str | Bytes):
        return _pieces([stdin])
    if is_awaited(stdin):
        return _made(stdin, start_making_awaited)
    if isinstance(stdin, io.FileIO | io.BufferedReader) and sys.platform == "win32":
        return _made(_read_pieces(stdin), start_making)
    if isinstance(stdin, io.FileIO):
        return _as_it_comes(stdin, stdin)
    if isinstance(stdin, io.BufferedReader) and isinstance(stdin.raw, io.FileIO) and not stdin.seekable():
        return _as_it_comes(stdin, stdin.raw, _take_buffered(stdin))
    if isinstance(stdin, list | tuple) or (isinstance(stdin, io.IOBase) and stdin.seekable()):
        return _pieces(stdin)
    if isinstance(stdin, Iterable):
        return _made(stdin, start_making)
    raise _no_input(stdin)


def _pieces(stdin: Iterable[object]) -> Iterator[bytes]:
    for piece in stdin:
        yield from _cut(piece)


def _cut(piece: object) -> Iterator[bytes]:
    if not isinstance(piece, str | Bytes):
        raise _no_input(piece)
    try:
        data = memoryview(piece.encode() if isinstance(piece, str) else piece).cast("B")
    except UnicodeEncodeError as cause:
        raise _no_input(piece) from cause
    for start in range(0, len(data), INPUT_CHUNK):
        yield bytes(data[start : start + INPUT_CHUNK])


def _take_buffered(stdin: io.BufferedReader) -> bytes:
    """The bytes that a reader has read ahead of whoever reads it, without waiting for more."""
    if sys.platform == "win32":  # where a thread reads
        return b""
    blocks = os.get_blocking(stdin.fileno())
    os.set_blocking(stdin.fileno(), False)
    try:
        return stdin.read1(len(stdin.peek()))
    finally:
        os.set_blocking(stdin.fileno(), blocks)


def _as_it_comes(given: object, stdin: io.FileIO, first: bytes = b"") -> Iterator[bytes | NotYet]:
    """A pipe or a socket may be silent for long, and the command be done without it.

    What was `given` is kept: perhaps nobody else has it, and a file that is dropped closes the pipe.
    """
    yield from _cut(first)
    while True:
        while not is_readable(stdin.fileno()):
            yield NotYet(stdin.fileno())
        data = stdin.read(INPUT_CHUNK)
        if data is None:  # another process read it first
            continue
        if not data:
            return
        yield data


def _read_pieces(stdin: io.FileIO | io.BufferedReader) -> Iterator[bytes]:
    """Of a pipe on Windows, where only sockets can be waited for."""
    read = stdin.read1 if isinstance(stdin, io.BufferedReader) else stdin.read
    while data := read(INPUT_CHUNK):
        yield data


def _made(stdin: object, start: Callable[..., Callable[[], None]]) -> Iterator[bytes | NotYet]:
    near, far = socket.socketpair()
    failures: list[BaseException] = []
    stop = start(stdin, _cut, far, failures)
    try:
        while True:
            while not is_readable(near.fileno()):
                yield NotYet(near.fileno())
            data = near.recv(INPUT_CHUNK)
            if not data:
                break
            yield data
    finally:
        near.close()
        stop()
    if failures:
        raise failures[0]


def start_making(
    source: Iterable[object],
    cut: Callable[[object], Iterator[bytes]],
    sink: socket.socket,
    failures: list[BaseException],
) -> Callable[[], None]:
    """Move items into a socket, which is closed then; what ends that."""

    def make() -> None:
        begin_making()
        with sink:
            try:
                for item in source:
                    for piece in cut(item):
                        try:
                            sink.sendall(piece)
                        except OSError:  # nobody reads any more
                            return
            except BaseException as cause:
                failures.append(cause)

    threading.Thread(target=make, daemon=True).start()
    return _nothing


def _nothing() -> None:
    """A thread cannot be ended: it learns of the end when it has something to send."""


def _no_input(stdin: object) -> AtollError:
    remedy = "Give text that can be UTF-8, bytes, or an iterable of either, such as a file."
    return wrong_argument("stdin", stdin, "cannot be standard input", remedy)
