"""The superblock of a btrfs, read without mounting it: enough to tell a pool from a wreck."""

from __future__ import annotations

import struct

OFFSET, SIZE = 65_536, 4_096
MAGIC = b"_BHRfS_M"

_MAGIC_AT, _TOTAL_BYTES_AT, _CHECKSUM_TYPE_AT, _CHECKED_FROM = 64, 112, 196, 32
_CRC32C = 0
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


def find_damage(superblock: bytes, file_size: int) -> str | None:
    """The fault of a file of this size that has these bytes at OFFSET; None if nothing shows."""
    if len(superblock) < SIZE:
        return f"it has {file_size:,} bytes, too few for a file system"
    if superblock[_MAGIC_AT : _MAGIC_AT + len(MAGIC)] != MAGIC:
        return "there is no btrfs in it"
    is_crc32c = _unpack("H", superblock, _CHECKSUM_TYPE_AT) == _CRC32C
    if is_crc32c and _unpack("I", superblock, 0) != crc32c(superblock[_CHECKED_FROM:]):
        return "its superblock does not match its checksum"
    total = _unpack("Q", superblock, _TOTAL_BYTES_AT)
    if total > file_size:
        return f"its file system has {total:,} bytes, the file only {file_size:,}"
    return None


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def _unpack(kind: str, data: bytes, offset: int) -> int:
    return int(struct.unpack_from(f"<{kind}", data, offset)[0])
