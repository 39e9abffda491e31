"""Files over HTTP: their content as it is, everything else as JSON.

Rules:
1. Content streams both ways, in constant memory: whoever is slow makes the other side wait.
2. What fails before the first byte of an answer is an HTTP error. After that an answer that has a place for an error
   names it there; one that has none, such as a file's content, breaks off, and the client sees that it is not whole.
3. A client that hangs up ends the operation. What it was writing is as it was before.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from email.utils import formatdate
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from atoll.protocol.content_types import SNIFFED_BYTES, mime_type
from atoll.protocol.errors import AgentMisbehavedError, AtollError, ErrorCode, error
from atoll.protocol.file_answers import ListFold, PackFold, ReadFold, WatchFold
from atoll.protocol.files import (
    ChangeMode,
    CopyFile,
    DeleteDirectory,
    DeleteFile,
    FileChange,
    FileInfo,
    ListFiles,
    MakeDirectory,
    MoveFile,
    PackFiles,
    ReadFile,
    StatFile,
    UnpackFiles,
    WatchFiles,
    WriteFile,
    to_raw_path,
)
from atoll.protocol.frames import Frame
from atoll.protocol.limits import parse_bounds
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.protocol.transfer_bounds import Bounds
from atoll.server.bodies import read_json
from atoll.server.calls import ask, feed, frames_of
from atoll.server.file_bodies import (
    CopyRequest,
    DirectoryRequest,
    FileCountBody,
    ModeRequest,
    MoveRequest,
    choose_path,
    parse_mode,
    to_change_body,
    to_info_body,
)
from atoll.server.problems import bad_request, json_response, problem_response
from atoll.server.ranges import parse_range
from atoll.server.sandboxes import EVENT_STREAM, actor_of

TAR = "application/x-tar"
ITEMS_AT_ONCE = 64
LAST_SECOND = 253402300799.0  # of the year 9999, which a header can still name
# What runs in a sandbox chose these bytes: a browser must not take them for a page of ours.
UNTRUSTED = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}

T = TypeVar("T")
Rest = Callable[[], Awaitable[None]]  # which lets others have their turn

logger = logging.getLogger("atoll.server")


async def get_content(request: Request) -> Response:
    queries = Queries(request)
    path, session_id = queries.path(), queries.session_id()
    wanted = None
    if "range" in request.headers:
        info = await ask(request, StatFile(path=path, session_id=session_id))
        try:
            wanted = range_of(request, info)
        except AtollError as problem:
            return problem_response(problem, {"content-range": f"bytes */{info.size}"})
    offset, length = wanted or (0, None)
    most = queries.bounds().max_bytes if request.method == "GET" else None
    call = ReadFile(path=path, session_id=session_id, offset=offset, length=length, max_bytes=most)
    frames, fold = frames_of(request, call), ReadFold(call)
    fold.take(await anext(frames))
    assert fold.info, "the first frame says what is read, or there is an error"
    info, pieces = fold.info, bytes_in(frames, fold)
    first, is_whole = await first_bytes(pieces)
    if wanted and is_whole and not first:
        message = f"the file ends before byte {offset}, whatever its size says"
        raise error(ErrorCode.RANGE_NOT_SATISFIABLE, message, remedy="Read it from its beginning.", offset=offset)
    if is_whole:
        length = len(first)
    elif length is None:
        length = sized(info, len(first))
    headers = UNTRUSTED | {"accept-ranges": "bytes", "etag": etag(info), "last-modified": last_modified(info)}
    headers["content-type"] = mime_type(info.name, b"" if offset else first, is_whole=is_whole and not offset)
    if length is not None:
        headers["content-length"] = str(length)
    if wanted:
        wanted_end = offset + wanted[1]
        # What ends before it should, as in /sys, has the size that it turned out to have.
        size = offset + len(first) if is_whole and len(first) < wanted[1] else info.size
        headers["content-range"] = f"bytes {offset}-{min(wanted_end, size) - 1}/{size}"
    status = 206 if wanted else 200
    if request.method == "HEAD":
        await pieces.aclose()
        return Response(status_code=status, headers=headers)
    return BreakableResponse(content(first, pieces, length), status, headers)


async def put_content(request: Request) -> Response:
    queries = Queries(request)
    mode = queries.get("mode")
    call = WriteFile(
        path=queries.path(),
        session_id=queries.session_id(),
        mode=None if mode is None else parse_mode(mode),
        sync=queries.flag("sync"),
        exclusive=queries.flag("exclusive"),
    )
    return json_response(to_info_body(await feed(request, call)))


async def list_files(request: Request) -> Response:
    queries = Queries(request)
    call = ListFiles(
        path=queries.path(),
        session_id=queries.session_id(),
        recursive=queries.flag("recursive"),
        include_hidden=queries.flag("hidden"),
    )
    frames = frames_of(request, call)
    return StreamingResponse(
        listing(actor_of(request).rest, ListFold(call), await anext(frames), frames), media_type="application/json"
    )


async def get_info(request: Request) -> Response:
    queries = Queries(request)
    call = StatFile(path=queries.path(), session_id=queries.session_id(), follow=queries.flag("follow", True))
    return json_response(to_info_body(await ask(request, call)))


async def delete_files(request: Request) -> Response:
    queries = Queries(request)
    path, session_id, is_recursive = queries.path(), queries.session_id(), queries.flag("recursive")
    try:
        await ask(request, DeleteFile(path=path, session_id=session_id))
    except AtollError as problem:
        if problem.code is not ErrorCode.IS_DIRECTORY or not is_recursive:
            raise
        await ask(request, DeleteDirectory(path=path, session_id=session_id))
    return Response(status_code=204)


async def post_directory(request: Request) -> Response:
    asked = await read_json(request, DirectoryRequest)
    call = MakeDirectory(
        path=choose_path(asked.path, asked.path_base64),
        session_id=asked.session_id,
        recursive=asked.recursive,
        mode=parse_mode(asked.mode),
    )
    return json_response(to_info_body(await ask(request, call)), 201)


async def post_move(request: Request) -> Response:
    asked = await read_json(request, MoveRequest)
    call = MoveFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
        into_directory=asked.into_directory,
    )
    return json_response(to_info_body(await ask(request, call)))


async def post_copy(request: Request) -> Response:
    asked = await read_json(request, CopyRequest)
    call = CopyFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
    )
    return json_response(to_info_body(await ask(request, call)))


async def post_mode(request: Request) -> Response:
    asked = await read_json(request, ModeRequest)
    call = ChangeMode(
        path=choose_path(asked.path, asked.path_base64), session_id=asked.session_id, mode=parse_mode(asked.mode)
    )
    return json_response(to_info_body(await ask(request, call)))


async def get_archive(request: Request) -> Response:
    queries = Queries(request)
    call = PackFiles(path=queries.path(), session_id=queries.session_id(), bounds=queries.bounds())
    pieces = bytes_in(frames_of(request, call), PackFold(call))
    first, is_whole = await first_bytes(pieces)
    headers = UNTRUSTED | {"content-type": TAR} | ({"content-length": str(len(first))} if is_whole else {})
    if request.method == "HEAD":
        await pieces.aclose()
        return Response(headers=headers)
    return BreakableResponse(content(first, pieces, None), headers=headers)


async def put_archive(request: Request) -> Response:
    queries = Queries(request)
    call = UnpackFiles(path=queries.path(), session_id=queries.session_id())
    return json_response(FileCountBody(count=(await feed(request, call)).count))


async def get_watch(request: Request) -> Response:
    queries = Queries(request)
    call = WatchFiles(
        path=queries.path(),
        session_id=queries.session_id(),
        recursive=queries.flag("recursive", True),
        include=[to_raw_path(pattern) for pattern in queries.all("include")],
        exclude=[to_raw_path(pattern) for pattern in queries.all("exclude")],
    )
    frames, fold = frames_of(request, call), WatchFold(call)
    fold.take(await anext(frames))  # it watches now
    if request.method == "HEAD":
        await frames.aclose()
        return Response(media_type=EVENT_STREAM)
    return StreamingResponse(changes(actor_of(request).rest, fold, frames), media_type=EVENT_STREAM)


class Queries:
    """What follows the question mark. Bytes that are not UTF-8 stay what they are, as in a file's name."""

    def __init__(self, request: Request) -> None:
        text = request.scope["query_string"].decode("latin-1")
        try:
            self._pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=100)
        except ValueError as cause:
            raise bad_request(f"the query makes no sense: {cause}") from cause

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def get(self, name: str) -> str | None:
        values = self.all(name)
        if len(values) > 1:
            raise bad_request(f"{name} is given {len(values)} times", "Give it once.")
        return values[0] if values else None

    def path(self) -> bytes:
        return choose_path(self.get("path"), self.get("path_base64"))

    def session_id(self) -> str:
        found = self.get("session_id")
        if found and not found.isprintable():  # also what cannot be sent on
            raise bad_request(f"session_id={found!r:.100} is none")
        return DEFAULT_SESSION if found is None else found

    def bounds(self) -> Bounds:
        """Of a download: those given, the usual ones otherwise."""
        names = ("max_bytes", "max_entries", "max_depth")
        return parse_bounds(**{name: found for name in names if (found := self.get(name)) is not None})

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0"):
            raise bad_request(f"{name}={text!r:.50} is neither true nor false", "Give true or false.")
        return text.lower() in ("true", "1")


