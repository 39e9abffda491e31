"""The sandbox's own figures, as /proc shows them inside: meminfo, stat, loadavg and uptime.

They are plain files, which this writes: before an operation begins and every second while something runs, so that what
is read is a second old at most. Nothing is written for a sandbox in which nothing happens; a process that was left
behind there, uses no cpu and then looks, sees figures as old as that.

All follow from three: what the control group says of memory and of cpu, and the time since the sandbox was made.
Memory is all there is up to the limit, a load is the cpus in use, and what only the host has is nothing. No file ever
becomes shorter, since readers do not wait for us.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SECONDS_OLD = 1.0
SECONDS_AHEAD = 1.5  # of /proc/uptime: no process may be younger than nothing, which ps takes for a million years
TICKS_PER_SECOND = 100  # of /proc, on every machine
BUSY_SECONDS = 0.005  # more cpu than this in a second was not ours
MOST_OF_A_METER = 8192
NO_LIMIT = 2**60
PERIODS = (60, 300, 900)


class Cpu(NamedTuple):
    """Seconds of cpu the sandbox has used."""

    user: float
    system: float

    @property
    def used(self) -> float:
        return self.user + self.system


class Moment(NamedTuple):
    """The readings of a moment, from which its figures follow."""

    boot: float  # seconds since the sandbox's clock began
    wall: float
    cpu: Cpu
    cpus: int
    memory: dict[bytes, int]
    limit: int
    last_pid: int


class Loads(NamedTuple):
    """Averages of how many cpus were in use, over one, five and fifteen minutes."""

    values: tuple[float, ...] = (0.0, 0.0, 0.0)

    def after(self, elapsed: float, used: float) -> Loads:
        """`elapsed` seconds later, in which `used` seconds of cpu were."""
        if not 0 < elapsed < math.inf:
            return self
        decays = (math.exp(-elapsed / period) for period in PERIODS)
        now = used / elapsed
        return Loads(tuple(value * decay + now * (1 - decay) for value, decay in zip(self.values, decays, strict=True)))


class Figures:
    """Keeps them. Without `start` it does nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_busy: Callable[[], bool], last_pid: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._is_busy = is_busy
        self._last_pid = last_pid
        self._cpus = os.sysconf("SC_NPROCESSORS_ONLN")  # asked before there is a sandbox, whose file would be read
        self._directory = -1
        self._meters: tuple[int, int, int] | None = None
        self._limit = 0
        self._loads = Loads()
        self._cpu = Cpu(0, 0)
        self._written = -math.inf
        self._next: asyncio.TimerHandle | None = None

    def open(self, directory: int) -> None:
        """`directory` has the files. They are written while there is time, so that the pages it takes are there."""
        self._directory = directory
        self._write_all({}, Cpu(0, 0))

    def start(self, meters: tuple[int, int, int], limit: int) -> None:
        """`meters` are files of the control group, on memory, on cpu, and on how much memory it may use; `limit` is
        that at the beginning, in bytes.

        What they say of a sandbox that is just being made is next to nothing, and reading them takes longer.
        """
        self._meters, self._limit = meters, limit
        self._write_all({}, Cpu(0, 0))

    def close(self) -> None:
        """For rehearsals."""
        if self._next:
            self._next.cancel()
        for fd in (self._directory, *(self._meters or ())):
            os.close(fd)
        self._meters = None

    def before(self, begin: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The beginning of an operation, with figures that are up to date."""

        def begin_with_figures(call: Any, owner: Any) -> Any:
            if self._meters and not self._next:
                self._tick(is_busy=True)
            return begin(call, owner)

        return begin_with_figures

    def _tick(self, *, is_busy: bool = False) -> None:
        """Once a second, for as long as something runs."""
        used = self._cpu.used
        if self._loop.time() - self._written >= SECONDS_OLD / 2:
            self.refresh()
        if is_busy or self._is_busy() or self._cpu.used - used > BUSY_SECONDS:
            self._next = self._loop.call_later(SECONDS_OLD, self._tick)
        else:
            self._next = None

    def refresh(self) -> None:
        assert self._meters
        with suppress(OSError):  # no descriptor is left, for now
            memory, cpu, limit = (os.pread(meter, MOST_OF_A_METER, 0) for meter in self._meters)
            self._limit = limit_in(limit, self._limit)
            self._write_all(parse_meter(memory), cpu_of(parse_meter(cpu)))

    def _write_all(self, memory: dict[bytes, int], cpu: Cpu) -> None:
        now = self._loop.time()
        self._loads = self._loads.after(now - self._written, cpu.used - self._cpu.used)
        self._cpu, self._written = cpu, now
        boot, wall = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        moment = Moment(boot, wall, cpu, self._cpus, memory, self._limit, self._last_pid())
        for name, content in (
            ("uptime", uptime(moment)),
            ("loadavg", loadavg(moment, self._loads)),
            ("stat", stat(moment)),
            ("meminfo", meminfo(moment)),
        ):
            self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            os.pwrite(fd, content, 0)
        finally:
            os.close(fd)


def parse_meter(text: bytes) -> dict[bytes, int]:
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=False))


def limit_in(text: bytes, before: int) -> int:
    """In bytes. It may be changed while the sandbox runs; where there is none just now, it is what it was."""
    limit = int(text) if text.strip().isdigit() else NO_LIMIT
    return limit if limit < NO_LIMIT else before


def cpu_of(meter: dict[bytes, int]) -> Cpu:
    """Version 2 counts microseconds, version 1 ticks."""
    if b"user_usec" in meter:
        return Cpu(meter[b"user_usec"] / 1e6, meter[b"system_usec"] / 1e6)
    return Cpu(meter[b"user"] / TICKS_PER_SECOND, meter[b"system"] / TICKS_PER_SECOND)


def uptime(moment: Moment) -> bytes:
    boot = moment.boot + SECONDS_AHEAD
    return b"%.2f %.2f\n" % (boot, max(0.0, boot * moment.cpus - moment.cpu.used))


def loadavg(moment: Moment, loads: Loads) -> bytes:
    return (b"%.2f %.2f %.2f 1/1 %d" % (*loads.values, moment.last_pid)).ljust(48) + b"\n"


def stat(moment: Moment) -> bytes:
    lines = [_cpu_line(b"cpu ", moment, 1)]
    lines += [_cpu_line(b"cpu%d" % number, moment, moment.cpus) for number in range(moment.cpus)]
    rest = b"intr 0\nctxt 0\nbtime %d\nprocesses %-10d\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
    return b"".join(lines) + rest % (moment.wall - moment.boot, moment.last_pid)


def _cpu_line(name: bytes, moment: Moment, share: int) -> bytes:
    """Of all cpus, or of one that has its share of the work."""
    ticks = TICKS_PER_SECOND / share
    user, system = moment.cpu.user * ticks, moment.cpu.system * ticks
    idle = max(0, moment.boot * moment.cpus * ticks - user - system)
    return b"%b %d 0 %d %d 0 0 0 0 0 0\n" % (name, user, system, idle)


def meminfo(moment: Moment) -> bytes:
    """In kB, the lines that programs look for."""
    has = moment.memory
    prefix = b"total_" if b"total_rss" in has else b""  # with whoever is in groups below, which version 2 always counts

    def kilobytes(*names: bytes) -> int:
        return next((has[prefix + name] for name in names if prefix + name in has), 0) >> 10

    total = moment.limit >> 10
    anonymous, files, shared = kilobytes(b"anon", b"rss"), kilobytes(b"file", b"cache"), kilobytes(b"shmem")
    kernel, reclaimable = kilobytes(b"kernel"), kilobytes(b"slab_reclaimable")
    free = max(0, total - anonymous - files - kernel)
    active_anonymous, inactive_anonymous = kilobytes(b"active_anon"), kilobytes(b"inactive_anon")
    active_files, inactive_files = kilobytes(b"active_file"), kilobytes(b"inactive_file")
    lines = {
        b"MemTotal": total,
        b"MemFree": free,
        b"MemAvailable": min(total, free + max(0, files - shared) + reclaimable),
        b"Buffers": 0,
        b"Cached": files,
        b"SwapCached": 0,
        b"Active": active_anonymous + active_files,
        b"Inactive": inactive_anonymous + inactive_files,
        b"Active(anon)": active_anonymous,
        b"Inactive(anon)": inactive_anonymous,
        b"Active(file)": active_files,
        b"Inactive(file)": inactive_files,
        b"Unevictable": kilobytes(b"unevictable"),
        b"Mlocked": 0,
        b"SwapTotal": 0,
        b"SwapFree": 0,
        b"Dirty": kilobytes(b"file_dirty", b"dirty"),
        b"Writeback": kilobytes(b"file_writeback", b"writeback"),
        b"AnonPages": anonymous,
        b"Mapped": kilobytes(b"file_mapped", b"mapped_file"),
        b"Shmem": shared,
        b"KReclaimable": reclaimable,
        b"Slab": kilobytes(b"slab"),
        b"SReclaimable": reclaimable,
        b"SUnreclaim": kilobytes(b"slab_unreclaimable"),
        b"KernelStack": kilobytes(b"kernel_stack"),
        b"PageTables": kilobytes(b"pagetables"),
        b"CommitLimit": total,
        b"Committed_AS": anonymous,
        b"VmallocTotal": 34_359_738_367,
        b"VmallocUsed": 0,
        b"VmallocChunk": 0,
        b"Hugepagesize": 2048,
    }
    return b"".join([b"%-15b %8d kB\n" % (name + b":", value) for name, value in lines.items()])
