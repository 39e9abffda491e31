"""What /proc shows of a sandbox, from what its control group counts."""

from __future__ import annotations

import math
import re

import pytest

from atoll.agent import figures
from atoll.agent.figures import Cpu, Loads, Moment, cpu_of, limit_in, parse_meter
from atoll.engine.native import views
from atoll.engine.native.clocks import BOOT_SECONDS, offsets

MIB = 2**20
VERSION_1 = b"cache 0\nrss 0\ntotal_cache 4194304\ntotal_rss 8388608\ntotal_shmem 1048576\ntotal_dirty 4096\n"
VERSION_2 = b"anon 8388608\nfile 4194304\nkernel 1048576\nshmem 1048576\nfile_dirty 4096\nslab_reclaimable 524288\n"


def moment(memory: bytes = b"") -> Moment:
    return Moment(100, 1_700_000_000, Cpu(10, 5), 2, parse_meter(memory), 64 * MIB, 1234)


def meminfo(memory: bytes) -> dict[str, int]:
    text = figures.meminfo(moment(memory)).decode()
    assert all(re.fullmatch(r"[\w()]+: +\d+ kB", line) for line in text.splitlines())
    return {line.split(":")[0]: int(line.split()[1]) // 1024 for line in text.splitlines()}


@pytest.mark.parametrize(("meter", "kernel", "reclaimable"), [(VERSION_1, 0, 0), (VERSION_2, 1, 0.5)])
def test_both_versions_of_control_groups_count_memory(meter: bytes, kernel: int, reclaimable: float) -> None:
    shown = meminfo(meter)
    assert (shown["MemTotal"], shown["AnonPages"], shown["Cached"], shown["Shmem"]) == (64, 8, 4, 1)
    assert shown["MemFree"] == 64 - 8 - 4 - kernel
    assert shown["MemAvailable"] == math.floor(shown["MemFree"] + 3 + reclaimable)


def test_memory_beyond_the_limit_is_no_negative_number() -> None:
    assert meminfo(b"anon 999999999\nfile 999999999\n")["MemFree"] == 0


@pytest.mark.parametrize(
    ("text", "limit"),
    [(b"1048576\n", 2**20), (b"max\n", 7), (b"9223372036854771712\n", 7), (b"", 7)],
    ids=["a number", "none in version 2", "none in version 1", "nothing"],
)
def test_the_limit_of_memory_is_what_the_group_says_or_what_it_was(text: bytes, limit: int) -> None:
    assert limit_in(text, before=7) == limit


def test_both_versions_count_cpu() -> None:
    assert cpu_of(parse_meter(b"user 150\nsystem 50\n")) == Cpu(1.5, 0.5)
    assert cpu_of(parse_meter(b"usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\n")) == Cpu(1.5, 0.5)


def test_cpu_time_adds_up_to_the_time_since_boot() -> None:
    total, *each = [line.split() for line in figures.stat(moment()).decode().splitlines() if line.startswith("cpu")]
    assert [line[0] for line in (total, *each)] == ["cpu", "cpu0", "cpu1"]
    assert sum(map(int, total[1:])) == 2 * 100 * 100
    assert all(sum(map(int, line[1:])) == 100 * 100 for line in each)
    assert total[1:5] == ["1000", "0", "500", "18500"]


def test_a_load_rises_towards_the_cpus_in_use_and_decays() -> None:
    loads = Loads()
    for _ in range(60):
        loads = loads.after(1, 2)
    assert loads.values[0] == pytest.approx(2 * (1 - math.exp(-1)))
    assert loads.values[0] > loads.values[1] > loads.values[2]
    assert loads.after(3600, 0).values[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("elapsed", [0, -1, math.inf])
def test_a_load_of_no_time_or_of_all_time_is_as_before(elapsed: float) -> None:
    assert Loads((1, 1, 1)).after(elapsed, 5) == Loads((1, 1, 1))


def test_a_file_does_not_become_shorter_when_its_numbers_do() -> None:
    high, low = Loads((1000, 1000, 1000)), Loads()
    assert len(figures.loadavg(moment(), high)) == len(figures.loadavg(moment(), low))
    many, few = moment(VERSION_2), moment(b"")
    assert len(figures.meminfo(many)) == len(figures.meminfo(few))
    assert len(figures.stat(moment()._replace(last_pid=4_194_303))) == len(figures.stat(moment()._replace(last_pid=7)))


def test_clocks_begin_a_moment_before_and_never_before_the_machines() -> None:
    assert offsets(1000.9, 900.2) == b"boottime %d 0\nmonotonic %d 0\n" % (BOOT_SECONDS - 1000, BOOT_SECONDS - 900)
    assert offsets(5, 5) == b"boottime 0 0\nmonotonic 0 0\n"


def test_limits_of_the_machine_are_shown_without_their_use() -> None:
    assert views.setting("file-nr", b"1842\t0\t2466177\n") == b"0\t0\t2466177\n"
    assert views.setting("inode-state", b"176693\t12\t0\n") == b"0\t0\t0\n"
    assert views.setting("file-max", b"2466177\n") == b"2466177\n"
    assert views.count_nothing(b"nr_free_pages 23\npswpin 7\n") == b"nr_free_pages 0\npswpin 0\n"
    assert (
        views.count_one_group(b"#name\thierarchy\tnum\ton\ncpu\t1\t24\t1\n")
        == b"#name\thierarchy\tnum\ton\ncpu\t1\t1\t1\n"
    )
    assert views.first_lines(b"major name\n\n7 loop1\n") == b"major name\n\n"
    assert views.first_lines(b"Filename\n/swap\n") == b"Filename\n"
