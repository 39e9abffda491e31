"""The confinement of the gateway: what it gives up before it looks at the first byte from a sandbox.

files         an empty directory is its root
user          an id that nobody else has, no groups, no capability, and no program that could bring one back
system calls  those of a program that has sockets and memory; scripts/build_seccomp.py makes the filter
memory        a bound, and one of open files
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from atoll.cpu.own import OWN

USER = 0x6FFF_0000  # of no account, and below the ranges that sandboxes have
MEMORY = 1 << 29
OPEN_FILES = 1 << 16
LOG = 1 << 20  # the only file it writes to is standard error
FILTER = Path(__file__).parent / f"seccomp_{OWN.name}.bpf"

_LAST_CAPABILITY = 40
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_MODE_FILTER, _INSTRUCTION = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def confine(root: str) -> None:
    """For good. Everything that is needed of the file system is loaded by now."""
    program = FILTER.read_bytes()
    bound()
    os.chroot(root)
    os.chdir("/")
    for number in range(_LAST_CAPABILITY + 1):
        _prctl(_PR_CAPBSET_DROP, number)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)  # with this, what capabilities it had are gone
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    install(program)


def bound() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(most, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG, LOG))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    address = ctypes.cast(buffer, ctypes.c_void_p)
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(program) // _INSTRUCTION, address)))


def _prctl(option: int, *arguments: object) -> None:
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0)]
    if _libc.prctl(option, *words[:4]) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
