"""posix_spawn without the interpreter lock.

`os.posix_spawn` and `subprocess` keep the lock while the parent waits for its child to exec. Something inside can stop
that child with a signal, and then no thread of ours could run to help it. Through ctypes the lock is free.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import lru_cache

from atoll.agent.descriptors import limit

_libc = ctypes.CDLL(None)

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_ROOM_FOR_ACTIONS, _ROOM_FOR_ATTRIBUTES, _ROOM_FOR_SIGNALS = 256, 1024, 128  # more than any C library's structures take


def posix_spawn(path: str, argv: Sequence[str], env: Vector, actions: FileActions) -> int:
    """The pid of a new process in its own session, its signals at their defaults."""
    pid = ctypes.c_int()
    program, words = os.fsencode(path), make_vector(argv)
    with limit:
        number = _libc.posix_spawn(ctypes.byref(pid), program, actions.structure, _attributes, words, env)
    _check(number)
    return pid.value


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


Vector = ctypes.Array[ctypes.c_char_p]


def make_vector(words: Sequence[str]) -> Vector:
    """Arguments, or "name=value" each, as the kernel takes them."""
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)


class FileActions:
    """What a new process does with its descriptors. The C library keeps a list of it, which goes with this object.

    To be made before the limit of descriptors is lowered: the C library refuses a number above it.
    """

    _destroy = _libc.posix_spawn_file_actions_destroy  # the class has it for longer than the module, at the very end

    def __init__(self) -> None:
        self.structure = ctypes.create_string_buffer(_ROOM_FOR_ACTIONS)
        _libc.posix_spawn_file_actions_init(self.structure)

    def copy(self, fd: int, target: int) -> None:
        _check(_libc.posix_spawn_file_actions_adddup2(self.structure, fd, target))

    def open_null(self, target: int, flags: int) -> None:
        _check(_libc.posix_spawn_file_actions_addopen(self.structure, target, b"/dev/null", flags, 0))

    def __del__(self) -> None:
        self._destroy(self.structure)


@lru_cache(maxsize=256)  # one command after another gets the same numbers
def descriptor_actions(stdin: int | None, stdout: int, stderr: int) -> FileActions:
    """Without `stdin` it reads nothing."""
    actions = FileActions()
    if stdin is None:
        actions.open_null(0, os.O_RDONLY)
    else:
        actions.copy(stdin, 0)
    actions.copy(stdout, 1)
    actions.copy(stderr, 2)
    return actions


def _make_attributes() -> ctypes.Array[ctypes.c_char]:
    attributes = ctypes.create_string_buffer(_ROOM_FOR_ATTRIBUTES)
    _libc.posix_spawnattr_init(attributes)
    _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSID | _SETSIGDEF | _SETSIGMASK))
    _libc.posix_spawnattr_setsigmask(attributes, bytes(_ROOM_FOR_SIGNALS))  # nothing is blocked
    # All of them: those that Python ignores, those that the C library keeps for itself and would leave ignored, and the
    # rest because it would ask for the state of each before it sets it.
    _libc.posix_spawnattr_setsigdefault(attributes, b"\xff" * _ROOM_FOR_SIGNALS)
    return attributes


_attributes = _make_attributes()
