"""Control groups, on the real hierarchies of this machine and on text of others."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from atoll.engine.native import cgroups_v1
from atoll.engine.native.cgroups import open_cgroups, parse_mounts
from atoll.engine.native.cgroups_v1 import CgroupsV1
from atoll.engine.native.cgroups_v2 import CgroupsV2
from atoll.engine.native.group_files import parse_keyed
from atoll.engine.native.group_limits import MEMORY_OF_AGENT, Resources, quota
from atoll.engine.native.host_share import limit_all, raise_file_max, share_of
from atoll.engine.native.syscalls import Namespace
from atoll.engine.native.watch import MemoryNews
from atoll.engine.native.zygote import Zygote

HYBRID = """\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
proc /proc proc rw 0 0
"""


def test_mounts_are_found_by_controller_also_where_two_share_one() -> None:
    found = parse_mounts(HYBRID)
    assert found.v2 == "/sys/fs/cgroup/unified"
    assert found.v1 == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory",
    }


def test_quota_keeps_to_what_the_kernel_takes() -> None:
    assert (quota(2), quota(0.25), quota(1 / 16), quota(0.001)) == (200_000, 25_000, 6_250, 1_000)


async def test_to_watch_a_group_that_is_gone_leaves_no_descriptor() -> None:
    cgroups = open_cgroups()
    assert cgroups
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        MemoryNews(cgroups).add("test-gone", print)
    assert os.listdir("/proc/self/fd") == before
    cgroups.close()


def test_a_group_that_was_left_is_made_anew_without_its_limits() -> None:
    cgroups = open_cgroups()
    assert cgroups
    cgroups.create("test-left")
    cgroups.set_limits("test-left", Resources(cpus=1, memory=2**24, pids=10))
    cgroups.create("test-left")
    cgroups.set_limits("test-left", Resources(cpus=1, memory=2**30, pids=10))  # above what swap was limited to
    assert cgroups.remove("test-left")
    cgroups.close()


def test_keyed_files() -> None:
    assert parse_keyed("populated 1\nfrozen 0\nname text\n") == {"populated": 1, "frozen": 0}


@pytest.fixture
def unified() -> Iterator[CgroupsV2]:
    """The real version 2 hierarchy; where version 1 has the controllers it can still clone, freeze and tell."""
    mount = parse_mounts(Path("/proc/mounts").read_text()).v2
    assert mount, "this machine has no cgroup2 mounted"
    cgroups = CgroupsV2(mount, controllers=())
    yield cgroups
    cgroups.close()


def test_a_child_is_cloned_into_its_group_frozen_thawed_and_the_group_removed(unified: CgroupsV2) -> None:
    unified.create("test-clone")
    group = unified.clone_into("test-clone")
    assert group is not None and unified.joins("test-clone") == []
    zygote = Zygote(Namespace.UTS, wait_for_ever)
    pid, pidfd = zygote.clone(0, [], group)
    assert f"/{'atoll'}/test-clone/agent\n" in Path(f"/proc/{pid}/cgroup").read_text()
    unified.freeze("test-clone")
    unified.freeze("test-clone")
    unified.thaw("test-clone")
    assert not unified.remove("test-clone"), "somebody is in it"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pidfd)
    os.close(group)
    zygote.close()
    while not unified.remove("test-clone"):
        time.sleep(0.01)
    assert unified.remove("test-clone"), "twice is fine"
    assert "test-clone" not in unified.names()


def test_everyone_in_a_group_is_killed_and_whoever_watches_it_is_told(unified: CgroupsV2) -> None:
    unified.create("test-kill")
    group = unified.clone_into("test-kill")
    assert group is not None
    watch = unified.open_channel()
    unified.announce("test-kill", watch)
    with pytest.raises(BlockingIOError):
        os.read(watch, 4096)
    zygote = Zygote(Namespace.UTS, wait_for_ever)
    clones = [zygote.clone(0, [], group) for _ in range(3)]
    assert select.select([watch], [], [], 60)[0], "somebody is in the group now"
    assert os.read(watch, 4096)
    unified.kill("test-kill")
    for pid, pidfd in clones:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        os.close(pidfd)
    assert select.select([watch], [], [], 60)[0], "the group is empty now, and that is a change"
    assert os.read(watch, 4096)
    for fd in (watch, group):
        os.close(fd)
    zygote.close()
    while not unified.remove("test-kill"):
        time.sleep(0.01)


def test_everyone_in_a_group_of_the_machine_is_killed() -> None:
    """Whichever version limits are enforced with here."""
    cgroups = open_cgroups()
    assert cgroups
    cgroups.create("test-kill-all")
    group, joins = cgroups.clone_into("test-kill-all"), cgroups.joins("test-kill-all")
    zygote = Zygote(Namespace.UTS, join_and_wait)
    ready, theirs = os.pipe()
    clones = [zygote.clone(0, [theirs, *joins], group) for _ in range(3)]
    for _ in clones:
        os.read(ready, 1)
    cgroups.kill("test-kill-all")
    for pid, pidfd in clones:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        os.close(pidfd)
    for fd in (ready, theirs, *joins, *([group] if group is not None else [])):
        os.close(fd)
    zygote.close()
    while not cgroups.remove("test-kill-all"):
        time.sleep(0.01)
    cgroups.close()


def join_and_wait(fds: list[int]) -> NoReturn:
    for fd in fds[1:]:
        os.write(fd, b"0")
    os.write(fds[0], b"x")
    wait_for_ever(fds)


def wait_for_ever(fds: list[int]) -> NoReturn:
    while True:
        signal.pause()


@pytest.mark.parametrize(
    ("memory", "of_all", "for_sockets"),
    [(2**31, 2**63 - 4096, 2**29), (2**25, 2**63 - 4096, 8 * 2**20), (2**31, 2**30, 2**28), (2**25, 2**20, 8 * 2**20)],
)
def test_what_waits_in_sockets_has_a_limit_of_its_own_on_version_1(
    tmp_path: Path, memory: int, of_all: int, for_sockets: int
) -> None:
    commands = tmp_path / "atoll/box/commands"
    commands.mkdir(parents=True)
    for path in (commands.parent / "memory.limit_in_bytes", commands / "memory.limit_in_bytes"):
        path.touch()
    for path in (commands / "memory.kmem.tcp.limit_in_bytes", commands.parent / "pids.max"):
        path.touch()
    (tmp_path / "atoll/memory.kmem.tcp.limit_in_bytes").write_text(f"{of_all}\n")
    groups = CgroupsV1(dict.fromkeys(cgroups_v1.CONTROLLERS, str(tmp_path)))
    groups.set_limits("box", Resources(cpus=1, memory=memory, pids=10))
    assert int((commands / "memory.kmem.tcp.limit_in_bytes").read_text()) == for_sockets == groups.socket_limit("box")
    groups.close()


def test_the_host_keeps_a_part_of_the_machine() -> None:
    assert share_of(2**30, 32_768, 5) == (2**30 - 2**26, 28_672, 5)
    assert share_of(2**38, 4_194_304, 5) == (2**38 - 2**30, 3_670_016, 5)


def test_all_sandboxes_together_have_a_limit(tmp_path: Path) -> None:
    (tmp_path / "atoll").mkdir()
    for name in ("pids.max", "memory.max", "memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"):
        (tmp_path / "atoll" / name).touch()
    for groups in (
        CgroupsV1(dict.fromkeys(cgroups_v1.CONTROLLERS, str(tmp_path))),
        CgroupsV2(str(tmp_path), controllers=()),
    ):
        limit_all(groups)
        groups.close()
    written = {path.name: int(path.read_text()) for path in (tmp_path / "atoll").glob("[mp]*")}
    assert 0 < written["memory.max"] == written["memory.limit_in_bytes"] < os.sysconf("SC_PHYS_PAGES") * 4096
    pressure = Path("/proc/sys/net/ipv4/tcp_mem").read_text().split()[0]
    assert written["memory.kmem.tcp.limit_in_bytes"] == int(pressure) * 4096
    assert 0 < written["pids.max"] < int(Path("/proc/sys/kernel/pid_max").read_text())


@pytest.mark.parametrize(("before", "after"), [("2466177\n", str(2**63 - 1)), (f"{2**40}\n", f"{2**40}\n")])
def test_the_number_of_open_files_is_raised_where_one_sandbox_could_have_as_many(
    tmp_path: Path, before: str, after: str
) -> None:
    setting = tmp_path / "file-max"
    setting.write_text(before)
    raise_file_max(str(setting))
    assert setting.read_text() == after


def test_where_the_number_of_open_files_cannot_be_raised_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raise_file_max(str(tmp_path / "nothing"))
    assert "fs.file-max cannot be raised" in caplog.text


def test_limit_files_of_version_2(tmp_path: Path) -> None:
    """No controller is free here, so a directory stands in for the group: what is written is what is looked at."""
    group = tmp_path / "atoll/box"
    (group / "commands").mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "commands/memory.max"):
        (group / name).touch()
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (group / "memory.current").write_text("4096\n")
    (group / "pids.current").write_text("3\n")
    (group / "memory.events").write_text("low 0\noom_kill 2\n")
    groups = CgroupsV2(str(tmp_path), controllers=())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"
    groups.set_limits("box", Resources(cpus=0.5, memory=2**26, pids=32))
    groups.set_cpus("box", 0.5)
    written = {str(path.relative_to(group)): path.read_text() for path in group.rglob("*.max")}
    assert written == {
        "memory.max": f"{2**26 + MEMORY_OF_AGENT}",
        "commands/memory.max": f"{2**26}",
        "memory.swap.max": "0",
        "pids.max": "32",
        "cpu.max": "50000 100000",
    }
    usage = groups.usage("box")
    assert (usage.cpu_seconds, usage.memory, usage.processes, usage.oom_kills) == (1.5, 4096, 3, 2)
    groups.close()
    groups.close()
