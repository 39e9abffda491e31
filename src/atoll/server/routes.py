"""Every route with what it takes and gives: the router and the OpenAPI document are made from this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol import transfer_bounds
from atoll.protocol.frames import FRAMES
from atoll.protocol.processes import ProcessCount, ProcessInfo, ProcessList
from atoll.protocol.sandboxes import (
    MAX_SANDBOXES_PER_PAGE,
    SANDBOXES_PER_PAGE,
    AdoptRequest,
    EventList,
    LostList,
    SandboxEvent,
    SandboxInfo,
    SandboxList,
    SandboxOptions,
    ServerInfo,
    SleepRequest,
    UpkeepChanges,
)
from atoll.protocol.sessions import SessionInfo, SessionRequest, Sessions
from atoll.protocol.terminals import TerminalInfo, TerminalList
from atoll.server import commands, files, lost, processes, sandboxes, server_info, terminals
from atoll.server.command_bodies import ExecEventBody, ExecRequest, ExecResultBody
from atoll.server.file_bodies import (
    CopyRequest,
    DirectoryRequest,
    FileCountBody,
    FileInfoBody,
    FileListBody,
    ModeRequest,
    MoveRequest,
)
from atoll.server.relay import Relay
from atoll.server.terminals import TerminalRequest, TerminalSize

Endpoint = Callable[[Request], Awaitable[Response]] | Relay


class Query(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any]
    description: str


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` are the good ones, by status."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    tag: str
    body: Any = None
    body_type: str = "application/json"
    answers: dict[int, Any]
    answer_type: str = "application/json"
    events: Any = None  # what each of them holds, if they can be asked for as text/event-stream
    queries: tuple[Query, ...] = ()


STATES = ["running", "frozen", "stopped"]
SINCE = Query("since", {"type": "integer", "minimum": 0}, "only events after this number")
LOG_SINCE = Query("since", {"type": "integer", "minimum": 0}, "only what comes after this number")
LOG_FOLLOW = Query("follow", {"type": "boolean"}, "whether a stream goes on with what comes")
LABEL = Query("label", {"type": "array", "items": {"type": "string"}}, "NAME=VALUE; may be given several times")
STATE = Query("state", {"type": "string", "enum": STATES}, "only sandboxes in this state")
PAGE = {"type": "integer", "minimum": 1, "maximum": MAX_SANDBOXES_PER_PAGE, "default": SANDBOXES_PER_PAGE}
LIMIT = Query("limit", PAGE, "so many at most; if there are more, the answer says where to go on")
AFTER = Query("after", {"type": "string"}, "only ids after this one; what an answer has as `next`")
USAGE = Query("usage", {"type": "boolean"}, "also what each uses, which takes a moment")

BOOLEAN = {"type": "boolean"}
PATH = (
    Query("path", {"type": "string"}, "a path; a relative one counts from the session's directory"),
    Query("path_base64", {"type": "string"}, "the same in base64, for names that are not UTF-8"),
    Query("session_id", {"type": "string"}, "whose directory; the default session's if not given"),
)
RECURSIVE = Query("recursive", BOOLEAN, "also what is in directories")
HIDDEN = Query("hidden", BOOLEAN, "also names that begin with a dot")
FOLLOW = Query("follow", BOOLEAN, "what a link points to, not the link; true if not given")
MODE = Query("mode", {"type": "string", "pattern": "^0?[0-7]{1,4}$"}, "octal, such as 0644")
SYNC = Query("sync", BOOLEAN, "answer when it is on disk")
EXCLUSIVE = Query("exclusive", BOOLEAN, "fail if it is there already")
BOUND = {"type": "string", "pattern": "^[0-9]+$|^none$"}
MAX_BYTES = Query("max_bytes", BOUND, f"how much content there may be; {transfer_bounds.MAX_BYTES} if not given")
MAX_ENTRIES = Query("max_entries", BOUND, f"how many entries; {transfer_bounds.MAX_ENTRIES} if not given")
MAX_DEPTH = Query("max_depth", BOUND, f"how many directories deep; {transfer_bounds.MAX_DEPTH} if not given")
PATTERNS = {"type": "array", "items": {"type": "string"}}
INCLUDE = Query("include", PATTERNS, "only names or paths like this shell pattern; may be given several times")
EXCLUDE = Query("exclude", PATTERNS, "no names or paths like this shell pattern; may be given several times")
BINARY = "application/octet-stream"

FILE_ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/files",
        endpoint=files.list_files,
        summary="What is in a directory",
        tag="files",
        queries=(*PATH, RECURSIVE, HIDDEN),
        answers={200: FileListBody},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}/files",
        endpoint=files.delete_files,
        summary="Delete a file, or with recursive a directory",
        tag="files",
        queries=(*PATH, RECURSIVE),
        answers={204: None},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/files/content",
        endpoint=files.get_content,
        summary="A file's bytes, or with a Range header some of them",
        tag="files",
        queries=(*PATH, MAX_BYTES),
        answers={200: bytes, 206: bytes},
        answer_type=BINARY,
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}/files/content",
        endpoint=files.put_content,
        summary="Write a file, of any size; nobody sees half of it",
        tag="files",
        queries=(*PATH, MODE, SYNC, EXCLUSIVE),
        body=bytes,
        body_type=BINARY,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/files/info",
        endpoint=files.get_info,
        summary="Type, size, mode, owner and time of a file",
        tag="files",
        queries=(*PATH, FOLLOW),
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/files/directory",
        endpoint=files.post_directory,
        summary="Make a directory",
        tag="files",
        body=DirectoryRequest,
        answers={201: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/files/move",
        endpoint=files.post_move,
        summary="Give a file or directory another name or place",
        tag="files",
        body=MoveRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/files/copy",
        endpoint=files.post_copy,
        summary="Copy a file within the sandbox",
        tag="files",
        body=CopyRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/files/mode",
        endpoint=files.post_mode,
        summary="Change a file's permissions",
        tag="files",
        body=ModeRequest,
        answers={200: FileInfoBody},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/files/archive",
        endpoint=files.get_archive,
        summary="A directory as a tar archive, with names from within it",
        tag="files",
        queries=(*PATH, MAX_BYTES, MAX_ENTRIES, MAX_DEPTH),
        answers={200: bytes},
        answer_type=files.TAR,
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}/files/archive",
        endpoint=files.put_archive,
        summary="Unpack a tar archive into a directory",
        tag="files",
        queries=PATH,
        body=bytes,
        body_type=files.TAR,
        answers={200: FileCountBody},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/files/watch",
        endpoint=files.get_watch,
        summary="What changes in a directory, as it changes; the first event is ready",
        tag="files",
        queries=(*PATH, RECURSIVE, INCLUDE, EXCLUDE),
        answers={200: bytes},
        answer_type=sandboxes.EVENT_STREAM,
    ),
)

LOST_ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/lost",
        endpoint=lost.list_lost,
        summary="Disks of no sandbox that were set aside, and why",
        tag="lost",
        answers={200: LostList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/lost/{name}/adopt",
        endpoint=lost.post_adopt,
        summary="Make one a sandbox again; it is stopped until it is used",
        tag="lost",
        body=AdoptRequest,
        answers={201: SandboxInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/lost/{name}",
        endpoint=lost.delete_lost,
        summary="Remove one for good",
        tag="lost",
        answers={204: None},
    ),
)

ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/server",
        endpoint=server_info.get_server,
        summary="Which server this is",
        tag="server",
        answers={200: ServerInfo},
    ),
    *LOST_ROUTES,
    ApiRoute(
        method="GET",
        path="/v1/sandboxes",
        endpoint=sandboxes.list_sandboxes,
        summary="Sandboxes by id, all or those with some labels or in some state; a page of them",
        tag="sandboxes",
        queries=(LABEL, STATE, LIMIT, AFTER, USAGE),
        answers={200: SandboxList},
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.put_sandbox,
        summary="Make a sandbox, or start the one there is",
        tag="sandboxes",
        body=SandboxOptions,
        answers={200: SandboxInfo, 201: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.get_sandbox,
        summary="State, image, limits and use of a sandbox",
        tag="sandboxes",
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.delete_sandbox,
        summary="Destroy a sandbox with all its files; twice is fine",
        tag="sandboxes",
        answers={204: None},
    ),
    ApiRoute(
        method="PATCH",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.patch_sandbox,
        summary="Change when it is put to sleep and stopped",
        tag="sandboxes",
        body=UpkeepChanges,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/sleep",
        endpoint=sandboxes.post_sleep,
        summary="Freeze it, or stop it; the next operation wakes it",
        tag="sandboxes",
        body=SleepRequest,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/wake",
        endpoint=sandboxes.post_wake,
        summary="Wake it, start it, or make it, as any operation does",
        tag="sandboxes",
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}/labels",
        endpoint=sandboxes.put_labels,
        summary="Replace its labels",
        tag="sandboxes",
        body=dict[str, str],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PATCH",
        path="/v1/sandboxes/{id}/env",
        endpoint=sandboxes.patch_env,
        summary="Set variables for all later commands; null unsets one",
        tag="sandboxes",
        body=dict[str, str | None],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/events",
        endpoint=sandboxes.get_events,
        summary="What happened to it, when, why, and who asked; live as text/event-stream",
        tag="sandboxes",
        queries=(SINCE,),
        events=SandboxEvent,
        answers={200: EventList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/exec",
        endpoint=commands.post_exec,
        summary="Run a command; its result, or its events as text/event-stream",
        tag="commands",
        body=ExecRequest,
        events=ExecEventBody,
        answers={200: ExecResultBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/call",
        endpoint=Relay(),
        summary="What the SDK uses: a call to the agent and its answer, in frames",
        tag="commands",
        body=bytes,
        body_type=FRAMES,
        answers={200: bytes},
        answer_type=FRAMES,
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/sessions",
        endpoint=commands.list_sessions,
        summary="Its sessions",
        tag="sessions",
        answers={200: Sessions},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/sessions",
        endpoint=commands.post_session,
        summary="Another persistent shell",
        tag="sessions",
        body=SessionRequest,
        answers={201: SessionInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}/sessions/{session_id}",
        endpoint=commands.delete_session,
        summary="End a session",
        tag="sessions",
        answers={204: None},
    ),
    *FILE_ROUTES,
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/processes",
        endpoint=processes.list_processes,
        summary="Background processes: those that run, and the latest of those that are over",
        tag="processes",
        answers={200: ProcessList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/processes",
        endpoint=processes.post_process,
        summary="Start a background process",
        tag="processes",
        body=processes.ProcessRequest,
        answers={201: ProcessInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}/processes",
        endpoint=processes.kill_all,
        summary="End all that run; how many there were",
        tag="processes",
        answers={200: ProcessCount},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/processes/clean-up",
        endpoint=processes.clean_up,
        summary="Forget those that are over; how many there were",
        tag="processes",
        answers={200: ProcessCount},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/processes/{process_id}",
        endpoint=processes.get_process,
        summary="A background process",
        tag="processes",
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/processes/{process_id}/kill",
        endpoint=processes.kill_process,
        summary="Send a signal to it and all it has started; SIGKILL follows SIGTERM",
        tag="processes",
        body=processes.KillRequest,
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/processes/{process_id}/logs",
        endpoint=processes.get_logs,
        summary="What is kept of its output; live as text/event-stream",
        tag="processes",
        queries=(LOG_SINCE, LOG_FOLLOW),
        events=processes.LogEventBody,
        answers={200: processes.ProcessLogsBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/processes/{process_id}/wait-for-port",
        endpoint=processes.wait_for_port,
        summary="Answered when something inside takes connections on a port",
        tag="processes",
        body=processes.PortRequest,
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/processes/{process_id}/wait-for-exit",
        endpoint=processes.wait_for_exit,
        summary="Answered when it is over",
        tag="processes",
        body=processes.ExitRequest,
        answers={200: ProcessInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/terminals",
        endpoint=terminals.list_terminals,
        summary="Its terminals: all that run, and the latest that have ended",
        tag="terminals",
        answers={200: TerminalList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/terminals",
        endpoint=terminals.post_terminal,
        summary="A program with a terminal of its own, which lives until it ends or is closed",
        tag="terminals",
        body=TerminalRequest,
        answers={201: TerminalInfo},
    ),
    ApiRoute(
        method="GET",
        path=terminals.PATH,
        endpoint=terminals.get_terminal,
        summary="A terminal's size, viewers and exit code; as a WebSocket, the terminal itself",
        tag="terminals",
        answers={200: TerminalInfo},
    ),
    ApiRoute(
        method="PATCH",
        path=terminals.PATH,
        endpoint=terminals.patch_terminal,
        summary="Resize a terminal",
        tag="terminals",
        body=TerminalSize,
        answers={200: TerminalInfo},
    ),
    ApiRoute(
        method="DELETE",
        path=terminals.PATH,
        endpoint=terminals.delete_terminal,
        summary="Close a terminal: end its program and all it started",
        tag="terminals",
        answers={204: None},
    ),
)
