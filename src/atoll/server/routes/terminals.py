"""Terminals over HTTP: made and closed as JSON, looked at and typed into over a WebSocket.

1. Binary messages are the terminal's bytes, both ways. Text messages are JSON, told apart by their `type`: from the
   client `resize` and `close`; from us `ready` after the replay, `resized`, `lost`, and as the last `exit` or `error`.
2. The terminal is read only as fast as the client reads, and the client as fast as the program: what a client sends is
   not looked at, not even a pong, while the program takes no input. One that takes nothing for SEND_SECONDS is let go.
3. A client that leaves ends nothing but its view. What it typed before goes on to the program for as long as that takes
   some of it, every LAST_INPUT_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from atoll.protocol.arguments import check_directory
from atoll.protocol.errors import AtollError, Context, ErrorCode, error
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.protocol.terminals import (
    DEFAULT_COLS,
    DEFAULT_ROWS,
    AttachTerminal,
    CloseTerminal,
    CreateTerminal,
    ListTerminals,
    ResizeTerminal,
    TerminalInfo,
    TerminalList,
    ViewFold,
    to_words,
)
from atoll.server.api_route import SANDBOX, ApiRoute
from atoll.server.bodies import read_json
from atoll.server.calls import ask
from atoll.server.connections import departure_of
from atoll.server.problems import bad_request, json_response
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_link import AgentLink

PATH = SANDBOX + "/terminals/{terminal_id}"
PROTOCOL = "atoll.terminal"
SEND_SECONDS = 60.0
LAST_INPUT_SECONDS = 2.0
CLOSED, CLOSED_BY_STATUS = 1000, 4000  # an error's close code is 4000 + its HTTP status


class TerminalRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new terminal, as JSON has it. `shell` is a program, or a list of a program and its arguments."""

    cols: int = DEFAULT_COLS
    rows: int = DEFAULT_ROWS
    shell: str | list[str] | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    session_id: str = DEFAULT_SESSION


class TerminalSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cols: int
    rows: int


class Resize(msgspec.Struct, frozen=True, kw_only=True, tag="resize", forbid_unknown_fields=True):
    """A viewer's own words, over a WebSocket."""

    cols: int
    rows: int


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close", forbid_unknown_fields=True):
    """Likewise: end the program and all it started."""


class TerminalExit(msgspec.Struct, frozen=True, kw_only=True, tag="exit"):
    """The last word over a WebSocket."""

    exit_code: int


class TerminalError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Likewise, where something failed."""

    code: str
    message: str
    remedy: str
    context: Context = {}


_controls: msgspec.json.Decoder[Resize | Close] = msgspec.json.Decoder(Resize | Close)


async def list_terminals(request: Request) -> Response:
    return json_response(await ask(request, ListTerminals()))


async def create_terminal(request: Request) -> Response:
    asked = await read_json(request, TerminalRequest)
    call = CreateTerminal(
        cols=asked.cols,
        rows=asked.rows,
        shell=to_words(asked.shell),
        cwd=check_directory(asked.cwd),
        env=asked.env,
        session_id=asked.session_id,
    )
    return json_response(await ask(request, call), 201)


async def get_terminal(request: Request) -> Response:
    terminal_id = request.path_params["terminal_id"]
    listed = (await ask(request, ListTerminals())).terminals
    found = [terminal for terminal in listed if terminal.id == terminal_id]
    if not found:
        remedy = "Create one; list the terminals to see which there are."
        message = f"there is no terminal {terminal_id!r:.100}"
        raise error(ErrorCode.TERMINAL_NOT_FOUND, message, remedy=remedy, terminal_id=terminal_id)
    return json_response(found[0])


async def resize_terminal(request: Request) -> Response:
    size = await read_json(request, TerminalSize)
    call = ResizeTerminal(terminal_id=request.path_params["terminal_id"], cols=size.cols, rows=size.rows)
    return json_response(await ask(request, call))


async def close_terminal(request: Request) -> Response:
    await ask(request, CloseTerminal(terminal_id=request.path_params["terminal_id"]))
    return Response(status_code=204)


async def view(socket: WebSocket) -> None:
    """A terminal as a WebSocket. A page cannot see why a handshake failed, so errors come after it, as messages."""
    await socket.accept(subprotocol=PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
    call = AttachTerminal(terminal_id=socket.path_params["terminal_id"])
    try:
        actor, caller = actor_of(socket), caller_of(socket)
        async with actor.answering(caller, call) as (agent, link):
            controls = Controls(socket, agent, link)
            await first_of(View(socket, agent, call).run(), controls.run(), controls.give_up_if_left())
    except AtollError as problem:
        await tell_problem(socket, problem)
    except (WebSocketDisconnect, TimeoutError):
        pass


class View:
    """The terminal's output, on its way to the client."""

    def __init__(self, socket: WebSocket, agent: AgentConnection, call: AttachTerminal) -> None:
        self._socket = socket
        self._agent = agent
        self._fold = ViewFold(call)

    async def run(self) -> None:
        while (seen := self._fold.take(await self._agent.next_frame())) is not None:
            if isinstance(seen, bytes):
                await send(self._socket, {"type": "websocket.send", "bytes": seen})
            else:
                await send_json(self._socket, seen)
        await send_json(self._socket, TerminalExit(exit_code=self._fold.exit_code or 0))
        await close(self._socket, CLOSED, "its program has ended")


