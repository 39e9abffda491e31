"""Errors: one root for every one a user can meet, with branches by who must act.

Each error has a stable `code`, a message with the value that failed, a `context` for programs and a
`remedy` for people. Where Python has a built-in for the situation, the class is that built-in too; one that is an
OSError has `errno`, `strerror`, and in `filename` what the context calls `path`, or else `command`.
"""

from __future__ import annotations

import errno
import os
import sys
from enum import StrEnum
from typing import ClassVar, Self

import msgspec

from atoll.protocol.names import name_in
from atoll.protocol.printable import printable, printable_lines

Context = dict[str, str | int | float | bool | None]


class ErrorCode(StrEnum):
    """Stable names; a program may branch on them."""

    # The caller must change the request.
    INVALID_SANDBOX_ID = "INVALID_SANDBOX_ID"
    INVALID_LIMITS = "INVALID_LIMITS"
    INVALID_IMAGE_NAME = "INVALID_IMAGE_NAME"
    INVALID_COMMAND = "INVALID_COMMAND"
    INVALID_ENVIRONMENT = "INVALID_ENVIRONMENT"
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PORT = "INVALID_PORT"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    IMAGE_EXISTS = "IMAGE_EXISTS"
    SANDBOX_EXISTS = "SANDBOX_EXISTS"
    INVALID_SESSION_ID = "INVALID_SESSION_ID"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SESSION_EXISTS = "SESSION_EXISTS"
    SANDBOX_NOT_FOUND = "SANDBOX_NOT_FOUND"
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    NOT_DIRECTORY = "NOT_DIRECTORY"
    IS_DIRECTORY = "IS_DIRECTORY"
    FILE_EXISTS = "FILE_EXISTS"
    DIRECTORY_NOT_EMPTY = "DIRECTORY_NOT_EMPTY"
    NOT_A_FILE = "NOT_A_FILE"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    DOWNLOAD_TOO_LARGE = "DOWNLOAD_TOO_LARGE"
    NAME_TOO_LONG = "NAME_TOO_LONG"
    TOO_MANY_LINKS = "TOO_MANY_LINKS"
    READ_ONLY = "READ_ONLY"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    INVALID_PATH = "INVALID_PATH"
    UNSAFE_ARCHIVE = "UNSAFE_ARCHIVE"
    RANGE_NOT_SATISFIABLE = "RANGE_NOT_SATISFIABLE"
    PROCESS_NOT_FOUND = "PROCESS_NOT_FOUND"
    PROCESS_EXISTS = "PROCESS_EXISTS"
    INVALID_PROCESS_ID = "INVALID_PROCESS_ID"
    INVALID_SIGNAL = "INVALID_SIGNAL"
    TERMINAL_NOT_FOUND = "TERMINAL_NOT_FOUND"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    HEAD_TOO_LARGE = "HEAD_TOO_LARGE"
    CONTENT_TYPE_NOT_SUPPORTED = "CONTENT_TYPE_NOT_SUPPORTED"
    FORBIDDEN_ORIGIN = "FORBIDDEN_ORIGIN"
    INVALID_API_KEY = "INVALID_API_KEY"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    NOT_AVAILABLE_YET = "NOT_AVAILABLE_YET"
    # Something happened to, or inside, the sandbox.
    PROCESS_LIMIT_REACHED = "PROCESS_LIMIT_REACHED"
    TOO_MANY_SESSIONS = "TOO_MANY_SESSIONS"
    TOO_MANY_PROCESSES = "TOO_MANY_PROCESSES"
    TOO_MANY_TERMINALS = "TOO_MANY_TERMINALS"
    TOO_MANY_FILES = "TOO_MANY_FILES"
    RESOURCE_BUSY = "RESOURCE_BUSY"
    FILESYSTEM_ERROR = "FILESYSTEM_ERROR"
    PROCESS_READY_TIMEOUT = "PROCESS_READY_TIMEOUT"
    PROCESS_EXITED_BEFORE_READY = "PROCESS_EXITED_BEFORE_READY"
    PROCESS_EXIT_TIMEOUT = "PROCESS_EXIT_TIMEOUT"
    SANDBOX_NOT_RUNNING = "SANDBOX_NOT_RUNNING"
    SANDBOX_NOT_FROZEN = "SANDBOX_NOT_FROZEN"
    PORT_NOT_OPEN = "PORT_NOT_OPEN"
    AGENT_BUSY = "AGENT_BUSY"
    AGENT_LOST = "AGENT_LOST"
    AGENT_TIMEOUT = "AGENT_TIMEOUT"
    AGENT_MISBEHAVED = "AGENT_MISBEHAVED"
    # The machine lacks something; its operator must act.
    NOT_ROOT = "NOT_ROOT"
    KERNEL_TOO_OLD = "KERNEL_TOO_OLD"
    MACHINE_NOT_SUPPORTED = "MACHINE_NOT_SUPPORTED"
    SERVER_NOT_INSTALLED = "SERVER_NOT_INSTALLED"
    LAYER_NOT_IDMAPPABLE = "LAYER_NOT_IDMAPPABLE"
    HOST_IMAGE_NOT_POSSIBLE = "HOST_IMAGE_NOT_POSSIBLE"
    UID_RANGES_EXHAUSTED = "UID_RANGES_EXHAUSTED"
    DISK_COMMITTED = "DISK_COMMITTED"
    MEMORY_COMMITTED = "MEMORY_COMMITTED"
    NO_SPACE = "NO_SPACE"
    TOO_MANY_OPEN_FILES = "TOO_MANY_OPEN_FILES"
    POOL_DAMAGED = "POOL_DAMAGED"
    POOL_READ_ONLY = "POOL_READ_ONLY"
    LIMITS_NOT_ENFORCEABLE = "LIMITS_NOT_ENFORCEABLE"
    SANDBOX_START_FAILED = "SANDBOX_START_FAILED"
    STATE_DIRECTORY_UNUSABLE = "STATE_DIRECTORY_UNUSABLE"
    ADDRESS_NOT_USABLE = "ADDRESS_NOT_USABLE"
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS"
    SERVER_NOT_REACHABLE = "SERVER_NOT_REACHABLE"
    SERVER_LOST = "SERVER_LOST"
    STATE_DIRECTORY_IN_USE = "STATE_DIRECTORY_IN_USE"
    # We are wrong.
    NURSERY_FAILED = "NURSERY_FAILED"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it travels."""

    code: str
    message: str
    context: Context = {}
    remedy: str = ""


_ERRNO = {
    ErrorCode.DIRECTORY_NOT_EMPTY: errno.ENOTEMPTY,
    ErrorCode.NOT_A_FILE: errno.EINVAL,
    ErrorCode.FILE_TOO_LARGE: errno.EFBIG,
    ErrorCode.DOWNLOAD_TOO_LARGE: errno.EFBIG,
    ErrorCode.NAME_TOO_LONG: errno.ENAMETOOLONG,
    ErrorCode.TOO_MANY_LINKS: errno.ELOOP,
    ErrorCode.READ_ONLY: errno.EROFS,
    ErrorCode.TOO_MANY_FILES: errno.EMFILE,
    ErrorCode.RESOURCE_BUSY: errno.EBUSY,
    ErrorCode.FILESYSTEM_ERROR: errno.EIO,
}


class AtollError(Exception):
    """Everything Atoll raises on purpose."""

    code: ErrorCode = ErrorCode.INTERNAL_ERROR
    errno_value: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        context: Context | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
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
        """The same error, with what its context does not say yet."""
        new = {key: value for key, value in context.items() if key.removesuffix("_base64") not in self.context}
        self.context = {**self.context, **new}
        _fill_in(self)
        return self

    def to_body(self) -> ErrorBody:
        context = {key: _sendable(value) if isinstance(value, str) else value for key, value in self.context.items()}
        message, remedy = _sendable(self.message), _sendable(self.remedy)
        return ErrorBody(code=self.code, message=message, context=context, remedy=remedy)


def _fill_in(problem: AtollError) -> None:
    """What an OSError has besides."""
    if not isinstance(problem, OSError):
        return
    problem.errno = _ERRNO.get(problem.code, problem.errno_value)
    problem.strerror = problem.message
    # A connection that broke, or time that is up, is about no file, whatever was being done with one.
    if not isinstance(problem, ConnectionError | TimeoutError):
        problem.filename = name_in(problem.context, "path") or name_in(problem.context, "command")


def _sendable(text: str) -> str:
    """As it is, but for lone surrogates, which no wire takes."""
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
    code = ErrorCode.INVALID_REQUEST


class NotFoundError(CallerError, LookupError):
    code = ErrorCode.IMAGE_NOT_FOUND


class AlreadyExistsError(CallerError, FileExistsError):
    code = ErrorCode.SANDBOX_EXISTS
    errno_value = errno.EEXIST


class FileMissingError(CallerError, FileNotFoundError):
    code = ErrorCode.FILE_NOT_FOUND
    errno_value = errno.ENOENT


class NotADirectoryPathError(CallerError, NotADirectoryError):
    code = ErrorCode.NOT_DIRECTORY
    errno_value = errno.ENOTDIR


class IsADirectoryPathError(CallerError, IsADirectoryError):
    code = ErrorCode.IS_DIRECTORY
    errno_value = errno.EISDIR


class FileProblemError(CallerError, OSError):
    """What the file system refuses and Python has no class for: `code` and `errno` tell."""

    code = ErrorCode.FILESYSTEM_ERROR


class AccessError(CallerError, PermissionError):
    code = ErrorCode.PERMISSION_DENIED
    errno_value = errno.EACCES


class LimitReachedError(SandboxError):
    code = ErrorCode.PROCESS_LIMIT_REACHED


class ProcessTimeoutError(SandboxError, TimeoutError):
    """A background process did not get ready, or did not end, in the time it was given."""

    code = ErrorCode.PROCESS_READY_TIMEOUT
    errno_value = errno.ETIMEDOUT


class AgentLostError(SandboxError, ConnectionError):
    code = ErrorCode.AGENT_LOST
    errno_value = errno.ECONNRESET


class AgentTimeoutError(SandboxError, TimeoutError):
    code = ErrorCode.AGENT_TIMEOUT
    errno_value = errno.ETIMEDOUT


class AgentMisbehavedError(SandboxError):
    """Bytes from inside broke the protocol. They are never interpreted further."""

    code = ErrorCode.AGENT_MISBEHAVED


class NotRootError(HostError, PermissionError):
    code = ErrorCode.NOT_ROOT
    errno_value = errno.EPERM


class PortNotOpenError(SandboxError, ConnectionRefusedError):
    code = ErrorCode.PORT_NOT_OPEN
    errno_value = errno.ECONNREFUSED


class InvalidKeyError(CallerError, PermissionError):
    code = ErrorCode.INVALID_API_KEY
    errno_value = errno.EACCES


class NotAvailableYetError(CallerError, NotImplementedError):
    code = ErrorCode.NOT_AVAILABLE_YET


class ServerLostError(HostError, ConnectionError):
    """Also when it could not be reached at all: the code tells."""

    code = ErrorCode.SERVER_LOST
    errno_value = errno.ECONNRESET


class NoSpaceError(HostError, OSError):
    code = ErrorCode.NO_SPACE
    errno_value = errno.ENOSPC


_CLASSES: dict[str, type[AtollError]] = {
    ErrorCode.INVALID_SANDBOX_ID: InvalidValueError,
    ErrorCode.INVALID_LIMITS: InvalidValueError,
    ErrorCode.INVALID_IMAGE_NAME: InvalidValueError,
    ErrorCode.INVALID_COMMAND: InvalidValueError,
    ErrorCode.INVALID_ENVIRONMENT: InvalidValueError,
    ErrorCode.INVALID_REQUEST: InvalidValueError,
    ErrorCode.INVALID_PORT: InvalidValueError,
    ErrorCode.INVALID_SESSION_ID: InvalidValueError,
    ErrorCode.IMAGE_NOT_FOUND: NotFoundError,
    ErrorCode.SESSION_NOT_FOUND: NotFoundError,
    ErrorCode.SESSION_EXISTS: AlreadyExistsError,
    ErrorCode.SANDBOX_NOT_FOUND: NotFoundError,
    ErrorCode.IMAGE_EXISTS: AlreadyExistsError,
    ErrorCode.SANDBOX_EXISTS: AlreadyExistsError,
    ErrorCode.COMMAND_NOT_FOUND: FileMissingError,
    ErrorCode.FILE_NOT_FOUND: FileMissingError,
    ErrorCode.NOT_DIRECTORY: NotADirectoryPathError,
    ErrorCode.IS_DIRECTORY: IsADirectoryPathError,
    ErrorCode.FILE_EXISTS: AlreadyExistsError,
    ErrorCode.DIRECTORY_NOT_EMPTY: FileProblemError,
    ErrorCode.NOT_A_FILE: FileProblemError,
    ErrorCode.FILE_TOO_LARGE: FileProblemError,
    ErrorCode.DOWNLOAD_TOO_LARGE: FileProblemError,
    ErrorCode.NAME_TOO_LONG: FileProblemError,
    ErrorCode.TOO_MANY_LINKS: FileProblemError,
    ErrorCode.READ_ONLY: FileProblemError,
    ErrorCode.TOO_MANY_FILES: FileProblemError,
    ErrorCode.RESOURCE_BUSY: FileProblemError,
    ErrorCode.FILESYSTEM_ERROR: FileProblemError,
    ErrorCode.INVALID_PATH: InvalidValueError,
    ErrorCode.UNSAFE_ARCHIVE: InvalidValueError,
    ErrorCode.RANGE_NOT_SATISFIABLE: InvalidValueError,
    ErrorCode.PROCESS_NOT_FOUND: NotFoundError,
    ErrorCode.PROCESS_EXISTS: AlreadyExistsError,
    ErrorCode.INVALID_PROCESS_ID: InvalidValueError,
    ErrorCode.INVALID_SIGNAL: InvalidValueError,
    ErrorCode.TERMINAL_NOT_FOUND: NotFoundError,
    ErrorCode.TOO_MANY_PROCESSES: LimitReachedError,
    ErrorCode.TOO_MANY_TERMINALS: LimitReachedError,
    ErrorCode.PROCESS_READY_TIMEOUT: ProcessTimeoutError,
    ErrorCode.PROCESS_EXIT_TIMEOUT: ProcessTimeoutError,
    ErrorCode.PROCESS_EXITED_BEFORE_READY: SandboxError,
    ErrorCode.PERMISSION_DENIED: AccessError,
    ErrorCode.PROCESS_LIMIT_REACHED: LimitReachedError,
    ErrorCode.TOO_MANY_SESSIONS: LimitReachedError,
    ErrorCode.SANDBOX_NOT_RUNNING: SandboxError,
    ErrorCode.SANDBOX_NOT_FROZEN: SandboxError,
    ErrorCode.PORT_NOT_OPEN: PortNotOpenError,
    ErrorCode.AGENT_BUSY: SandboxError,
    ErrorCode.AGENT_LOST: AgentLostError,
    ErrorCode.AGENT_TIMEOUT: AgentTimeoutError,
    ErrorCode.AGENT_MISBEHAVED: AgentMisbehavedError,
    ErrorCode.NOT_ROOT: NotRootError,
    ErrorCode.KERNEL_TOO_OLD: HostError,
    ErrorCode.MACHINE_NOT_SUPPORTED: HostError,
    ErrorCode.SERVER_NOT_INSTALLED: HostError,
    ErrorCode.LAYER_NOT_IDMAPPABLE: HostError,
    ErrorCode.HOST_IMAGE_NOT_POSSIBLE: HostError,
    ErrorCode.UID_RANGES_EXHAUSTED: HostError,
    ErrorCode.DISK_COMMITTED: HostError,
    ErrorCode.MEMORY_COMMITTED: HostError,
    ErrorCode.NO_SPACE: NoSpaceError,
    ErrorCode.TOO_MANY_OPEN_FILES: HostError,
    ErrorCode.POOL_DAMAGED: HostError,
    ErrorCode.POOL_READ_ONLY: HostError,
    ErrorCode.LIMITS_NOT_ENFORCEABLE: HostError,
    ErrorCode.SANDBOX_START_FAILED: HostError,
    ErrorCode.STATE_DIRECTORY_UNUSABLE: HostError,
    ErrorCode.ROUTE_NOT_FOUND: NotFoundError,
    ErrorCode.METHOD_NOT_ALLOWED: InvalidValueError,
    ErrorCode.BODY_TOO_LARGE: InvalidValueError,
    ErrorCode.HEAD_TOO_LARGE: InvalidValueError,
    ErrorCode.CONTENT_TYPE_NOT_SUPPORTED: InvalidValueError,
    ErrorCode.FORBIDDEN_ORIGIN: AccessError,
    ErrorCode.INVALID_API_KEY: InvalidKeyError,
    ErrorCode.KEY_NOT_FOUND: NotFoundError,
    ErrorCode.NOT_AVAILABLE_YET: NotAvailableYetError,
    ErrorCode.ADDRESS_NOT_USABLE: HostError,
    ErrorCode.TOO_MANY_CONNECTIONS: HostError,
    ErrorCode.SERVER_NOT_REACHABLE: ServerLostError,
    ErrorCode.SERVER_LOST: ServerLostError,
    ErrorCode.STATE_DIRECTORY_IN_USE: HostError,
}


def error(code: ErrorCode, message: str, *, remedy: str = "", **context: str | int | float | bool | None) -> AtollError:
    """The error for `code`, of the class a caller would catch."""
    return _CLASSES.get(code, InternalError)(message, code=code, context=context, remedy=remedy)


def as_id(value: object) -> str:
    """What was given as an id, whatever it is, for the context of an error."""
    return value[:200] if isinstance(value, str) else shown(value, 200)


def shown(value: object, length: int = 100) -> str:
    """What a user gave, as Python writes it, cut short. A number of 5,000 digits it does not write."""
    try:
        return repr(value)[:length]
    except Exception:  # whose class it is, we do not know
        return f"<{type(value).__name__} that cannot be shown>"[:length]


def cannot_write(path: str, cause: OSError) -> AtollError:
    """What to tell when something of the state directory could not be made or written."""
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return error(
            ErrorCode.NO_SPACE,
            f"no space is left to write {path}",
            remedy="Free some space on the disk that holds it (`df`), or files where it has no inode left (`df -i`).",
            path=path,
        )
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_open_files(cause)
    if cause.errno in (errno.EACCES, errno.EPERM) and _uid() != 0:
        return not_yours(path)
    if cause.errno == errno.EROFS:
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
    """What to tell who is another user than the one whose state directory it is, most likely root."""
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
    """What to tell when this process, or the machine, has no descriptor left."""
    return error(
        ErrorCode.TOO_MANY_OPEN_FILES,
        f"no more files can be opened: {cause.strerror}",
        remedy="Nothing is lost. Raise the server's limit: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit of a "
        "service; that of the whole machine is `sysctl fs.file-max`.",
        reason=cause.strerror,
    )


def from_body(body: ErrorBody) -> AtollError:
    """The error that travelled as `body`; a code this version does not know keeps its words."""
    known = body.code in ErrorCode.__members__
    code = ErrorCode(body.code) if known else ErrorCode.INTERNAL_ERROR
    message = body.message if known else f"{body.message} ({body.code})"
    return _CLASSES.get(code, InternalError)(message, code=code, context=dict(body.context), remedy=body.remedy)
