"""The watch over sandboxes: their ends, and news of their memory, with few descriptors for many of them.

Rules:
1. An end is seen by the pidfd that holds the sandbox anyway: one reader of it, however many wait.
2. Memory has a channel for GROUPS_PER_CHANNEL groups. It does not say which of them has news, so all are looked at:
   half a millisecond. A kill is announced before it happens, so they are looked at again, LOOKS times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self

GROUPS_PER_CHANNEL = 64
LOOKS = (0.002, 0.003, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.6)  # seconds between them

Act = Callable[[], None]


class Groups(Protocol):
    """Control groups, as far as they are asked here."""

    def open_channel(self) -> int: ...
    def announce(self, name: str, channel: int) -> None: ...
    def oom_kills(self, name: str) -> int: ...


class Ends:
    """The watch over the ends of processes, by their pidfds. A pidfd is closed when nobody waits any more."""

    def __init__(self) -> None:
        self._acts: dict[int, list[Act]] = {}

    def add(self, pidfd: int, act: Act) -> None:
        if pidfd not in self._acts:
            asyncio.get_running_loop().add_reader(pidfd, self._on_end, pidfd)
        self._acts.setdefault(pidfd, []).append(act)

    def discard(self, pidfd: int, act: Act) -> None:
        """If it has not been done."""
        acts = self._acts.get(pidfd, [])
        if act in acts:
            acts.remove(act)
            if not acts:
                self._forget(pidfd)

    async def wait(self, pidfd: int) -> None:
        has_ended = asyncio.Event()
        act = has_ended.set
        self.add(pidfd, act)
        try:
            await has_ended.wait()
        finally:
            self.discard(pidfd, act)

    def _on_end(self, pidfd: int) -> None:
        for act in self._forget(pidfd):
            act()

    def _forget(self, pidfd: int) -> list[Act]:
        asyncio.get_running_loop().remove_reader(pidfd)
        return self._acts.pop(pidfd)


class MemoryNews:
    """The watch over processes of groups that are killed for their memory."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._channels: list[Channel] = []

    def add(self, name: str, act: Act) -> None:
        channel = next((one for one in self._channels if one.has_room_for(name)), None)
        if channel is None:
            channel = Channel(self._groups)
            self._channels.append(channel)
        try:
            channel.add(name, act)
        finally:
            self._close_unused()

    def discard(self, name: str, act: Act) -> None:
        for channel in self._channels:
            channel.discard(name, act)
        self._close_unused()

    def tell(self, name: str) -> None:
        """There is news of the group that the kernel does not know of."""
        for channel in self._channels:
            channel.tell(name)

    def _close_unused(self) -> None:
        for channel in [one for one in self._channels if one.is_unused]:
            channel.close()
            self._channels.remove(channel)


class Channel:
    """News of some groups."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._acts: dict[str, list[Act]] = {}
        self._kills: dict[str, int] = {}
        self._fd = groups.open_channel()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_news)
        self._next_look: asyncio.TimerHandle | None = None
        self._looks_left = 0

    @property
    def is_unused(self) -> bool:
        return not self._acts

    def has_room_for(self, name: str) -> bool:
        return name in self._acts or len(self._acts) < GROUPS_PER_CHANNEL

    def add(self, name: str, act: Act) -> None:
        if name not in self._acts:
            kills = self._groups.oom_kills(name)
            self._groups.announce(name, self._fd)
            self._kills[name] = kills
        self._acts.setdefault(name, []).append(act)
        self._look_at(name)

    def discard(self, name: str, act: Act) -> None:
        acts = self._acts.get(name, [])
        if act in acts:
            acts.remove(act)
            if not acts:
                del self._acts[name], self._kills[name]

    def tell(self, name: str) -> None:
        for act in self._acts.get(name, []):
            act()

    def close(self) -> None:
        if self._next_look:
            self._next_look.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _on_news(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 65_536)
        if not self._looks_left:  # or it is looked at soon anyway, as often as groups come and go
            self._look()
        self._looks_left = len(LOOKS)
        self._schedule()

    def _schedule(self) -> None:
        if self._next_look is None and self._looks_left:
            self._next_look = self._loop.call_later(LOOKS[-self._looks_left], self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._looks_left -= 1
        self._look()
        self._schedule()

    def _look(self) -> None:
        for name in list(self._kills):
            self._look_at(name)

    def _look_at(self, name: str) -> None:
        with suppress(OSError):  # the group is gone with the sandbox
            if (kills := self._groups.oom_kills(name)) > self._kills[name]:
                self._kills[name] = kills
                self.tell(name)


class Watch:
    """News of one sandbox: its end, and of its memory."""

    def __init__(self, ends: Ends, pidfd: int, memory: MemoryNews, name: str) -> None:
        self.has_ended = False
        self._ends, self._pidfd = ends, pidfd
        self._memory, self._name = memory, name
        self._news = asyncio.Event()
        self._on_change = self._news.set

    def __enter__(self) -> Self:
        self._memory.add(self._name, self._on_change)
        self._ends.add(self._pidfd, self._on_end)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.discard(self._pidfd, self._on_end)
        self._memory.discard(self._name, self._on_change)

    async def news(self) -> None:
        """Until there is some. What happens meanwhile is news for the next time."""
        await self._news.wait()
        self._news.clear()

    def _on_end(self) -> None:
        self.has_ended = True
        self._news.set()
