"""A program of 173 bytes, which becomes a child subreaper and then the program that its arguments name.

posix_spawn cannot make a subreaper. A fork can, but it makes 500 pages of the agent be copied: a quarter of the time to
a new sandbox's first result, and a megabyte for as long as it lives.
"""

from __future__ import annotations

import struct

CODE = (  # x86-64, as the test of it assembles it again
    ("mov $157, %eax", "b89d000000"),  # prctl
    ("mov $36, %edi", "bf24000000"),  # PR_SET_CHILD_SUBREAPER
    ("mov $1, %esi", "be01000000"),
    ("syscall", "0f05"),
    ("mov (%rsp), %rcx", "488b0c24"),  # the number of arguments
    ("lea 16(%rsp), %rsi", "488d742410"),  # those after the first
    ("lea 16(%rsp,%rcx,8), %rdx", "488d54cc10"),  # the environment, which follows them
    ("mov (%rsi), %rdi", "488b3e"),  # the program
    ("mov $59, %eax", "b83b000000"),  # execve
    ("syscall", "0f05"),
    ("mov $127, %edi", "bf7f000000"),  # what a shell says of what it cannot start
    ("mov $60, %eax", "b83c000000"),  # exit
    ("syscall", "0f05"),
)

_ADDRESS = 0x400000


def _to_elf(code: bytes) -> bytes:
    """The smallest file that the kernel takes for a program: two headers, and one segment with everything in it."""
    header, segment = 64, 56
    size = header + segment + len(code)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little-endian, version 1
    kind, machine, entry = 2, 62, _ADDRESS + header + segment
    program = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, entry, header, 0, 0, header, segment, 1, 0, 0, 0)
    load, readable_and_executable, alignment = 1, 5, 4096
    one = struct.pack("<IIQQQQQQ", load, readable_and_executable, 0, _ADDRESS, _ADDRESS, size, size, alignment)
    return identity + program + one + code


SUBREAPER = _to_elf(bytes.fromhex("".join(code for _, code in CODE)))
