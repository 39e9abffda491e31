"""What a request may hold, taken apart with care: sizes are bounded before anything is kept, types are checked."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from atoll.protocol.errors import ErrorCode, error
from atoll.server.problems import bad_request

MAX_BODY = 8 * 2**20

T = TypeVar("T")


async def read_json(request: Request, shape: type[T]) -> T:
    """The body as `shape`. No body is an empty object."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise error(
            ErrorCode.CONTENT_TYPE_NOT_SUPPORTED,
            f"{kind!r:.100} is not taken here",
            remedy="Send application/json.",
        )
    body = await read_body(request)
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise bad_request(f"the body does not fit: {cause}") from cause


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise error(
                ErrorCode.BODY_TOO_LARGE,
                f"the body has more than {limit} bytes",
                remedy="Send less; large input goes through files.",
            )
    return bytes(body)


def read_number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise bad_request(f"{name}={text!r:.50} is not a number", f"Give {name} as digits.")
    return int(text)


def wants(request: Request, media_type: str) -> bool:
    return media_type in request.headers.get("accept", "")
