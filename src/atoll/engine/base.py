"""The protocol of every engine. Nothing above `engine/` knows which one is there."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.rootfs import Rootfs


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to be made. `disk` is an existing directory of its own, in which what it writes is kept."""

    id: SandboxId
    rootfs: Rootfs
    disk: Path
    limits: Limits
    env: dict[str, str]


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Names one process for ever: a pid alone is used again."""

    pid: int
    start_time: int
    boot_id: str


@dataclass(kw_only=True)
class LiveSandbox:
    """A running sandbox, held by a pidfd of its first process until it is stopped.

    While `keeper` is open, the sandbox ends with the process that holds it.
    """

    id: SandboxId
    process: ProcessIdentity
    uid_base: int
    agent_socket: Path
    pidfd: int | None
    keeper: int | None = None

    def release(self) -> None:
        """Hold it no longer. It runs on, if it was told to. Twice is fine."""
        for fd in (self.pidfd, self.keeper):
            if fd is not None:
                os.close(fd)
        self.pidfd = self.keeper = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox has used so far, and uses now."""

    cpu_seconds: float
    memory: int
    processes: int
    oom_kills: int


class EventKind(Enum):
    OOM_KILLED = "oom_killed"  # it ran out of memory, and a process of it was killed
    HOARD_KILLED = "hoard_killed"  # it held more in sockets or file locks than it may, and its commands were killed
    ENDED = "ended"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a sandbox, and how many of its processes were killed for memory until then."""

    kind: EventKind
    oom_kills: int


class Engine(Protocol):
    """Makes sandboxes, watches them, ends them."""

    async def start(self, spec: SandboxSpec) -> LiveSandbox:
        """Make a sandbox and return when its agent listens; on failure nothing of it remains but `spec.disk`."""
        ...

    async def keep(self, sandbox: LiveSandbox) -> None:
        """Let it outlive this process, now that it is on record. Before, it would end with us, and nobody miss it."""
        ...

    async def adopt(self, left: LiveSandbox) -> LiveSandbox | None:
        """Take over a sandbox that another process left, by what that one recorded; None if it has ended."""
        ...

    async def settle(self, known: Iterable[LiveSandbox]) -> None:
        """Return when what earlier processes left half-made has ended. What else may be running is `known`."""
        ...

    async def stop(self, sandbox: LiveSandbox) -> None:
        """End every process of the sandbox and return when they are gone. Twice is fine."""
        ...

    async def wait(self, sandbox: LiveSandbox) -> None:
        """Return when the sandbox has ended, whoever ended it."""
        ...

    async def freeze(self, sandbox: LiveSandbox) -> None:
        """Let everything in it stand still, memory kept. Twice is fine."""
        ...

    async def thaw(self, sandbox: LiveSandbox) -> None:
        """Let it go on where it stood."""
        ...

    def is_frozen(self, sandbox: LiveSandbox) -> bool: ...

    async def usage(self, sandbox: LiveSandbox) -> Usage:
        """Read in a thread: the kernel takes its time to add up what many cpus counted."""
        ...

    async def open_socket(self, sandbox: LiveSandbox, port: int) -> socket.socket:
        """A connection to what listens on the sandbox's own loopback, which nothing else of the host can reach."""
        ...

    def events(self, sandbox: LiveSandbox) -> AsyncIterator[Event]:
        """From now on, as they happen. ENDED is the last."""
        ...

    def at_rest(self) -> AbstractAsyncContextManager[None]:
        """Without processes of its own while this lasts, as they may see disks that are to be unmounted. Sandboxes run
        on; none may be started.
        """
        ...

    async def close(self) -> None:
        """Let go of the engine's own processes. Sandboxes run on."""
        ...
