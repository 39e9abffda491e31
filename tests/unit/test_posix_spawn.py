from __future__ import annotations

import ctypes

from atoll.agent.posix_spawn import descriptor_actions

ROUNDS = 20_000


class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field_{index}", ctypes.c_size_t) for index in range(10)]


def bytes_in_use() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    in_use: int = libc.mallinfo2().field_7
    return in_use


def test_what_is_forgotten_of_earlier_commands_is_given_back() -> None:
    def use_other_descriptors() -> None:
        for number in range(ROUNDS):
            descriptor_actions(None, 3 + number % 500, 3 + number // 500)

    use_other_descriptors()
    before = bytes_in_use()
    use_other_descriptors()
    assert bytes_in_use() < before + 100 * ROUNDS
