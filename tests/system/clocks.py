"""Programs whose clock on the wall is ours to set (`wall_clock.c`). The machine's own stays as it is."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """A library that programs load, and the file in which it looks by how much the time is wrong."""

    def __init__(self, directory: Path) -> None:
        self._library, self._file = directory / "wall_clock.so", directory / "wall_clock"
        compiler = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*compiler, "-o", self._library, SOURCE], check=True)
        self._file.touch()
        self.set_forward(0)

    def set_forward(self, seconds: float) -> None:
        """By so much from the right time; back if it is negative."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", int(seconds)))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._file)}
