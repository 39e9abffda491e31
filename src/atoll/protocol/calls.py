"""Calls, and what an agent answers them with.

1. A call names the type of its answer, which is the payload of DONE, the last frame.
2. Whoever opens a frame checks all that is in it: the bounds of what an agent may say are part of the types.
3. What an agent may not say, or not now, is AGENT_MISBEHAVED.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from atoll.protocol.arguments import MAX_NUMBER, wrong_argument
from atoll.protocol.errors import AtollError, Context, ErrorBody, ErrorCode, error, from_body
from atoll.protocol.frames import MAX_PAYLOAD, Frame, FrameKind

FIRST = 1  # version of the protocol
MAX_SHOWN = 200  # characters of what a caller may have made long, in the context of an error
MAX_ERROR = 64 * 1024  # bytes of an error: a message, a remedy, the end of a log

_UNSENDABLE = (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError)

T = TypeVar("T")
Answer = TypeVar("Answer", covariant=True)


class Call(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `Call[Sessions]` is answered with Sessions, in the DONE frame that ends it.

    Frames that come before that one, if there are such, its documentation tells.
    """

    changes: ClassVar[bool] = True  # something in the sandbox; else it only reads, and whoever may only read may ask it
    came_with: ClassVar[int] = FIRST  # the version of the protocol that first had it
    fields_came_with: ClassVar[Mapping[str, int]] = {}  # those that it has had since a later one
    asks: ClassVar[bool] = False  # about what there is, or ends it: so it is no reason to make a sandbox

    @property
    def subject(self) -> Context:
        """The subject of the call, for the errors it meets."""
        return {}

    @property
    def patience(self) -> float | None:
        """For how many seconds its agent is waited for, besides a grace; None for as long as it takes."""
        return 0.0


def encode_call(call: Call[Any]) -> bytes:
    """The payload of its frame, or a typed error that says why it cannot be sent."""
    try:
        message = _encode(call)
    except _UNSENDABLE as cause:
        raise _cannot_be_sent(call) from cause
    if len(message) > MAX_PAYLOAD:
        raise error(
            ErrorCode.INVALID_COMMAND,
            f"the command with its environment takes {len(message)} bytes; {MAX_PAYLOAD} are allowed",
            remedy="Pass what is large on standard input or in a file.",
            size=len(message),
            limit=MAX_PAYLOAD,
        )
    return message


def _cannot_be_sent(call: Call[Any]) -> AtollError:
    for field, value in msgspec.structs.asdict(call).items():
        try:
            _encode(value)
        except _UNSENDABLE as cause:
            is_large = isinstance(cause, OverflowError)
            remedy = f"Give {MAX_NUMBER} at most." if is_large else "Use text that is valid UTF-8."
            return wrong_argument(field, value, f"cannot be sent: {cause}", remedy, ErrorCode.INVALID_COMMAND)
    raise AssertionError("what can be sent in parts can be sent as a whole")


def result(call: Call[Answer], frame: Frame) -> Answer:
    """The answer to a call, from the frame that ends it."""
    if frame.kind is not FrameKind.DONE:
        raise out_of_place(frame)
    answer: Answer = _opened(answer_type(type(call)), frame)
    return answer


def event(shape: type[T], frame: Frame) -> T:
    """The event in a frame, which must be an EVENT."""
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


def out_of_place(frame: Frame) -> AtollError:
    return misbehaved(f"a {frame.kind.name} frame came")


def misbehaved(what: str) -> AtollError:
    message = f"the sandbox's agent broke the protocol: {what}"
    remedy = "Stop the sandbox with sleep(stop=True), or destroy it."
    return error(ErrorCode.AGENT_MISBEHAVED, message, remedy=remedy, reason=what)


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


_encode = msgspec.msgpack.Encoder().encode
