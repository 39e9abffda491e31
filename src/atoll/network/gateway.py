"""The gateway: the process at which everything arrives that sandboxes send to others.

It reads hostile bytes all day, so it has nothing to lose: no files, no capability, no other process, and of each
sandbox two listeners and a policy. It is told what to do over one socket, and ends when that closes; the sandboxes run
on, and the next gateway is given listeners of its own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

from atoll.network import control
from atoll.network.confinement import confine
from atoll.network.doorway import Doorway
from atoll.network.outlet import Outlet
from atoll.network.policy import Policy
from atoll.protocol.network import NetworkPolicy

TELL_SECONDS, PROGRESS_SECONDS = 0.05, 1.0
MAX_DESCRIPTORS = 2


class Gateway:
    def __init__(self, server: socket.socket, outlet: Outlet) -> None:
        self._server = server
        self._outlet = outlet
        self._doorways: dict[str, Doorway] = {}
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Until the server hangs up."""
        has_ended = asyncio.Event()
        self._server.setblocking(False)
        self._loop.add_reader(self._server, self._on_order, has_ended)
        teller = asyncio.create_task(self._note_progress())
        self._server.send(control.encode(control.Ready()))
        await has_ended.wait()
        teller.cancel()
        for doorway in self._doorways.values():
            doorway.close()

    def _on_order(self, has_ended: asyncio.Event) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(self._server, control.MAX_PACKET, MAX_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        if not packet:
            self._loop.remove_reader(self._server)
            has_ended.set()
            return
        match control.decode_to_gateway(packet):
            case control.Attach() as order if len(fds) == MAX_DESCRIPTORS:
                self._attach(order, *(socket.socket(fileno=fd) for fd in fds))
            case control.Attach():  # no descriptor left for them
                for fd in fds:
                    socket.socket(fileno=fd).close()
            case control.Change() as order:
                if doorway := self._doorways.get(order.key):
                    doorway.change(self._read(order.policy))
            case control.Detach() as order:
                self._detach(order.key)
            case control.CatchUp() as order:
                for doorway in self._doorways.values():
                    doorway.note_progress()
                self._tell_all()
                with suppress(OSError):  # a server that does not listen does not wait for long
                    self._server.send(control.encode(control.CaughtUp(ticket=order.ticket)))

    def _attach(self, order: control.Attach, tcp: socket.socket, questions: socket.socket) -> None:
        self._detach(order.key)
        policy, listeners = self._read(order.policy), (tcp, questions)
        self._doorways[order.key] = Doorway(order.hostname, policy, listeners, self._outlet, self._plan_telling)

    def _detach(self, key: str) -> None:
        if doorway := self._doorways.pop(key, None):
            doorway.close()
            self._tell(key, doorway)

    def _read(self, policy: NetworkPolicy) -> Policy:
        return Policy.of(policy, self._outlet.counted, self._outlet.refused)

    def _plan_telling(self) -> None:
        """Soon, with what else there is by then."""
        if self._telling is None:
            self._telling = self._loop.call_later(TELL_SECONDS, self._tell_all)

    def _tell_all(self) -> None:
        """Tell what there is to tell. A server that does not listen is told later, or how much it missed."""
        if self._telling:
            self._telling.cancel()
            self._telling = None
        for key, doorway in self._doorways.items():
            while doorway.attempts and self._tell(key, doorway):
                continue
            if doorway.attempts:
                self._plan_telling()

    async def _note_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            for doorway in self._doorways.values():
                doorway.note_progress()

    def _tell(self, key: str, doorway: Doorway) -> bool:
        attempts = doorway.attempts
        taken, dropped = attempts.take(control.REPORTS_PER_PACKET), attempts.dropped
        seen = control.Seen(key=key, reports=[attempt.report() for attempt in taken], dropped=dropped)
        try:
            self._server.send(control.encode(seen))
        except BlockingIOError:
            for attempt in taken:
                attempts.note(attempt)
            return False
        except OSError:  # it is gone, which is noticed elsewhere
            return False
        attempts.dropped -= dropped
        return True


def main() -> None:
    server = socket.socket(fileno=int(sys.argv[-1]))
    server.set_inheritable(False)
    opening = control.decode_opening(server.recv(control.MAX_PACKET))
    outlet = Outlet(opening.upstream)
    with asyncio.Runner() as runner:
        runner.get_loop()  # made while it may still ask for what that takes
        confine(opening.root)
        with suppress(KeyboardInterrupt):
            runner.run(_serve(server, outlet))


async def _serve(server: socket.socket, outlet: Outlet) -> None:
    await Gateway(server, outlet).serve()
