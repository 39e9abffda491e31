"""Answers: what an agent says, opened with care.

1. An answer ends with DONE, whose payload is of the type that its call names.
2. Whoever opens a frame checks all that is in it: the bounds of what an agent may say are part of the types.
3. What an agent may not say, or not now, is AGENT_MISBEHAVED.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

from atoll.protocol.calls import Answer, Call
from atoll.protocol.errors import AgentMisbehavedError, AtollError, ErrorBody, from_body
from atoll.protocol.frames import Frame, FrameKind

MAX_ERROR = 64 * 1024  # bytes of an error: a message, a remedy, the end of a log

T = TypeVar("T")


def result(call: Call[Answer], frame: Frame) -> Answer:
    """What a call was answered with, from the frame that ends it."""
    if frame.kind is not FrameKind.DONE:
        raise out_of_place(frame)
    answer: Answer = _opened(answer_type(type(call)), frame)
    return answer


def event(shape: type[T], frame: Frame) -> T:
    """What an EVENT frame says, which must be one."""
    if frame.kind is not FrameKind.EVENT:
        raise out_of_place(frame)
    said: T = _opened(shape, frame)
    return said


def failure(frame: Frame) -> AtollError:
    """The error that a FAILED frame names. Whether it is for an agent to say is not asked here."""
    if len(frame.payload) > MAX_ERROR:
        raise misbehaved(f"its error has {len(frame.payload)} bytes; {MAX_ERROR} are allowed")
    body: ErrorBody = _opened(ErrorBody, frame)
    return from_body(body)


def out_of_place(frame: Frame) -> AgentMisbehavedError:
    return misbehaved(f"a {frame.kind.name} frame came")


def misbehaved(what: str) -> AgentMisbehavedError:
    message = f"the sandbox's agent broke the protocol: {what}"
    return AgentMisbehavedError(message, remedy="Stop the sandbox with sleep(stop=True), or destroy it.")


@cache
def answer_type(kind: type[Call[Any]]) -> Any:
    """The type that a kind of call names: its own argument, or that of the nearest class above it that has one."""
    for ancestor in kind.__mro__:
        for base in ancestor.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if not isinstance(argument, TypeVar):
                    return argument
    raise TypeError(f"{kind.__name__} does not name the type of its answer")


@cache
def _decoder(shape: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(shape)


def _opened(shape: Any, frame: Frame) -> Any:
    try:
        return _decoder(shape).decode(frame.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise misbehaved(f"its {frame.kind.name} frame makes no sense: {cause}") from cause
