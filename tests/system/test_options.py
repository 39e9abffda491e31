"""Options of a sandbox, over HTTP and in the SDK: what it is made with, and what is told about one that has others."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import pytest

from atoll import OptionsIgnoredWarning
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.limits import MIB
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

PATH = "/v1/sandboxes/chosen"


async def test_options_that_an_existing_sandbox_has_otherwise_are_told_and_change_nothing(
    server: RunningServer,
) -> None:
    made = (await server.ask("PUT", PATH, {"limits": "lite", "labels": {"team": "red"}, "ttl": "1h"})).json()
    assert (made["ttl"], made["ignored"]) == (3600.0, {})
    again = await server.ask("PUT", PATH, {"limits": {"memory": "1GiB"}, "labels": {"team": "red"}, "stop_after": 9})
    assert again.status == 200
    assert again.json()["ignored"] == {
        "limits.memory": "it is 268435456, not 1073741824",
        "stop_after": "it is None, not 9.0",
    }
    assert (await server.ask("GET", PATH)).json()["limits"] == made["limits"]


async def test_who_is_strict_is_refused_one_that_differs_and_given_one_that_does_not(server: RunningServer) -> None:
    await server.ask("PUT", PATH, {"env": {"A": "secret"}})
    refused = await server.ask("PUT", PATH, {"env": {"A": "other"}, "strict": True})
    assert (refused.status, refused.json()["code"]) == (409, "SANDBOX_CONFLICT")
    assert refused.json()["context"] == {"sandbox": "chosen", "options": "env.A"}
    assert b"secret" not in refused.body
    assert (await server.ask("PUT", PATH, {"env": {"A": "secret"}, "strict": True})).status == 200


async def test_a_sandbox_is_stopped_and_destroyed_after_the_times_it_was_made_with(server: RunningServer) -> None:
    await server.ask("PUT", PATH, {"sleep_after": 0, "stop_after": 0, "ttl": 3})
    async with asyncio.timeout(60):
        while (await server.ask("GET", PATH)).status != 404:
            await asyncio.sleep(0.05)
    events = (await server.ask("GET", f"{PATH}/events")).json()["events"]
    assert {"frozen", "stopped"} < {event["what"] for event in events}
    assert (events[-1]["what"], events[-1]["cause"]) == ("destroyed", "its life of 3 seconds was over")


# The SDK, both halves.


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


async def test_options_that_differ_are_a_warning_that_names_them_at_the_line_that_used_the_sandbox(
    half: Half, server: RunningServer
) -> None:
    first = half.get_sandbox("chosen", url=server.unix_url, limits="lite", stop_after="1h", ttl="1d")
    await half.run(first.exec, "true")
    status = await half.run(first.status)
    assert (status.stop_after, status.ttl) == (3600.0, 86400.0)
    other = half.get_sandbox("chosen", url=server.unix_url, limits="basic", labels={"team": "red"}, stop_after="1h")
    with pytest.warns(OptionsIgnoredWarning, match=r"limits\.memory: it is 268435456.*labels\.team") as warned:
        await half.run(other.exec, "true")
    (told,) = [warning for warning in warned if warning.category is OptionsIgnoredWarning]
    assert isinstance(told.message, OptionsIgnoredWarning)
    assert told.message.options["labels.team"] == "it is None, not 'red'"
    assert "/atoll/" not in told.filename
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await half.run(other.exec, "true")  # it was told
        await half.run(half.get_sandbox("chosen", url=server.unix_url, limits="lite").exec, "true")


async def test_strictly_options_that_differ_are_an_error(half: Half, server: RunningServer) -> None:
    await half.run(half.get_sandbox("chosen", url=server.unix_url, image="host").exec, "true")
    strict = half.get_sandbox("chosen", url=server.unix_url, ttl="1h", strict=True)
    with pytest.raises(AtollError, match="ttl: it is None, not 3600") as caught:
        await half.run(strict.exec, "touch was-here")
    assert caught.value.code is ErrorCode.SANDBOX_CONFLICT
    await half.run(half.get_sandbox("chosen", url=server.unix_url).set_ttl, "1h")
    assert (await half.run(strict.exec, "ls")).stdout == ""


async def test_limits_are_set_on_what_runs(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("chosen", url=server.unix_url, limits={"memory": "128MiB"})
    await half.run(sandbox.exec, "n=1")
    await half.run(sandbox.set_limits, memory="256MiB", pids=64)
    limits = (await half.run(sandbox.status)).limits
    assert (limits.memory, limits.pids, limits.cpus) == (256 * MIB, 64, 2.0)
    await half.run(sandbox.set_limits, "lite", cpus="1/2")
    assert (await half.run(sandbox.status)).limits.cpus == 0.5
    assert (await half.run(sandbox.exec, "echo $n $ATOLL_DISK")).stdout == f"1 {2 * 10**9}\n"
    await half.run(sandbox.exec, "head -c 20M /dev/zero >f; sync f")
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.set_limits, disk="8MiB")
    assert caught.value.code is ErrorCode.LIMIT_IN_USE
