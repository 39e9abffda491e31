"""Loop devices: one for each pool's file, machine-wide.

1. A second device on the same file would mount as another file system over the same bytes and destroy it. So devices
   are looked up by their file, under a lock, and never attached twice.
2. Programs that change devices, mounts or a pool's file inherit the lock: when we are killed, they go on without us,
   and whoever comes next waits for them.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error

LOCK = Path("/run/atoll-machine/pools")  # the machine's, as loop devices are
ATTACH_ATTEMPTS = 20


@contextmanager
def machine_lock() -> Iterator[int]:
    """Yields the descriptor that holds it, for programs to inherit."""
    try:
        LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as cause:
        raise cannot_write(str(LOCK), cause) from cause
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def find_device(file: Path) -> str | None:
    """The loop device that has this file, if one does."""
    shown = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", file], capture_output=True, text=True
    )
    return shown.stdout.split()[0] if shown.stdout.split() else None


@contextmanager
def attached(file: Path, lock: int) -> Iterator[str]:
    """A loop device that has this file, and keeps it while this lasts."""
    for _ in range(ATTACH_ATTEMPTS):
        device = find_device(file) or attach(file, lock)
        # One whose last mount is going may be detached until it is open, and then cannot be opened, or is another's.
        try:
            held = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if find_device(file) == device:
                yield device
                return
        finally:
            os.close(held)
    raise _cannot_attach(f"{device} is detached again and again")


def attach(file: Path, lock: int) -> str:
    # Without direct I/O every byte would be cached twice.
    command = ("losetup", "--find", "--show", "--direct-io=on", str(file))
    return run(*command, otherwise=_cannot_attach, lock=lock).strip()


def detach(device: str, lock: int) -> None:
    """Now, or when the last who has it lets go."""
    subprocess.run(["losetup", "--detach", device], check=False, capture_output=True, pass_fds=[lock])


def holders(device: str) -> list[int]:
    """Processes that see a mount of this device; of namespaces that nobody is in, the kernel tells nothing."""
    numbers = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if _sees(number, device)]


def _sees(process: int, device: str) -> bool:
    try:
        return f" - btrfs {device} " in Path(f"/proc/{process}/mountinfo").read_text()
    except OSError:
        return False


def run(*command: str, otherwise: Callable[[str], AtollError], lock: int) -> str:
    shown = subprocess.run(command, capture_output=True, text=True, pass_fds=[lock])
    if shown.returncode:
        raise otherwise(shown.stderr.strip())
    return shown.stdout


def _cannot_attach(said: str) -> AtollError:
    remedy = "Free a loop device, or raise their number; `losetup --list` shows who has them."
    return error(ErrorCode.POOL_DAMAGED, f"no loop device for the pool: {said}", remedy=remedy)
