# Generated from client/plumbing/network.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Bytes to and from a server: Unix, TCP and TLS sockets, none of which ever blocks its thread.

Rules:
1. What is sent goes out while `read` waits, so that two sides that both write never wait for each other.
2. A write that fails says nothing: a server may answer and hang up before it has read everything. Reading tells.
3. What is sent may have to be waited for itself, and then the peer is still read: see NotYet. Or its making fails,
   which must not be taken for a failure of the connection: see SourceError.
4. Nothing is buffered here but the chunk under way. Whoever does not read makes the server wait.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from atoll.client_sync.plumbing.waiting import is_readable, look_up, pause, wait_for_socket
from atoll.protocol.errors import ErrorCode, error

if TYPE_CHECKING:
    import ssl

Bytes = bytes | memoryview

UNIX: socket.AddressFamily | None = getattr(socket, "AF_UNIX", None)
JOINED_BYTES = 16 * 1024  # are sooner copied than sent apart
READ_SIZE, MAX_READ_SIZE = 64 * 1024, 1024 * 1024  # as much at once as came last time, and more
SENT_AHEAD = 1024 * 1024  # the kernel gives twice its default at most: large files go twice as far without a wait
BACKLOG_PAUSE = 0.005
# A host that vanished without a word is noticed after about fifteen seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 6, "TCP_KEEPALIVE": 6, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}  # macOS has the second name


@dataclass(frozen=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True)
class TcpAddress:
    host: str
    port: int
    has_tls: bool = False

    @property
    def authority(self) -> str:
        """The host and port as in a URL and a Host header, which leave the usual port out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.has_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.has_tls else 'http'}://{self.authority}"


Address = UnixAddress | TcpAddress


def connect(address: Address, seconds: float) -> Stream:
    """A stream to `address`; an OSError if there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    if isinstance(address, UnixAddress):
        return _connect_unix(address.path, deadline)
    failure: OSError = OSError(f"{address.host} has no address")
    for family, kind, protocol, _, target in look_up(address.host, address.port):
        try:
            return _connect_tcp(QuietSocket(family, kind, protocol), target, address, deadline)
        except OSError as cause:
            failure = cause
    raise failure


class NotYet(NamedTuple):
    """The absence of a piece to send: there is none before something can be read from `descriptor`."""

    descriptor: int


