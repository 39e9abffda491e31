"""The host's side of the way to an agent. Every byte that arrives is treated as hostile.

Rules:
1. One operation per connection at a time; a free connection is kept for the next. An agent's worker that has done an
   operation on files keeps its end for a moment: so the next of them goes there, and all others elsewhere.
2. An operation that is left early closes its connection, which is how the agent learns to cancel it.
3. Nothing the agent sends is kept beyond what the caller allowed, and nothing is awaited for ever: an agent has the
   command's own timeout and a grace period to answer; where output is passed on, for all that it is waited for. Its
   time does not run while others of its session come first.
4. An agent that stands still takes no call's time alone: whoever has operations under way looks now and then whether it
   answers (`is_waited_for`, `ping`), and gives up on all of them if it does not.
5. An agent that cannot tell whether it answered a call says LOST, with the call's number: that concerns no later one.
6. An agent that an earlier server left is asked first which version of the protocol it speaks, and gets no call that
   came later.
7. SANDBOX_NOT_RUNNING means that the call was not taken, so it can be made again; AGENT_LOST, that nobody knows.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.engine.base import Capability
from atoll.protocol.agents import Ping, Pong
from atoll.protocol.calls import Answer, Call, encode_call, result
from atoll.protocol.commands import CommandFold, CommandOutput, Exec, ExecShell, session_of
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.versions import PROTOCOL_VERSION, version_needed
from atoll.supervisor.agent_connection import AgentConnection, Exchange
from atoll.supervisor.agent_failures import WHEN_ENDED, too_old, unreachable
from atoll.supervisor.descriptors import has_room, is_reserved, no_room
from atoll.supervisor.patience import Patience
from atoll.supervisor.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.engine.base import Engine, LiveSandbox

IDLE_CONNECTIONS = 8
IDLE_SECONDS = 30.0  # that a connection is kept for: a new one takes a fifth of a millisecond
MAX_UNDER_WAY = 512  # operations, as the agent has it; each may hold a frame of the largest kind
CONNECT_TIMEOUT = 10.0
ANSWER_GRACE = 30.0  # on top of a command's own timeout
MAX_OUTPUT_KEPT = 64 * 2**20
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

everyone: weakref.WeakSet[AgentLink] = weakref.WeakSet()  # who may have connections that nobody uses


class AgentLink:
    """All connections to one agent, that of `sandbox` if errors are to name it. `connect` makes one of them.

    `tells_unread` is for connections that say, when they break, whether the agent had read everything. `protocol` is
    the version that the agent speaks; None if it is to be asked, before its first call.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[socket.socket]],
        sandbox: str | None = None,
        *,
        tells_unread: bool = False,
        protocol: int | None = PROTOCOL_VERSION,
    ) -> None:
        self._connect_once = connect
        self.tells_unread = tells_unread
        self.protocol = protocol
        self._asking = asyncio.Lock()
        self._is_closed = False
        everyone.add(self)
        self._idle: deque[AgentConnection] = deque()
        self._busy: dict[AgentConnection, None] = {}  # in the order in which they began
        self.turns = Turns()
        self.sandbox = sandbox
        self.ending = WHEN_ENDED  # what operations are told that it takes along
        self.has_ended = False  # the sandbox, by itself; set by whoever watches it

    async def __aenter__(self) -> AgentLink:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self.let_idle_go(0)

    def let_idle_go(self, seconds: float) -> float | None:
        """Close connections that nobody has used for so long. Returns in how many seconds the next will be; None if
        there is none.
        """
        since = time.monotonic() - seconds
        while self._idle and self._idle[0].idle_since <= since:
            self._idle.popleft().abort()
        return self._idle[0].idle_since - since if self._idle else None

    async def ping(self) -> Pong:
        return await self.ask(Ping())

    async def ask(self, call: Call[Answer]) -> Answer:
        """The answer to a call that streams nothing."""
        async with self.operation(call) as connection:
            return result(call, await connection.next_of_answer(Patience(patience_with(call))))

    async def run(self, call: Exec | ExecShell, stdin: bytes | None = None) -> CommandOutput:
        """Run a command to its end and keep what it wrote: `max_output` of each stream, or MAX_OUTPUT_KEPT."""
        if stdin is not None:
            call = msgspec.structs.replace(call, stdin=True)
        if call.max_output is None:
            call = msgspec.structs.replace(call, max_output=MAX_OUTPUT_KEPT)
        async with self.operation(call) as connection:
            if stdin is None:
                return await collect(connection, call)
            async with connection.fed(stdin):
                return await collect(connection, call)

    def operation(self, call: Call[Any]) -> Exchange:
        """A connection on which `call` has been sent, as a context manager."""
        return Exchange(self, encode_call(call), session_of(call))

    @property
    def may_be_old(self) -> bool:
        """Whether there may be calls that the agent does not know."""
        return self.protocol is None or self.protocol < PROTOCOL_VERSION

    async def check(self, message: bytes) -> None:
        """Raise if the agent is too old for this call."""
        if self.protocol is None:
            async with self._asking:
                if self.protocol is None:
                    self.protocol = await self._ask_protocol()
        if self.protocol < (needed := version_needed(message)):
            raise too_old(self.protocol, needed)

    async def _ask_protocol(self) -> int:
        """By a call that every agent knows."""
        question = Ping()
        connection = await Exchange(self, encode_call(question), None).begin()
        try:
            return result(question, await connection.next_of_answer(Patience(ANSWER_GRACE))).protocol_version
        finally:
            self.take_back(connection)

    @property
    def is_waited_for(self) -> bool:
        """Whether anything is under way."""
        return bool(self._busy)

    def give_up(self) -> None:
        """On all that is under way: the agent does not answer."""
        for connection in list(self._busy):
            connection.give_up(ANSWER_GRACE)

    def take(self, connection: AgentConnection) -> None:
        self._busy[connection] = None

    def has_elder(self, connection: AgentConnection) -> bool:
        """Whether an operation is under way that began before this one, in the same session."""
        for other in self._busy:
            if other is connection:
                return False
            if other.session == connection.session:
                return True
        return False

    def take_back(self, connection: AgentConnection) -> None:
        """Keep a connection for the next operation, if it is fit for one."""
        self._busy.pop(connection, None)
        connection.end()
        if connection.session is not None:
            for other in self._busy:
                other.look_at_queue()
        if not connection.is_free or self._is_closed:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > IDLE_CONNECTIONS:
            self._idle.popleft().abort()

    async def connection(self, *, is_about_files: bool) -> AgentConnection:
        """A connection that is free, or new; and such as the last call there was, `is_about_files`."""
        if len(self._busy) >= MAX_UNDER_WAY:
            raise error(
                ErrorCode.AGENT_BUSY,
                f"the sandbox already has {MAX_UNDER_WAY} operations under way",
                remedy="Wait for some to end.",
                limit=MAX_UNDER_WAY,
            )
        for connection in reversed(list(self._idle)):
            if connection.is_about_files is is_about_files or not connection.is_free:
                self._idle.remove(connection)
                if connection.is_free:
                    return connection
                connection.abort()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._connect()
        except TimeoutError as cause:
            raise error(
                ErrorCode.AGENT_TIMEOUT,
                f"the agent did not take a connection within {CONNECT_TIMEOUT:g} seconds",
                remedy="The sandbox may be out of cpu; try again, or stop it.",
            ) from cause
        except OSError as cause:
            raise unreachable(cause) from cause
        connection.is_about_files = is_about_files
        return connection

    async def _connect(self) -> AgentConnection:
        peer = await self._open()
        try:
            loop = asyncio.get_running_loop()
            wrap = loop.create_unix_connection if peer.family == socket.AF_UNIX else loop.create_connection
            _, protocol = await wrap(lambda: AgentConnection(self), sock=peer)
        except BaseException:
            peer.close()
            raise
        return protocol

    async def _open(self) -> socket.socket:
        """A way to the agent. If descriptors run short, connections that nobody uses are closed for it."""
        for is_last in (False, True):
            try:
                peer = await self._connect_once()
            except OSError as problem:
                if is_last or problem.errno not in OUT_OF_DESCRIPTORS:
                    raise
            else:
                if not is_reserved(peer.fileno()):
                    return peer
                peer.close()
            if not is_last:
                let_all_idle_go()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def link_to(engine: Engine, sandbox: LiveSandbox, name: str | None = None) -> AgentLink:
    """The link to the agent of a sandbox, by the way that its engine knows."""
    tells_unread = Capability.TELLS_UNREAD in engine.capabilities
    return AgentLink(partial(engine.connect, sandbox), name, tells_unread=tells_unread, protocol=sandbox.protocol)


def check_room() -> None:
    """Raise if there is none for a sandbox more."""
    if not has_room():
        let_all_idle_go()
        if not has_room():
            raise no_room()


def let_all_idle_go() -> None:
    for link in list(everyone):
        link.let_idle_go(0)


async def collect(connection: AgentConnection, call: Exec | ExecShell) -> CommandOutput:
    """All output and the result of the command under way."""
    fold = CommandFold(call)
    async for frame in connection.frames(patience_with(call)):
        fold.take(frame)
    return fold.output


def patience_with(call: Call[Any]) -> float | None:
    return None if call.patience is None else call.patience + ANSWER_GRACE
