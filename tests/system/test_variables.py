"""Variables: one rule for whatever runs something, in every shell.

A call's come before what its session was given or has exported, those before the sandbox's, those before the image's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from atoll.protocol.commands import ExecShell
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.processes import LogPart, StartProcess, StreamProcessLog, WaitForExit
from atoll.protocol.sessions import CreateSession, SetEnvironment
from atoll.protocol.terminals import AttachTerminal, CreateTerminal, ViewFold
from tests.conftest import Box
from tests.system.test_session_state import DIES_BEFORE_IT_SAVES

SHOW = 'printf "<%s>" "${V-unset}"'
Env = dict[str, str | None]


async def in_shell(box: Box, session: str, env: Env) -> str:
    return (await box.shell(SHOW, session=session, env=env)).stdout.decode()


async def as_list(box: Box, session: str, env: Env) -> str:
    return (await box.run("sh", "-c", SHOW, session_id=session, env=env)).stdout.decode()


async def as_process(box: Box, session: str, env: Env) -> str:
    started = await box.link.ask(StartProcess(command=["sh", "-c", SHOW], session_id=session, env=env))
    await box.link.ask(WaitForExit(process_id=started.id))
    async with box.link.operation(StreamProcessLog(process_id=started.id, follow=False)) as log:
        parts = [frame async for frame in log.frames() if frame.kind.name == "EVENT"]
    entries = [entry.data for part in parts for entry in msgspec.msgpack.decode(part.payload, type=LogPart).entries]
    return b"".join(entries).decode()


async def in_terminal(box: Box, session: str, env: Env) -> str:
    created = await box.link.ask(CreateTerminal(shell=["sh", "-c", SHOW], session_id=session, env=env))
    call = AttachTerminal(terminal_id=created.id)
    fold, shown = ViewFold(call), b""
    async with box.link.operation(call) as view:
        while (seen := fold.take(await view.next_frame())) is not None:
            shown += seen if isinstance(seen, bytes) else b""
    return shown.decode()


WAYS: list[Callable[[Box, str, Env], Awaitable[str]]] = [in_shell, as_list, as_process, in_terminal]


async def given(box: Box, *levels: str) -> None:
    """A session in which the variable is set at these levels."""
    if "sandbox" in levels:
        await box.link.ask(SetEnvironment(env={"V": "sandbox"}))
    env: Env = {"V": "session"} if "session" in levels else {}
    await box.link.ask(CreateSession(session_id="s", env=env))
    if "set in session" in levels:
        await box.link.ask(SetEnvironment(env={"V": "set in session"}, session_id="s"))
    if "exported" in levels:
        await box.shell("export V=exported", session="s")
    if "unset" in levels:
        await box.shell("unset V", session="s")
    if "exported, then set" in levels:
        await box.shell("export V=exported", session="s")
        await box.link.ask(SetEnvironment(env={"V": "exported, then set"}, session_id="s"))
    if "then the sandbox's" in levels:
        await box.link.ask(SetEnvironment(env={"V": "then the sandbox's"}))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    ("levels", "shown"),
    [
        ([], "unset"),
        (["sandbox"], "sandbox"),
        (["sandbox", "session"], "session"),
        (["sandbox", "session", "set in session"], "set in session"),
        (["sandbox", "exported"], "exported"),
        (["session", "exported"], "exported"),
        (["sandbox", "unset"], "unset"),
        (["exported, then set"], "exported, then set"),
        (["then the sandbox's"], "then the sandbox's"),
        (["session", "then the sandbox's"], "session"),
        (["exported", "then the sandbox's"], "exported"),
        (["sandbox", "exported", "then the sandbox's"], "exported"),
        (["sandbox", "unset", "then the sandbox's"], "unset"),
    ],
    ids=str,
)
async def test_each_level_comes_before_the_next_whatever_runs(
    box: Box, way: Callable[[Box, str, Env], Awaitable[str]], levels: list[str], shown: str
) -> None:
    await given(box, *levels)
    assert await way(box, "s", {}) == f"<{shown}>"
    assert await way(box, "s", {"V": "call"}) == "<call>"
    assert await way(box, "s", {"V": None}) == "<unset>"
    assert await way(box, "s", {}) == f"<{shown}>"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_shell_that_ran_before_takes_what_the_sandbox_is_given_and_it_has_not(
    box: Box, way: Callable[[Box, str, Env], Awaitable[str]]
) -> None:
    await box.link.ask(SetEnvironment(env={"V": "old"}))
    await box.link.ask(CreateSession(session_id="s"))
    await box.shell("true", session="s")
    await box.link.ask(SetEnvironment(env={"V": "new"}))
    await box.link.ask(SetEnvironment(env={"V": "newer"}))
    assert await way(box, "s", {}) == "<newer>"
    await box.shell("true; exit", session="s")
    await box.link.ask(SetEnvironment(env={"V": None}))
    assert await way(box, "s", {}) == "<unset>"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_those_of_the_sandbox_are_the_default_sessions_own(
    box: Box, way: Callable[[Box, str, Env], Awaitable[str]]
) -> None:
    await box.shell("export V=exported")
    await box.link.ask(SetEnvironment(env={"V": "set"}))
    assert await way(box, "default", {}) == "<set>"
    await box.shell("export V=once-more")
    assert await way(box, "default", {}) == "<once-more>"


@pytest.mark.parametrize("value", ["", "a b", 'it\'s "$x" `y` \\', "two\nlines\n", "\t\x01\x7f", "ä€😀", "x" * 20_000])
async def test_values_arrive_as_they_were_exported(box: Box, value: str) -> None:
    await box.shell('V=$(cat; echo .); export V="${V%.}"', stdin=value.encode())
    assert (await box.run("sh", "-c", SHOW, session_id="default")).stdout.decode() == f"<{value}>"


async def test_a_virtualenv_that_was_activated_is_there_for_lists(box: Box) -> None:
    await box.shell(
        "mkdir -p /tmp/venv/bin; printf '#!/bin/sh\\necho ours' >/tmp/venv/bin/tool; chmod +x /tmp/venv/bin/tool"
    )
    await box.shell('export PATH="/tmp/venv/bin:$PATH"')
    assert (await box.run("tool", session_id="default")).stdout == b"ours\n"


async def test_one_list_after_another_sees_each_export_at_once(box: Box) -> None:
    for number in range(30):
        await box.shell(f"export V={number}")
        assert await as_list(box, "default", {}) == f"<{number}>"


async def test_a_state_that_was_never_saved_is_not_waited_for_more_than_a_moment(box: Box) -> None:
    await box.shell("export V=saved")
    await box.shell(f"export V=lost; {DIES_BEFORE_IT_SAVES}")
    assert await as_list(box, "default", {}) == "<saved>"


async def test_a_state_that_does_not_fit_is_not_waited_for(host_box: Box) -> None:
    await host_box.shell("export V=saved")
    await host_box.shell("export V=lost; huge=$(head -c 70000000 /dev/zero | tr '\\0' x)")
    assert await as_list(host_box, "default", {}) == "<saved>"


async def test_many_lists_at_once_wait_for_nobody(box: Box) -> None:
    async with box.link.operation(ExecShell(command="export V=busy; echo go; sleep 60")) as busy:
        await busy.next_frame()
        assert set(await asyncio.gather(*(as_list(box, "default", {}) for _ in range(8)))) == {"<unset>"}


async def test_variables_of_a_session_have_a_bound(box: Box) -> None:
    await box.link.ask(CreateSession(session_id="s"))
    await box.link.ask(SetEnvironment(env={"A": "x" * 100_000}, session_id="s"))
    with pytest.raises(AtollError) as caught:
        await box.link.ask(SetEnvironment(env={"B": "x" * 100_000}, session_id="s"))
    assert caught.value.code is ErrorCode.INVALID_ENVIRONMENT
    with pytest.raises(AtollError) as caught:
        await box.link.ask(SetEnvironment(env={"B": "1"}, session_id="none"))
    assert caught.value.code is ErrorCode.SESSION_NOT_FOUND
