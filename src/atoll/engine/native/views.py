"""The views of /proc and /sys: a sandbox's own figures, what is the same for all, and nothing of the host.

Rules:
1. What of /proc is not listed here is hidden: kernels have other files every year. What only the host's root may read
   is left as it is, unless it is worth a second defence.
2. /sys is none. It is a copy of the few files that programs look for, taken when the nursery starts; so are
   /proc/sys/fs, and what of /proc counts what the whole machine does, with zeros.
3. No two sandboxes share an inode, by which they could lock each other out, or watch each other: each has an overlay of
   its own over the copy, and a file system of its own with its figures.
4. Its figures are kept up to date by PID 1 (agent/figures.py), through a directory that has no path.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from glob import iglob
from typing import TYPE_CHECKING

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import MountAttribute, MountFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COPY, EMPTY = "/copy/files", "/copy/empty"  # in the nursery's root; the first with proc and sys in it

_NO_EXTRAS = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC

# Files that PID 1 writes, and one that never changes.
FIGURES = ("loadavg", "meminfo", "stat", "uptime")
OWN = (*FIGURES, "sys/kernel/random/boot_id")
_FOR_ALL = "cpuinfo execdomains filesystems mounts net self sys sysvipc thread-self tty version"
SHOWN = frozenset((*FIGURES, *_FOR_ALL.split()))
HIDDEN = ("kcore", "sched_debug", "sysrq-trigger", "timer_list")  # although their modes protect them
HIDDEN_SETTINGS = ("sys/kernel/pty/nr",)
READ_ONLY = (b"sys",)

_CPU, _NODE = "devices/system/cpu", "devices/system/node"
SYS_FILES = (
    f"{_CPU}/*",
    f"{_CPU}/smt/*",
    f"{_CPU}/vulnerabilities/*",
    f"{_CPU}/cpu[0-9]*/online",
    f"{_CPU}/cpu[0-9]*/topology/*",
    f"{_CPU}/cpu[0-9]*/cache/index[0-9]*/*",
    f"{_NODE}/*",
    f"{_NODE}/node[0-9]*/cpu*",
    f"{_NODE}/node[0-9]*/distance",
    "devices/system/clocksource/clocksource0/*_clocksource",
    "class/net/lo/[!u]*",
    "kernel/address_bits",
    "kernel/cpu_byteorder",
    "kernel/mm/transparent_hugepage/[!k]*",
)
SYS_DIRECTORIES = ("block", "bus", "dev/block", "dev/char", "firmware", "fs/cgroup", "module", "power")
MOST_OF_A_FILE = 1 << 16


class Views:
    """The things that a mount of /proc and /sys takes. Made once; it is the same for every sandbox."""

    def __init__(self) -> None:
        copied = dict(copied_of_proc())
        _write_copy({**copied, **dict(copied_of_sys())})
        for name in SYS_DIRECTORIES:
            os.makedirs(f"{COPY}/sys/{name}", exist_ok=True)
        os.mkdir(EMPTY)
        copies = [name[len("proc/") :] for name in copied if name.count("/") == 1]
        self._hiding = list(binds_that_hide(set(copies)))
        self._showing = [(f"sys/proc/{name}".encode(), f"proc/{name}".encode()) for name in (*copies, "sys/fs")]
        self._showing += [(b"sys/sys", b"sys")]
        self._showing += [(f"own/{os.path.basename(name)}".encode(), f"proc/{name}".encode()) for name in OWN]

    def mount(self) -> int:
        """Mount sys, and change proc, in the current directory, with what is in dev; both of these are the sandbox's
        own. Returns the directory of its figures.
        """
        for name in READ_ONLY:
            syscalls.bind(b"proc/" + name, b"proc/" + name)
            syscalls.mount_setattr_at(b"proc/" + name, MountAttribute.READ_ONLY)
        figures = make_figures()
        self.show()
        syscalls.detach("own")
        syscalls.detach("own")
        return figures

    def show(self) -> None:
        for source, target in self._hiding:
            syscalls.bind(source, target)
        lower = f"lowerdir={COPY}:{EMPTY},userxattr"  # without a layer to write to it takes two
        syscalls.mount("none", "sys", "overlay", _NO_EXTRAS | MountFlag.READ_ONLY, lower)
        for source, target in self._showing:
            syscalls.bind(source, target)


def make_figures() -> int:
    """The directory of a file system that is attached only until its files have been put in their places.

    It is mounted twice: the one that we write to is beneath the one that is shown, which is read-only.
    """
    syscalls.mount("none", "own", "tmpfs", _NO_EXTRAS, "mode=755,size=64k,nr_inodes=16")
    directory = os.open("own", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in FIGURES:
        os.mknod(name, 0o444 | stat.S_IFREG, dir_fd=directory)
    fd = os.open("boot_id", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444, dir_fd=directory)
    os.write(fd, boot_id(os.urandom(16)))
    os.close(fd)
    syscalls.bind(b"own", b"own")
    syscalls.mount_setattr_at(b"own", MountAttribute.READ_ONLY)
    return directory


def boot_id(random: bytes) -> bytes:
    """As the kernel writes one: a UUID of version 4."""
    digits = random.hex()
    variant = "89ab"[random[8] & 3]
    parts = (digits[:8], digits[8:12], f"4{digits[13:16]}", variant + digits[17:20], digits[20:])
    return f"{'-'.join(parts)}\n".encode()


def binds_that_hide(copied: set[str]) -> Iterator[tuple[bytes, bytes]]:
    for name in to_hide(copied):
        yield b"dev/shm" if os.path.isdir(f"/proc/{name}") else b"dev/null", f"proc/{name}".encode()


def to_hide(copied: set[str]) -> Iterator[str]:
    for name in sorted(os.listdir("/proc")):
        is_known = name.isdigit() or name in SHOWN or name in copied
        if name in HIDDEN or (not is_known and os.lstat(f"/proc/{name}").st_mode & stat.S_IROTH):
            yield name
    yield from (name for name in HIDDEN_SETTINGS if os.path.exists(f"/proc/{name}"))


def copied_of_proc() -> Iterator[tuple[str, bytes]]:
    """Names in the copy, and contents."""
    changed: dict[str, Callable[[bytes], bytes]] = {
        "cgroups": count_one_group,
        "partitions": first_lines,
        "swaps": first_lines,
        "vmstat": count_nothing,
    }
    for name, change in changed.items():
        if (content := _read(f"/proc/{name}")) is not None:
            yield f"proc/{name}", change(content)
    for path in iglob("/proc/sys/fs/**", recursive=True):
        name = path.removeprefix("/proc/sys/fs/")
        if not name.startswith(("binfmt_misc", "quota", "xfs")) and (content := _read(path)) is not None:
            yield path[1:], setting(name, content)


def copied_of_sys() -> Iterator[tuple[str, bytes]]:
    for pattern in SYS_FILES:
        for path in iglob(f"/sys/{pattern}"):
            if (content := _read(path)) is not None:
                yield path[1:], content


def first_lines(table: bytes) -> bytes:
    """A table's heading, with the empty line that some have after it."""
    heading, _, rest = table.partition(b"\n")
    return heading + (b"\n\n" if rest.startswith(b"\n") else b"\n")


