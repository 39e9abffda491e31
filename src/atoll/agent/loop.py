"""An event loop that can be made before a fork, and gets its descriptors after it.

Most of what a loop costs is the making of Python objects. Made once in the nursery they are shared by all sandboxes;
what must not be shared, an epoll instance and a pair of sockets, comes with `open`.
"""

from __future__ import annotations

import asyncio
import selectors


class AgentLoop(asyncio.SelectorEventLoop):
    """Not to be used before `open`."""

    def __init__(self) -> None:
        self._late_selector = selectors.EpollSelector()
        super().__init__(self._late_selector)
        self._late_selector.close()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._late_selector.__init__()  # type: ignore[misc]
        super()._make_self_pipe()  # type: ignore[misc]

    def _make_self_pipe(self) -> None:
        """Called by asyncio when a loop is made; here it waits for `open`."""

    def _close_self_pipe(self) -> None:
        if self._is_open:
            super()._close_self_pipe()  # type: ignore[misc]
