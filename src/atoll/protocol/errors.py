"""Errors: one root for every one a user can meet, with branches by who must act.

Each error has a stable `code`, a message with the value that failed, a `context` for programs and a
`remedy` for people. Where Python has a built-in for the situation, the class is that built-in too; one that is an
OSError has `errno`, `strerror`, and in `filename` what the context calls `path`, or else `command`.
"""

from __future__ import annotations

import io
import os
import sys
from enum import Enum, StrEnum, auto
from errno import (
    EACCES,
    EBUSY,
    ECONNREFUSED,
    ECONNRESET,
    EDQUOT,
    EEXIST,
    EFBIG,
    EINVAL,
    EIO,
    EISDIR,
    ELOOP,
    EMFILE,
    ENAMETOOLONG,
    ENFILE,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ENOTEMPTY,
    EOPNOTSUPP,
    EPERM,
    EROFS,
    ETIMEDOUT,
)
from typing import Any, Self

import msgspec

from atoll.protocol.names import name_in
from atoll.protocol.printable import printable, printable_lines

Context = dict[str, str | int | float | bool | None]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it travels."""

    code: str
    message: str
    context: Context = {}
    remedy: str = ""


class AtollError(Exception):
    """Everything Atoll raises on purpose."""

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, context: Context | None = None, remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code or ErrorCode.INTERNAL_ERROR
        self.message = message
        self.context: Context = context or {}
        self.remedy = remedy
        _fill_in(self)

    def __str__(self) -> str:
        """For people: what others chose, such as a file's name, cannot do anything to where it is shown."""
        text = f"{printable_lines(self.message)} [{self.code}]"
        return f"{text}\n  {printable_lines(self.remedy)}" if self.remedy else text

    def __repr__(self) -> str:
        return printable(super().__repr__())

    def __reduce__(self) -> tuple[object, ...]:
        return (from_body, (self.to_body(),))

    def about(self, **context: str | int | float | bool | None) -> Self:
        """This error, with what its context does not say yet."""
        new = {key: value for key, value in context.items() if key.removesuffix("_base64") not in self.context}
        self.context = {**self.context, **new}
        _fill_in(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The error as `json.dumps` takes it; the same fields as over HTTP."""
        found: dict[str, Any] = msgspec.to_builtins(self.to_body())
        return found

    def to_body(self) -> ErrorBody:
        context = {key: _sendable(value) if isinstance(value, str) else value for key, value in self.context.items()}
        message, remedy = _sendable(self.message), _sendable(self.remedy)
        return ErrorBody(code=self.code, message=message, context=context, remedy=remedy)


def _fill_in(problem: AtollError) -> None:
    """Set what an OSError has besides."""
    if not isinstance(problem, OSError):
        return
    problem.errno = problem.code.errno
    problem.strerror = problem.message
    # A connection that broke, or time that is up, is about no file, whatever was being done with one.
    if not isinstance(problem, ConnectionError | TimeoutError):
        problem.filename = name_in(problem.context, "path") or name_in(problem.context, "command")


def _sendable(text: str) -> str:
    """A text as it is, but for lone surrogates, which no wire takes."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


class CallerError(AtollError):
    """The request cannot be met as it is: change it."""


class SandboxError(AtollError):
    """The sandbox, or what runs in it, is in the way."""


class HostError(AtollError):
    """The machine lacks something: its operator must act."""


class InternalError(AtollError):
    """Atoll is wrong: report it."""


class InvalidValueError(CallerError, ValueError):
    """A value that nobody can do anything with."""


class NotFoundError(CallerError, LookupError):
    """Something that is named and is not there."""


class AlreadyExistsError(CallerError, FileExistsError):
    """A name that is taken."""


class FileMissingError(CallerError, FileNotFoundError):
    """A file that is not there, or a program."""


class NotADirectoryPathError(CallerError, NotADirectoryError):
    """A path that leads through something else than a directory."""


class IsADirectoryPathError(CallerError, IsADirectoryError):
    """A directory where a file is needed."""


class UnsupportedError(CallerError, io.UnsupportedOperation):
    """Something that a file cannot do, as it is opened."""


class FileProblemError(CallerError, OSError):
    """A refusal of the file system that Python has no class for: `code` and `errno` tell."""


class AccessError(CallerError, PermissionError):
    """Something that this caller, or this user inside, may not do."""


class LimitReachedError(SandboxError):
    """A bound is reached: there are as many as there may be."""


class ProcessTimeoutError(SandboxError, TimeoutError):
    """A background process did not get ready, or did not end, in the time it was given."""


class SessionBusyError(SandboxError, TimeoutError):
    """A command whose turn in its session did not come in the time it was given. Nothing of it was done."""


class AgentLostError(SandboxError, ConnectionError):
    """A connection to an agent that broke."""


class AgentTimeoutError(SandboxError, TimeoutError):
    """An agent that did not answer in time."""


class AgentMisbehavedError(SandboxError):
    """Bytes from inside broke the protocol. They are never interpreted further."""


class NotRootError(HostError, PermissionError):
    """Something that only root may do."""


class PortNotOpenError(SandboxError, ConnectionRefusedError):
    """A port inside that nobody listens on."""


class InvalidKeyError(CallerError, PermissionError):
    """A key that the server does not know."""


class NotAvailableYetError(CallerError, NotImplementedError):
    """Something that a later version can do."""


class ServerLostError(HostError, ConnectionError):
    """Also when it could not be reached at all: the code tells."""


class NoSpaceError(HostError, OSError):
    """A disk that is full."""


class Speaker(Enum):
    """The side that a code may come from. Programs act on codes, so no other is believed of an agent."""

    AGENT = auto()  # and the host
    HOST = auto()  # the server, the SDK, the doctor


AGENT, HOST = Speaker


class ErrorCode(StrEnum):
    """Stable names; a program may branch on them. Each row has all there is to know about one."""

    kind: type[AtollError]  # the class a caller would catch
    status: int  # of an HTTP answer
    speaker: Speaker
    errno: int | None  # if the class is an OSError

    def __new__(
        cls, name: str, kind: type[AtollError], status: int, speaker: Speaker, errno: int | None = None
    ) -> Self:
        code = str.__new__(cls, name)
        code._value_ = name
        code.kind, code.status, code.speaker, code.errno = kind, status, speaker, errno
        return code

    # The caller must change the request.
    INVALID_SANDBOX_ID = "INVALID_SANDBOX_ID", InvalidValueError, 400, HOST
    INVALID_LIMITS = "INVALID_LIMITS", InvalidValueError, 400, HOST
    INVALID_IMAGE_NAME = "INVALID_IMAGE_NAME", InvalidValueError, 400, HOST
    INVALID_COMMAND = "INVALID_COMMAND", InvalidValueError, 400, AGENT
    INVALID_ENVIRONMENT = "INVALID_ENVIRONMENT", InvalidValueError, 400, AGENT
    INVALID_REQUEST = "INVALID_REQUEST", InvalidValueError, 400, AGENT
    INVALID_NETWORK_POLICY = "INVALID_NETWORK_POLICY", InvalidValueError, 400, HOST
    INVALID_PORT = "INVALID_PORT", InvalidValueError, 400, AGENT
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND", NotFoundError, 404, HOST
    IMAGE_EXISTS = "IMAGE_EXISTS", AlreadyExistsError, 409, HOST, EEXIST
    SANDBOX_CONFLICT = "SANDBOX_CONFLICT", CallerError, 409, HOST
    SANDBOX_EXISTS = "SANDBOX_EXISTS", AlreadyExistsError, 409, HOST, EEXIST
    INVALID_SESSION_ID = "INVALID_SESSION_ID", InvalidValueError, 400, AGENT
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND", NotFoundError, 404, AGENT
    SESSION_EXISTS = "SESSION_EXISTS", AlreadyExistsError, 409, AGENT, EEXIST
    SANDBOX_NOT_FOUND = "SANDBOX_NOT_FOUND", NotFoundError, 404, HOST
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND", FileMissingError, 404, AGENT, ENOENT
    FILE_NOT_FOUND = "FILE_NOT_FOUND", FileMissingError, 404, AGENT, ENOENT
    NOT_DIRECTORY = "NOT_DIRECTORY", NotADirectoryPathError, 409, AGENT, ENOTDIR
    IS_DIRECTORY = "IS_DIRECTORY", IsADirectoryPathError, 409, AGENT, EISDIR
    FILE_EXISTS = "FILE_EXISTS", AlreadyExistsError, 409, AGENT, EEXIST
    DIRECTORY_NOT_EMPTY = "DIRECTORY_NOT_EMPTY", FileProblemError, 409, AGENT, ENOTEMPTY
    NOT_A_FILE = "NOT_A_FILE", FileProblemError, 409, AGENT, EINVAL
    FILE_TOO_LARGE = "FILE_TOO_LARGE", FileProblemError, 400, AGENT, EFBIG
    DOWNLOAD_TOO_LARGE = "DOWNLOAD_TOO_LARGE", FileProblemError, 413, AGENT, EFBIG
    NAME_TOO_LONG = "NAME_TOO_LONG", FileProblemError, 400, AGENT, ENAMETOOLONG
    TOO_MANY_LINKS = "TOO_MANY_LINKS", FileProblemError, 400, AGENT, ELOOP
    READ_ONLY = "READ_ONLY", FileProblemError, 403, AGENT, EROFS
    PERMISSION_DENIED = "PERMISSION_DENIED", AccessError, 403, AGENT, EACCES
    INVALID_PATH = "INVALID_PATH", InvalidValueError, 400, AGENT
    UNSAFE_ARCHIVE = "UNSAFE_ARCHIVE", InvalidValueError, 400, AGENT
    UNSUPPORTED_OPERATION = "UNSUPPORTED_OPERATION", UnsupportedError, 400, HOST, EOPNOTSUPP
    RANGE_NOT_SATISFIABLE = "RANGE_NOT_SATISFIABLE", InvalidValueError, 416, HOST
    PROCESS_NOT_FOUND = "PROCESS_NOT_FOUND", NotFoundError, 404, AGENT
    PROCESS_EXISTS = "PROCESS_EXISTS", AlreadyExistsError, 409, AGENT, EEXIST
    INVALID_PROCESS_ID = "INVALID_PROCESS_ID", InvalidValueError, 400, AGENT
    INVALID_SIGNAL = "INVALID_SIGNAL", InvalidValueError, 400, AGENT
    INVALID_TOKEN = "INVALID_TOKEN", InvalidValueError, 400, HOST
    PORT_NOT_EXPOSED = "PORT_NOT_EXPOSED", NotFoundError, 404, HOST
    TOO_MANY_PORTS = "TOO_MANY_PORTS", LimitReachedError, 429, HOST
    TERMINAL_NOT_FOUND = "TERMINAL_NOT_FOUND", NotFoundError, 404, AGENT
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND", NotFoundError, 404, HOST
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED", InvalidValueError, 405, HOST
    BODY_TOO_LARGE = "BODY_TOO_LARGE", InvalidValueError, 413, HOST
    HEAD_TOO_LARGE = "HEAD_TOO_LARGE", InvalidValueError, 431, HOST
    CONTENT_TYPE_NOT_SUPPORTED = "CONTENT_TYPE_NOT_SUPPORTED", InvalidValueError, 415, HOST
    FORBIDDEN_ORIGIN = "FORBIDDEN_ORIGIN", AccessError, 403, HOST, EACCES
    INVALID_API_KEY = "INVALID_API_KEY", InvalidKeyError, 401, HOST, EACCES
    KEY_NOT_ALLOWED = "KEY_NOT_ALLOWED", AccessError, 403, HOST, EACCES
    KEY_NOT_FOUND = "KEY_NOT_FOUND", NotFoundError, 400, HOST
    NOT_AVAILABLE_YET = "NOT_AVAILABLE_YET", NotAvailableYetError, 501, HOST
    SDK_TOO_OLD = "SDK_TOO_OLD", CallerError, 400, HOST
    # Something happened to, or inside, the sandbox.
    SESSION_BUSY = "SESSION_BUSY", SessionBusyError, 504, AGENT, ETIMEDOUT
    PROCESS_LIMIT_REACHED = "PROCESS_LIMIT_REACHED", LimitReachedError, 429, AGENT
    TOO_MANY_SESSIONS = "TOO_MANY_SESSIONS", LimitReachedError, 429, AGENT
    TOO_MANY_PROCESSES = "TOO_MANY_PROCESSES", LimitReachedError, 429, AGENT
    TOO_MANY_TERMINALS = "TOO_MANY_TERMINALS", LimitReachedError, 429, AGENT
    TOO_MANY_FILES = "TOO_MANY_FILES", FileProblemError, 429, AGENT, EMFILE
    RESOURCE_BUSY = "RESOURCE_BUSY", FileProblemError, 409, AGENT, EBUSY
    FILESYSTEM_ERROR = "FILESYSTEM_ERROR", FileProblemError, 409, AGENT, EIO
    PROCESS_READY_TIMEOUT = "PROCESS_READY_TIMEOUT", ProcessTimeoutError, 504, AGENT, ETIMEDOUT
    PROCESS_EXITED_BEFORE_READY = "PROCESS_EXITED_BEFORE_READY", SandboxError, 409, AGENT
    PROCESS_EXIT_TIMEOUT = "PROCESS_EXIT_TIMEOUT", ProcessTimeoutError, 504, AGENT, ETIMEDOUT
    SANDBOX_NOT_RUNNING = "SANDBOX_NOT_RUNNING", SandboxError, 409, HOST
    LIMIT_IN_USE = "LIMIT_IN_USE", SandboxError, 409, HOST
    SANDBOX_NOT_FROZEN = "SANDBOX_NOT_FROZEN", SandboxError, 409, HOST
    SANDBOX_OUT_OF_REACH = "SANDBOX_OUT_OF_REACH", SandboxError, 409, HOST
    PORT_NOT_OPEN = "PORT_NOT_OPEN", PortNotOpenError, 409, HOST, ECONNREFUSED
    AGENT_BUSY = "AGENT_BUSY", SandboxError, 429, AGENT
    AGENT_LOST = "AGENT_LOST", AgentLostError, 409, AGENT, ECONNRESET
    AGENT_TIMEOUT = "AGENT_TIMEOUT", AgentTimeoutError, 504, HOST, ETIMEDOUT
    AGENT_MISBEHAVED = "AGENT_MISBEHAVED", AgentMisbehavedError, 409, HOST
    AGENT_TOO_OLD = "AGENT_TOO_OLD", SandboxError, 409, HOST
    # The machine lacks something; its operator must act.
    NOT_ROOT = "NOT_ROOT", NotRootError, 503, HOST, EPERM
    KERNEL_TOO_OLD = "KERNEL_TOO_OLD", HostError, 503, HOST
    MACHINE_NOT_SUPPORTED = "MACHINE_NOT_SUPPORTED", HostError, 503, HOST
    SERVER_NOT_INSTALLED = "SERVER_NOT_INSTALLED", HostError, 503, HOST
    LAYER_NOT_IDMAPPABLE = "LAYER_NOT_IDMAPPABLE", HostError, 503, HOST
    HOST_IMAGE_NOT_POSSIBLE = "HOST_IMAGE_NOT_POSSIBLE", HostError, 503, HOST
    UID_RANGES_EXHAUSTED = "UID_RANGES_EXHAUSTED", HostError, 503, HOST
    DISK_COMMITTED = "DISK_COMMITTED", HostError, 503, HOST
    MEMORY_COMMITTED = "MEMORY_COMMITTED", HostError, 503, HOST
    NO_SPACE = "NO_SPACE", NoSpaceError, 507, AGENT, ENOSPC
    TOO_MANY_OPEN_FILES = "TOO_MANY_OPEN_FILES", HostError, 503, HOST
    POOL_DAMAGED = "POOL_DAMAGED", HostError, 503, HOST
    POOL_READ_ONLY = "POOL_READ_ONLY", HostError, 503, HOST
    LIMITS_NOT_ENFORCEABLE = "LIMITS_NOT_ENFORCEABLE", HostError, 503, HOST
    SANDBOX_START_FAILED = "SANDBOX_START_FAILED", HostError, 503, HOST
    STATE_DIRECTORY_UNUSABLE = "STATE_DIRECTORY_UNUSABLE", HostError, 503, HOST
    NETWORK_NOT_AVAILABLE = "NETWORK_NOT_AVAILABLE", HostError, 503, HOST
    ADDRESS_NOT_USABLE = "ADDRESS_NOT_USABLE", HostError, 503, HOST
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS", HostError, 503, HOST
    SERVER_NOT_REACHABLE = "SERVER_NOT_REACHABLE", ServerLostError, 503, HOST, ECONNRESET
    SERVER_LOST = "SERVER_LOST", ServerLostError, 503, HOST, ECONNRESET
    SERVER_TOO_OLD = "SERVER_TOO_OLD", HostError, 503, HOST
    STATE_DIRECTORY_IN_USE = "STATE_DIRECTORY_IN_USE", HostError, 503, HOST
    # We are wrong.
    NURSERY_FAILED = "NURSERY_FAILED", InternalError, 500, HOST
    INTERNAL_ERROR = "INTERNAL_ERROR", InternalError, 500, AGENT


def error(code: ErrorCode, message: str, *, remedy: str = "", **context: str | int | float | bool | None) -> AtollError:
    """The error for `code`, of the class a caller would catch."""
    return code.kind(message, code=code, context=context, remedy=remedy)


def as_id(value: object) -> str:
    """A value that was given as an id, whatever it is, for the context of an error."""
    return value[:200] if isinstance(value, str) else shown(value, 200)


def shown(value: object, length: int = 100) -> str:
    """A value that a user gave, as Python writes it, cut short. A number of 5,000 digits it does not write."""
    try:
        return repr(value)[:length]
    except Exception:  # whose class it is, we do not know
        return f"<{type(value).__name__} that cannot be shown>"[:length]


def cannot_write(path: str, cause: OSError) -> AtollError:
    """The error for something of the state directory that could not be made or written."""
    if cause.errno in (ENOSPC, EDQUOT):
        return error(
            ErrorCode.NO_SPACE,
            f"no space is left to write {path}",
            remedy="Free some space on the disk that holds it (`df`), or files where it has no inode left (`df -i`).",
            path=path,
        )
    if cause.errno in (EMFILE, ENFILE):
        return too_many_open_files(cause)
    if cause.errno in (EACCES, EPERM) and _uid() != 0:
        return not_yours(path)
    if cause.errno == EROFS:
        return error(
            ErrorCode.STATE_DIRECTORY_UNUSABLE,
            f"{path} cannot be written: its file system is read-only",
            remedy="A failing disk makes it so: see `dmesg`. Mount it for writing, and start the server anew.",
            path=path,
        )
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"{path} cannot be written: {cause.strerror}",
        remedy="Check the state directory, remove what is in the way, or choose another.",
        path=path,
    )


