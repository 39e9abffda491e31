"""Files over HTTP: their content as it is, everything else as JSON.

Rules:
1. Content streams both ways, in constant memory: whoever is slow makes the other side wait.
2. What fails before the first byte of an answer is an HTTP error. After that an answer that has a place for an error
   names it there; one that has none, such as a file's content, breaks off, and the client sees that it is not whole.
3. A client that hangs up ends the operation. What it was writing is as it was before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from email.utils import formatdate
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from atoll.protocol.content_types import SNIFFED_BYTES, mime_type
from atoll.protocol.errors import AtollError, ErrorCode, error
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
    decode_file_changes,
    decode_file_done,
    decode_file_info,
    decode_file_list,
    to_raw_path,
)
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import Call
from atoll.server.api_route import BINARY, EVENT_STREAM, SANDBOX, ApiRoute
from atoll.server.bodies import read_json, while_client_waits
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
from atoll.server.sandboxes import actor_of, caller_of
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_failures import decode, misbehaved
from atoll.supervisor.agent_link import AgentLink

TAR = "application/x-tar"
INPUT_CHUNK = 256 * 1024
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
        info = await ask(request, StatFile(path=path, session_id=session_id), decode_file_info)
        try:
            wanted = range_of(request, info)
        except AtollError as problem:
            return problem_response(problem, {"content-range": f"bytes */{info.size}"})
    offset, length = wanted or (0, None)
    most = query.bounds.max_bytes if request.method == "GET" else None
    call = ReadFile(path=path, session_id=session_id, offset=offset, length=length, max_bytes=most)
    frames = answer(request, call)
    info = decode(decode_file_info, expect(await anext(frames), FrameKind.EVENT))
    first, is_whole = await first_bytes(frames)
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
        await frames.aclose()
        return Response(status_code=status, headers=headers)
    return BreakableResponse(content(first, frames, length), status, headers)


async def write_file(request: Request, query: WriteQuery) -> Response:
    call = WriteFile(
        path=query.raw_path,
        session_id=query.session_id,
        mode=None if query.mode is None else parse_mode(query.mode),
        sync=query.sync,
        exclusive=query.exclusive,
    )
    return json_response(to_info_body(await feed(request, call, decode_file_info)))


async def list_files(request: Request, query: ListQuery) -> Response:
    call = ListFiles(
        path=query.raw_path,
        session_id=query.session_id,
        recursive=query.recursive,
        include_hidden=query.hidden,
    )
    frames = answer(request, call)
    return StreamingResponse(
        listing(actor_of(request).rest, await anext(frames), frames), media_type="application/json"
    )


async def get_file_info(request: Request, query: InfoQuery) -> Response:
    call = StatFile(path=query.raw_path, session_id=query.session_id, follow=query.follow)
    return json_response(to_info_body(await ask(request, call, decode_file_info)))


async def delete_file(request: Request, query: DeleteQuery) -> Response:
    path, session_id, is_recursive = query.raw_path, query.session_id, query.recursive
    try:
        await ask(request, DeleteFile(path=path, session_id=session_id), decode_file_done)
    except AtollError as problem:
        if problem.code is not ErrorCode.IS_DIRECTORY or not is_recursive:
            raise
        await ask(request, DeleteDirectory(path=path, session_id=session_id), decode_file_done)
    return Response(status_code=204)


async def make_directory(request: Request) -> Response:
    asked = await read_json(request, DirectoryRequest)
    call = MakeDirectory(
        path=choose_path(asked.path, asked.path_base64),
        session_id=asked.session_id,
        recursive=asked.recursive,
        mode=parse_mode(asked.mode),
    )
    return json_response(to_info_body(await ask(request, call, decode_file_info)), 201)


async def move_file(request: Request) -> Response:
    asked = await read_json(request, MoveRequest)
    call = MoveFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
        into_directory=asked.into_directory,
    )
    return json_response(to_info_body(await ask(request, call, decode_file_info)))


async def copy_file(request: Request) -> Response:
    asked = await read_json(request, CopyRequest)
    call = CopyFile(
        source=choose_path(asked.source, asked.source_base64, "source"),
        target=choose_path(asked.target, asked.target_base64, "target"),
        session_id=asked.session_id,
    )
    return json_response(to_info_body(await ask(request, call, decode_file_info)))


async def change_file_mode(request: Request) -> Response:
    asked = await read_json(request, ModeRequest)
    call = ChangeMode(
        path=choose_path(asked.path, asked.path_base64), session_id=asked.session_id, mode=parse_mode(asked.mode)
    )
    return json_response(to_info_body(await ask(request, call, decode_file_info)))


async def pack_directory(request: Request, query: PackQuery) -> Response:
    call = PackFiles(path=query.raw_path, session_id=query.session_id, bounds=query.bounds)
    frames = answer(request, call)
    first, is_whole = await first_bytes(frames)
    headers = UNTRUSTED | {"content-type": TAR} | ({"content-length": str(len(first))} if is_whole else {})
    if request.method == "HEAD":
        await frames.aclose()
        return Response(headers=headers)
    return BreakableResponse(content(first, frames, None), headers=headers)


async def unpack_directory(request: Request, query: FileQuery) -> Response:
    call = UnpackFiles(path=query.raw_path, session_id=query.session_id)
    return json_response(FileCountBody(count=(await feed(request, call, decode_file_done)).count))


async def watch_directory(request: Request, query: WatchQuery) -> Response:
    call = WatchFiles(
        path=query.raw_path,
        session_id=query.session_id,
        recursive=query.recursive,
        include=[to_raw_path(pattern) for pattern in query.include],
        exclude=[to_raw_path(pattern) for pattern in query.exclude],
    )
    frames = answer(request, call)
    expect(await anext(frames), FrameKind.EVENT)  # it watches now
    if request.method == "HEAD":
        await frames.aclose()
        return Response(media_type=EVENT_STREAM)
    return StreamingResponse(changes(actor_of(request).rest, frames), media_type=EVENT_STREAM)


async def answer(request: Request, call: Call) -> AsyncGenerator[Frame, None]:
    """The frames of a call's answer, DONE last. The agent sends them as fast as they are taken."""
    async with actor_of(request).answering(caller_of(request), call) as (agent, _):
        async for frame in agent.frames():
            yield frame


