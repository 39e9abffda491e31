"""The watch over what waits in sockets beyond any limit of the kernel's, and over file locks: memory that is nobody's.

TCP and UDP have a limit (cgroups.py, rule 5), but a connection beyond it still gets what it must, 140 KB. What waits in
netlink, and in a datagram that is not sent yet, is not counted at all; nor is what waits for ping, which nobody may.

Rules:
1. A thread looks at a few sandboxes in turn, four times a second, and at one number of the machine: memory that is not
   free, and no page of a program's or a file's. When that has grown by MUCH, it looks at all, in a tenth of the time at
   most. To look at one takes 0.1 ms.
2. Whoever holds more than twice what its sockets may hold has its commands killed, as when its memory is full.
3. If all together hold nearly what they may, it is the one that holds most, and so on: beyond that the kernel holds
   everybody's sockets back, and soon has none for the host. What was found last time is taken for what the others hold.
4. If file locks take MUCH, whoever made most of the newest has its commands killed (file_locks.py).

While no server runs nobody looks. It is a thread, since an event loop may be busy for longer than a hoard needs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from atoll.engine.native.file_locks import locks_bytes, most_locks, newest_locks
from atoll.engine.native.group_limits import for_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAUSE_SECONDS = 0.25
PART_OF_TIME = 10
IN_TURN = 4
MUCH = 64 * 2**20
TOO_OFTEN = 2  # times what is allowed
NEARLY = 15 / 16
OWNED = (
    *(b"MemFree", b"Buffers", b"Cached", b"SwapCached", b"AnonPages", b"SReclaimable"),
    *(b"KernelStack", b"PageTables", b"Hugetlb"),
)
# Tables in /proc/PID/net, which are a namespace's own, and whether what has come is not counted either.
DATAGRAMS = {"icmp": True, "icmp6": True, "udp": False, "udp6": False}

logger = logging.getLogger("atoll.engine")


class Groups(Protocol):
    """Control groups, as far as they are asked here."""

    def socket_limit(self, name: str) -> int: ...
    def held_by_sockets(self, name: str) -> int: ...
    def kill_commands(self, name: str) -> None: ...


class HoardWatch:
    """Of the sandboxes it is told of. `tell` is called on the loop, with the group whose commands were killed."""

    def __init__(self, groups: Groups, most_of_all: int, tell: Callable[[str], None]) -> None:
        self._groups = groups
        self._most_of_all = most_of_all
        self._tell = tell
        self._pids: dict[str, int] = {}  # of first processes, by group
        self._held_before: dict[str, int] = {}
        self._kills: Counter[str] = Counter()
        self._turn = 0
        self._may_end = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, pid: int) -> None:
        self._pids[name] = pid
        if self._thread is None and not self._may_end.is_set():
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._watch, name="watch for hoards", daemon=True)
            self._thread.start()

    def discard(self, name: str) -> None:
        self._pids.pop(name, None)
        self._held_before.pop(name, None)
        self._kills.pop(name, None)

    def kills(self, name: str) -> int:
        """How often its commands were killed."""
        return self._kills[name]

    def close(self) -> None:
        """Twice is fine."""
        self._may_end.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        least, pause = sys.maxsize, PAUSE_SECONDS
        while not self._may_end.wait(pause):
            began = time.monotonic()
            with suppress(OSError):  # one has ended meanwhile, or no descriptor is left for now
                now = owned_by_nobody()
                least = min(least, now)
                if now > least + MUCH:
                    self._look(list(self._pids))
                    self._look_at_locks()
                    least = now
                elif is_nearly(self._held_before, self._most_of_all):
                    self._look(list(self._pids))
                else:
                    self._look(self._next_in_turn())
            pause = max(PAUSE_SECONDS, (time.monotonic() - began) * PART_OF_TIME)

    def _next_in_turn(self) -> list[str]:
        names = list(self._pids)
        self._turn = self._turn + IN_TURN if self._turn + IN_TURN < len(names) else 0
        return names[self._turn : self._turn + IN_TURN]

    def _look(self, names: Iterable[str]) -> None:
        held = {name: self._held(name) for name in names}
        for name in hoarders(held, self._groups.socket_limit, self._most_of_all):
            logger.warning("%s holds %d MiB in sockets, so what runs in it is killed", name, held[name] >> 20)
            self._kill(name)
        self._held_before |= {name: size for name, size in held.items() if name in self._pids}

    def _look_at_locks(self) -> None:
        if (size := locks_bytes()) < MUCH:
            return
        if name := most_locks(newest_locks(), dict(self._pids)):
            logger.warning("%s made most of %d MiB of file locks, so what runs in it is killed", name, size >> 20)
            self._kill(name)
        else:
            logger.warning("file locks take %d MiB of memory, and no sandbox was found to have made them", size >> 20)

    def _kill(self, name: str) -> None:
        self._groups.kill_commands(name)
        self._kills[name] += 1
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._tell, name)

    def _held(self, name: str) -> int:
        try:
            return self._groups.held_by_sockets(name) + held_uncounted(self._pids[name])
        except (KeyError, FileNotFoundError, ProcessLookupError):  # it has ended
            self.discard(name)
            return 0


def hoarders(held: dict[str, int], most_of: Callable[[str], int], most_of_all: int) -> list[str]:
    """The groups whose commands are to be killed. Limits are asked for only where much is held."""
    much = [name for name, size in held.items() if size > TOO_OFTEN * for_sockets(0)]
    found = [name for name in much if held[name] > TOO_OFTEN * most_of(name)]
    if not found and is_nearly(held, most_of_all):
        return [max(held, key=held.__getitem__)]
    return found


def is_nearly(held: dict[str, int], most_of_all: int) -> bool:
    return sum(held.values()) > NEARLY * most_of_all


def owned_by_nobody() -> int:
    """Bytes of the machine's memory that are not free, and no page of a program's or a file's."""
    with open("/proc/meminfo", "rb") as file:
        return parse_meminfo(file.read())


def parse_meminfo(text: bytes) -> int:
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in text.splitlines())}
    return (sizes[b"MemTotal"] - sum(sizes.get(name, 0) for name in OWNED)) * 1024


def held_uncounted(pid: int) -> int:
    """Bytes in the network namespace of that process."""
    total = netlink_bytes(_read(pid, "netlink"))
    for name, with_received in DATAGRAMS.items():
        with suppress(FileNotFoundError):  # a kernel without IPv6
            total += datagram_bytes(_read(pid, name), with_received=with_received)
    return total


def netlink_bytes(table: bytes) -> int:
    """Received and not read."""
    return sum(int(line.split()[4]) for line in table.splitlines()[1:])


def datagram_bytes(table: bytes, *, with_received: bool) -> int:
    """Not sent yet; and received, if that is asked for. Both are in one word."""
    total = 0
    for line in table.splitlines()[1:]:
        sent, _, received = line.split()[4].partition(b":")
        total += int(sent, 16) + (int(received, 16) if with_received else 0)
    return total


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/net/{name}", "rb") as file:
        return file.read()
