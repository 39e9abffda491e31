"""A user's ledger: what was promised about a sandbox, and what of that it breaks. Pure.

An operation that was acknowledged has happened once. One that failed has happened once or not at all: nobody knows, so
both are right, and neither is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Shell = tuple[str, int]  # which life of the sandbox, and how many commands that session has counted


@dataclass
class Ledger:
    files: dict[str, set[bytes | None]] = field(default_factory=dict)  # what each may hold; None if it may be missing
    appended: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    shell: Shell | None = None

    def will_write(self, path: str, content: bytes) -> None:
        self.files.setdefault(path, {None}).add(content)

    def wrote(self, path: str, content: bytes) -> None:
        self.files[path] = {content}

    def forget_all(self) -> None:
        """It was destroyed: nothing of it may be there."""
        self.files = {path: {None} for path in self.files}
        self.appended.clear()
        self.tried.clear()
        self.shell = None

    def judge_destroyed(self, found: set[str], log: str) -> list[str]:
        """After a destruction that was not acknowledged everything is there, or nothing."""
        expected = {path for path, allowed in self.files.items() if None not in allowed}
        expected |= {log} if self.appended else set()
        if expected <= found:
            return []
        half = sorted(expected & found)
        self.forget_all()
        return [f"lost: it was destroyed but for {', '.join(half)}"] if half else []

    def judge_file(self, path: str, found: bytes | None) -> list[str]:
        allowed = self.files[path]
        if found in allowed:
            self.files[path] = {found}
            return []
        return [f"lost: {path} holds {_shown(found)} instead of {' or '.join(map(_shown, allowed))}"]

    def judge_appended(self, lines: Iterable[str]) -> list[str]:
        found: Mapping[str, int] = Counter(lines)
        lost = [f"lost: {token} was never done" for token in self.appended - found.keys()]
        twice = [f"twice: {token} was done {count} times" for token, count in found.items() if count > 1]
        strange = [f"lost: {token!r:.40} is of nobody" for token in found.keys() - self.appended - self.tried]
        return lost + twice + strange

    def judge_count(self, life: str, count: int, *, is_told_of_loss: bool) -> list[str]:
        """`count` is what the shell of a session says after one more command. A new life begins at one."""
        before, self.shell = self.shell, (life, count)
        if before is None or before[0] != life or is_told_of_loss or count > before[1]:
            return []
        return [f"lost: the session counted {before[1]}, and after one more {count}, and said nothing"]


def _shown(content: bytes | None) -> str:
    return "nothing" if content is None else f"{content[:24]!r} ({len(content)} bytes)"
