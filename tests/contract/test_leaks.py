"""The check that follows every test, checked: each kind of thing is found when it is left behind, and when it is not.

Each test leaves something, looks, and takes it away again; that it then finds nothing is the fixture's own business.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.engine.native.cgroups import open_cgroups
from atoll.engine.native.group_files import group_name
from atoll.engine.native.uid_ranges import UidRanges
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import PoolStorage
from atoll.store.sqlite.database import open_database
from tests import kept, leaks
from tests.leaks import Surroundings, Trace, look

LEAKING = Path(__file__).with_name("leaking.py")
ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.closerange(0, 3)
    time.sleep(600)
"""


@pytest.fixture
def before(surroundings: Surroundings) -> set[Trace]:
    return look(surroundings)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """In namespaces of its own."""
    child = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", "mount -t tmpfs ours /mnt && echo ready && exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
    while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
        time.sleep(0.001)
    yield child
    child.kill()
    child.wait()


def found(before: set[Trace], surroundings: Surroundings) -> dict[str, list[str]]:
    """What is left by kind, without waiting for it to go."""
    left: dict[str, list[str]] = {}
    for trace in look(surroundings) - before:
        left.setdefault(trace.kind, []).append(trace.what)
    return left


def test_a_test_that_leaves_something_fails(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path}/base",
        str(LEAKING),
    ]
    shown = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert "4 passed, 3 errors" in shown.stdout, shown.stdout
    failed = re.findall(r"^ERROR \S+::(\w+)", shown.stdout, re.MULTILINE)
    assert failed == ["test_leaves_a_descriptor", "test_leaves_a_process_in_a_namespace", "test_leaves_a_mount"]
    for words in ("descriptor: ", "process: ", "namespace: net:[", "mount: mnt:["):
        assert f"E           {words}" in shown.stdout


def test_nothing_is_found_where_nothing_was_left(before: set[Trace], surroundings: Surroundings) -> None:
    assert found(before, surroundings) == {}


def test_a_process_and_its_namespaces_are_found(
    before: set[Trace], surroundings: Surroundings, child: subprocess.Popen[bytes]
) -> None:
    left = found(before, surroundings)
    assert left.keys() == {"process", "namespace"}
    assert left["process"] == [f"{child.pid} sleep"]
    assert sorted(name.split(":")[0] for name in left["namespace"]) == ["mnt", "net"]


def test_an_orphan_in_a_session_of_its_own_is_found(before: set[Trace], surroundings: Surroundings) -> None:
    orphan = int(subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True).stdout)
    name = Path(f"/proc/{orphan}/comm").read_text().strip()
    assert found(before, surroundings) == {"process": [f"{orphan} {name}"]}
    os.kill(orphan, signal.SIGKILL)


def test_a_mount_is_found(before: set[Trace], surroundings: Surroundings, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "ours", tmp_path], check=True)
    left = found(before, surroundings)
    subprocess.run(["umount", tmp_path], check=True)
    assert left.keys() == {"mount"} and str(tmp_path) in left["mount"][0]


def test_a_mount_that_only_another_namespace_has_is_found(
    before: set[Trace], surroundings: Surroundings, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    subprocess.run(["nsenter", f"--mount=/proc/{child.pid}/ns/mnt", "mount", "-t", "tmpfs", "x", tmp_path], check=True)
    assert not tmp_path.is_mount()
    (mount,) = found(before, surroundings)["mount"]
    assert os.readlink(f"/proc/{child.pid}/ns/mnt") in mount and str(tmp_path) in mount


def test_a_namespace_that_only_a_descriptor_holds_is_found(
    before: set[Trace], surroundings: Surroundings, child: subprocess.Popen[bytes]
) -> None:
    fd = os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY)
    name = os.readlink(f"/proc/{child.pid}/ns/net")
    child.kill()
    child.wait()
    left = found(before, surroundings)
    os.close(fd)
    assert left == {"namespace": [name], "descriptor": [f"{fd} {name}"]}


def test_a_namespace_that_only_a_mount_holds_is_found(
    before: set[Trace], surroundings: Surroundings, tmp_path: Path
) -> None:
    (tmp_path / "net").touch()
    subprocess.run(["unshare", f"--net={tmp_path}/net", "true"], check=True)
    left = found(before, surroundings)
    subprocess.run(["umount", tmp_path / "net"], check=True)
    assert left.keys() == {"mount"} and "net:[" in left["mount"][0]


def test_a_loop_device_is_found(before: set[Trace], surroundings: Surroundings, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2**20))
    device = subprocess.run(
        ["losetup", "--find", "--show", tmp_path / "file"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()
    left = found(before, surroundings)
    subprocess.run(["losetup", "--detach", device], check=True)
    assert left == {"loop device": [f"{device.removeprefix('/dev/')} of {tmp_path}/file"]}


def test_a_pool_that_was_not_closed_is_found(before: set[Trace], surroundings: Surroundings, tmp_path: Path) -> None:
    pool = PoolStorage(tmp_path / "state", size=MIN_POOL)
    left = found(before, surroundings)
    pool.close()
    assert left.keys() == {"mount", "loop device", "descriptor"}


def test_a_descriptor_is_found(before: set[Trace], surroundings: Surroundings) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    left = found(before, surroundings)
    os.close(fd)
    assert left == {"descriptor": [f"{fd} /dev/null"]}


@pytest.mark.parametrize("name", ["run/agents/dead.sock", "state/pool.new"])
def test_a_file_is_found(before: set[Trace], surroundings: Surroundings, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert found(before, surroundings) == {"file": [str(path)]}
    path.unlink()


@pytest.mark.parametrize("stage", ["making", "removing"])
def test_a_record_of_something_unfinished_is_found(
    before: set[Trace], surroundings: Surroundings, tmp_path: Path, stage: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    open_database(state).close()
    kept.put(state, "done", "created", b"")
    kept.put(state, "one", stage, b"")
    assert found(before, surroundings) == {"record": [f"one {stage}"]}
    kept.remove(state, "one")


def test_a_control_group_is_found(
    before: set[Trace], surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose range of ids nobody holds; while another run's nursery lives, nobody could say whose it is."""
    cgroups = open_cgroups()
    assert cgroups
    ranges = UidRanges()
    base, holder = ranges.take()
    cgroups.create(group_name(base))
    try:
        monkeypatch.setattr(leaks, "_is_another_run", lambda everyone, ours: False)  # as if there were none
        assert group_name(base) not in found(before, surroundings).get("cgroup", []), "somebody holds it"
        os.close(holder)
        # Any nursery that starts on this machine may sweep it right now.
        assert (
            group_name(base) in found(before, surroundings).get("cgroup", []) or group_name(base) not in cgroups.names()
        )
    finally:
        with suppress(FileNotFoundError):
            cgroups.remove(group_name(base))
        cgroups.close()
        ranges.close()