class SourceError(Exception):
    """A source of what was to be sent has failed, because of `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class QuietSocket(socket.socket):
    """A socket that may be dropped: with us that is how a command is cancelled, and nothing to warn about."""

    def __del__(self) -> None:
        self.close()


class Stream:
    """A connection. Closed when it is dropped, which is how a server learns that nobody waits any more."""

    _is_closed = True  # until it has a socket: also what was never quite made is dropped

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._owner = os.getpid()
        self._unsent: Sequence[memoryview] = ()
        self._unmade: Iterator[bytes | NotYet] | None = None
        self._source: int | None = None
        self._heard: bytes | None = None
        self._read_size = READ_SIZE
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)
        self._tls: ssl.SSLSocket | None = None
        self._is_closed = False
        self._is_waiting = False
        self._was_cut_off = False
        self._has_answer = False

    def __del__(self) -> None:
        self.close()

    @property
    def was_left_unread(self) -> bool:
        """Whether the peer has gone without a word, and is known not to have read all that was sent.

        A Unix socket says so, by EPIPE while we write and by ECONNRESET afterwards; TCP can only guess.
        """
        return self._was_cut_off and not self._has_answer and self._socket.family == UNIX

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) or self._unmade is not None

    def is_quiet(self) -> bool:
        """Whether the peer has neither hung up nor said anything: what an idle connection must be."""
        if self._is_closed:
            return False
        return not is_readable(self._socket.fileno())

    def send(self, *parts: Bytes, more: Iterator[bytes | NotYet] | None = None) -> None:
        """Send `parts`, then `more`. What the peer does not take at once goes out while `read` waits."""
        self._unsent = views(parts)
        self._unmade = more
        self._has_answer = False
        self._push()

    def write(self, *parts: Bytes, seconds: float) -> bool:
        """Send all of `parts`: then True. False if the peer spoke or hung up first, and may take no more.

        TimeoutError after `seconds` in which nothing moved. Then no parts at all send what is left.
        """
        if parts:
            self._unsent = views(parts)
        while self._unsent and not self._is_closed and not self._has_heard():
            self._push()
            if self._unsent and not self._wait(seconds):
                raise TimeoutError
        return not self._unsent and not self._is_closed

    def _has_heard(self) -> bool:
        """Whether the peer has said something, which is kept for `read`; it may also have hung up."""
        if self._heard is None and not self.is_quiet():
            try:
                self._heard = self._socket.recv(READ_SIZE)
            except self._would_block:  # it was TLS that had something to say
                pass
            except OSError:
                self._heard = b""
        return self._heard is not None

    def read(self, seconds: float | None = None) -> bytes:
        """The bytes that have come, b"" at the end; TimeoutError after `seconds` in which nothing moved."""
        if self._heard is not None:
            heard, self._heard = self._heard, None
            return heard
        while not self._is_closed:
            if not (self._tls and self._tls.pending()) and not self._wait(seconds):
                raise TimeoutError
            if self._is_closed:
                break
            if self.has_unsent:
                self._push()
            try:
                data = self._socket.recv(self._read_size)
            except self._would_block:
                continue
            except ConnectionResetError:
                self._was_cut_off = True
                raise
            self._has_answer = bool(data)
            self._read_size = min(2 * self._read_size, MAX_READ_SIZE) if len(data) == self._read_size else READ_SIZE
            return data
        return b""

    def close(self) -> None:
        """Twice is fine, and so is it while another task or thread reads, which then reads the end."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unmade = None
        if self._owner == os.getpid():
            # Wakes whoever waits; and a process forked meanwhile may hold a copy, which must not keep the server busy.
            with suppress(OSError):  # it has hung up already, or was never connected
                self._socket.shutdown(socket.SHUT_RDWR)
        if not self._is_waiting:
            self._socket.close()

    def start_tls(self, host: str, deadline: float) -> None:
        import ssl  # only who needs it pays for loading it

        self._tls = self._socket = ssl.create_default_context().wrap_socket(
            self._socket, server_hostname=host, do_handshake_on_connect=False
        )
        self._would_block = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        while True:
            try:
                return self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._wait_for_connection(deadline, reading=True)
            except ssl.SSLWantWriteError:
                self._wait_for_connection(deadline, reading=False)

    def finish_connecting(self, deadline: float) -> None:
        self._wait_for_connection(deadline, reading=False)
        if problem := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(problem, os.strerror(problem))

    def _wait_for_connection(self, deadline: float, *, reading: bool) -> None:
        left = deadline - time.monotonic()
        if not wait_for_socket(self._socket.fileno(), reading=reading, writing=not reading, seconds=left):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _wait(self, seconds: float | None) -> bool:
        self._is_waiting = True
        try:
            if self._is_closed:  # by another thread, before it could see that there is somebody to wake
                return True
            return wait_for_socket(
                self._socket.fileno(),
                reading=True,
                writing=self.has_unsent and self._source is None,
                seconds=seconds,
                source=self._source,
            )
        finally:
            self._is_waiting = False
            if self._is_closed:
                self._socket.close()

    def _push(self) -> None:
        """Send one piece: a peer that takes everything at once must not keep us from everyone else."""
        if not self._unsent and self._unmade is not None:
            piece = self._next_piece(self._unmade)
            self._source = piece.descriptor if isinstance(piece, NotYet) else None
            if isinstance(piece, NotYet):
                return
            self._unsent = views((piece,))
            if not self._unsent:
                self._unmade = None
                return
        try:
            if sys.platform == "win32" or len(self._unsent) == 1 or self._tls:
                sent = self._socket.send(self._unsent[0])
            else:
                sent = self._socket.sendmsg(self._unsent)
        except self._would_block:
            return
        except OSError:  # rule 2
            self._was_cut_off = True
            self._unsent, self._unmade = (), None
        else:
            self._unsent = without_first(sent, self._unsent)

    def _next_piece(self, pieces: Iterator[bytes | NotYet]) -> bytes | NotYet:
        try:
            return next(pieces, b"")
        except Exception as cause:
            raise SourceError(cause) from cause


def views(parts: Sequence[Bytes]) -> Sequence[memoryview]:
    """The pieces to send: as they are if they are much, as one if not."""
    if sum(map(len, parts)) <= JOINED_BYTES:
        parts = (b"".join(parts),)
    return tuple(memoryview(part) for part in parts if part)


def without_first(count: int, parts: Sequence[memoryview]) -> Sequence[memoryview]:
    for number, part in enumerate(parts):
        if count < len(part):
            return (part[count:], *parts[number + 1 :])
        count -= len(part)
    return ()


def _connect_unix(path: str, deadline: float) -> Stream:
    if UNIX is None:
        raise error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"unix://{path} is a Unix socket, which Python has none of on this system",
            remedy="Set ATOLL_URL (or url=, --url) to the server's http:// or https:// address.",
        )
    peer = QuietSocket(UNIX)
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)
    stream = Stream(peer)
    try:
        while True:
            try:
                with short_path(path) as address:
                    peer.connect(address)
                return stream
            except BlockingIOError:  # so many wait already; a Unix socket cannot tell us when there is room
                if time.monotonic() > deadline:
                    raise
                pause(BACKLOG_PAUSE)
    except BaseException:
        stream.close()
        raise


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A socket's path may have 107 bytes; on Linux it always fits, through a descriptor of its directory."""
    if sys.platform != "linux":
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _connect_tcp(peer: socket.socket, target: tuple[object, ...], address: TcpAddress, deadline: float) -> Stream:
    peer.setblocking(False)
    stream = Stream(peer)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    try:
        try:
            peer.connect(target)
        except BlockingIOError:
            stream.finish_connecting(deadline)
        if address.has_tls:
            stream.start_tls(address.host, deadline)
    except BaseException:
        stream.close()
        raise
    return stream
