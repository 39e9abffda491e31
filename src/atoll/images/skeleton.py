"""The directories every root needs: mount points, a home, somewhere to work. The lowest layer of each image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODES = {
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "run/lock": 0o1777,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/tmp": 0o1777,
    "workspace": 0o755,
}


@contextmanager
def plain_umask() -> Iterator[None]:
    """Modes in an image are its own, whatever the umask of who builds it."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def write_skeleton(root: Path) -> None:
    for name, mode in MODES.items():
        directory = root / name
        directory.mkdir(exist_ok=True, parents=True)
        directory.chmod(mode)
