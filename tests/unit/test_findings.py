"""Questions to a machine: what is made of the answers, and of numbers and text that kernels give."""

from __future__ import annotations

import errno
import resource
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.engine.native import capacity
from atoll.engine.native.cgroups import Hierarchies, parse_mounts
from atoll.engine.native.examination import file_system_of, mount_remedy, namespace_remedy
from atoll.engine.native.group_examination import choose_version, lacking, leaves_sockets_out
from atoll.images.examination import check_host
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.limits import format_size
from atoll.storage import superblock
from atoll.storage.examination import judge_owner, judge_space, nearest_directory
from atoll.telemetry.findings import Area, Check, Finding, Outcome, Status, examine, ok

GIB = 2**30


def ask(probe: Callable[[], Outcome], *, needs_root: bool = False, is_root: bool = True) -> Finding:
    return examine(Check(Area.MACHINE, "thing", probe, needs_root), is_root=is_root)


def raising(cause: Exception) -> Callable[[], Outcome]:
    def probe() -> Outcome:
        raise cause

    return probe


def test_an_answer_becomes_a_finding_with_the_checks_name() -> None:
    finding = ask(lambda: ok("there"))
    assert (finding.area, finding.name, finding.status, finding.found) == ("machine", "thing", "ok", "there")


def test_an_error_that_says_what_to_do_is_something_missing() -> None:
    finding = ask(raising(error(ErrorCode.KERNEL_TOO_OLD, "it is old", remedy="Boot a newer one.")))
    assert (finding.status, finding.found, finding.remedy) == (Status.MISSING, "it is old", "Boot a newer one.")


@pytest.mark.parametrize("cause", [OSError(errno.EIO, "broken"), ZeroDivisionError("by zero"), KeyError("MemTotal")])
def test_a_check_that_breaks_is_a_finding_too(cause: Exception) -> None:
    finding = ask(raising(cause))
    assert finding.status == Status.UNKNOWN
    assert str(cause) in finding.found
    assert finding.remedy


def test_what_needs_root_is_not_tried_without() -> None:
    finding = ask(raising(AssertionError("it was tried")), needs_root=True, is_root=False)
    assert (finding.status, finding.found) == (Status.UNKNOWN, "can be seen by root only")


def test_what_a_terminal_must_not_see_is_replaced() -> None:
    assert ask(lambda: ok("/a\x1b[31m\udcff\nb")).found == "/a\ufffd[31m\ufffd\ufffdb"


def test_sizes_for_people() -> None:
    sizes = (0, 1023, 1024, 5 * 2**20, int(23.5 * GIB), 5000 * 2**40)
    assert [format_size(size) for size in sizes] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "5.0 MiB", "23.5 GiB", "5000.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (capacity.judge_namespaces({}), Status.MISSING, "no user namespaces"),
        (capacity.judge_namespaces({"user.max_net_namespaces": 0, "x": 9}), Status.MISSING, "max_net_namespaces is 0"),
        (capacity.judge_namespaces({"user.max_pid_namespaces": 3, "x": 10**6}), Status.WARNING, "is 3"),
        (capacity.judge_namespaces({"user.max_pid_namespaces": 96_343}), Status.OK, "96,343"),
        (capacity.judge_memory("MemTotal: 1048576 kB\nMemAvailable: 102400 kB\n"), Status.WARNING, "100.0 MiB"),
        (capacity.judge_memory("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"), Status.OK, "4.0 GiB available"),
        (capacity.judge_processes(32_768, 192_686), Status.WARNING, "kernel.pid_max is 32,768"),
        (capacity.judge_processes(4_194_304, 10_000), Status.WARNING, "kernel.threads-max is 10,000"),
        (capacity.judge_processes(4_194_304, 192_686), Status.OK, "192,686"),
        (capacity.judge_files((1024, 1_048_576)), Status.WARNING, "1,024"),
        (capacity.judge_files((resource.RLIM_INFINITY, resource.RLIM_INFINITY)), Status.OK, "no limit"),
        (capacity.judge_ptys(4_096), Status.WARNING, "64 sandboxes"),
        (capacity.judge_ptys(65_536), Status.OK, "64 for each"),
        (capacity.judge_all_files(2_466_177), Status.WARNING, "2,466,177"),
        (capacity.judge_all_files(2**63 - 1), Status.OK, "no limit"),
        (capacity.judge_filters(2**20), Status.WARNING, "1.0 MiB"),
        (capacity.judge_filters(2**29), Status.OK, "512.0 MiB"),
        (capacity.judge_filters(None), Status.OK, "none"),
        (capacity.judge_inotify(32, 10**6), Status.WARNING, "32"),
        (capacity.judge_inotify(128, 4_096), Status.WARNING, "4,096 files"),
        (capacity.judge_inotify(128, 10**6), Status.OK, "for each sandbox"),
        (judge_space(GIB, None), Status.WARNING, "1.0 GiB"),
        (judge_space(50 * GIB, 10), Status.WARNING, "10 more files"),
        (judge_space(50 * GIB, None), Status.OK, "50.0 GiB"),
        (judge_owner(Path("/s"), 0, stat.S_IFDIR | 0o700), Status.OK, "/s"),
        (judge_owner(Path("/s"), 1000, stat.S_IFDIR | 0o700), Status.WARNING, "owner 1000"),
        (judge_owner(Path("/s"), 0, stat.S_IFDIR | 0o755), Status.WARNING, "drwxr-xr-x"),
    ],
)  # fmt: skip
def test_what_numbers_mean(answer: Outcome, status: Status, words: str) -> None:
    assert answer.status == status
    assert words in answer.found
    assert bool(answer.remedy) == (status != Status.OK)