class BreakableResponse(StreamingResponse):
    """One that ends without its end when something fails: the connection is closed, and the client knows."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except AtollError as problem:
            logger.warning("an answer breaks off: %s", problem.message)


async def bytes_in(frames: AsyncGenerator[Frame, None], fold: ReadFold | PackFold) -> AsyncGenerator[bytes, None]:
    """All there are, as they come."""
    async with aclosing(frames):
        async for frame in frames:
            if (data := fold.take(frame)) is None:
                return
            yield data


async def first_bytes(pieces: AsyncGenerator[bytes, None]) -> tuple[bytes, bool]:
    """As many as it takes to see what they are, and whether they are all."""
    first = bytearray()
    while len(first) < SNIFFED_BYTES:
        data = await anext(pieces, None)
        if data is None:
            return bytes(first), True
        first += data
    return bytes(first), False


async def content(first: bytes, pieces: AsyncGenerator[bytes, None], length: int | None) -> AsyncIterator[bytes]:
    """As many bytes as were promised, or all there are."""
    async with aclosing(pieces):
        sent = len(first)
        yield first if length is None else first[:length]
        while length is None or sent < length:
            data = await anext(pieces, None)
            if data is None:
                break
            yield data if length is None else data[: length - sent]
            sent += len(data)
        if length is not None and sent < length:
            raise AgentMisbehavedError(f"a file ended after {sent} bytes of {length}", remedy="Read it again.")


async def listing(
    rest: Rest, fold: ListFold, first: Frame, frames: AsyncGenerator[Frame, None]
) -> AsyncIterator[bytes]:
    """A FileListBody of any length."""
    count, frame = 0, first
    async with aclosing(frames):
        yield b'{"files":['
        try:
            while (found := fold.take(frame)) is not None:
                for some in portions(found):
                    items = b",".join(msgspec.json.encode(to_info_body(file)) for file in some)
                    yield b"," + items if count else items
                    count += len(some)
                    await rest()
                frame = await anext(frames)
            yield b'],"count":%d}' % count
        except AtollError as problem:
            yield b'],"count":%d,"error":%b}' % (count, msgspec.json.encode(problem.to_body()))


async def changes(rest: Rest, fold: WatchFold, frames: AsyncGenerator[Frame, None]) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield b"event: ready\ndata: {}\n\n"
        try:
            async for frame in frames:
                if (found := fold.take(frame)) is None:
                    return
                for some in portions(found):
                    yield b"".join(map(change_event, some))
                    await rest()
        except AtollError as problem:
            yield b"event: error\ndata: %b\n\n" % msgspec.json.encode(problem.to_body())


def change_event(change: FileChange) -> bytes:
    body = msgspec.json.encode(to_change_body(change))
    return b"event: %b\ndata: %b\n\n" % (change.type.value.encode(), body)


def portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """So many as are made JSON in a fraction of a millisecond."""
    return (items[start : start + ITEMS_AT_ONCE] for start in range(0, len(items), ITEMS_AT_ONCE))


def range_of(request: Request, info: FileInfo) -> tuple[int, int] | None:
    """What has no size, as in /proc, has no parts. Nor has what is another since."""
    condition = request.headers.get("if-range")
    if not info.size or (condition is not None and condition not in (etag(info), last_modified(info))):
        return None
    return parse_range(request.headers["range"], info.size)


def sized(info: FileInfo, at_least: int) -> int | None:
    """The length of a file, unless it is known to be wrong, as in /proc."""
    return info.size if info.size >= at_least else None


def etag(info: FileInfo) -> str:
    return f'"{int(timestamp(info) * 1e6):x}-{info.size:x}"'


def last_modified(info: FileInfo) -> str:
    return formatdate(int(timestamp(info)), usegmt=True)


def timestamp(info: FileInfo) -> float:
    try:
        return min(info.modified_at.timestamp(), LAST_SECOND)
    except (OverflowError, ValueError):  # the agent may say anything
        return 0.0
