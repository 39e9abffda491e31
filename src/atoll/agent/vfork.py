"""Making a process: its child executes a list of system calls, the last of which is execve.

The C library's posix_spawn has no place for what a command must do first: to join its control group. Moved by us, it
would be a moment late; and if we went there ourselves, the kernel could choose us when a command's memory runs out. A
fork could do it, but copies 500 pages. So this is posix_spawn with a list that we write.

Rules:
1. The child runs on our memory, and on our stack, of which it changes nothing: it has registers, the list and the
   kernel. We wait, without the interpreter lock, until it has exec'd or ended: something inside may stop it with a
   signal, and a thread of ours must be able to help.
2. No signal is delivered while it runs on our memory, as it would have our handlers.
3. A call that must not fail and does is reported with its number, and the child ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from atoll.agent.command_group import group
from atoll.agent.descriptors import limit

if TYPE_CHECKING:
    from collections.abc import Sequence

CODE = (  # x86-64, as the test of it assembles it again. Called with the list's address; returns a pid, or -errno.
    ("push %rbx", "53"),
    ("push %r12", "4154"),
    ("mov %rdi, %rbx", "4889fb"),
    ("mov %rdi, %r12", "4989fc"),
    # The first call is clone.
    ("mov (%rbx), %rax", "488b03"),
    ("mov 8(%rbx), %rdi", "488b7b08"),
    ("mov 16(%rbx), %rsi", "488b7310"),
    ("mov 24(%rbx), %rdx", "488b5318"),
    ("mov 32(%rbx), %r10", "4c8b5320"),
    ("mov 40(%rbx), %r8", "4c8b4328"),
    ("syscall", "0f05"),
    ("test %rax, %rax", "4885c0"),
    ("jz .+6", "7404"),  # the child goes on behind this
    ("pop %r12", "415c"),
    ("pop %rbx", "5b"),
    ("ret", "c3"),
    # The child, for each of the others.
    ("add $64, %rbx", "4883c340"),
    ("mov (%rbx), %rax", "488b03"),
    ("mov 8(%rbx), %rdi", "488b7b08"),
    ("mov 16(%rbx), %rsi", "488b7310"),
    ("mov 24(%rbx), %rdx", "488b5318"),
    ("mov 32(%rbx), %r10", "4c8b5320"),
    ("mov 40(%rbx), %r8", "4c8b4328"),
    ("syscall", "0f05"),
    ("test %rax, %rax", "4885c0"),
    ("jns .-32", "79de"),  # it went well: the next
    ("cmpq $0, 48(%rbx)", "48837b3000"),
    ("je .-39", "74d7"),  # it may fail: the next
    ("mov %rax, 56(%r12)", "4989442438"),
    ("mov $127, %edi", "bf7f000000"),
    ("mov $60, %eax", "b83c000000"),  # exit
    ("syscall", "0f05"),
)

_WORDS = 8  # of a call in the list: its number, five arguments, whether it must not fail, and in the first the outcome
_ROW = _WORDS * ctypes.sizeof(ctypes.c_long)
_MUST = 6
_OUTCOME = 7
_WRITE, _OPEN, _CLOSE, _SIGACTION, _SIGMASK, _DUP2, _CLONE, _EXECVE, _FCNTL, _SETSID = (
    1,
    2,
    3,
    13,
    14,
    33,
    56,
    59,
    72,
    112,
)
_CLONE_VM, _CLONE_VFORK, _SETFD = 0x100, 0x4000, 2
_MOST_CALLS = 96
_SIGNAL_SET = 8  # bytes
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)
_libc = ctypes.CDLL(None)

Vector = ctypes.Array[ctypes.c_char_p]


class Call(NamedTuple):
    """A system call, and whether the process may do without it."""

    number: int
    arguments: tuple[int, ...]
    must: bool = True


def make_vector(words: Sequence[str]) -> Vector:
    """Arguments, or "name=value" each, as the kernel takes them."""
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)


class DescriptorActions:
    """What a new process does with its descriptors, in this order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def copy(self, fd: int, target: int) -> None:
        if fd == target:
            self.calls.append(Call(_FCNTL, (fd, _SETFD, 0)))
        else:
            self.calls.append(Call(_DUP2, (fd, target)))

    def open_null(self, target: int, flags: int) -> None:
        """All below `target` must be open: the kernel gives the lowest number that is free."""
        self.calls.append(Call(_CLOSE, (target,), must=False))
        self.calls.append(Call(_OPEN, (_address(_NULL), flags)))


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
    program, words = ctypes.c_char_p(os.fsencode(path)), make_vector(argv)
    calls = [Call(_WRITE, (fd, _address(_OURSELVES), 1)) for fd in group.joins]
    calls += actions.calls
    calls.append(Call(_EXECVE, (_pointed(program), ctypes.addressof(words), ctypes.addressof(env))))
    with limit:
        pid = _maker.make(calls)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


