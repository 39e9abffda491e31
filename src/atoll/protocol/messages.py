"""Messages inside CALL, DONE and FAILED frames, in MessagePack.

The calls there are: each file of this folder defines those of its noun, and to define one is all there is to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Union

import msgspec

from atoll import protocol
from atoll.protocol.calls import Call


def _kinds_below(kind: type[Call[Any]]) -> Iterator[type[Call[Any]]]:
    for each in kind.__subclasses__():
        if each.__struct_config__.tag:
            yield each
        yield from _kinds_below(each)


for _file in iter_modules(protocol.__path__):
    if _file.name != "versions":  # which is made from the calls there are
        import_module(f"{protocol.__name__}.{_file.name}")
AnyCall = Any  # one of KINDS
KINDS = tuple(kind for kind in _kinds_below(Call) if kind.__module__.startswith(protocol.__name__))

_encoder = msgspec.msgpack.Encoder()
_call_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[KINDS])  # noqa: UP007

encode_message = _encoder.encode
decode_call = _call_decoder.decode