def test_only_the_low_inotify_setting_is_to_be_raised() -> None:
    assert "max_user_watches" not in capacity.judge_inotify(32, 10**6).remedy
    assert "max_user_instances" not in capacity.judge_inotify(128, 4_096).remedy


def test_a_setting_the_kernel_does_not_have_is_none() -> None:
    assert capacity.read_setting("kernel.pid_max")
    assert capacity.read_setting("kernel.no_such_setting") is None


@pytest.mark.parametrize(
    ("reasons", "restrictions", "words"),
    [
        ({errno.EPERM}, {"kernel.unprivileged_userns_clone": "1"}, "unprivileged_userns_clone=1"),
        ({errno.ENOSPC}, {}, "max_user_namespaces=65536"),
        ({errno.ENOSYS}, {}, "clone3"),
        ({errno.EINVAL}, {}, "kernel"),
        ({errno.EPERM}, {}, "container"),
    ],
)  # fmt: skip
def test_a_refused_namespace_has_a_remedy_by_reason(
    reasons: set[int], restrictions: dict[str, str], words: str
) -> None:
    assert words in namespace_remedy(reasons, restrictions)


def test_each_step_of_mounting_has_a_remedy() -> None:
    steps = ("mount /proc", "mount an overlay", "write to an overlay", "mount a tmpfs", "idmap the layers")
    assert all(mount_remedy(step) for step in steps)


def test_the_file_system_of_a_path_is_that_of_the_last_mount_above_it() -> None:
    table = "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/b /a\\040b xfs rw 0 0\nnone /run overlay rw 0 0\n"
    assert file_system_of("/usr", table) == "ext4"
    assert file_system_of("/run/x", table) == "overlay"
    assert file_system_of("/runner", table) == "ext4"
    assert file_system_of("/a b/c", table) == "xfs"
    assert file_system_of("/", "") == "unknown"


V1 = dict.fromkeys(("memory", "pids", "cpu", "cpuacct", "freezer"), "/sys/fs/cgroup/x")


@pytest.mark.parametrize(
    ("found", "available", "version"),
    [
        (Hierarchies({}, "/sys/fs/cgroup"), {"memory", "pids", "cpu", "io"}, 2),
        (Hierarchies(V1, "/sys/fs/cgroup/unified"), {"hugetlb"}, 1),
        (Hierarchies(V1, None), set(), 1),
        (Hierarchies({}, "/sys/fs/cgroup"), {"memory"}, None),
        (Hierarchies({}, None), set(), None),
    ],
)
def test_the_version_of_control_groups_that_will_be_used(
    found: Hierarchies, available: set[str], version: int | None
) -> None:
    assert choose_version(found, available) == version


def test_what_control_groups_lack_is_named() -> None:
    assert lacking(parse_mounts(""), set()) == "no control groups are mounted"
    assert lacking(Hierarchies({}, "/sys/fs/cgroup"), {"memory"}) == "version 2 lacks pids, cpu"
    assert lacking(Hierarchies({"memory": "/m", "cpu": "/c"}, None), set()) == "version 1 lacks pids, cpuacct, freezer"


def test_crc32c_is_the_one_btrfs_uses() -> None:
    assert superblock.crc32c(b"123456789") == 0xE3069283


def test_damage_that_a_superblock_shows() -> None:
    block = bytearray(superblock.SIZE)
    block[64:72] = superblock.MAGIC
    struct.pack_into("<Q", block, 112, GIB)
    struct.pack_into("<I", block, 0, superblock.crc32c(bytes(block[32:])))
    assert superblock.find_damage(bytes(block), GIB) is None
    assert "only" in (superblock.find_damage(bytes(block), GIB - 1) or "")
    assert "too few" in (superblock.find_damage(b"", 0) or "")
    assert "no btrfs" in (superblock.find_damage(bytes(superblock.SIZE), GIB) or "")
    block[200] ^= 1
    assert "checksum" in (superblock.find_damage(bytes(block), GIB) or "")


def test_the_nearest_directory_is_where_something_would_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert nearest_directory(tmp_path / "a/b/c") == tmp_path
    assert nearest_directory(tmp_path / "file/x") == tmp_path
    assert nearest_directory(tmp_path / ("long" * 100)) == tmp_path
    assert nearest_directory(tmp_path) == tmp_path


def test_a_host_that_is_no_debian_is_named_and_one_with_a_split_usr_refused(tmp_path: Path) -> None:
    for name in ("bin", "sbin", "lib"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    answer = check_host(tmp_path)
    assert answer.status == Status.WARNING and "dpkg" in answer.found
    (tmp_path / "bin").unlink()
    (tmp_path / "bin").mkdir()
    with pytest.raises(AtollError) as caught:
        check_host(tmp_path)
    assert "usrmerge" in caught.value.remedy


def test_a_machine_may_be_booted_so_that_sockets_are_not_counted() -> None:
    assert leaves_sockets_out("quiet cgroup.memory=nokmem,nosocket root=/dev/sda")
    assert not leaves_sockets_out("quiet cgroup.memory=nokmem root=/dev/nosocket")
