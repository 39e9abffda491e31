"""The turnstile of a sandbox: its sockets, of which a few at a time have their turn.

A loop runs whatever is ready. With all sockets of all sandboxes in it, one that keeps hundreds busy would have hundreds
of turns for each of its neighbour's. So each has an epoll of its own, which is all that the loop knows of it; and the
kernel passes on in turn what is ready there.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

PER_TURN = 2
READ, WRITE = select.EPOLLIN, select.EPOLLOUT

Handler = Callable[[int], None]  # given what is ready of READ and WRITE; a peer that is gone is both


class Turnstile:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._events: dict[int, int] = {}
        loop.add_reader(self._epoll.fileno(), self._turn)

    def watch(self, peer: socket.socket, events: int, handler: Handler) -> None:
        """For READ, WRITE, both, or none any more."""
        fd = peer.fileno()
        known = self._events.get(fd, 0)
        if events == known:
            return
        if not events:
            self.forget(peer)
        elif known:
            self._epoll.modify(fd, events)
            self._events[fd] = events
        else:
            self._epoll.register(fd, events)
            self._events[fd], self._handlers[fd] = events, handler

    def forget(self, peer: socket.socket) -> None:
        """Before it is closed. Twice is fine."""
        fd = peer.fileno()
        if self._events.pop(fd, 0):
            del self._handlers[fd]
            self._epoll.unregister(fd)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._handlers.clear()

    def _turn(self) -> None:
        for fd, events in self._epoll.poll(0, PER_TURN):
            if handler := self._handlers.get(fd):
                handler(READ | WRITE if events & ~(READ | WRITE) else events)
