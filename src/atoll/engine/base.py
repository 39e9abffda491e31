"""The protocol of every engine. Nothing above `engine/` knows which one is there.

Rules:
1. Values go in and come out, and descriptors: an engine may be in another process, and its sandboxes on other machines.
2. What an engine must remember of a sandbox to find it again is in its `handle`, as text that nobody else reads. It is
   kept with the sandbox's record as it is, for years: an engine reads the handles of its earlier versions.
3. What only a process can hold, such as descriptors, the engine keeps to itself, by handle, until `release` or `stop`.
4. A handle that it cannot read, as another engine wrote it, says nothing of whether a sandbox runs: `adopt` and
   `is_running` raise SANDBOX_OUT_OF_REACH. Whoever took that for a no would start a second one on the same disk.
5. `connect` gives a way to the agent that is open to nobody inside. How that is known is the engine's: by who a peer is
   where the kernel says so, by a secret where the agent is far.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.rootfs import Rootfs
from atoll.telemetry.findings import Check


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to be made. `disk` is where what it writes is kept, its own and of the engine's `DiskKind`."""

    id: SandboxId
    generation: str
    rootfs: Rootfs
    disk: Path
    limits: Limits
    env: dict[str, str]


class LiveSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that was started. `generation` tells this time from every other that its id was or will be.

    `handle` is what its engine finds it by, and `engine` the name of that one; both are empty if it never was started.
    `protocol` is the version that its agent speaks, if the engine knows: of one that was adopted nobody does before it
    was asked.
    """

    id: SandboxId
    engine: str
    handle: str
    generation: str
    protocol: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a sandbox, so far and now."""

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


class Capability(StrEnum):
    """An ability that not every engine has."""

    FREEZE = "freeze"  # everything in a sandbox stands still, and its memory is kept
    SET_LIMITS = "set the limits of"  # of one that runs
    SNAPSHOT = "snapshot"  # its memory can be kept and gone on with, also elsewhere
    ATTACH = "attach"  # a directory can be attached to a sandbox that runs
    NETWORK = "connect"  # what leaves a sandbox can be led to a gateway
    # A connection to an agent that breaks says whether the agent had read all of it: what it had not is asked again.
    TELLS_UNREAD = "tells unread"


class GatewayListeners(NamedTuple):
    """The places inside a sandbox at which all that it sends elsewhere arrives: connections, and questions of DNS.

    What a connection was meant for, the kernel tells whoever accepts it (SO_ORIGINAL_DST).
    """

    tcp: socket.socket
    dns: socket.socket


