"""What a sandbox is and sees: ids, capabilities, filter, mounts, and nothing of the host or its neighbours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from atoll.engine.native.capabilities import MASK
from atoll.engine.native.cgroups_v1 import CgroupsV1
from atoll.engine.native.engine import required_cgroups
from atoll.engine.native.uid_ranges import FIRST_BASE, RANGE_SIZE
from atoll.protocol.commands import Exec
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import native


async def python(box: Box, code: str) -> str:
    output = await box.run("python3", "-c", code)
    assert output.done.exit_code == 0, output.stderr.decode()
    return output.stdout.decode().strip()


async def status_of_self(box: Box) -> dict[str, str]:
    lines = (await box.run("cat", "/proc/self/status")).stdout.decode().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


async def test_root_inside_is_nobody_outside(box: Box) -> None:
    assert await box.text("id -u") == "0"
    assert await box.text("cat /proc/self/uid_map") == await box.text("cat /proc/self/gid_map")
    inside, outside, count = (await box.text("cat /proc/self/uid_map")).split()
    assert (int(inside), int(outside), int(count)) == (0, native(box.live).uid_base, RANGE_SIZE)
    assert os.stat(f"/proc/{native(box.live).process.pid}").st_uid in (0, native(box.live).uid_base)
    host_view = Path(f"/proc/{native(box.live).process.pid}/status").read_text()
    assert re.search(rf"^Uid:\t{native(box.live).uid_base}\t", host_view, re.MULTILINE)


async def test_seven_namespaces_are_its_own(box: Box) -> None:
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        inside = os.readlink(f"/proc/{native(box.live).process.pid}/ns/{kind}")
        assert inside != os.readlink(f"/proc/self/ns/{kind}"), kind


async def test_thirteen_capabilities_no_new_privileges_and_a_filter(box: Box) -> None:
    status = await status_of_self(box)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[name], 16) == MASK == 0xA80405FB, name
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


async def test_the_host_name_is_the_id(box: Box) -> None:
    name = str(box.live.id)
    assert await box.text("hostname; cat /etc/hostname") == f"{name}\n{name}"
    assert name in await box.text("cat /etc/hosts")


async def test_pid_1_tells_nothing_of_the_host(box: Box, workshop: Workshop) -> None:
    output = await box.run("cat", "/proc/1/cmdline")
    assert output.stdout.rstrip(b"\0") == b"atoll-agent"
    assert await box.text("cat /proc/1/comm") == "atoll-agent"
    for name in ("environ", "maps", "mem", "auxv", "stack", "syscall"):
        assert (await box.run("cat", f"/proc/1/{name}")).done.exit_code != 0, name
    for name in ("fd", "map_files", "root/", "cwd/"):
        assert (await box.run("ls", f"/proc/1/{name}")).done.exit_code != 0, name
    for name in ("exe", "cwd", "root"):
        assert (await box.run("readlink", f"/proc/1/{name}")).stdout == b"", name


async def test_the_table_of_mounts_tells_nothing_of_the_host(box: Box, workshop: Workshop) -> None:
    mounts = await box.text("cat /proc/mounts /proc/self/mountinfo")
    words = set(re.split(r"[\s,=:]+", mounts))
    state = native(box.live).agent_socket.rsplit("/run/", 1)[0]
    assert state not in mounts
    paths = {word for word in words if word.startswith("/")}
    own = {"/null", "/shm", "/boot_id", "/loadavg", "/meminfo", "/stat", "/uptime", "/copy/files", "/copy/empty"}
    assert all(path == "/" or path.startswith(("/dev", "/proc", "/sys", "/usr")) for path in paths - own), paths - own


async def test_nothing_of_the_host_is_there(host_box: Box) -> None:
    assert await host_box.text("ls -A /root /home /workspace /tmp /srv /opt /mnt | grep -v : || true") == ""
    host_etc = set(os.listdir("/etc"))
    inside = set((await host_box.text("ls -A /etc")).split())
    assert "machine-id" not in host_etc or await host_box.text("cat /etc/machine-id") == ""
    assert not inside & {"sudoers", "crypttab", "gitconfig", "pip.conf", "npmrc"}
    assert await host_box.text("find /etc -name '*_key' -o -name '*.key' | wc -l") == "0"
    shadow = await host_box.text("cat /etc/shadow")
    assert all(line.split(":")[1] == "*" for line in shadow.splitlines())
    assert not await host_box.text("ls -A /var/log /var/mail /var/spool | grep -v -e : -e apt || true")


async def test_proc_and_sys_take_no_writes(box: Box) -> None:
    for name in ("/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/irq/default_smp_affinity"):
        assert (await box.sh(f"echo x >{name}")).done.exit_code != 0, name
    assert (await box.sh("echo b >/proc/sysrq-trigger; mkdir /sys/x; touch /sys/kernel/x")).done.exit_code != 0


async def test_dev_holds_the_usual_and_is_read_only(box: Box) -> None:
    names = set((await box.text("ls /dev")).split())
    assert names == {
        "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom",
        "zero",
    }  # fmt: skip
    assert (await box.sh("touch /dev/x || mknod /dev/sda b 8 0 || rm /dev/null")).done.exit_code != 0
    assert (
        await box.text("echo x >/dev/null; head -c 4 /dev/zero | wc -c; echo y >/dev/shm/f; cat /dev/shm/f") == "4\ny"
    )


async def test_loopback_is_up_and_there_is_no_way_out(host_box: Box) -> None:
    assert await python(host_box, "import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"
    echo = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
print(socket.create_connection(server.getsockname()).recv(5).decode())
"""
    assert await python(host_box, echo) == "hello"
    away = "import socket; s = socket.socket(); s.settimeout(5); print(s.connect_ex(('192.0.2.1', 80)))"
    assert int(await python(host_box, away)) != 0


