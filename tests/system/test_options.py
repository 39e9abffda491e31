"""Options of a sandbox over HTTP: what it is made with, and what is told about one that has others."""

from __future__ import annotations

import asyncio

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