async def ask(request: Request, call: Call, decoder: Callable[[bytes], T]) -> T:
    """The result of a call that has nothing else."""

    async def result(link: AgentLink) -> T:
        async with link.operation(call) as agent:
            return decode(decoder, expect(await agent.next_frame(), FrameKind.DONE))

    return await while_client_waits(request, actor_of(request).do(caller_of(request), result))


async def feed(request: Request, call: Call, decoder: Callable[[bytes], T]) -> T:
    """The result of a call that reads the request's body."""
    actor, caller = actor_of(request), caller_of(request)

    async def begin(link: AgentLink) -> AgentConnection:
        await link.ping()  # once some of the body has gone, nobody could send it again
        return await stack.enter_async_context(link.operation(call))

    async with actor.use(caller), AsyncExitStack() as stack:
        agent = await actor.do(caller, begin)
        feeder = asyncio.create_task(_feed(request, agent))
        try:
            return decode(decoder, expect(await agent.next_frame(), FrameKind.DONE))
        except AtollError:
            if feeder.done() and (cause := feeder.exception()):  # which is why the agent was left
                raise cause from None
            raise
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)


async def _feed(request: Request, agent: AgentConnection) -> None:
    try:
        async for chunk in request.stream():
            for start in range(0, len(chunk), INPUT_CHUNK):
                await agent.send_frame(Frame(FrameKind.INPUT, chunk[start : start + INPUT_CHUNK]))
        await agent.send_frame(Frame(FrameKind.INPUT, b""))
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect
    except ClientDisconnect:
        agent.abort()
        raise


class BreakableResponse(StreamingResponse):
    """One that ends without its end when something fails: the connection is closed, and the client knows."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except AtollError as problem:
            logger.warning("an answer breaks off: %s", problem.message)


async def first_bytes(frames: AsyncGenerator[Frame, None]) -> tuple[bytes, bool]:
    """As many as it takes to see what they are, and whether they are all."""
    data = bytearray()
    async for frame in frames:
        if frame.kind is FrameKind.DONE:
            return bytes(data), True
        data += expect(frame, FrameKind.DATA).payload
        if len(data) >= SNIFFED_BYTES:
            break
    return bytes(data), False


async def content(first: bytes, frames: AsyncGenerator[Frame, None], length: int | None) -> AsyncIterator[bytes]:
    """As many bytes as were promised, or all there are."""
    async with aclosing(frames):
        sent = len(first)
        yield first if length is None else first[:length]
        while length is None or sent < length:
            frame = await anext(frames, None)
            if frame is None or frame.kind is FrameKind.DONE:
                break
            data = expect(frame, FrameKind.DATA).payload
            yield data if length is None else data[: length - sent]
            sent += len(data)
        if length is not None and sent < length:
            message = f"a file ended after {sent} bytes of {length}"
            raise error(ErrorCode.AGENT_MISBEHAVED, message, remedy="Read it again.")


async def listing(rest: Rest, first: Frame, frames: AsyncGenerator[Frame, None]) -> AsyncIterator[bytes]:
    """A FileListBody of any length."""
    count, frame = 0, first
    async with aclosing(frames):
        yield b'{"files":['
        try:
            while frame.kind is not FrameKind.DONE:
                found = decode(decode_file_list, expect(frame, FrameKind.EVENT)).files
                for some in portions(found):
                    items = b",".join(msgspec.json.encode(to_info_body(file)) for file in some)
                    yield b"," + items if count else items
                    count += len(some)
                    await rest()
                frame = await anext(frames)
            yield b'],"count":%d}' % count
        except AtollError as problem:
            yield b'],"count":%d,"error":%b}' % (count, msgspec.json.encode(problem.to_body()))


async def changes(rest: Rest, frames: AsyncGenerator[Frame, None]) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield b"event: ready\ndata: {}\n\n"
        try:
            async for frame in frames:
                if frame.kind is FrameKind.DONE:
                    return
                found = decode(decode_file_changes, expect(frame, FrameKind.EVENT)).changes
                if not found:  # it costs nothing to send, and would be read for ever
                    raise misbehaved("the agent sent changes without one in them")
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


def expect(frame: Frame, kind: FrameKind) -> Frame:
    if frame.kind is not kind:
        raise misbehaved(f"the agent sent {frame.kind.name}, not {kind.name}")
    return frame


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
        summary="Copy a file within the sandbox",
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
