"""The server as a process: who may come in, many at once, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from atoll.client.commands import AsyncCommands
from atoll.protocol.errors import AtollError, ErrorCode
from tests.system.serving import RunningServer

SANDBOXES, SESSIONS, CLIENTS, COMMANDS = 10, 3, 50, 1_000
BEFORE_THE_KILL = 300


class Crowd:
    """Clients that send numbered commands all over the place. A command leaves its number in its session's file."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._numbers = iter(range(COMMANDS))
        self._random = random.Random(7)
        self.answered: set[int] = set()
        self.lost: Counter[ErrorCode] = Counter()
        self.is_half_way = asyncio.Event()

    async def set_up(self) -> None:
        for name in map(_sandbox, range(SANDBOXES)):
            sandbox = self._server.sandbox(name)
            for session in map(_session, range(1, SESSIONS)):
                await sandbox.create_session(session)
            await sandbox.aclose()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(self._be_a_client(has_tcp=client % 2 == 1))

    async def _be_a_client(self, *, has_tcp: bool) -> None:
        sandboxes = [self._server.sandbox(_sandbox(number), tcp=has_tcp) for number in range(SANDBOXES)]
        for number in self._numbers:
            sandbox = self._random.choice(sandboxes)
            session = AsyncCommands(sandbox._link, _session(self._random.randrange(SESSIONS)))
            await self._command(session, number)
        for sandbox in sandboxes:
            await sandbox.aclose()

    async def _command(self, session: AsyncCommands, number: int) -> None:
        name = session._session_id
        trace = f"n=$((n+1)); echo {number} >> {name}.log"
        command = f"{trace}; echo out-{number}-$SECRET; echo err-{number} >&2; (exit {number % 200})"
        while True:
            try:
                result = await session.exec(command, env={"SECRET": str(number * 7)})
            except AtollError as problem:
                if problem.code is ErrorCode.SERVER_NOT_REACHABLE:  # so nothing was sent
                    continue
                self.lost[problem.code] += 1
                return
            assert result.stdout == f"out-{number}-{number * 7}\n"
            assert result.stderr == f"err-{number}\n"
            assert result.exit_code == number % 200
            self.answered.add(number)
            if len(self.answered) == BEFORE_THE_KILL:
                self.is_half_way.set()
            return

    async def executed(self) -> list[int]:
        """The numbers that commands left, after checking that the shells counted as many."""
        found: list[int] = []
        for name in map(_sandbox, range(SANDBOXES)):
            sandbox = self._server.sandbox(name)
            for session in map(_session, range(SESSIONS)):
                shell = AsyncCommands(sandbox._link, session)
                result = await shell.exec(f"echo ${{n:-0}}; cat {session}.log")
                count, *numbers = map(int, result.stdout.split())
                assert count == len(numbers)
                found += numbers
            await sandbox.aclose()
        return found


def _sandbox(number: int) -> str:
    return f"crowd-{number}"


def _session(number: int) -> str:
    return f"session-{number}" if number else "default"


async def test_of_a_thousand_commands_by_fifty_clients_none_is_lost_doubled_or_mixed_up(server: RunningServer) -> None:
    crowd = Crowd(server)
    await crowd.set_up()
    await crowd.run()
    assert not crowd.lost
    assert crowd.answered == set(range(COMMANDS))
    assert sorted(await crowd.executed()) == list(range(COMMANDS))


async def test_a_kill_in_the_middle_leaves_sandboxes_and_sessions_and_runs_nothing_twice(
    own_server: RunningServer,
) -> None:
    crowd = Crowd(own_server)
    await crowd.set_up()
    running = asyncio.create_task(crowd.run())
    await crowd.is_half_way.wait()
    port = own_server.port
    await own_server.kill()
    own_server.options = ("--port", str(port))
    await own_server.start()
    await running
    assert set(crowd.lost) <= {ErrorCode.SERVER_LOST}
    assert crowd.lost
    assert len(crowd.answered) + crowd.lost.total() == COMMANDS
    executed = Counter(await crowd.executed())
    assert set(executed.values()) == {1}
    assert crowd.answered <= set(executed)
