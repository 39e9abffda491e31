"""The system-call filter, loaded as scripts/build_seccomp.py compiled it."""

from __future__ import annotations

import ctypes
import os

from atoll.cpu.own import OWN

FILTER = os.path.join(os.path.dirname(__file__), f"seccomp_{OWN.name}.bpf")

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_INSTRUCTION_SIZE = 8


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


class SeccompFilter:
    """A BPF program in memory, ready to be installed after a fork without reading a file."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        address = ctypes.cast(self._buffer, ctypes.c_void_p)
        self._program = _Program(len(program) // _INSTRUCTION_SIZE, address)

    @classmethod
    def shipped(cls) -> SeccompFilter:
        with open(FILTER, "rb") as file:
            return cls(file.read())

    def install(self) -> None:
        """From here on, for this process and all it starts. Needs no_new_privs."""
        if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(self._program)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
