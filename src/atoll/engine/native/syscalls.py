"""The system calls Python has no function for. Thin, typed, and nothing is decided here."""

from __future__ import annotations

import ctypes
import os
import random
from enum import IntFlag

from atoll.cpu.own import OWN

_libc = ctypes.CDLL(None, use_errno=True)
# Holds the interpreter lock over the call, as fork needs it: no other thread may run while the process is copied.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MNT_DETACH = 2
_IN_MODIFY = 2
_SIGCHLD = 17
NO_SETUID_FIXUP = 4  # a secure bit: capabilities stay as they are when the user changes
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE, _FSCONFIG_CMD_RECONFIGURE = 0, 1, 6, 7
_ZERO = ctypes.c_ulong(0)
_BIND = ctypes.c_ulong(4096)


class Namespace(IntFlag):
    TIME = 0x00000080
    MOUNT = 0x00020000
    CGROUP = 0x02000000
    UTS = 0x04000000
    IPC = 0x08000000
    USER = 0x10000000
    PID = 0x20000000
    NET = 0x40000000


class MountFlag(IntFlag):
    NONE = 0
    READ_ONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    BIND = 4096
    RECURSIVE = 16384
    PRIVATE = 1 << 18


class MountAttribute(IntFlag):
    NONE = 0
    READ_ONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    IDMAP = 0x00100000


class Prctl(IntFlag):
    SET_DUMPABLE = 4
    SET_NAME = 15
    CAPBSET_DROP = 24
    SET_SECUREBITS = 28
    SET_NO_NEW_PRIVS = 38


class _CloneArguments(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000


def clone3(namespaces: Namespace, cgroup: int | None = None) -> int:
    """Fork into new namespaces, and into a version 2 control group. In the child this returns 0.

    A bare clone3 skips what Python does around a fork, so the three hooks are called by hand.
    """
    arguments = _CloneArguments(flags=namespaces, exit_signal=_SIGCHLD)
    if cgroup is not None:
        arguments.flags |= _CLONE_INTO_CGROUP
        arguments.cgroup = cgroup
    _python.PyOS_BeforeFork()
    pid: int = _libc_locked.syscall(OWN.calls["clone3"], ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


class SiblingMaker:
    """Forks a process of one thread into new namespaces; the child has our parent.

    What Python does around a fork is for locks that other threads may hold, and writes to 130 pages, each of which the
    child would have to itself. Here is none of that but new random numbers: without, all children would draw the same.
    """

    def __init__(self, namespaces: Namespace) -> None:
        self._namespaces = int(namespaces) | _CLONE_PARENT
        self._arguments = _CloneArguments()
        self._call = (OWN.calls["clone3"], ctypes.byref(self._arguments), ctypes.sizeof(self._arguments))

    def make(self, cgroup: int | None = None) -> int:
        """If `cgroup` is given, into that control group of version 2. In the child this returns 0."""
        self._arguments.flags = self._namespaces | (0 if cgroup is None else _CLONE_INTO_CGROUP)
        self._arguments.cgroup = cgroup or 0
        pid = _libc_locked.syscall(*self._call)
        if pid == 0:
            random.seed()
        return _check(pid)


def unshare(namespaces: Namespace) -> None:
    _check(_libc.unshare(ctypes.c_int(namespaces)))


def setns(fd: int, namespaces: Namespace) -> None:
    """Enter namespaces of the process that a pidfd means, or the one a descriptor of it means."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(namespaces)))


def open_tree(path: str, *, recursive: bool = False) -> int:
    """A detached copy of the mount at `path`, as a descriptor; if asked, with the mounts below it."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _syscall("open_tree", ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))


def hold_mount(path: str) -> int:
    """The mount at `path` itself, with all that is mounted below it, to be moved elsewhere."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def mount_setattr(tree: int, attributes: MountAttribute, userns_fd: int = 0) -> None:
    """Change a detached mount; with IDMAP, show its files through the id map of `userns_fd`."""
    value = _MountAttributes(set=attributes, userns_fd=userns_fd)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _syscall("mount_setattr", ctypes.c_int(tree), b"", ctypes.c_uint(_AT_EMPTY_PATH), ctypes.byref(value), size)


def let_write(tree: int) -> None:
    """Let a detached mount, and those below it, be written to as far as their file systems can be."""
    value = _MountAttributes(clear=MountAttribute.READ_ONLY)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _syscall("mount_setattr", ctypes.c_int(tree), b"", flags, ctypes.byref(value), size)


def mount_setattr_at(path: bytes, attributes: MountAttribute) -> None:
    """Change the mount at `path`."""
    value = _MountAttributes(set=attributes)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _syscall(
        "mount_setattr",
        ctypes.c_int(_AT_FDCWD),
        path,
        ctypes.c_uint(0),
        ctypes.byref(value),
        size,
    )


def move_mount(tree: int, target: str) -> None:
    """Attach a detached mount at `target`, or move an attached one there."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _syscall("move_mount", ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), os.fsencode(target), flags)


def mount(source: str | None, target: str, fstype: str | None, flags: MountFlag, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, fstype, data)]
    _check(_libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]))


