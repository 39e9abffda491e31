"""Background processes as JSON, and their logs as Server-Sent Events, for clients that are not the SDK."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.arguments import check_directory
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import AtollError, Context
from atoll.protocol.process_log import Dropped, Exited, LogEvent, LogEvents, LogFold, WholeLog, Written, portions
from atoll.protocol.processes import (
    OK_STATUS,
    PORT_SECONDS,
    CleanUpProcesses,
    GetProcess,
    KillAllProcesses,
    KillProcess,
    ListProcesses,
    LogPart,
    PortMode,
    ProcessCount,
    ProcessInfo,
    ProcessList,
    RestartPolicy,
    StartProcess,
    StreamProcessLog,
    WaitForExit,
    WaitForPort,
    check_wait,
    parse_process_id,
    parse_signal,
)
from atoll.server.api_route import EVENT_STREAM, SANDBOX, ApiRoute
from atoll.server.bodies import last_event, read_json, wants, while_client_waits
from atoll.server.calls import ask
from atoll.server.problems import json_response
from atoll.server.queries import MAX_NUMBER, Query
from atoll.server.routes.commands import to_text
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor.actor import Caller, SandboxActor

ENTRIES_AT_ONCE = 64


class ProcessRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`command` is for a shell of its own, or a list of words that no shell touches; without an id it gets one."""

    command: str | list[str]
    id: str | None = None
    session_id: str = "default"
    cwd: str | None = None
    env: dict[str, str | None] = {}
    timeout: float | str | None = None
    restart: RestartPolicy | None = None


class KillRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    signal: str | int = "SIGTERM"


class PortRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    port: int
    mode: PortMode = PortMode.HTTP
    path: str = "/"
    min_status: int = OK_STATUS[0]
    max_status: int = OK_STATUS[1]
    timeout: float | str | None = PORT_SECONDS


class ExitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: float | str | None = None


class LogsQuery(Query, frozen=True, kw_only=True):
    since: Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="only what comes after this number")] = 0
    follow: Annotated[bool, Meta(description="whether a stream goes on with what comes")] = True


class ProcessLogsBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Text, with U+FFFD where it was none; the exact bytes then come along in base64. `number` is for `since`."""

    stdout: str
    stderr: str
    number: int
    dropped: int = 0
    stdout_base64: str | None = None
    stderr_base64: str | None = None


class LogEventBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a stream: stdout, stderr, dropped or exit, as `ProcessEvent` of the SDK; or error.

    `data_base64` has the exact bytes where `data` has not.
    """

    type: str
    number: int | None = None
    time: float | None = None
    data: str | None = None
    data_base64: str | None = None
    dropped: int | None = None
    process: ProcessInfo | None = None
    code: str | None = None
    message: str | None = None
    remedy: str | None = None
    context: Context | None = None


async def list_processes(request: Request) -> Response:
    return json_response(await ask(request, ListProcesses()))


async def start_process(request: Request) -> Response:
    asked = await read_json(request, ProcessRequest)
    call = StartProcess(
        command=asked.command,
        process_id=asked.id,
        session_id=asked.session_id,
        cwd=check_directory(asked.cwd),
        env=asked.env,
        timeout=_seconds(asked.timeout),
        restart=asked.restart,
    )
    return json_response(await ask(request, call), 201)


async def kill_all_processes(request: Request) -> Response:
    return json_response(await ask(request, KillAllProcesses()))


async def clean_up_processes(request: Request) -> Response:
    return json_response(await ask(request, CleanUpProcesses()))


async def get_process(request: Request) -> Response:
    return json_response(await ask(request, GetProcess(process_id=_process_id(request))))


async def kill_process(request: Request) -> Response:
    asked = await read_json(request, KillRequest)
    call = KillProcess(process_id=_process_id(request), signal=parse_signal(asked.signal))
    return json_response(await ask(request, call))


async def wait_for_port(request: Request) -> Response:
    asked = await read_json(request, PortRequest)
    call = WaitForPort(
        process_id=_process_id(request),
        port=asked.port,
        mode=asked.mode,
        path=asked.path,
        min_status=asked.min_status,
        max_status=asked.max_status,
        timeout=_seconds(asked.timeout),
    )
    return json_response(await ask(request, check_wait(call)))


async def wait_for_exit(request: Request) -> Response:
    asked = await read_json(request, ExitRequest)
    call = WaitForExit(process_id=_process_id(request), timeout=_seconds(asked.timeout))
    return json_response(await ask(request, call))


