"""Messages between a server and its gateway, one per packet; descriptors come along where it says so."""

from __future__ import annotations

import msgspec

from atoll.protocol.network import NetworkPolicy, Verdict

MAX_PACKET = 1 << 18
REPORTS_PER_PACKET = 128


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The ways out of this machine, as its operator has them.

    `counted` are ranges of addresses that count as public, `refused` those that nobody may reach. A proxy is a URL;
    what `direct` covers goes without it.
    """

    name_servers: list[str] = []
    counted: list[str] = []
    refused: list[str] = []
    proxy: str | None = None
    direct: list[str] = []


class Opening(msgspec.Struct, frozen=True, kw_only=True, tag="opening"):
    """The first message. `root` is an empty directory, which is all that the gateway sees of the host's files."""

    root: str
    upstream: Upstream


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """Serve a sandbox. Its two listeners come along, the one for TCP first."""

    key: str
    hostname: str
    policy: NetworkPolicy


class Change(msgspec.Struct, frozen=True, kw_only=True, tag="change"):
    """Another policy from now on; what is open and no longer allowed ends."""

    key: str
    policy: NetworkPolicy


class Detach(msgspec.Struct, frozen=True, kw_only=True, tag="detach"):
    """End what is open, and let go of the listeners."""

    key: str


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, tag="catch up"):
    """Tell what there is to tell, now, and then say that this was all."""

    ticket: int


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True, tag="caught up"):
    ticket: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The gateway has given up all that it does not need."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as it stands now. `number` is the gateway's own, the same in each report of one attempt."""

    number: int
    time: float
    name: str
    address: str
    port: int
    verdict: Verdict
    rule: str
    detail: str
    sent: int
    received: int
    ended: float | None


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag="seen"):
    """Attempts of one sandbox, and how many the gateway had to leave out."""

    key: str
    reports: list[Report]
    dropped: int = 0


ToGateway = Attach | Change | Detach | CatchUp
ToServer = Ready | Seen | CaughtUp

encode = msgspec.msgpack.Encoder().encode
decode_opening = msgspec.msgpack.Decoder(Opening).decode
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
decode_to_gateway = _to_gateway.decode
_to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
decode_to_server = _to_server.decode
