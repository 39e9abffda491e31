"""All routes, a line for each noun: the router and the OpenAPI document are made from them."""

from __future__ import annotations

from atoll.server import commands, files, lost, processes, relay, sandboxes, server_info, sessions, terminals

ROUTES = (
    *server_info.ROUTES,
    *lost.ROUTES,
    *sandboxes.ROUTES,
    *commands.ROUTES,
    *relay.ROUTES,
    *sessions.ROUTES,
    *files.ROUTES,
    *processes.ROUTES,
    *terminals.ROUTES,
)
