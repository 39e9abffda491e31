"""The attempts of a sandbox to reach somebody, as they are told to the server: what is new since the last time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from atoll.network.control import Report
from atoll.network.policy import Judgement
from atoll.protocol.network import Verdict

MAX_WAITING = 1_000  # to be told; what is over and does not fit is only counted


@dataclass(eq=False)
class Attempt:
    number: int
    time: float
    name: str
    address: str
    port: int
    verdict: Verdict = Verdict.ALLOWED
    rule: str = ""
    detail: str = ""
    sent: int = 0
    received: int = 0
    ended: float | None = None

    def report(self) -> Report:
        return Report(**vars(self))


class Attempts:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self.dropped = 0
        self._on_change = on_change
        self._last = 0
        self._changed: dict[int, Attempt] = {}

    def __bool__(self) -> bool:
        return bool(self._changed or self.dropped)

    def begin(self, name: str, address: str, port: int) -> Attempt:
        self._last += 1
        return Attempt(self._last, time.time(), name, address, port)

    def note(self, attempt: Attempt) -> None:
        """Have this attempt told, since it has changed."""
        if len(self._changed) < MAX_WAITING or attempt.number in self._changed:
            self._changed[attempt.number] = attempt
        else:
            self.dropped += 1
        self._on_change()

    def end(self, attempt: Attempt, verdict: Verdict | None = None, judgement: Judgement | None = None) -> None:
        """End an attempt. A verdict that is given takes the place of an earlier one."""
        if attempt.ended is not None:
            return
        attempt.ended = time.time()
        if verdict:
            attempt.verdict = verdict
        if judgement:
            attempt.rule, attempt.detail = judgement.rule or attempt.rule, judgement.detail
        self.note(attempt)

    def take(self, most: int) -> list[Attempt]:
        """Some of those that changed, the first ones first."""
        return [self._changed.pop(number) for number in list(self._changed)[:most]]
