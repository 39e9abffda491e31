"""Atoll: isolated Linux computers, addressed by an id, in which people and AI agents run untrusted code.

    from atoll import get_sandbox

    sandbox = get_sandbox("user-123")
    print(sandbox.exec("python3 -c 'print(2 + 2)'").stdout)

Names are loaded when they are first used: the agent in every sandbox imports this package and needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.commands import AsyncCommandStream
    from atoll.client.file_watch import AsyncFileWatch
    from atoll.client.news import events_async, follow_events_async
    from atoll.client.open_files import AsyncFileReader, AsyncFileStream, AsyncFileWriter
    from atoll.client.processes import AsyncProcess, AsyncProcessStream
    from atoll.client.sandbox import AsyncSandbox, get_async_sandbox, list_sandboxes_async, temporary_async_sandbox
    from atoll.client.sessions import AsyncSession
    from atoll.client.terminals import AsyncTerminal, AsyncTerminalView
    from atoll.client.text_files import AsyncTextReader, AsyncTextWriter
    from atoll.client_sync.commands import CommandStream
    from atoll.client_sync.file_watch import FileWatch
    from atoll.client_sync.news import events, follow_events
    from atoll.client_sync.open_files import FileReader, FileStream, FileWriter
    from atoll.client_sync.processes import Process, ProcessStream
    from atoll.client_sync.sandbox import Sandbox, get_sandbox, list_sandboxes, temporary_sandbox
    from atoll.client_sync.sessions import Session
    from atoll.client_sync.terminals import Terminal, TerminalView
    from atoll.client_sync.text_files import TextReader, TextWriter
    from atoll.protocol.errors import (
        AccessError,
        AgentLostError,
        AgentMisbehavedError,
        AgentTimeoutError,
        AlreadyExistsError,
        AtollError,
        CallerError,
        ErrorCode,
        FileMissingError,
        FileProblemError,
        HostError,
        InternalError,
        InvalidKeyError,
        InvalidValueError,
        IsADirectoryPathError,
        LimitReachedError,
        NoSpaceError,
        NotADirectoryPathError,
        NotAvailableYetError,
        NotFoundError,
        NotRootError,
        PortNotOpenError,
        ProcessTimeoutError,
        SandboxError,
        ServerLostError,
        UnsupportedError,
    )
    from atoll.protocol.files import ChangeType, FileChange, FileInfo, FileType
    from atoll.protocol.limits import Limits
    from atoll.protocol.network import Connection, NetworkPolicy
    from atoll.protocol.ports import ExposedPort
    from atoll.protocol.processes import ProcessInfo, ProcessStatus
    from atoll.protocol.sandboxes import NewsEvent, SandboxEvent, SandboxInfo, SandboxState
    from atoll.protocol.sessions import SessionInfo
    from atoll.protocol.terminals import TerminalInfo
    from atoll.values.commands import ExecEvent, ExecResult
    from atoll.values.files import FileContent, LeftOutWarning
    from atoll.values.processes import LogMatch, ProcessEvent, ProcessLogs
    from atoll.values.promised import Image, proxy_to_sandbox
    from atoll.values.sandboxes import OptionsIgnoredWarning

__version__ = "0.1.0"

_PLACES = {
    "atoll.client.commands": "AsyncCommandStream",
    "atoll.client.news": "events_async follow_events_async",
    "atoll.client_sync.news": "events follow_events",
    "atoll.client.processes": "AsyncProcess AsyncProcessStream",
    "atoll.client.file_watch": "AsyncFileWatch",
    "atoll.client.open_files": "AsyncFileReader AsyncFileStream AsyncFileWriter",
    "atoll.client.sandbox": "AsyncSandbox get_async_sandbox list_sandboxes_async temporary_async_sandbox",
    "atoll.client.sessions": "AsyncSession",
    "atoll.client.terminals": "AsyncTerminal AsyncTerminalView",
    "atoll.client.text_files": "AsyncTextReader AsyncTextWriter",
    "atoll.client_sync.commands": "CommandStream",
    "atoll.client_sync.processes": "Process ProcessStream",
    "atoll.client_sync.file_watch": "FileWatch",
    "atoll.client_sync.open_files": "FileReader FileStream FileWriter",
    "atoll.protocol.files": "ChangeType FileChange FileInfo FileType",
    "atoll.client_sync.sandbox": "Sandbox get_sandbox list_sandboxes temporary_sandbox",
    "atoll.client_sync.sessions": "Session",
    "atoll.client_sync.terminals": "Terminal TerminalView",
    "atoll.client_sync.text_files": "TextReader TextWriter",
    "atoll.protocol.errors": """
        AccessError AgentLostError AgentMisbehavedError AgentTimeoutError AlreadyExistsError AtollError CallerError
        ErrorCode FileMissingError FileProblemError HostError InternalError InvalidKeyError InvalidValueError
        IsADirectoryPathError LimitReachedError NoSpaceError NotADirectoryPathError NotAvailableYetError NotFoundError
        NotRootError PortNotOpenError ProcessTimeoutError SandboxError ServerLostError UnsupportedError
    """,
    "atoll.protocol.limits": "Limits",
    "atoll.protocol.network": "Connection NetworkPolicy",
    "atoll.protocol.ports": "ExposedPort",
    "atoll.protocol.processes": "ProcessInfo ProcessStatus",
    "atoll.protocol.sandboxes": "NewsEvent SandboxEvent SandboxInfo SandboxState",
    "atoll.protocol.sessions": "SessionInfo",
    "atoll.protocol.terminals": "TerminalInfo",
    "atoll.values.commands": "ExecEvent ExecResult",
    "atoll.values.files": "FileContent LeftOutWarning",
    "atoll.values.sandboxes": "OptionsIgnoredWarning",
    "atoll.values.processes": "LogMatch ProcessEvent ProcessLogs",
    "atoll.values.promised": "Image proxy_to_sandbox",
}
_PLACE = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = [
    "AccessError",
    "AgentLostError",
    "AgentMisbehavedError",
    "AgentTimeoutError",
    "AlreadyExistsError",
    "AsyncCommandStream",
    "AsyncFileReader",
    "AsyncFileStream",
    "AsyncFileWatch",
    "AsyncFileWriter",
    "AsyncProcess",
    "AsyncProcessStream",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncTerminal",
    "AsyncTerminalView",
    "AsyncTextReader",
    "AsyncTextWriter",
    "AtollError",
    "CallerError",
    "ChangeType",
    "CommandStream",
    "Connection",
    "ErrorCode",
    "ExecEvent",
    "ExecResult",
    "ExposedPort",
    "FileChange",
    "FileContent",
    "FileInfo",
    "FileMissingError",
    "FileProblemError",
    "FileReader",
    "FileStream",
    "FileType",
    "FileWatch",
    "FileWriter",
    "HostError",
    "Image",
    "InternalError",
    "InvalidKeyError",
    "InvalidValueError",
    "IsADirectoryPathError",
    "LeftOutWarning",
    "LimitReachedError",
    "Limits",
    "LogMatch",
    "NetworkPolicy",
    "NewsEvent",
    "NoSpaceError",
    "NotADirectoryPathError",
    "NotAvailableYetError",
    "NotFoundError",
    "NotRootError",
    "OptionsIgnoredWarning",
    "PortNotOpenError",
    "Process",
    "ProcessEvent",
    "ProcessInfo",
    "ProcessLogs",
    "ProcessStatus",
    "ProcessStream",
    "ProcessTimeoutError",
    "Sandbox",
    "SandboxError",
    "SandboxEvent",
    "SandboxInfo",
    "SandboxState",
    "ServerLostError",
    "Session",
    "SessionInfo",
    "Terminal",
    "TerminalInfo",
    "TerminalView",
    "TextReader",
    "TextWriter",
    "UnsupportedError",
    "events",
    "events_async",
    "follow_events",
    "follow_events_async",
    "get_async_sandbox",
    "get_sandbox",
    "list_sandboxes",
    "list_sandboxes_async",
    "proxy_to_sandbox",
    "temporary_async_sandbox",
    "temporary_sandbox",
]


def __getattr__(name: str) -> object:
    if name not in _PLACE:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_PLACE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
