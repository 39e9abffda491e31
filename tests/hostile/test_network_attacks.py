"""Every attack by the network is held by the gateway; and succeeds with one that lacks the defence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from atoll.attacks.network import ATTACKS, NetworkAttack
from atoll.attacks.record import BREACH, HELD
from atoll.network.connection_log import ConnectionLog
from atoll.network.control import Upstream
from atoll.network.gateway_process import Attached, GatewayProcess
from atoll.protocol.network import parse_network
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.lab import NAME_SERVER, OTHER, PUBLIC, Lab

IN_TURN = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)


@asynccontextmanager
async def behind(
    program: tuple[str, ...], attack: NetworkAttack, workshop: Workshop, box: Box, directory: Path
) -> AsyncIterator[None]:
    process = GatewayProcess(Upstream(name_servers=[NAME_SERVER]), directory, program)
    policy = parse_network({"allow": [*attack.allow]})
    try:
        open_listeners = lambda: workshop.engine.open_gateway(box.live)  # noqa: E731
        await process.attach("key", Attached(box.live.id, policy, ConnectionLog(), open_listeners))
        await process.until_ready()
        yield
    finally:
        await process.close()


async def verdict(attack: NetworkAttack, box: Box) -> str:
    output = await box.run("python3", "-I", "-c", attack.payload)
    assert output.done.exit_code == 0, output.stderr.decode()
    return output.stdout.decode()


@IN_TURN
async def test_an_attack_by_the_network_is_held(
    attack: NetworkAttack, workshop: Workshop, host_box: Box, lab: Lab, tmp_path: Path
) -> None:
    lab.forget()
    async with behind(lab.gateway, attack, workshop, host_box, tmp_path):
        assert (await verdict(attack, host_box)).startswith(HELD)
    assert not lab.host.met()
    assert {place for place, _, said in lab.internet.met() if said} <= {PUBLIC, OTHER}
    assert not [asked for asked in lab.internet.asked() if "tunnel" in asked]


@IN_TURN
async def test_without_its_defence_it_succeeds(
    attack: NetworkAttack, workshop: Workshop, host_box: Box, lab: Lab, tmp_path: Path
) -> None:
    lab.forget()
    async with behind(lab.gateway_without(*attack.defences), attack, workshop, host_box, tmp_path):
        assert (await verdict(attack, host_box)).startswith(BREACH)
