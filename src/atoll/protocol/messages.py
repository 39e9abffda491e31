"""Messages inside CALL, DONE and FAILED frames, in MessagePack."""

from __future__ import annotations

from typing import Any, Union

import msgspec

from atoll.protocol.kinds import KINDS

AnyCall = Any  # one of KINDS

_encoder = msgspec.msgpack.Encoder()
_call_decoder: msgspec.msgpack.Decoder[AnyCall] = msgspec.msgpack.Decoder(Union[KINDS])  # noqa: UP007

encode_message = _encoder.encode
decode_call = _call_decoder.decode
