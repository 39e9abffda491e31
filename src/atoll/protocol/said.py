"""Bounds of what an agent may say of itself: numbers, texts and lists as an honest one keeps them.

Whoever decodes an answer checks all of it, the server for its JSON and the SDK for its users: the bounds are part of
the types, and the decoders of this package know them. `SaidId` and `Moment` are with their kind.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from atoll.protocol.arguments import MAX_NUMBER

ExitCode = Annotated[int, Meta(ge=0, le=255)]  # 128 + signal for what a signal killed
Duration = Annotated[float, Meta(ge=0, le=1e9)]  # seconds, which no comparison with NaN would let pass
UnixTime = Annotated[float, Meta(ge=0, le=253_402_300_799)]  # to the end of the year 9999, where Python's calendar ends
Pid = Annotated[int, Meta(ge=0, le=2**22)]  # as many as the kernel has
Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]  # also of bytes
Owner = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Directory = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=4096)]
