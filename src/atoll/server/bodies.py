"""Bodies of requests: sizes bounded before anything is kept, types checked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

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


async def while_client_waits(request: Request, work: Coroutine[None, None, T]) -> T:
    """The result of `work`. A client that hangs up ends it; its body must have been read."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_departure(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def last_event(request: Request, since: int) -> int:
    """The number after which to go on: an EventSource that comes back says so itself, in a header."""
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) < 18 else since


def wants(request: Request, media_type: str) -> bool:
    return media_type in request.headers.get("accept", "")
