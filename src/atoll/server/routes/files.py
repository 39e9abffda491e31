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

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from atoll.protocol.content_types import SNIFFED_BYTES, mime_type
from atoll.protocol.errors import AtollError, ErrorCode, error
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
    check_rules,
    to_raw_path,
)
from atoll.protocol.frames import Frame
from atoll.server.api_route import BINARY, EVENT_STREAM, SANDBOX, ApiRoute
from atoll.server.bodies import read_json
from atoll.server.calls import ask, feed, frames_of
from atoll.server.file_bodies import (
    CopyRequest,
    DirectoryRequest,
    FileCountBody,
    FileInfoBody,
    FileListBody,
    ModeRequest,
    MoveRequest,
    choose_path,
    parse_mode,
    to_change_body,
    to_info_body,
)
from atoll.server.file_queries import (
    DeleteQuery,
    FileQuery,
    InfoQuery,
    ListQuery,
    PackQuery,
    ReadQuery,
    WatchQuery,
    WriteQuery,
)
from atoll.server.problems import json_response, problem_response
from atoll.server.ranges import parse_range
from atoll.server.routes.sandboxes import actor_of

TAR = "application/x-tar"
ITEMS_AT_ONCE = 64
LAST_SECOND = 253402300799.0  # of the year 9999, which a header can still name
# What runs in a sandbox chose these bytes: a browser must not take them for a page of ours.
UNTRUSTED = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}

T = TypeVar("T")
Rest = Callable[[], Awaitable[None]]  # which lets others have their turn

logger = logging.getLogger("atoll.server")


async def read_file(request: Request, query: ReadQuery) -> Response:
    path, session_id = query.raw_path, query.session_id
    wanted = None
    if "range" in request.headers:
        info = await ask(request, StatFile(path=path, session_id=session_id))
        try:
            wanted = range_of(request, info)
        except AtollError as problem:
            return problem_response(problem, {"content-range": f"bytes */{info.size}"})
    offset, length = wanted or (0, None)
    most = query.bounds.max_bytes if request.method == "GET" else None
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


async def write_file(request: Request, query: WriteQuery) -> Response:
    call = WriteFile(
        path=query.raw_path,
        session_id=query.session_id,
        mode=None if query.mode is None else parse_mode(query.mode),
        sync=query.sync,
        exclusive=query.exclusive,
        append=query.append,
    )
    return json_response(to_info_body(await feed(request, call)))


async def list_files(request: Request, query: ListQuery) -> Response:
    call = ListFiles(
        path=query.raw_path,
        session_id=query.session_id,
        recursive=query.recursive,
        include_hidden=query.hidden,
    )
    frames = frames_of(request, call)
    return StreamingResponse(
        listing(actor_of(request).rest, ListFold(call), await anext(frames), frames), media_type="application/json"
    )


async def get_file_info(request: Request, query: InfoQuery) -> Response:
    call = StatFile(path=query.raw_path, session_id=query.session_id, follow=query.follow)
    return json_response(to_info_body(await ask(request, call)))


async def delete_file(request: Request, query: DeleteQuery) -> Response:
    path, session_id, is_recursive = query.raw_path, query.session_id, query.recursive
    try:
        await ask(request, DeleteFile(path=path, session_id=session_id))
    except AtollError as problem:
        if problem.code is not ErrorCode.IS_DIRECTORY or not is_recursive:
            raise
        await ask(request, DeleteDirectory(path=path, session_id=session_id))
    return Response(status_code=204)


async def make_directory(request: Request) -> Response:
    asked = await read_json(request, DirectoryRequest)
    call = MakeDirectory(
        path=choose_path(asked.path, asked.path_base64),
        session_id=asked.session_id,
        recursive=asked.recursive,
        mode=parse_mode(asked.mode),
    )
    return json_response(to_info_body(await ask(request, call)), 201)


async def move_file(request: Request) -> Response:
    asked = await read_json(request, MoveRequest)
    call = MoveFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
        into_directory=asked.into_directory,
    )
    return json_response(to_info_body(await ask(request, call)))


async def copy_file(request: Request) -> Response:
    asked = await read_json(request, CopyRequest)
    call = CopyFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
    )
    return json_response(to_info_body(await ask(request, call)))


async def change_file_mode(request: Request) -> Response:
    asked = await read_json(request, ModeRequest)
    call = ChangeMode(
        path=choose_path(asked.path, asked.path_base64), session_id=asked.session_id, mode=parse_mode(asked.mode)
    )
    return json_response(to_info_body(await ask(request, call)))


