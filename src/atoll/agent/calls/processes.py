"""Calls about background processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.processes.operations import LogOperation, WaitForExitOperation, WaitForPortOperation
from atoll.agent.sessions.beside import Answering, OnceKnown
from atoll.protocol.processes import (
    CleanUpProcesses,
    GetProcess,
    KillAllProcesses,
    KillProcess,
    ListProcesses,
    ProcessCount,
    ProcessList,
    StartProcess,
    StreamProcessLog,
    WaitForExit,
    WaitForPort,
)

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    loop, processes = agent.loop, agent.processes
    calls.operations[StartProcess] = lambda call, owner: OnceKnown(
        agent.sessions, call.session_id, owner, lambda: Answering(owner, lambda: processes.start(call))
    )
    calls.answers[ListProcesses] = lambda call: ProcessList(processes=processes.list())
    calls.answers[GetProcess] = lambda call: processes.get(call.process_id).info
    calls.answers[CleanUpProcesses] = lambda call: ProcessCount(count=processes.clean_up())
    calls.operations[KillProcess] = processes.kill
    calls.operations[KillAllProcesses] = processes.kill_all
    calls.operations[StreamProcessLog] = lambda call, owner: LogOperation(loop, owner, processes.of(call), call)
    calls.operations[WaitForPort] = lambda call, owner: WaitForPortOperation(loop, owner, processes.of(call), call)
    calls.operations[WaitForExit] = lambda call, owner: WaitForExitOperation(loop, owner, processes.of(call), call)