def count_nothing(counts: bytes) -> bytes:
    return b"".join(line.split()[0] + b" 0\n" for line in counts.splitlines())


def count_one_group(table: bytes) -> bytes:
    heading, *lines = table.splitlines()
    rows = (line.split() for line in lines)
    return b"\n".join([heading, *(b"\t".join([name, number, b"1", on]) for name, number, _, on in rows)]) + b"\n"


def setting(name: str, content: bytes) -> bytes:
    """Limits as they are; how much of them the machine uses is nobody's business."""
    if not name.endswith(("-nr", "-state")):
        return content
    words = content.split()
    used = len(words) if name != "file-nr" else len(words) - 1
    return b"\t".join([b"0"] * used + words[used:]) + b"\n"


def _read(path: str) -> bytes | None:
    """A file that everybody may read; None if it is none, or cannot be."""
    with suppress(OSError):
        if stat.S_ISREG((status := os.lstat(path)).st_mode) and status.st_mode & stat.S_IROTH:
            with open(path, "rb", 0) as file:
                return file.read(MOST_OF_A_FILE)
    return None


def _write_copy(files: dict[str, bytes]) -> None:
    """Files with the same content are one: those of a hundred cpus differ little."""
    written: dict[bytes, str] = {}
    for name, content in files.items():
        path = f"{COPY}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if content in written:
            os.link(written[content], path)
            continue
        with open(path, "xb") as file:
            file.write(content)
        written[content] = path
