# Generated from client/ports.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Ports of a sandbox: exposed under URLs that anybody can open who has them."""

from __future__ import annotations

from typing import SupportsIndex

from atoll.client_sync.plumbing.remote_sandbox import RemoteSandbox
from atoll.protocol.durations import Duration, parse_duration
from atoll.protocol.ports import ExposedPort, ExposedPorts, ExposeRequest, check_expose, parse_exposable


class Ports:
    """The ports of a sandbox, as the world reaches them."""

    _sandbox: RemoteSandbox

    def expose_port(
        self,
        port: SupportsIndex,
        *,
        name: str | None = None,
        token: str | None = None,
        expires: Duration | None = None,
    ) -> ExposedPort:
        """A URL for what listens on `port` inside: HTTP of every kind, and WebSockets. It need not listen yet.

        The URL stays the same until the port is unexposed, also while the sandbox sleeps or is stopped; opening it
        wakes it. It is for whoever has it: `token` is the part that nobody can guess, random if not given, 1 to 16 of
        a to z, 0 to 9 and _. After `expires`, a time from now, it leads nowhere.
        """
        seconds = None if expires is None else parse_duration(expires, "expires")
        asked = check_expose(ExposeRequest(name=name, token=token, expires=seconds))
        return self._sandbox.request("PUT", ExposedPort, path=f"/ports/{parse_exposable(port)}", body=asked)

    def unexpose_port(self, port: SupportsIndex) -> None:
        """Its URL leads nowhere from now on, and connections that came by it end. PORT_NOT_EXPOSED if it was not."""
        self._sandbox.remove(f"/ports/{parse_exposable(port)}")

    def get_exposed_ports(self) -> list[ExposedPort]:
        """The ports that are exposed, with their URLs."""
        return (self._sandbox.ask_server(ExposedPorts, "/ports")).ports

    def is_port_exposed(self, port: SupportsIndex) -> bool:
        number = parse_exposable(port)
        return any(exposed.port == number for exposed in self.get_exposed_ports())