async def pack_directory(request: Request, query: PackQuery) -> Response:
    rules = check_rules([to_raw_path(rule) for rule in query.exclude])
    call = PackFiles(path=query.raw_path, session_id=query.session_id, bounds=query.bounds, exclude=rules)
    pieces = bytes_in(frames_of(request, call), PackFold(call))
    first, is_whole = await first_bytes(pieces)
    headers = UNTRUSTED | {"content-type": TAR} | ({"content-length": str(len(first))} if is_whole else {})
    if request.method == "HEAD":
        await pieces.aclose()
        return Response(headers=headers)
    return BreakableResponse(content(first, pieces, None), headers=headers)


async def unpack_directory(request: Request, query: FileQuery) -> Response:
    call = UnpackFiles(path=query.raw_path, session_id=query.session_id)
    return json_response(FileCountBody(count=(await feed(request, call)).count))


async def watch_directory(request: Request, query: WatchQuery) -> Response:
    call = WatchFiles(
        path=query.raw_path,
        session_id=query.session_id,
        recursive=query.recursive,
        include=[to_raw_path(pattern) for pattern in query.include],
        exclude=[to_raw_path(pattern) for pattern in query.exclude],
    )
    frames, fold = frames_of(request, call), WatchFold(call)
    fold.take(await anext(frames))  # it watches now
    if request.method == "HEAD":
        await frames.aclose()
        return Response(media_type=EVENT_STREAM)
    return StreamingResponse(changes(actor_of(request).rest, fold, frames), media_type=EVENT_STREAM)


class BreakableResponse(StreamingResponse):
    """A response that ends without its end when something fails: the connection is closed, and the client knows."""

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
            message = f"a file ended after {sent} bytes of {length}"
            raise error(ErrorCode.AGENT_MISBEHAVED, message, remedy="Read it again.")


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
    """The range that is asked for. A file without a size, as in /proc, has no parts; nor has one that changed since."""
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


ROUTES = (
    ApiRoute(
        method="GET",
        path=SANDBOX + "/files",
        handler=list_files,
        summary="What is in a directory",
        tag="files",
        query=ListQuery,
        answers={200: FileListBody},
    ),
    ApiRoute(
        method="DELETE",
        path=SANDBOX + "/files",
        handler=delete_file,
        summary="Delete a file, or with recursive a directory",
        tag="files",
        query=DeleteQuery,
        answers={204: None},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/files/content",
        handler=read_file,
        summary="A file's bytes, or with a Range header some of them",
        tag="files",
        query=ReadQuery,
        answers={200: bytes, 206: bytes},
        answer_type=BINARY,
    ),
    ApiRoute(
        method="PUT",
        path=SANDBOX + "/files/content",
        handler=write_file,
        summary="Write a file, of any size; nobody sees half of it",
        tag="files",
        query=WriteQuery,
        body=bytes,
        body_type=BINARY,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/files/info",
        handler=get_file_info,
        summary="Type, size, mode, owner and time of a file",
        tag="files",
        query=InfoQuery,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/files/directory",
        handler=make_directory,
        summary="Make a directory",
        tag="files",
        body=DirectoryRequest,
        answers={201: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/files/move",
        handler=move_file,
        summary="Give a file or directory another name or place",
        tag="files",
        body=MoveRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/files/copy",
        handler=copy_file,
        summary="Copy a file or a directory within the sandbox",
        tag="files",
        body=CopyRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/files/mode",
        handler=change_file_mode,
        summary="Change a file's permissions",
        tag="files",
        body=ModeRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/files/archive",
        handler=pack_directory,
        summary="A directory as a tar archive, with names from within it",
        tag="files",
        query=PackQuery,
        answers={200: bytes},
        answer_type=TAR,
    ),
    ApiRoute(
        method="PUT",
        path=SANDBOX + "/files/archive",
        handler=unpack_directory,
        summary="Unpack a tar archive into a directory",
        tag="files",
        query=FileQuery,
        body=bytes,
        body_type=TAR,
        answers={200: FileCountBody},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/files/watch",
        handler=watch_directory,
        summary="What changes in a directory, as it changes; the first event is ready",
        tag="files",
        query=WatchQuery,
        answers={200: bytes},
        answer_type=EVENT_STREAM,
    ),
)
