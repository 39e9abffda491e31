"""Commands: what a host asks of an agent, and how a program ended."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from atoll.protocol.calls import Call
from atoll.protocol.said import Duration, ExitCode
from atoll.protocol.sessions import DEFAULT_SESSION

TIMED_OUT_EXIT_CODE = 124  # as coreutils' timeout does


class ExecDone(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. A program killed by a signal has exit code 128 + signal, as in a shell."""

    exit_code: ExitCode
    duration: Duration
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False  # the shell is gone, as after `exit`; the next command gets a new one
    state_lost: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of how many commands before this one, answered


class Exec(Call[ExecDone], frozen=True, kw_only=True, tag="exec"):
    """Run a program, with no shell in between. In a session it waits for its turn and starts in its directory.

    `env` is added to the sandbox's own variables; None takes one away. With `stdin` the host sends INPUT frames,
    without it the program reads end of file at once. Past `max_output` bytes a stream is read on and dropped.
    """

    argv: list[str]
    session_id: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None

    @property
    def patience(self) -> float | None:
        return self.timeout


class ExecShell(Call[ExecDone], frozen=True, kw_only=True, tag="exec_shell"):
    """Run a command in the persistent shell of a session, after those that were asked for before.

    `cwd` and `env` hold for this command alone; None takes a variable away. The rest is as in Exec.
    """

    command: str
    session_id: str = DEFAULT_SESSION
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None

    @property
    def patience(self) -> float | None:
        return self.timeout


def session_of(call: Call[Any]) -> str | None:
    """The session in which a call waits for its turn, if it is a command in one."""
    return call.session_id if isinstance(call, Exec | ExecShell) else None