class Controls:
    """The client's messages, on their way to the program."""

    def __init__(self, socket: WebSocket, agent: AgentConnection, link: AgentLink) -> None:
        self._socket = socket
        self._agent = agent
        self._link = link
        self._terminal_id: str = socket.path_params["terminal_id"]
        self._messages = 0

    async def run(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            self._messages += 1
            if message.get("bytes"):
                await self._agent.send_frame(Frame(FrameKind.INPUT, message["bytes"]))
            elif message.get("text") is not None:
                await self._obey(message["text"])
        raise WebSocketDisconnect(message["code"])

    async def give_up_if_left(self) -> None:
        """Watch for the client's departure, which is not read of while its input is backed up."""
        left = asyncio.Event()
        with departure_of(self._socket.scope).calls(left.set):
            await left.wait()
        before = -1
        while self._messages != before:
            before = self._messages
            await asyncio.sleep(LAST_INPUT_SECONDS)
        raise WebSocketDisconnect

    async def _obey(self, text: str) -> None:
        try:
            control = _controls.decode(text)
        except (msgspec.MsgspecError, RecursionError) as cause:
            remedy = 'Send {"type": "resize", "cols": 80, "rows": 24} or {"type": "close"}; input is binary.'
            raise bad_request(f"{text!r:.100} is no control message: {cause}", remedy) from cause
        match control:
            case Resize(cols=cols, rows=rows):
                call = ResizeTerminal(terminal_id=self._terminal_id, cols=cols, rows=rows)
                await self._link.ask(call)
            case Close():
                await self._link.ask(CloseTerminal(terminal_id=self._terminal_id))


async def first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends, or fails; the others are ended then."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send_json(socket: WebSocket, message: object) -> None:
    await send(socket, {"type": "websocket.send", "text": msgspec.json.encode(message).decode()})


async def send(socket: WebSocket, message: Message) -> None:
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await socket.send(message)
    except RuntimeError as cause:  # uvicorn has closed it meanwhile: too long a message came, or no pong
        raise WebSocketDisconnect from cause


async def close(socket: WebSocket, code: int, reason: str) -> None:
    await send(socket, {"type": "websocket.close", "code": code, "reason": reason})


async def tell_problem(socket: WebSocket, problem: AtollError) -> None:
    last = TerminalError(**msgspec.structs.asdict(problem.to_body()))
    with suppress(WebSocketDisconnect, TimeoutError):
        await send_json(socket, last)
        await close(socket, CLOSED_BY_STATUS + problem.code.status, problem.code)


# A view takes input, and answers the upgrade of a GET.
VIEW = ApiRoute(
    method="GET",
    path=PATH,
    handler=view,
    changes=True,
    summary="A terminal, seen and typed into",
    tag="terminals",
    answers={},
)

ROUTES = (
    ApiRoute(
        method="GET",
        path=SANDBOX + "/terminals",
        handler=list_terminals,
        summary="Its terminals: all that run, and the latest that have ended",
        tag="terminals",
        answers={200: TerminalList},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/terminals",
        handler=create_terminal,
        summary="A program with a terminal of its own, which lives until it ends or is closed",
        tag="terminals",
        body=TerminalRequest,
        answers={201: TerminalInfo},
    ),
    ApiRoute(
        method="GET",
        path=PATH,
        handler=get_terminal,
        summary="A terminal's size, viewers and exit code; as a WebSocket, the terminal itself",
        tag="terminals",
        answers={200: TerminalInfo},
    ),
    ApiRoute(
        method="PATCH",
        path=PATH,
        handler=resize_terminal,
        summary="Resize a terminal",
        tag="terminals",
        body=TerminalSize,
        answers={200: TerminalInfo},
    ),
    ApiRoute(
        method="DELETE",
        path=PATH,
        handler=close_terminal,
        summary="Close a terminal: end its program and all it started",
        tag="terminals",
        answers={204: None},
    ),
)
