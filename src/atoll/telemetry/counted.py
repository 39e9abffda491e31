"""Everything that a server counts, from its start on."""

from __future__ import annotations

from atoll.protocol.errors import ErrorCode
from atoll.protocol.kinds import KINDS
from atoll.telemetry.metrics import Count, Timing

STARTS = ("created", "started", "thawed")
EVENTS = (*STARTS, "frozen", "stopped", "oom_killed", "destroyed")
COMMANDS = ("exec", "exec_shell")  # as calls are tagged

starts = Timing(
    "atoll_sandbox_start_seconds",
    "Time from the wish to a sandbox that runs: made anew, started again, or thawed.",
    "kind",
    STARTS,
)
events = Count("atoll_sandbox_events_total", "What happened to sandboxes.", "event", EVENTS)
commands = Timing(
    "atoll_exec_seconds",
    "Time of commands, from the request to the end of its answer: lists of words (exec) and shell lines (exec_shell).",
    "kind",
    COMMANDS,
)
calls = Count(
    "atoll_calls_total",
    "Calls to agents that clients sent in frames, as the SDK does, by their kind.",
    "kind",
    [str(kind.__struct_config__.tag) for kind in KINDS],
)
errors = Count("atoll_errors_total", "Errors that clients were told, by their code.", "code", [*ErrorCode])
requests = Count(
    "atoll_requests_total", "Requests, by the class of their status.", "status", ("1xx", "2xx", "3xx", "4xx", "5xx")
)
ALL = (starts, events, commands, calls, errors, requests)
