"""A program of 172 or 173 bytes, which becomes a child subreaper and then the program that its arguments name.

posix_spawn cannot make a subreaper. A fork can, but it makes 500 pages of the agent be copied: a quarter of the time to
a new sandbox's first result, and a megabyte for as long as it lives.
"""

from __future__ import annotations

import struct

from atoll.cpu.facts import Cpu, to_bytes
from atoll.cpu.own import OWN

_ADDRESS = 0x400000


def to_elf(cpu: Cpu) -> bytes:
    """The smallest file that the kernel takes for a program: two headers, and one segment with everything in it."""
    code = to_bytes(cpu.become_subreaper)
    header, segment = 64, 56
    size = header + segment + len(code)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little-endian, version 1
    kind, machine, entry = 2, cpu.elf_machine, _ADDRESS + header + segment
    program = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, entry, header, 0, 0, header, segment, 1, 0, 0, 0)
    load, readable_and_executable, alignment = 1, 5, 4096
    one = struct.pack("<IIQQQQQQ", load, readable_and_executable, 0, _ADDRESS, _ADDRESS, size, size, alignment)
    return identity + program + one + code


SUBREAPER = to_elf(OWN)
