"""Orders: what the engine and its nursery say to each other, one message per packet."""

from __future__ import annotations

import msgspec

from atoll.engine.native.group_limits import Resources
from atoll.protocol.rootfs import Overlay

KEEP = b"keep"  # said on a sandbox's own channel: live on without us


class Exposure(msgspec.Struct, frozen=True):
    """A host directory the nursery may use, and its name in the nursery's own small root."""

    name: str
    path: str
    is_written: bool = False


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: what the nursery shall see of the host, and how many embryos it shall keep ready.

    `runtime` is an empty directory of its own; `open_files` are the limits, soft and hard, that commands begin with.
    """

    runtime: str
    embryos: int
    exposures: tuple[Exposure, ...]
    open_files: tuple[int, int]


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag="launch"):
    """Make a sandbox. Every path is one in the nursery's root.

    Its environment comes along as a descriptor that the nursery passes on unread: what is in the nursery's memory is
    in that of every sandbox it makes afterwards.
    """

    ticket: int
    sandbox_id: str
    overlays: tuple[Overlay, ...]
    disk: str
    resources: Resources


class OpenSocket(msgspec.Struct, frozen=True, kw_only=True, tag="open socket"):
    """Make a stream socket in the network namespace of a process, whose pidfd comes along."""

    ticket: int
    family: int


class OpenGateway(msgspec.Struct, frozen=True, kw_only=True, tag="open gateway"):
    """Make the sockets on which a gateway listens there. The pidfd of a process comes along."""

    ticket: int


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The nursery is ready."""


class Born(msgspec.Struct, frozen=True, kw_only=True, tag="born"):
    """The sandbox's agent listens. Along come a pidfd of its first process, and the channel on which to say KEEP."""

    ticket: int
    pid: int
    start_time: int
    uid_base: int
    socket_name: str


class Stillborn(msgspec.Struct, frozen=True, kw_only=True, tag="stillborn"):
    """A sandbox that could not be made: at which step, and what the kernel said. Nothing of it remains."""

    ticket: int
    step: str
    errno: int
    detail: str


class SocketOpened(msgspec.Struct, frozen=True, kw_only=True, tag="socket opened"):
    """The socket comes along; for a gateway, two."""

    ticket: int


class SocketRefused(msgspec.Struct, frozen=True, kw_only=True, tag="socket refused"):
    ticket: int
    errno: int


Order = Launch | OpenSocket | OpenGateway
Answer = Opened | Born | Stillborn | SocketOpened | SocketRefused

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_opening = msgspec.msgpack.Decoder(Opening).decode
_order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
decode_order = _order_decoder.decode
_answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
decode_answer = _answer_decoder.decode
