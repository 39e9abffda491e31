"""Handles, by which the native engine finds sandboxes, and what it holds of those that it started or adopted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from atoll.agent.commands.process_tree import parse_stat
from atoll.engine.native.agent_socket import AgentSocket
from atoll.engine.native.group_files import group_name


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Names one process for ever: a pid alone is used again."""

    pid: int
    start_time: int
    boot_id: str


def is_running(process: ProcessIdentity) -> bool:
    """Whether that pid is still of this process, which has not ended."""
    try:
        found = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return found.start_time == process.start_time and not found.is_zombie


class NativeHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox's first process, the first of its user ids, and where its agent listens.

    As JSON it is in records of sandboxes that run now: fields may be added, with a default, and none may go.
    """

    process: ProcessIdentity
    uid_base: int
    agent_socket: str

    def encode(self) -> str:
        return _encode(self).decode()

    @classmethod
    def decode(cls, handle: str) -> Self | None:
        """None for one that never was, and for what this engine did not write."""
        try:
            return msgspec.json.decode(handle, type=cls) if handle else None
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return None


_encode = msgspec.json.Encoder().encode


@dataclass(kw_only=True)
class Held:
    """A sandbox held by a pidfd of its first process; without one, it is only known.

    While `keeper` is open, the sandbox ends with the process that holds it.
    """

    process: ProcessIdentity
    group: str
    agent: AgentSocket
    pidfd: int | None = None
    keeper: int | None = None

    @classmethod
    def by(cls, handle: NativeHandle, pidfd: int | None = None, keeper: int | None = None) -> Self:
        agent = AgentSocket(Path(handle.agent_socket))
        return cls(process=handle.process, group=group_name(handle.uid_base), agent=agent, pidfd=pidfd, keeper=keeper)

    def release(self) -> None:
        """Twice is fine."""
        for fd in (self.pidfd, self.keeper):
            if fd is not None:
                os.close(fd)
        self.pidfd = self.keeper = None
