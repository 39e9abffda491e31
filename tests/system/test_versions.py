"""Agents that outlive their server: one of an earlier version under a newer server, and the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from atoll.protocol.agents import Ping, Pong
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import FrameDecoder, FrameKind, encode_frame
from atoll.protocol.messages import decode_call, encode_message
from atoll.protocol.processes import KillAllProcesses, ProcessCount
from atoll.protocol.versions import PROTOCOL_VERSION, SINCE
from atoll.supervisor.agent_link import AgentLink
from tests.native import linked_at
from tests.system import later
from tests.system.serving import RunningServer

LATER = (str(Path(later.__file__)),)
NOW = ("-m", "atoll.cli")
TERMINALS = "/v1/sandboxes/kept/terminals"


async def replace(server: RunningServer, program: tuple[str, ...]) -> None:
    """By one of another version, which finds what this one made."""
    await server.end()
    server.program = program
    await server.start()


async def test_an_agent_of_an_earlier_version_is_spoken_to_in_its_own(own_server: RunningServer) -> None:
    sandbox = own_server.sandbox("kept")
    await sandbox.exec("state=kept; echo x >/f")
    assert (await own_server.ask("GET", TERMINALS)).status == 200
    await replace(own_server, LATER)
    assert (await own_server.ask("GET", "/v1/server")).json()["protocol_version"] == PROTOCOL_VERSION + 1
    assert (await sandbox.exec("echo $state")).stdout == "kept\n"
    answer = await own_server.ask("GET", TERMINALS)
    assert answer.status == 409
    problem = answer.json()
    assert problem["code"] == ErrorCode.AGENT_TOO_OLD and "sleep(stop=True)" in problem["remedy"]
    assert problem["context"] | {"speaks": PROTOCOL_VERSION, "needed": PROTOCOL_VERSION + 1} == problem["context"]
    with pytest.raises(AtollError) as caught:
        await sandbox.list_terminals()
    assert caught.value.code is ErrorCode.AGENT_TOO_OLD
    assert (await sandbox.exec("echo $state")).stdout == "kept\n", "what it knows works as before"

    await sandbox.sleep(stop=True)
    assert await sandbox.list_terminals() == []
    assert (await sandbox.exec("cat /f")).stdout == "x\n"
    await sandbox.aclose()
    await replace(own_server, NOW)


async def test_an_agent_of_a_later_version_serves_an_earlier_server(own_server: RunningServer) -> None:
    await replace(own_server, LATER)
    sandbox = own_server.sandbox("kept")
    await sandbox.exec("state=kept")
    await replace(own_server, NOW)
    assert (await own_server.ask("GET", "/v1/server")).json()["protocol_version"] == PROTOCOL_VERSION
    assert (await sandbox.exec("echo $state")).stdout == "kept\n"
    assert (await own_server.ask("GET", TERMINALS)).status == 200
    await sandbox.sleep(stop=True)
    assert (await sandbox.exec("echo anew")).stdout == "anew\n"
    await sandbox.aclose()


@asynccontextmanager
async def an_agent(path: Path, pong: bytes) -> AsyncIterator[tuple[AgentLink, list[str]]]:
    """One that says `pong` when it is asked, and what it was asked."""
    calls: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    call = decode_call(frame.payload)
                    calls.append(type(call).__name__)
                    answer = pong if isinstance(call, Ping) else encode_message(ProcessCount(count=0))
                    writer.write(encode_frame(FrameKind.DONE, answer))
        writer.close()

    link = linked_at(path)
    link.protocol = None
    async with await asyncio.start_unix_server(serve, path), link:
        yield link, calls


def said(version: int) -> bytes:
    return encode_message(Pong(protocol_version=version, commands_running=0))


async def kill_all(link: AgentLink) -> None:
    await link.ask(KillAllProcesses())


@pytest.mark.parametrize("version", [PROTOCOL_VERSION, PROTOCOL_VERSION + 7])
async def test_one_that_was_adopted_is_asked_once(tmp_path: Path, version: int) -> None:
    async with an_agent(tmp_path / "agent.sock", said(version)) as (link, calls):
        await asyncio.gather(*(kill_all(link) for _ in range(20)))
        await kill_all(link)
        assert link.protocol == version and not link.may_be_old
    assert sorted(calls) == ["KillAllProcesses"] * 21 + ["Ping"]


async def test_one_that_is_too_old_never_sees_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINCE, "kill_all_processes", PROTOCOL_VERSION + 1)
    async with an_agent(tmp_path / "agent.sock", said(PROTOCOL_VERSION)) as (link, calls):
        with pytest.raises(AtollError, match="AGENT_TOO_OLD"):
            await kill_all(link)
        assert calls == ["Ping"]


@pytest.mark.parametrize("pong", [b"", b"\xc1", encode_message({"protocol_version": -1, "commands_running": 0})])
async def test_one_that_says_no_version_broke_the_protocol(tmp_path: Path, pong: bytes) -> None:
    async with an_agent(tmp_path / "agent.sock", pong) as (link, calls):
        for _ in range(2):
            with pytest.raises(AtollError, match="AGENT_MISBEHAVED"):
                await kill_all(link)
    assert calls == ["Ping", "Ping"]
