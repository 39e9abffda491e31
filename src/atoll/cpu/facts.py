"""The facts of one CPU: what has another number, or other instructions, on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Numbers that were given out since there is one list for all machines.
NEW_CALLS = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "clone3": 435,
    "close_range": 436,
    "mount_setattr": 442,
    "cachestat": 451,
}

Code = tuple[tuple[str, str], ...]  # instructions in the words of GNU as, each with its bytes in hexadecimal


class Cpu(NamedTuple):
    name: str  # as `uname -m` has it
    elf_machine: int
    calls: Mapping[str, int]  # system calls by name
    execute_list: Code  # called with the address of a list of calls, as agent/commands/vfork.py has it
    become_subreaper: Code  # a whole program: a subreaper, and then what its arguments name


def to_bytes(code: Code) -> bytes:
    return bytes.fromhex("".join(instruction for _, instruction in code))
