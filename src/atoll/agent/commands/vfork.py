"""Processes made by vfork: the child executes a list of system calls, the last of which is execve.

The C library's posix_spawn has no place for what a command must do first: to join its control group. Moved by us, it
would be a moment late; and if we went there ourselves, the kernel could choose us when a command's memory runs out. A
fork could do it, but copies 500 pages. So this is posix_spawn with a list that we write.

Rules:
1. The code (`atoll.cpu`) is called with the list's address, and returns a pid or -errno: our call is clone, and the
   child's are the others. It runs on our memory, and on our stack, of which it changes nothing: it has registers, the
   list and the kernel. We wait, without the interpreter lock, until it has exec'd or ended: something inside may stop
   it with a signal, and a thread of ours must be able to help.
2. No signal is delivered while it runs on our memory, as it would have our handlers.
3. A call that must not fail and does is reported with its number, and the child ends.
4. In a rehearsal the first call has the kernel end the child with us. PID 1 takes everybody along as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.agent.commands.group import group
from atoll.agent.descriptors import limit
from atoll.cpu.facts import to_bytes
from atoll.cpu.own import OWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A call in the list: its number, five arguments, whether it must not fail, and in the first what became of it.
_POINTER = struct.Struct("P")
_ENTRY, _NONE = struct.Struct("8q"), (0,) * 5
_OUTCOME = 56
_SIGNAL_AT_OUR_END = _ENTRY.size + 16  # the second argument of the second call
_AT_FDCWD, _CLONE_VM, _CLONE_VFORK, _SETFD, _SET_SIGNAL_AT_PARENTS_END = -100, 0x100, 0x4000, 2, 1
_MOST_CALLS = 16  # of those that differ from process to process
_SIGNAL_SET = 8  # bytes
_HANDLED_LATER = {signal.SIGCHLD}  # by the reaper; whoever makes processes here handles no other
_libc = ctypes.CDLL(None)

Vector = ctypes.Array[ctypes.c_char_p]


def make_vector(words: Sequence[str]) -> Vector:
    """Arguments, or "name=value" each, as the kernel takes them."""
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)


def _call(name: str, *arguments: int, must: bool = True) -> bytes:
    """An entry of the list."""
    return _ENTRY.pack(OWN.calls[name], *arguments, *_NONE[len(arguments) :], must, 0)


class DescriptorActions:
    """The steps by which a new process arranges its descriptors, in this order."""

    def __init__(self) -> None:
        self.calls = b""

    def copy(self, fd: int, target: int) -> None:
        self.calls += _call("fcntl", fd, _SETFD, 0) if fd == target else _call("dup3", fd, target, 0)

    def open_null(self, target: int, flags: int) -> None:
        """All below `target` must be open: the kernel gives the lowest number that is free."""
        self.calls += _call("close", target, must=False) + _call("openat", _AT_FDCWD, ctypes.addressof(_NULL), flags)


@lru_cache(maxsize=256)  # one command after another gets the same numbers
def descriptor_actions(stdin: int | None, stdout: int, stderr: int) -> DescriptorActions:
    """Without `stdin` it reads nothing."""
    actions = DescriptorActions()
    if stdin is None:
        actions.open_null(0, os.O_RDONLY)
    else:
        actions.copy(stdin, 0)
    actions.copy(stdout, 1)
    actions.copy(stderr, 2)
    return actions


def vfork_exec(path: str, argv: Sequence[str], env: Vector, actions: DescriptorActions) -> int:
    """The pid of a new process among the commands, in its own session, its signals at their defaults."""
    words = make_vector([path, *argv])  # one more, in front, so that the program's address is in it too
    program, start = _POINTER.unpack_from(words)[0], ctypes.addressof(words) + _POINTER.size
    execve = _call("execve", program, start, ctypes.addressof(env))
    with limit:
        pid = _maker.make(_joins(group.joins) + actions.calls + execve)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


@contextmanager
def ending_with_us() -> Iterator[None]:
    """Let processes that are made meanwhile be killed when we are."""
    _maker.set_signal_at_our_end(signal.SIGKILL)
    try:
        yield
    finally:
        _maker.set_signal_at_our_end(0)


@lru_cache(maxsize=1)
def _joins(fds: tuple[int, ...]) -> bytes:
    return b"".join([_call("write", fd, ctypes.addressof(_OURSELVES), 1) for fd in fds])


class _Maker:
    """The code, and its list: what is the same for all processes comes first and is written once."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._page.write(to_bytes(OWN.execute_list))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        # Where instructions are cached apart from data, the kernel sees to both at this change.
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), executable):
            raise MemoryError("no memory may hold code")
        self._run = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)
        first = _call("clone", _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD) + _call(
            "prctl", _SET_SIGNAL_AT_PARENTS_END, 0
        )
        first += b"".join(
            _call("rt_sigaction", number, ctypes.addressof(_DEFAULT), 0, _SIGNAL_SET) for number in _not_at_default()
        )
        first += _call("rt_sigprocmask", signal.SIG_SETMASK, ctypes.addressof(_NO_SIGNALS), 0, _SIGNAL_SET) + _call(
            "setsid"
        )
        self._list = ctypes.create_string_buffer(first, len(first) + _MOST_CALLS * _ENTRY.size)
        self._start = ctypes.addressof(self._list)
        self._outcome = memoryview(self._list).cast("B")[_OUTCOME : _OUTCOME + 8].cast("q")
        self._rest = memoryview(self._list).cast("B")[len(first) :]
        self._mask_before = ctypes.create_string_buffer(_SIGNAL_SET)

    def set_signal_at_our_end(self, number: int) -> None:
        memoryview(self._list).cast("B")[_SIGNAL_AT_OUR_END : _SIGNAL_AT_OUR_END + 8].cast("q")[0] = number

    def make(self, calls: bytes) -> int:
        """A pid, or -errno."""
        self._rest[: len(calls)] = calls
        self._outcome[0] = 0
        _set_mask(_ALL_SIGNALS, self._mask_before)
        try:
            pid: int = self._run(self._start)
        finally:
            _set_mask(self._mask_before, None)
        if pid > 0 and (failure := self._outcome[0]):
            os.waitpid(pid, 0)
            return failure
        return pid


def _not_at_default() -> list[int]:
    """Signals that something is done with here, also by the C library, which Python knows nothing of."""
    with open("/proc/self/status", "rb") as status:
        sets = [int(line.split()[1], 16) for line in status if line.startswith((b"SigIgn", b"SigCgt"))]
    return sorted(
        {number for number in range(1, signal.NSIG) if any(1 << number - 1 & mask for mask in sets)} | _HANDLED_LATER
    )


def _set_mask(mask: ctypes.Array[ctypes.c_char], before: ctypes.Array[ctypes.c_char] | None) -> None:
    """Straight to the kernel, since the C library keeps two signals to itself."""
    _libc.syscall(OWN.calls["rt_sigprocmask"], signal.SIG_SETMASK, mask, before, _SIGNAL_SET)


_NULL = ctypes.create_string_buffer(b"/dev/null")
_OURSELVES = ctypes.create_string_buffer(b"0")
_DEFAULT = ctypes.create_string_buffer(32)  # a struct sigaction: SIG_DFL, no flags, nothing blocked meanwhile
_NO_SIGNALS = ctypes.create_string_buffer(_SIGNAL_SET)
_ALL_SIGNALS = ctypes.create_string_buffer(b"\xff" * _SIGNAL_SET, _SIGNAL_SET)
_maker = _Maker()