class _Maker:
    """The code, and its list: what is the same for all processes comes first and is written once."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._page.write(bytes.fromhex("".join(code for _, code in CODE)))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), executable):
            raise OSError(ctypes.get_errno(), "no memory may hold code")
        self._run = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)
        self._list = (ctypes.c_long * (_MOST_CALLS * _WORDS))()
        first = [Call(_CLONE, (_CLONE_VM | _CLONE_VFORK | signal.SIGCHLD,))]
        # All of them: those that Python ignores, and those that the C library keeps for itself and would leave ignored.
        numbers = (number for number in range(1, signal.NSIG) if number not in _UNCATCHABLE)
        first += [Call(_SIGACTION, (number, _address(_DEFAULT), 0, _SIGNAL_SET)) for number in numbers]
        first.append(Call(_SIGMASK, (signal.SIG_SETMASK, _address(_NO_SIGNALS), 0, _SIGNAL_SET)))
        first.append(Call(_SETSID, ()))
        self._put(0, first)
        self._common = len(first)

    def make(self, calls: list[Call]) -> int:
        """A pid, or -errno."""
        self._put(self._common, calls)
        self._list[_OUTCOME] = 0
        before = ctypes.create_string_buffer(_SIGNAL_SET)
        _set_mask(_ALL_SIGNALS, before)
        try:
            pid: int = self._run(ctypes.addressof(self._list))
        finally:
            _set_mask(before, None)
        if pid > 0 and self._list[_OUTCOME]:
            os.waitpid(pid, 0)
            return self._list[_OUTCOME]
        return pid

    def _put(self, index: int, calls: list[Call]) -> None:
        words: list[int] = []
        for number, arguments, must in calls:
            words += (number, *arguments, *(0,) * (_MUST - 1 - len(arguments)), must, 0)
        ctypes.memmove(
            ctypes.addressof(self._list) + index * _ROW, (ctypes.c_long * len(words))(*words), 8 * len(words)
        )


def _set_mask(mask: ctypes.Array[ctypes.c_char], before: ctypes.Array[ctypes.c_char] | None) -> None:
    """Straight to the kernel, since the C library keeps two signals to itself."""
    _libc.syscall(ctypes.c_long(_SIGMASK), signal.SIG_SETMASK, mask, before, ctypes.c_size_t(_SIGNAL_SET))


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _pointed(text: ctypes.c_char_p) -> int:
    return ctypes.cast(text, ctypes.c_void_p).value or 0


_NULL = ctypes.create_string_buffer(b"/dev/null")
_OURSELVES = ctypes.create_string_buffer(b"0")
_DEFAULT = ctypes.create_string_buffer(32)  # a struct sigaction: SIG_DFL, no flags, nothing blocked meanwhile
_NO_SIGNALS = ctypes.create_string_buffer(_SIGNAL_SET)
_ALL_SIGNALS = ctypes.create_string_buffer(b"\xff" * _SIGNAL_SET, _SIGNAL_SET)
_maker = _Maker()