async def get_process_logs(request: Request, query: LogsQuery) -> Response:
    since = last_event(request, query.since)
    streams = wants(request, EVENT_STREAM)
    call = StreamProcessLog(process_id=_process_id(request), since=since, follow=streams and query.follow)
    parts = read_parts(actor_of(request), caller_of(request), call)
    if not streams:
        return json_response(await while_client_waits(request, collect(parts)))
    first = await anext(parts)  # what fails before the first part is an HTTP error
    return StreamingResponse(_as_stream(first, parts), media_type=EVENT_STREAM)


async def read_parts(
    actor: SandboxActor, caller: Caller, call: StreamProcessLog
) -> AsyncGenerator[LogPart | None, None]:
    """The parts of a log, and None at its end, for it may have none.

    They have a few entries each: thousands that are made JSON at once would keep everybody waiting.
    """
    fold = LogFold(call)
    async with actor.answering(caller, call) as (agent, _):
        while part := fold.take(await agent.next_frame()):
            for some in portions(part, ENTRIES_AT_ONCE):
                yield some
                await agent.rest()
        yield None


async def collect(parts: AsyncGenerator[LogPart | None, None]) -> ProcessLogsBody:
    log = WholeLog()
    async with aclosing(parts):
        async for part in parts:
            if part:
                log.add(part)
    stdout, stderr = to_text(log.stdout), to_text(log.stderr)
    return ProcessLogsBody(
        stdout=stdout[0],
        stderr=stderr[0],
        stdout_base64=stdout[1],
        stderr_base64=stderr[1],
        number=log.number,
        dropped=log.dropped,
    )


async def _as_stream(first: LogPart | None, parts: AsyncGenerator[LogPart | None, None]) -> AsyncIterator[bytes]:
    """An event's id is its number, with which an EventSource comes back by itself."""
    events = LogEvents()

    def encode(part: LogPart | None) -> bytes:
        return b"".join(_encode(to_event(event)) for event in events.of(part)) if part else b""

    async with aclosing(parts):
        yield b": the log, then what comes\n\n" + encode(first)
        try:
            async for part in parts:
                yield encode(part)
        except AtollError as problem:
            yield _encode(LogEventBody(type="error", **msgspec.structs.asdict(problem.to_body())))


def to_event(event: LogEvent) -> LogEventBody:
    match event:
        case Dropped(number, missing):
            return LogEventBody(type="dropped", number=number, dropped=missing)
        case Exited(number, process):
            return LogEventBody(type="exit", number=number, process=process)
        case Written(number, stream, time, data, whole):
            text, exact = to_text(whole)
            if whole != data:
                exact = base64.b64encode(data).decode()
            return LogEventBody(type=stream.value, number=number, time=time, data=text, data_base64=exact)


def _encode(event: LogEventBody) -> bytes:
    number = b"" if event.number is None else b"id: %d\n" % event.number
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.type.encode(), msgspec.json.encode(event))


def _process_id(request: Request) -> str:
    return parse_process_id(request.path_params["process_id"])


def _seconds(timeout: float | str | None) -> float | None:
    return None if timeout is None else parse_duration(timeout)


ROUTES = (
    ApiRoute(
        method="GET",
        path=SANDBOX + "/processes",
        handler=list_processes,
        summary="Background processes: those that run, and the latest of those that are over",
        tag="processes",
        answers={200: ProcessList},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/processes",
        handler=start_process,
        summary="Start a background process",
        tag="processes",
        body=ProcessRequest,
        answers={201: ProcessInfo},
    ),
    ApiRoute(
        method="DELETE",
        path=SANDBOX + "/processes",
        handler=kill_all_processes,
        summary="End all that run; how many there were",
        tag="processes",
        answers={200: ProcessCount},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/processes/clean-up",
        handler=clean_up_processes,
        summary="Forget those that are over; how many there were",
        tag="processes",
        answers={200: ProcessCount},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/processes/{process_id}",
        handler=get_process,
        summary="A background process",
        tag="processes",
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/processes/{process_id}/kill",
        handler=kill_process,
        summary="Send a signal to it and all it has started; SIGKILL follows SIGTERM",
        tag="processes",
        body=KillRequest,
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/processes/{process_id}/logs",
        handler=get_process_logs,
        summary="What is kept of its output; live as text/event-stream",
        tag="processes",
        query=LogsQuery,
        events=LogEventBody,
        answers={200: ProcessLogsBody},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/processes/{process_id}/wait-for-port",
        handler=wait_for_port,
        summary="Answered when something inside takes connections on a port",
        tag="processes",
        changes=False,
        body=PortRequest,
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/processes/{process_id}/wait-for-exit",
        handler=wait_for_exit,
        summary="Answered when it is over",
        tag="processes",
        changes=False,
        body=ExitRequest,
        answers={200: ProcessInfo},
    ),
)
