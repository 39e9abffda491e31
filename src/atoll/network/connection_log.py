"""The log of a sandbox's connections: the latest attempts to reach somebody, and word of each to who follows it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime

import msgspec

from atoll.network.control import Report
from atoll.protocol.network import MAX_CONNECTIONS, Connection, ConnectionList, Verdict

ENDED_WITH_GATEWAY = "the gateway ended"


class ConnectionLog:
    """The log, and its bound. An attempt like the last one is counted there: who knocks all day fills none."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Connection] = OrderedDict()
        self._numbers: dict[int, int] = {}  # of attempts that are open, by the gateway's own
        self._last = 0
        self._dropped = 0
        self._news: asyncio.Event = asyncio.Event()
        self._changes: OrderedDict[int, int] = OrderedDict()  # when each was last changed, by number
        self._change = 0

    def listed(self) -> ConnectionList:
        return ConnectionList(connections=list(self._kept.values()), dropped=self._dropped)

    async def follow(self) -> AsyncGenerator[Connection, None]:
        """Connections that are kept, then each that begins, changes or ends, as it is by then."""
        seen = 0
        while True:
            news, self_change = self._news, self._change
            for number in [number for number, change in self._changes.items() if change > seen]:
                if found := self._kept.get(number):
                    yield found
            seen = self_change
            if self._change == seen:
                await news.wait()

    def take(self, reports: Iterable[Report], dropped: int) -> None:
        """Reports of the gateway, kept."""
        self._dropped += dropped
        for report in reports:
            self._take(report)
        self._tell()

    def note_end_of_gateway(self) -> None:
        """With it, whatever was open has ended."""
        for number in self._numbers.values():
            if (known := self._kept.get(number)) and known.ended is None:
                self._keep(msgspec.structs.replace(known, ended=datetime.now(UTC), detail=ENDED_WITH_GATEWAY))
        self._numbers.clear()
        self._tell()

    def _take(self, report: Report) -> None:
        number = self._numbers.get(report.number)
        found = read(report, number or self._last + 1)
        if number is None:
            last = next(reversed(self._kept.values()), None)
            if last and _is_same(last, found):
                self._keep(msgspec.structs.replace(last, count=last.count + 1, time=found.time, ended=found.ended))
                return
            self._last = found.number
        self._keep(found)
        if found.ended is None:
            self._numbers[report.number] = found.number
        else:
            self._numbers.pop(report.number, None)

    def _keep(self, connection: Connection) -> None:
        self._kept[connection.number] = connection
        self._change += 1
        self._changes[connection.number] = self._change
        self._changes.move_to_end(connection.number)
        if len(self._kept) > MAX_CONNECTIONS:
            number, _ = self._kept.popitem(last=False)
            self._changes.pop(number, None)
            self._dropped += 1

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def read(report: Report, number: int) -> Connection:
    """A report of the gateway's as users see it. It reads hostile bytes, so nothing it says is more than text here."""
    return Connection(
        number=number,
        time=_moment(report.time),
        name=report.name,
        address=report.address,
        port=report.port,
        verdict=report.verdict,
        rule=report.rule,
        detail=report.detail,
        sent=report.sent,
        received=report.received,
        ended=None if report.ended is None else _moment(report.ended),
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _is_same(one: Connection, other: Connection) -> bool:
    """Whether both were turned away for the same reason."""
    return (
        one.ended is not None
        and other.ended is not None
        and one.verdict is not Verdict.ALLOWED
        and (one.name, one.address, one.port, one.verdict, one.rule, one.detail)
        == (other.name, other.address, other.port, other.verdict, other.rule, other.detail)
    )