def bind(source: bytes, target: bytes) -> None:
    """Show `source` at `target` too. Done so often that it takes names as the kernel does."""
    _check(_libc.mount(source, target, None, _BIND, None))


class NewFilesystem:
    """A file system in the making, which needs no mount point: `mount` gives it as a detached mount."""

    def __init__(self, fstype: str, flags: tuple[str, ...] = (), **options: str) -> None:
        self._fd = _syscall("fsopen", fstype.encode(), ctypes.c_uint(_FSOPEN_CLOEXEC))
        try:
            for flag in flags:
                self._configure(_FSCONFIG_SET_FLAG, flag)
            for name, value in options.items():
                self._configure(_FSCONFIG_SET_STRING, name, value)
            self._configure(_FSCONFIG_CMD_CREATE)
        except OSError:
            self.close()
            raise

    def mount(self, attributes: MountAttribute) -> int:
        return _syscall("fsmount", ctypes.c_int(self._fd), ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(attributes))

    def make_read_only(self) -> None:
        """The file system itself, for good, however it is mounted."""
        self._configure(_FSCONFIG_SET_FLAG, "ro")
        self._configure(_FSCONFIG_CMD_RECONFIGURE)

    def close(self) -> None:
        os.close(self._fd)

    def _configure(self, command: int, name: str | None = None, value: str | None = None) -> None:
        words = [None if word is None else word.encode() for word in (name, value)]
        _syscall("fsconfig", ctypes.c_int(self._fd), ctypes.c_uint(command), *words, ctypes.c_int(0))


def detach(target: str) -> None:
    """Take the mount at `target` out of the tree now; it goes when nobody uses it."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)))


def pivot_root_here() -> None:
    """Make the current directory the root; the old root is then mounted over "." until it is detached."""
    _syscall("pivot_root", b".", b".")


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    _syscall("close_range", ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))


def open_watch() -> int:
    """A descriptor that becomes readable when a file is modified that it watches."""
    return _check(_libc.inotify_init1(ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK)))


def watch_file(watch: int, path: str) -> None:
    _check(_libc.inotify_add_watch(ctypes.c_int(watch), os.fsencode(path), ctypes.c_uint32(_IN_MODIFY)))


def set_hostname(name: str) -> None:
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))))


def prctl(option: Prctl, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    _check(_libc.prctl(int(option), argument, _ZERO, _ZERO, _ZERO))


def set_capabilities(mask: int) -> None:
    """Keep exactly the capabilities in `mask`: effective and permitted; none inheritable."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def overwrite_arguments(title: bytes) -> None:
    """Replace what /proc/self/cmdline shows. The kernel reads it from our own stack, where it may be written."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, min(len(title), end - start - 1))


def _syscall(name: str, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(OWN.calls[name]), *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
