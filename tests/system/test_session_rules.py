"""The rules of sessions as users have them, in both halves of the SDK and over HTTP: turns, time and variables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

SHOW = ["sh", "-c", "echo ${V-unset}"]
PATH = "/v1/sandboxes/rules"

WRONG_ARGUMENTS = {
    "Sandbox.create_session": {"name": (5, "", "x" * 201, "a\nb", "\x1b[31m"), "exist_ok": (0, "yes", None)},
    "Session.set_env_vars": {"env": (5, "A=1", {"": "x"}, {"A=": "x"}, {"A": 1}, {"A": "\0"}, {5: "x"})},
}


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


async def test_who_waits_for_a_turn_longer_than_it_may_is_told_with_what_the_session_is_busy(
    half: Half, server: RunningServer
) -> None:
    sandbox = half.get_sandbox("rules", url=server.unix_url)
    async with half.entered(sandbox.exec_stream("echo begun; sleep 600")) as stream:
        async for event in half.iterate(stream):
            if event.type == "stdout":
                break
        with pytest.raises(TimeoutError) as caught:
            await half.run(sandbox.exec, "touch /never", timeout=0.1)
        assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.SESSION_BUSY
        assert caught.value.context["busy_with"] == "echo begun; sleep 600"
        events = []
        with pytest.raises(TimeoutError):
            async for event in half.iterate(sandbox.exec_stream("touch /never", timeout=0.1)):
                events.append(event.type)
        assert events == ["start", "error"]
        answer = await server.ask("POST", f"{PATH}/exec", {"command": "touch /never", "timeout": 0.1})
        assert (answer.status, answer.json()["code"]) == (504, "SESSION_BUSY")
        beside = [half.run(sandbox.exec, ["sh", "-c", "test -e /never || echo never"]) for _ in range(8)]
        assert {result.stdout for result in await asyncio.gather(*beside)} == {"never\n"}


async def test_all_that_runs_in_a_session_has_the_same_variables(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("rules", url=server.unix_url, env={"V": "sandbox"})
    other = await half.run(sandbox.create_session, "other")

    async def seen(session: object) -> set[str]:
        line = await half.run(session.exec, "echo ${V-unset}")  # type: ignore[attr-defined]
        listed = await half.run(session.exec, SHOW)  # type: ignore[attr-defined]
        process = await half.run(session.start_process, SHOW)  # type: ignore[attr-defined]
        await half.run(process.wait_for_exit)
        terminal = await half.run(session.create_terminal, shell=SHOW)  # type: ignore[attr-defined]
        await half.run(terminal.wait)
        shown = b""
        async with half.entered(terminal.attach()) as view:
            async for data in half.iterate(view):
                shown += data
        asked = {"command": SHOW, "session_id": session._session_id}  # type: ignore[attr-defined]
        answer = await server.ask("POST", f"{PATH}/exec", asked)
        logs = (await half.run(process.logs)).stdout
        return {text.strip() for text in (line.stdout, listed.stdout, logs, shown.decode(), answer.json()["stdout"])}

    assert await seen(sandbox) == await seen(other) == {"sandbox"}
    await half.run(other.exec, "export V=exported")
    await half.run(sandbox.set_env_vars, {"V": "new"})
    assert (await seen(sandbox), await seen(other)) == ({"new"}, {"exported"})
    await half.run(other.set_env_vars, {"V": "set"})
    assert (await seen(sandbox), await seen(other)) == ({"new"}, {"set"})
    answer = await server.ask("PATCH", f"{PATH}/sessions/other/env", {"V": None})
    assert (answer.status, answer.json()["id"]) == (200, "other")
    assert (await seen(sandbox), await seen(other)) == ({"new"}, {"unset"})
    assert (await server.ask("PATCH", f"{PATH}/sessions/none/env", {"V": None})).json()["code"] == "SESSION_NOT_FOUND"
    with pytest.raises(AtollError) as caught:
        await half.run(other.set_env_vars, {"not a name": "x"})
    assert caught.value.code is ErrorCode.INVALID_ENVIRONMENT


async def test_a_session_has_a_name_for_people_and_one_that_exists_may_be_used(
    half: Half, server: RunningServer
) -> None:
    sandbox = half.get_sandbox("rules", url=server.unix_url)
    made = await half.run(sandbox.create_session, "one", name="the first", exist_ok=True)
    await half.run(made.exec, "cd /tmp; x=kept")
    with pytest.raises(FileExistsError):
        await half.run(sandbox.create_session, "one")
    again = await half.run(sandbox.create_session, "one", name="another", cwd="/usr", exist_ok=True)
    assert again == made and (await half.run(again.exec, "echo $PWD $x")).stdout == "/tmp kept\n"
    assert [session.name for session in await half.run(sandbox.list_sessions)] == ["the first"]
    answer = await server.ask("POST", f"{PATH}/sessions", {"id": "one", "exist_ok": True})
    assert (answer.status, answer.json()["name"], answer.json()["cwd"]) == (200, "the first", "/tmp")
    assert (await server.ask("POST", f"{PATH}/sessions", {"id": "two", "name": "b", "exist_ok": True})).status == 201
    assert (await server.ask("POST", f"{PATH}/sessions", {"id": "two"})).json()["code"] == "SESSION_EXISTS"


async def test_asking_makes_nothing(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("rules", url=server.unix_url, limits="basic")
    for ask in (sandbox.status, sandbox.list_processes, sandbox.list_sessions, sandbox.kill_all_processes):
        with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
            await half.run(ask)
    for place in ("", "/processes", "/processes/x", "/processes/x/logs", "/sessions", "/terminals"):
        answer = await server.ask("GET", PATH + place)
        assert (answer.status, answer.json()["code"]) == (404, "SANDBOX_NOT_FOUND"), place
    for method, place in (("POST", "/processes/clean-up"), ("DELETE", "/sessions/x"), ("DELETE", "/terminals/x")):
        assert (await server.ask(method, PATH + place)).status == 404, place
    assert (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"] == []
    await half.run(sandbox.exec, "true")
    assert await half.run(sandbox.list_processes) == []
    await half.run(sandbox.destroy)
    with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
        await half.run(sandbox.list_processes)