# What programs make of a refusal depends on its errno. What a call could do if it were allowed is in atoll.attacks.
REFUSALS = {
    "unshare(NEWUSER)": (272, [0x10000000], 1),
    "clone(NEWUSER)": (56, [0x10000000 | 17, 0, 0, 0, 0], 38),
    "clone3, where the C library then takes clone": (435, [0, 0], 38),
    "open_by_handle_at": (304, [0, 0, 0], 1),
    "syslog": (103, [3, 0, 0], 1),
    "reboot": (169, [0, 0, 0], 1),
    "init_module": (175, [0, 0, 0], 1),
    "kexec_load": (246, [0, 0, 0, 0], 1),
    "settimeofday": (164, [0, 0], 1),
    "a number nobody knows": (500, [0], 38),
    "an x32 call": (0x40000000 + 39, [], 38),
    "socket(AF_VSOCK)": (41, [40, 1, 0], 97),
    "socket(AF_ALG)": (41, [38, 5, 0], 97),
    "socket(NETLINK_AUDIT)": (41, [16, 3, 9], 93),
    "socket(SCTP)": (41, [2, 1, 132], 38),
    "socket(MPTCP)": (41, [2, 1, 262], 93),
    "socket(SOCK_PACKET)": (41, [2, 10, 0], 94),
    "socket(SOCK_RAW), as without the capability": (41, [2, 3, 255], 1),
    "setsockopt(SO_ATTACH_FILTER)": (54, [0, 1, 26, 0, 0], 1),
    "seccomp(SECCOMP_SET_MODE_FILTER), as in a kernel without": (317, [1, 0, 0], 22),
    "prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER), as in a kernel without": (157, [22, 2, 0], 22),
    "ioctl(TIOCSTI)": (16, [0, 0x5412, 0], 1),
    "mincore": (27, [0, 4096, 0], 1),
    "cachestat": (451, [0, 0, 0, 0], 38),
}


@pytest.fixture(scope="module")
def probe() -> str:
    return """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for line in sys.stdin:
    number, *arguments = map(int, line.split())
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    print(ctypes.get_errno() if result == -1 else 0, flush=True)
"""


async def test_a_refusal_has_the_errno_that_programs_expect(host_box: Box, probe: str) -> None:
    lines = "".join(f"{number} {' '.join(map(str, arguments))}\n" for number, arguments, _ in REFUSALS.values())
    output = await host_box.run("python3", "-c", probe, stdin=lines.encode())
    answers = dict(zip(REFUSALS, map(int, output.stdout.split()), strict=True))
    assert answers == {name: errno for name, (_, _, errno) in REFUSALS.items()}


async def test_the_same_probe_gets_other_answers_without_the_filter(probe: str) -> None:
    """So that the test above cannot pass because the probe is broken."""
    harmless = {"unshare(nothing)": (272, [0]), "socket(AF_PACKET)": (41, [17, 3, 0]), "syslog": (103, [10, 0, 0])}
    lines = "".join(f"{number} {' '.join(map(str, arguments))}\n" for number, arguments in harmless.values())
    answers = subprocess.run(
        [sys.executable, "-c", probe], input=lines.encode(), capture_output=True, check=True
    ).stdout
    assert answers.split() == [b"0"] * len(harmless)


async def test_two_sandboxes_share_no_ids_no_random_state_and_no_namespace(neighbours: tuple[Box, Box]) -> None:
    one, other = neighbours
    assert native(one.live).uid_base != native(other.live).uid_base
    for box in neighbours:
        assert (native(box.live).uid_base - FIRST_BASE) % RANGE_SIZE == 0
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        links = {os.readlink(f"/proc/{native(box.live).process.pid}/ns/{kind}") for box in neighbours}
        assert len(links) == 2, kind


