"""Commands as JSON, for clients that are not the SDK."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.arguments import check_directory
from atoll.protocol.commands import CommandFold, CommandOutput, CommandText, Exec, ExecDone, ExecShell, Piece
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import AtollError
from atoll.server.api_route import EVENT_STREAM, SANDBOX, ApiRoute
from atoll.server.bodies import read_json, wants, while_client_waits
from atoll.server.command_bodies import ExecEventBody, ExecRequest, ExecResultBody
from atoll.server.observer import sight_of
from atoll.server.problems import bad_request, json_response
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.agent_connection import nothing
from atoll.supervisor.agent_link import MAX_OUTPUT_KEPT, patience_with

# Of each of the two streams, in one JSON document: it is made in one go, while everybody else waits.
JSON_OUTPUT, MAX_JSON_OUTPUT = 2**20, 8 * 2**20
EVENT_OUTPUT = 64 * 1024  # bytes that an event has at most; an agent sends no more at once


async def run_command(request: Request) -> Response:
    asked = await read_json(request, ExecRequest)
    is_stream = wants(request, EVENT_STREAM)
    call, stdin = to_call(asked, MAX_OUTPUT_KEPT if is_stream else MAX_JSON_OUTPUT), to_stdin(asked)
    sight_of(request.scope).operation = str(call.__struct_config__.tag)
    actor = actor_of(request)
    if is_stream:
        events = stream(actor, caller_of(request), call, stdin)
        first = await anext(events)  # what fails before the command starts is an HTTP error
        return StreamingResponse(_as_stream(first, events), media_type=EVENT_STREAM)
    if call.max_output is None:
        call = msgspec.structs.replace(call, max_output=JSON_OUTPUT)
    started = datetime.now(UTC)
    output = await while_client_waits(request, actor.do(caller_of(request), lambda link: link.run(call, stdin)))
    return json_response(to_result(asked, started, output))


def to_call(asked: ExecRequest, most: int) -> Exec | ExecShell:
    if asked.max_output is not None and not 0 <= asked.max_output <= most:
        remedy = f"Give 0 to {most} bytes; larger output is for a stream of events, the SDK, or a file."
        raise bad_request(f"max_output={asked.max_output} is not possible", remedy)
    check_directory(asked.cwd)
    timeout = None if asked.timeout is None else parse_duration(asked.timeout)
    if isinstance(asked.command, str):
        return ExecShell(
            command=asked.command,
            session_id=asked.session_id,
            cwd=asked.cwd,
            env=asked.env,
            timeout=timeout,
            max_output=asked.max_output,
        )
    return Exec(
        argv=asked.command,
        session_id=asked.session_id,
        cwd=asked.cwd,
        env=asked.env,
        timeout=timeout,
        max_output=asked.max_output,
    )


def to_stdin(asked: ExecRequest) -> bytes | None:
    if asked.stdin_base64 is None:
        return None if asked.stdin is None else asked.stdin.encode("utf-8", "surrogatepass")
    if asked.stdin is not None:
        raise bad_request("stdin and stdin_base64 are both given", "Give one of them.")
    try:
        return base64.b64decode(asked.stdin_base64, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise bad_request(f"stdin_base64 is not base64: {cause}") from cause


def to_result(asked: ExecRequest, started: datetime, output: CommandOutput) -> ExecResultBody:
    stdout, stderr = to_text(output.stdout), to_text(output.stderr)
    return ExecResultBody(
        success=output.done.exit_code == 0,
        exit_code=output.done.exit_code,
        stdout=stdout[0],
        stderr=stderr[0],
        stdout_base64=stdout[1],
        stderr_base64=stderr[1],
        command=asked.command,
        duration=output.done.duration,
        timestamp=started,
        session_id=asked.session_id,
        timed_out=output.done.timed_out,
        truncated=output.done.truncated,
        session_ended=output.done.session_ended,
        state_lost=output.done.state_lost,
    )


def to_text(data: bytes) -> tuple[str, str | None]:
    """As text; and in base64 if that is not all there is to it."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode(errors="replace"), base64.b64encode(data).decode()


async def stream(
    actor: SandboxActor, caller: Caller, call: Exec | ExecShell, stdin: bytes | None
) -> AsyncGenerator[ExecEventBody, None]:
    """Ends early if the reader leaves, and so does the command."""
    if stdin is not None:
        call = msgspec.structs.replace(call, stdin=True)
    fold, text = CommandFold(call, keeps=False), CommandText()
    async with actor.answering(caller, call, nothing) as (agent, _), AsyncExitStack() as stack:
        if stdin is not None:
            await stack.enter_async_context(agent.fed(stdin))
        yield _event("start")
        try:
            async for frame in agent.frames(patience_with(call)):
                for piece in _cut(fold.take(frame)):
                    if whole := text.take(piece):
                        yield _output(piece.stream, whole)
                        await agent.rest()
            for piece in text.rest():
                yield _output(piece.stream, piece.data)
            assert fold.done, "the last frame of an answer is its end"
            yield _completion(fold.done)
        except AtollError as problem:
            yield _event("error", code=problem.code, message=problem.message, remedy=problem.remedy)


def _cut(piece: Piece | None) -> Iterator[Piece]:
    """The same in pieces that fit an event."""
    if piece:
        for start in range(0, len(piece.data), EVENT_OUTPUT):
            yield Piece(piece.stream, piece.data[start : start + EVENT_OUTPUT])


def _output(stream: str, data: bytes) -> ExecEventBody:
    text, exact = to_text(data)
    return _event(stream, data=text, data_base64=exact)


def _completion(done: ExecDone) -> ExecEventBody:
    return _event("complete", **msgspec.structs.asdict(done))


def _event(kind: str, **fields: object) -> ExecEventBody:
    return ExecEventBody(type=kind, timestamp=datetime.now(UTC), **fields)  # type: ignore[arg-type]


async def _as_stream(first: ExecEventBody, events: AsyncGenerator[ExecEventBody, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield _encode(first)
        async for event in events:
            yield _encode(event)


def _encode(event: ExecEventBody) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.type.encode(), msgspec.json.encode(event))


ROUTES = (
    ApiRoute(
        method="POST",
        path=SANDBOX + "/exec",
        handler=run_command,
        summary="Run a command; its result, or its events as text/event-stream",
        tag="commands",
        body=ExecRequest,
        events=ExecEventBody,
        answers={200: ExecResultBody},
    ),
)
