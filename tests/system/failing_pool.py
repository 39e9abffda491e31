"""Pools that fail below their file system, as a disk does, and ways to see what became of that."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.storage.loop_devices import find_device

MIB = 2**20
FILLER = "somebody-else"
_GET_STATUS, _SET_STATUS, _STATUS_SIZE, _SIZE_LIMIT_AT = 0x4C05, 0x4C04, 232, 32
ONLY_THE_SUPERBLOCK = 256 * 1024


@contextmanager
def host_disk_of(size: int, directory: Path) -> Iterator[Path]:
    """The disk that holds the state directory: a file system of its own."""
    image, disk = directory / "disk.img", directory / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    yield disk
    while subprocess.run(["umount", disk], capture_output=True).returncode:  # the kernel lets go of the pool's file
        os.sched_yield()


def break_device(pool: Path) -> None:
    """Whatever is read from its loop device or written to it fails, but for the superblock. A new device is whole."""
    device = find_device(pool)
    assert device
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = bytearray(_STATUS_SIZE)
        fcntl.ioctl(fd, _GET_STATUS, status)
        struct.pack_into("Q", status, _SIZE_LIMIT_AT, ONLY_THE_SUPERBLOCK)
        fcntl.ioctl(fd, _SET_STATUS, status)
    finally:
        os.close(fd)


def fill(disk: Path) -> Path:
    """By somebody else, root, to the last block."""
    path = disk / FILLER
    with path.open("ab", buffering=0) as file:
        for size in (16 * MIB, 4096):  # there are blocks that only a write finds
            try:
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError:
                continue
    return path


def fill_below_holes(state: Path, disk: Path) -> Path:
    """Holes in the pool's file, and nothing on the disk below to fill them with. Returns what fills that."""
    with (state / "pool.btrfs").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # or whoever looks after the pool fills them first
        subprocess.run(["fstrim", state / "disks"], check=True)
        return fill(disk)


@contextmanager
def held_elsewhere() -> Iterator[int]:
    """A process that has a copy of every mount there is."""
    command = ["unshare", "--mount", "sh", "-c", "echo; exec sleep infinity"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert holder.stdout and holder.stdout.readline()
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()
