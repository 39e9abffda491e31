"""The directories every root needs: mount points, a home, somewhere to work. The lowest layer of each image."""

from __future__ import annotations

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


def write_skeleton(root: Path) -> None:
    for name, mode in MODES.items():
        directory = root / name
        directory.mkdir(exist_ok=True, parents=True)
        directory.chmod(mode)
