"""Exposing: which ports of a sandbox the world reaches, kept with its record.

So they stay across sleep, stop and the server's end, and go with the sandbox. A port that is exposed keeps its token
until it is unexposed, or its time is up, or it is given another.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from atoll.preview.address import PreviewAddress, make_alias, needs_alias
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.ports import MAX_PORTS, MAX_TOKEN, ExposedPort, ExposeRequest, check_expose, not_exposed
from atoll.supervisor.records import KeptPort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.preview.address import PreviewPlace
    from atoll.supervisor.actor import Caller, SandboxActor
    from atoll.supervisor.records import SandboxRecord

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"  # of RFC 4648, as host names are written


async def expose(actor: SandboxActor, port: int, asked: ExposeRequest, by: Caller) -> None:
    """Expose a port, or change what is asked for of one that is exposed. The sandbox is made, if its id is new."""
    asked = check_expose(asked)
    async with actor.change():
        record = await actor.record_to_change(by)
        now = datetime.now(UTC)
        others = [kept for kept in record.ports if kept.port != port and not is_over(kept, now)]
        if len(others) >= MAX_PORTS:
            raise _too_many(record.id)
        before = find(record, port, now)
        kept = _asked_for(asked, before or KeptPort(port=port, token=random_text(MAX_TOKEN), exposed_at=now), now)
        if kept == before:
            return
        ports = tuple(sorted((*others, kept), key=lambda one: one.port))
        await actor.workshop.update(record, ports=ports, alias=record.alias or _alias_of(record.id))
        what = "port_exposed" if before is None else "port_changed"
        await actor.history.note(what, cause=f"port {port} was asked for", by=by.name)


async def unexpose(actor: SandboxActor, port: int, by: Caller) -> None:
    async with actor.change():
        record = actor.record()
        if find(record, port, datetime.now(UTC)) is None:
            raise not_exposed(record.id, port)
        await actor.workshop.update(record, ports=tuple(kept for kept in record.ports if kept.port != port))
        await actor.history.note("port_unexposed", cause=f"port {port} was asked for", by=by.name)


def exposed(record: SandboxRecord, place: PreviewPlace) -> list[ExposedPort]:
    """The ports that are exposed now, as their users see them."""
    now = datetime.now(UTC)
    return [
        ExposedPort(
            port=kept.port,
            url=place.url(PreviewAddress(kept.port, record.alias or record.id, kept.token)),
            exposed_at=kept.exposed_at,
            name=kept.name,
            expires_at=kept.expires_at,
        )
        for kept in record.ports
        if not is_over(kept, now)
    ]


def find(record: SandboxRecord, port: int, now: datetime) -> KeptPort | None:
    """A port that is exposed now."""
    return next((kept for kept in record.ports if kept.port == port and not is_over(kept, now)), None)


def admits(record: SandboxRecord, address: PreviewAddress) -> bool:
    """Whether the token is that of the port. It takes as long for one that is wrong."""
    kept = find(record, address.port, datetime.now(UTC))
    expected = kept.token if kept else ""
    return hmac.compare_digest(expected.encode(), address.token.encode()) and kept is not None


def are_exposed(records: Iterable[SandboxRecord]) -> bool:
    """Whether any port of any sandbox is."""
    now = datetime.now(UTC)
    return any(not is_over(kept, now) for record in records for kept in record.ports)


def is_over(kept: KeptPort, now: datetime) -> bool:
    return kept.expires_at is not None and kept.expires_at <= now


def random_text(length: int) -> str:
    """Five bits a character."""
    return "".join(secrets.choice(BASE32) for _ in range(length))


def _asked_for(asked: ExposeRequest, kept: KeptPort, now: datetime) -> KeptPort:
    if asked.name is not None:
        kept = replace(kept, name=asked.name)
    if asked.token is not None:
        kept = replace(kept, token=asked.token)
    if asked.expires is not None:
        kept = replace(kept, expires_at=now + timedelta(seconds=float(asked.expires)))
    return kept


def _alias_of(sandbox: str) -> str | None:
    return make_alias(sandbox, random_text(MAX_TOKEN)) if needs_alias(sandbox) else None


def _too_many(sandbox: str) -> Exception:
    return error(
        ErrorCode.TOO_MANY_PORTS,
        f"sandbox {sandbox!r} has {MAX_PORTS} exposed ports already",
        remedy="Unexpose some; a proxy inside can serve many services on one port.",
        sandbox=sandbox,
    )
