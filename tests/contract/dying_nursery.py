"""A nursery that stands still at one step of a creation, until the test has killed whom it wants to kill.

Nursery, children and test share a page of memory: the child is in other namespaces and has closed every descriptor, but
its memory it keeps. Run as `python -I dying_nursery.py FILE FD`, where FILE holds the page.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 0.0005
_STEP_AT, _STEP_LENGTH = 64, 256


class Trap:
    """The page. The test sets it for a step; who comes to that step springs it, and waits to be let go."""

    _IS_SPRUNG, _IS_OPEN, _NURSERY, _CHILD, _ZYGOTE = range(5)

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)

    def _get(self, index: int) -> int:
        return int.from_bytes(self._page[index * 8 : index * 8 + 8], "little")

    def _put(self, index: int, value: int) -> None:
        self._page[index * 8 : index * 8 + 8] = value.to_bytes(8, "little")

    # The test's side.

    def set(self, step: str) -> None:
        self._put(self._IS_SPRUNG, 0)
        self._put(self._IS_OPEN, 0)
        self._page[_STEP_AT : _STEP_AT + _STEP_LENGTH] = step.encode().ljust(_STEP_LENGTH, b"\0")

    def open(self) -> None:
        self._page[_STEP_AT : _STEP_AT + _STEP_LENGTH] = bytes(_STEP_LENGTH)
        self._put(self._IS_OPEN, 1)

    @property
    def is_sprung(self) -> bool:
        return bool(self._get(self._IS_SPRUNG))

    @property
    def nursery(self) -> int:
        return self._get(self._NURSERY)

    @property
    def child(self) -> int:
        return self._get(self._CHILD)

    @property
    def zygote(self) -> int:
        return self._get(self._ZYGOTE)

    def close(self) -> None:
        self._page.close()

    # The other side.

    def introduce(self, nursery: int) -> None:
        self._put(self._NURSERY, nursery)
        self._put(self._CHILD, 0)

    def name_zygote(self, pid: int) -> None:
        self._put(self._ZYGOTE, pid)

    def name_child(self, pid: int) -> None:
        self._put(self._CHILD, pid)

    def at(self, step: str) -> None:
        if self._page[_STEP_AT : _STEP_AT + _STEP_LENGTH].rstrip(b"\0") != step.encode():
            return
        self._put(self._IS_SPRUNG, 1)
        while not self._get(self._IS_OPEN):
            time.sleep(PAUSE_SECONDS)


def main() -> None:
    from atoll.engine.native import launcher, nursery
    from atoll.engine.native.zygote import Zygote

    trap = Trap(Path(sys.argv[1]))
    trap.introduce(os.getpid())
    remember, clone, announce = launcher.Steps.at, Zygote.clone, nursery.Nursery._announce

    def at(steps: launcher.Steps, step: str) -> None:
        remember(steps, step)
        trap.at(step)

    def clone_and_tell(self: Zygote, *arguments: Any) -> tuple[int, int]:
        trap.name_zygote(self.pid)
        trap.name_child(0)
        pid, pidfd = clone(self, *arguments)
        trap.name_child(pid)
        return pid, pidfd

    def say(self: nursery.Nursery, birth: nursery.Birth) -> None:
        trap.at("announce")
        announce(self, birth)

    launcher.Steps.at = at  # type: ignore[method-assign, assignment]
    Zygote.clone = clone_and_tell  # type: ignore[method-assign, assignment]
    nursery.Nursery._announce = say  # type: ignore[method-assign]
    nursery.main()


if __name__ == "__main__":
    main()