def test_a_cloned_process_draws_its_own_random_numbers() -> None:
    """A bare clone3, without Python's hooks around it, would give every agent the same generator."""
    code = """
import os, random
from atoll.engine.native.syscalls import Namespace
from atoll.engine.native.zygote import Zygote

def live(fds):
    print(random.random(), flush=True)
    os._exit(0)

zygote = Zygote(Namespace(0), live)
for _ in range(8):
    pid, _ = zygote.clone(0, [], None)
    os.waitpid(pid, 0)
"""
    drawn = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout.split()
    assert len(drawn) == len(set(drawn)) == 8


HOARD_INOTIFY = """
import ctypes, os
libc = ctypes.CDLL(None)
taken = 0
while libc.inotify_init1(0) >= 0:
    taken += 1
print(taken, flush=True)
os.read(0, 1)
"""


async def test_inotify_instances_that_one_sandbox_takes_are_not_missing_in_the_next(
    neighbours: tuple[Box, Box],
) -> None:
    one, other = neighbours
    hoard = Exec(argv=["python3", "-c", HOARD_INOTIFY], stdin=True)
    async with one.link.operation(hoard) as hoarder:
        assert int((await hoarder.next_frame()).payload) > 0
        assert int((await other.run("python3", "-c", HOARD_INOTIFY)).stdout) > 0


HOARD_PIPES = """
import fcntl, os, resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

def size_of_another():
    kept.extend(os.pipe())
    return fcntl.fcntl(kept[-1], fcntl.F_GETPIPE_SZ)

kept = []
size = size_of_another()
while len(kept) < 5000 and size_of_another() == size:
    pass
print(size, len(kept), flush=True)
os.read(0, 1)
"""


async def test_buffers_of_pipes_that_one_sandbox_takes_are_not_missing_in_the_next(neighbours: tuple[Box, Box]) -> None:
    """They are counted by user id; whoever has taken all gets small ones."""
    one, other = neighbours
    hoard = Exec(argv=["python3", "-c", HOARD_PIPES], stdin=True)
    async with one.link.operation(hoard) as hoarder:
        size, made = map(int, (await hoarder.next_frame()).payload.split())
        assert made < 5000
        left, _ = map(int, (await one.run("python3", "-c", HOARD_PIPES)).stdout.split())
        elsewhere, as_many = map(int, (await other.run("python3", "-c", HOARD_PIPES)).stdout.split())
        assert left < size == elsewhere
        assert as_many > made / 2  # its agent has some itself


def links_of(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # its channel to the engine, which it closes once it is told to live on
            yield os.readlink(path)


async def test_an_agent_keeps_only_its_own_descriptors(neighbours: tuple[Box, Box]) -> None:
    with closing(required_cgroups()) as cgroups:
        version_1 = isinstance(cgroups, CgroupsV1)
    # Where the agent is in the group of commands that freezes, it has a way out of it and back.
    of_commands = (*["cgroup.procs"] * 4, "freezer.state", "memory.limit_in_bytes")
    of_version_2 = ("cgroup.procs", "cgroup.freeze", "cgroup.events", "memory.max")
    commands_group = Counter(of_commands if version_1 else of_version_2)
    for box in neighbours:
        links = list(links_of(native(box.live).process.pid))
        kinds = Counter(
            link.partition(":")[0] if link.startswith("socket:") else link.rpartition("/")[2] for link in links
        )
        sockets = kinds.pop("socket")
        assert kinds == {
            "null": 4,
            "anon_inode:[eventpoll]": 1,
            "oom_score_adj": 1,
            "loadavg": 1,
            **commands_group,
            "uid-ranges": 1,
            "memory.stat": 1,
            "cpuacct.stat" if "cpuacct.stat" in kinds else "cpu.stat": 1,
            "": 2,  # the scratch directory and that of its figures, which have no path
        }
        assert sockets <= 6, "the listener, the loop's and the reaper's own pair, a connection from the host"


async def test_one_sandboxs_environment_is_not_in_the_memory_of_the_next(workshop: Workshop) -> None:
    canary = "canary-" + os.urandom(12).hex()
    secret = await create(workshop, "secretive", image="busybox", env={"API_KEY": canary})
    assert canary.encode() in memory_of(native(secret).process.pid)
    for number in range(4):
        live = await create(workshop, f"curious-{number}", image="busybox")
        assert canary.encode() not in memory_of(native(live).process.pid)
        await workshop.destroy(live)
    await workshop.destroy(secret)


def memory_of(pid: int) -> bytes:
    content = b""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            if " rw" in line:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                memory.seek(start)
                content += memory.read(end - start)
    return content