def not_yours(path: str) -> AtollError:
    """The error for another user than the one whose state directory it is, most likely root."""
    uid = _uid()
    return error(
        ErrorCode.NOT_ROOT,
        f"{path} belongs to another user, and this process runs as uid {uid}",
        remedy="Run this as root, for example with sudo, or choose another directory with --state-dir or "
        "ATOLL_STATE_DIR.",
        path=path,
        uid=uid,
    )


def _uid() -> int:
    if sys.platform == "win32":
        return -1
    return os.geteuid()


def too_many_open_files(cause: OSError) -> AtollError:
    """The error when this process, or the machine, has no descriptor left."""
    return error(
        ErrorCode.TOO_MANY_OPEN_FILES,
        f"no more files can be opened: {cause.strerror}",
        remedy="Nothing is lost. Raise the server's limit: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit of a "
        "service; that of the whole machine is `sysctl fs.file-max`.",
        reason=cause.strerror,
    )


def from_body(body: ErrorBody) -> AtollError:
    """The error that travelled as `body`; a code this version does not know keeps its words."""
    code = ErrorCode.__members__.get(body.code)
    if code is None:
        code, message = ErrorCode.INTERNAL_ERROR, f"{body.message} ({body.code})"
    else:
        message = body.message
    return code.kind(message, code=code, context=dict(body.context), remedy=body.remedy)
