"""Failures of agents, for those who called one.

Nothing that comes from inside is believed beyond what an agent has to say.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.calls import failure, misbehaved
from atoll.protocol.errors import AgentLostError, AtollError, ErrorCode, Speaker, error, too_many_open_files

if TYPE_CHECKING:
    from atoll.protocol.frames import Frame


class Ending(msgspec.Struct, frozen=True):
    """The end of a sandbox, as operations meet it that are under way."""

    message: str
    remedy: str


WHEN_ENDED = Ending(
    "the sandbox ended while this was under way: its first process was killed, or hung up",
    "It may have been done in part. Look, then ask again: that starts the sandbox, with its files, without what ran. "
    "Its events() say what is known.",
)

WHEN_STOPPED = Ending(
    "the sandbox was stopped while this was under way",
    "It may have been done in part. Look, then ask again: that starts the sandbox, with its files, without what ran. "
    "Its events() say who stopped it.",
)

WHEN_DESTROYED = Ending(
    "the sandbox was destroyed while this was under way",
    "Its files are gone with it. events() says who destroyed it, until the next operation on its id makes a new one.",
)

WHEN_DISK_FAILED = Ending(
    "the sandbox was ended while this was under way: the pool that its disk is in takes nothing more, and is recovered",
    "It may have been done in part, and what was not synced is lost. Look, then ask again: that starts the sandbox, "
    "with its files, as soon as the pool is back.",
)

WHEN_CLOSED = Ending(
    "the server ended while this was under way, and with it the connection to the sandbox's agent",
    "It may have been done in part. Look, then ask again: the sandbox lives on.",
)


def unreachable(cause: OSError) -> AtollError:
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_open_files(cause)
    return not_running(f"the sandbox's agent cannot be reached: {cause.strerror}")


def not_running(message: str) -> AgentLostError:
    remedy = "Ask again: that starts the sandbox, with its files, or makes a new one if it was destroyed."
    return AgentLostError(message, code=ErrorCode.SANDBOX_NOT_RUNNING, remedy=remedy)


def too_old(speaks: int, needed: int) -> AtollError:
    return error(
        ErrorCode.AGENT_TOO_OLD,
        f"the sandbox was started by an earlier version of Atoll: its agent speaks version {speaks} of the protocol, "
        f"and this takes {needed}",
        remedy="Stop it with sleep(stop=True), which ends what runs in it and keeps its files. The next use starts it "
        "anew.",
        speaks=speaks,
        needed=needed,
    )


def silent(seconds: float) -> AtollError:
    return error(
        ErrorCode.AGENT_TIMEOUT,
        f"the sandbox's agent did not answer within {seconds:g} seconds",
        remedy="Something may have stopped it, or left it no cpu. Ask again; if that fails too, sleep(stop=True) ends "
        "what runs in the sandbox and keeps its files, destroy() ends both.",
    )


def kept_waiting(seconds: float) -> AtollError:
    return error(
        ErrorCode.AGENT_TIMEOUT,
        f"the sandbox's agent had this wait for its turn, and for {seconds:g} seconds nothing came before it any more",
        remedy="Ask again; if that fails too, sleep(stop=True) ends what runs in the sandbox and keeps its files.",
    )


def failure_in(frame: Frame) -> AtollError:
    """The error in a FAILED frame, if an agent may say it. An unknown code, of a newer agent, is INTERNAL_ERROR."""
    problem = failure(frame)
    if problem.code.speaker is Speaker.AGENT:
        return problem
    return misbehaved(f"it failed with {problem.code}, which is not for it to say: {problem.message!r:.200}")
