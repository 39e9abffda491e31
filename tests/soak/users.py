"""Users: each has a sandbox of its own, uses it as anybody would, and keeps a ledger of what it was promised."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from atoll.client.sandbox import AsyncSandbox
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.values.commands import ExecResult
from tests.soak.ledger import Ledger

HANG_SECONDS = 120.0  # nothing that is done here takes a tenth of it
PAUSE_AFTER_FAILURE_SECONDS = 0.05
FILES = 12
LOG = "/workspace/log"
SIZES = (0, 20, 5_000, 300_000)
COUNT = "n=$((n+1)); echo $n; cat /proc/sys/kernel/random/boot_id"  # which is of one life of the sandbox
MAX_ATTEMPTS = 400


class User:
    """`broken` says which promises were, `answers` how every operation ended."""

    def __init__(self, sandbox: AsyncSandbox, luck: random.Random, directory: Path) -> None:
        self._sandbox, self._luck, self._directory = sandbox, luck, directory
        self._ledger = Ledger()
        self._numbers = iter(range(10**9))
        self.broken: list[str] = []
        self.answers: Counter[str] = Counter()
        self._actions: dict[Callable[[], Awaitable[object]], int] = {
            self._write: 8,
            self._read: 8,
            self._append: 8,
            self._append_in_shell: 4,
            self._count: 8,
            self._start: 4,
            self._transfer: 2,
            self._overstay: 1,
            self._sleep: 1,
            self._look: 2,
            self._destroy: 1,
        }

    async def use_once(self) -> None:
        """One operation, which is never cut off by us."""
        (action,) = self._luck.choices(list(self._actions), list(self._actions.values()))
        await self._try(action)

    async def check(self) -> None:
        """Everything in the ledger, with as many attempts as it takes."""
        for path in self._ledger.files:
            await self._insist(lambda path=path: self._read_one(path))  # type: ignore[misc]
        await self._insist(self._read_log)

    async def leave(self) -> None:
        await self._insist(self._destroy)

    async def _try(self, action: Callable[[], Awaitable[object]]) -> bool:
        name = getattr(action, "__name__", "check").strip("_")
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await action()
        except AtollError as problem:
            self.answers[f"{name}: {problem.code}"] += 1
            if problem.code == ErrorCode.INTERNAL_ERROR:
                self.broken.append(f"untyped: {name}: {problem}")
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            return False
        except TimeoutError:
            self.broken.append(f"hung: {name} of {self._sandbox.id}")
            return False
        except Exception as problem:
            self.broken.append(f"untyped: {name}: {problem!r}")
            return False
        self.answers[f"{name}: done"] += 1
        return True

    async def _insist(self, action: Callable[[], Awaitable[object]]) -> None:
        for _ in range(MAX_ATTEMPTS):
            if await self._try(action):
                return
        self.broken.append(f"hung: {self._sandbox.id} is not to be used any more")

    def _token(self) -> str:
        return f"{self._sandbox.id}-{next(self._numbers)}"

    def _some_path(self) -> str:
        return f"/workspace/file-{self._luck.randrange(FILES)}"

    async def _write(self) -> None:
        path = self._some_path()
        content = self._token().encode() + self._luck.randbytes(self._luck.choice(SIZES))
        self._ledger.will_write(path, content)
        await self._sandbox.write_file(path, content)
        self._ledger.wrote(path, content)

    async def _read(self) -> None:
        path = self._some_path()
        if path in self._ledger.files:
            await self._read_one(path)

    async def _read_one(self, path: str) -> None:
        try:
            found = (await self._sandbox.read_file(path, encoding="bytes")).content
        except FileNotFoundError as problem:
            if getattr(problem, "code", None) != ErrorCode.FILE_NOT_FOUND:
                raise
            found = None
        assert found is None or isinstance(found, bytes)
        self.broken += self._ledger.judge_file(path, found)

    async def _append(self) -> None:
        await self._do_once(lambda token: self._sandbox.exec(["sh", "-c", f"echo {token} >> {LOG}"]))

    async def _append_in_shell(self) -> None:
        await self._do_once(lambda token: self._sandbox.exec(f"echo {token} >> {LOG}"))

    async def _do_once(self, work: Callable[[str], Awaitable[ExecResult]]) -> None:
        token = self._token()
        self._ledger.tried.add(token)
        if (await work(token)).success:
            self._ledger.appended.add(token)

    async def _start(self) -> None:
        token = self._token()
        self._ledger.tried.add(token)
        process = await self._sandbox.start_process(f"echo {token} >> {LOG}", process_id=token)
        if (await process.wait_for_exit(timeout=60)).exit_code == 0:
            self._ledger.appended.add(token)

    async def _read_log(self) -> None:
        result = await self._sandbox.exec(["sh", "-c", f"cat {LOG} || [ ! -e {LOG} ]"])
        if result.success:  # or it was killed while it read
            self.broken += self._ledger.judge_appended(result.stdout.split())

    async def _count(self) -> None:
        result = await self._sandbox.exec(COUNT)
        lines = result.stdout.split()
        if result.success and not result.session_ended and len(lines) == 2:
            is_told = getattr(result, "state_lost", False)
            self.broken += self._ledger.judge_count(lines[1], int(lines[0]), is_told_of_loss=is_told)

    async def _transfer(self) -> None:
        content = self._luck.randbytes(self._luck.choice((1_000, 2_000_000)))
        here = self._directory / self._sandbox.id
        here.write_bytes(content)
        await self._sandbox.upload(here, "/workspace/transfer")
        back = here.with_suffix(".back")
        await self._sandbox.download("/workspace/transfer", back)
        if back.read_bytes() != content:
            self.broken.append("lost: what was uploaded came back otherwise")
        os.unlink(back)

    async def _overstay(self) -> None:
        result = await self._sandbox.exec("while :; do :; done", timeout=0.2)
        if result.exit_code not in (124, 137):
            self.broken.append(f"untyped: a command without end ended with {result.exit_code}")

    async def _sleep(self) -> None:
        await self._sandbox.sleep(stop=self._luck.random() < 0.3)

    async def _look(self) -> None:
        await self._sandbox.status()
        await self._sandbox.list_processes()

    async def _destroy(self) -> None:
        try:
            await self._sandbox.destroy()
        except AtollError:
            await self._insist(self._see_what_is_left)
            raise
        self._ledger.forget_all()

    async def _see_what_is_left(self) -> None:
        """Of one that may have been destroyed: all, or nothing."""
        found = {info.path for info in await self._sandbox.list_files("/workspace")}
        self.broken += self._ledger.judge_destroyed(found, LOG)