class DiskKind(Enum):
    """The kind of disk that an engine takes."""

    LOCAL_DIRECTORY = "local directory"  # of this machine, owned by root, on a file system that can be idmapped


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine works. `state` has images and disks in it, `runtime` is for what does not survive a reboot."""

    state: Path
    runtime: Path
    keep_host_settings: bool = False  # what it would change of the machine's own settings stays as it is


class Engine(Protocol):
    """Makes sandboxes, watches them, ends them."""

    @property
    def name(self) -> str:
        """As records have it for years, so it never changes."""
        ...

    @property
    def isolation(self) -> str:
        """The isolation of a sandbox from the host and from others, in words for its users."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def why_out_of_reach(self, left: LiveSandbox) -> AtollError | None:
        """SANDBOX_OUT_OF_REACH if it cannot read that handle."""
        ...

    async def start(self, spec: SandboxSpec) -> LiveSandbox:
        """Make a sandbox and return when its agent listens; on failure nothing of it remains but `spec.disk`."""
        ...

    async def keep(self, sandbox: LiveSandbox) -> None:
        """Let it outlive this process, now that it is on record. Before, it would end with us, and nobody miss it."""
        ...

    async def adopt(self, left: LiveSandbox) -> LiveSandbox | None:
        """Take over a sandbox that another process left, by what that one recorded; None if it has ended."""
        ...

    async def is_running(self, left: LiveSandbox) -> bool:
        """The same question, without taking it over."""
        ...

    async def release(self, sandbox: LiveSandbox) -> None:
        """Hold it no longer. It runs on, if it was told to. Twice is fine."""
        ...

    async def settle(self, known: Iterable[LiveSandbox], *, are_all: bool) -> None:
        """Return when what earlier processes left half-made has ended. What else may be running is `known`.

        If these `are_all` that anybody can know of, others that run are ended too; unless one of these may be among
        them, as its handle cannot be read.
        """
        ...

    async def stop(self, sandbox: LiveSandbox) -> None:
        """End every process of the sandbox and return when they are gone. Twice is fine."""
        ...

    async def wait(self, sandbox: LiveSandbox) -> None:
        """Return when the sandbox has ended, whoever ended it."""
        ...

    async def connect(self, sandbox: LiveSandbox) -> socket.socket:
        """A stream to its agent, ready for the first call, which does not block; OSError if there is no agent any more.

        It may take as long as an agent takes that is busy: whoever asks sets the limit.
        """
        ...

    async def open_port(self, sandbox: LiveSandbox, port: int) -> socket.socket:
        """A connection to what listens on the sandbox's own loopback, which nothing else of the host can reach."""
        ...

    async def open_gateway(self, sandbox: LiveSandbox) -> GatewayListeners:
        """The listeners for who decides what the sandbox may reach; one at a time has them. Without, it reaches nobody.

        NETWORK_NOT_AVAILABLE if this machine, or what runs in the sandbox, has none to give.
        """
        ...

    async def freeze(self, sandbox: LiveSandbox) -> None:
        """Let everything in it stand still, memory kept. Twice is fine. It takes `Capability.FREEZE`."""
        ...

    async def thaw(self, sandbox: LiveSandbox) -> None:
        """Let it go on where it stood."""
        ...

    def is_frozen(self, sandbox: LiveSandbox) -> bool: ...

    async def set_limits(self, sandbox: LiveSandbox, limits: Limits) -> None:
        """From now on; all of them, or none. LIMIT_IN_USE if some process would have to be killed for it. It takes
        `Capability.SET_LIMITS`. How large its disk is, is not the engine's to say.
        """
        ...

    async def usage(self, sandbox: LiveSandbox) -> Usage: ...

    async def memory_used(self) -> int:
        """Bytes that all sandboxes use together; as cheap for many as for one."""
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
        """Let go of the engine's own processes, and of all it holds. Sandboxes run on."""
        ...


class EngineKind(Protocol):
    """An engine that could be opened: what it needs of a machine, asked before anything is made."""

    @property
    def disks(self) -> DiskKind: ...

    def check(self) -> None:
        """Raise the first reason why it can make no sandbox here. Cheap, and without a side effect."""
        ...

    def checks(self, ground: Path) -> list[Check]:
        """The doctor's questions. `ground` is the directory in which the state directory is, or would be made."""
        ...

    def open(self, settings: EngineSettings) -> Engine: ...


_INSTEAD = {
    Capability.FREEZE: "Stop it with sleep(stop=True): files are kept, and the next use starts it anew.",
    Capability.SET_LIMITS: "Stop it with sleep(stop=True), and set them then: the next use starts it with them.",
}


def require(engine: Engine, capability: Capability) -> None:
    """Raise NOT_AVAILABLE_YET if it cannot do that."""
    if capability not in engine.capabilities:
        raise error(
            ErrorCode.NOT_AVAILABLE_YET,
            f"the engine {engine.name!r} cannot {capability} sandboxes",
            remedy=_INSTEAD.get(capability, "Have the server use an engine that can."),
            engine=engine.name,
            capability=capability.value,
        )


def out_of_reach(left: LiveSandbox, engine: str) -> AtollError:
    """The error of an engine that cannot read a handle."""
    whose = "" if left.engine == engine else f" by the engine {left.engine!r}"
    return error(
        ErrorCode.SANDBOX_OUT_OF_REACH,
        f"sandbox {left.id!r} was started{whose} and may be running: the engine {engine!r} cannot read its handle",
        remedy="It is left alone, as a second one would ruin its disk. Open the state directory with the engine that "
        "started it; or restart this machine, which ends it, and it can be started anew.",
        sandbox=left.id,
        engine=left.engine,
    )
