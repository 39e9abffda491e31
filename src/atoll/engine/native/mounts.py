"""The mounts of a sandbox, and the small root from which the nursery makes them.

Paths inside a sandbox are resolved only after pivot_root, where a symbolic link in an image can lead nowhere but
into the image.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import MountAttribute, MountFlag, Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.engine.native.orders import Exposure
    from atoll.protocol.rootfs import Overlay

STAGE = "/stage"  # mount points in the nursery's root; every child uses them in its own mount namespace
DEV = "/dev"
EMPTY = "/empty"

_NO_EXTRAS = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC

# What tells about the host, or lets root inside act on it.
HIDDEN = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/sys/block",
    "/sys/devices/virtual/dmi",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_DEV_DIRECTORIES = ("pts", "shm", "mqueue")


def enter_small_root(runtime: str, exposures: Iterable[Exposure]) -> None:
    """Leave the host's tree for one that holds only what sandboxes are made of.

    A child copies the mounts it starts with: from here that is a handful, however many the host has, and none of
    them leads to a host directory that was not exposed.
    """
    syscalls.unshare(Namespace.MOUNT)
    syscalls.mount(None, "/", None, MountFlag.RECURSIVE | MountFlag.PRIVATE)
    trees = {exposure.name: syscalls.open_tree(exposure.path, recursive=True) for exposure in exposures}
    syscalls.mount("tmpfs", runtime, "tmpfs", _NO_EXTRAS, "mode=755,size=1m")
    os.chdir(runtime)
    for name, tree in trees.items():
        os.mkdir(name)
        syscalls.move_mount(tree, name)
        os.close(tree)
    for name in ("proc", "sys", STAGE[1:], f"{STAGE[1:]}/disk", EMPTY[1:], DEV[1:]):
        os.mkdir(name)
    syscalls.mount("proc", "proc", "proc", _NO_EXTRAS)
    syscalls.mount("sysfs", "sys", "sysfs", _NO_EXTRAS)
    _make_dev(DEV[1:])
    syscalls.pivot_root_here()
    syscalls.detach(".")
    os.chdir("/")


def _make_dev(path: str) -> None:
    """A /dev to be shared by all sandboxes. Its file system is read-only: nobody can leave anything there."""
    syscalls.mount("tmpfs", path, "tmpfs", MountFlag.NOSUID | MountFlag.NOEXEC, "mode=755,size=64k")
    umask = os.umask(0)
    for name, numbers in _DEVICES.items():
        os.mknod(f"{path}/{name}", 0o666 | stat.S_IFCHR, os.makedev(*numbers))
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"{path}/{name}")
    for name in _DEV_DIRECTORIES:
        os.mkdir(f"{path}/{name}", 0o755)
    os.umask(umask)
    syscalls.mount(None, path, None, MountFlag.REMOUNT | MountFlag.READ_ONLY | MountFlag.NOSUID | MountFlag.NOEXEC)


class Masks:
    """What of /proc and /sys is hidden or read-only here. Looked up once; every sandbox has the same."""

    def __init__(self) -> None:
        self._files = [path for path in HIDDEN if os.path.exists(path) and not os.path.isdir(path)]
        self._directories = [path for path in HIDDEN if os.path.isdir(path)]
        self._read_only = [path for path in READ_ONLY if os.path.isdir(path)]

    def apply(self, empty_tree: int) -> None:
        for path in self._files:
            syscalls.mount("/dev/null", path, None, MountFlag.BIND)
        if self._directories:
            first, *others = self._directories
            syscalls.move_mount(empty_tree, first)
            for path in others:
                syscalls.mount(first, path, None, MountFlag.BIND)
        for path in self._read_only:
            syscalls.mount(path, path, None, MountFlag.BIND)
            syscalls.mount_setattr_at(path, MountAttribute.READ_ONLY)


class Trees:
    """The detached mounts that one sandbox is put together from: opened by the nursery, attached by the child."""

    def __init__(self, overlays: Iterable[Overlay], disk: str) -> None:
        self._opened: list[int] = []
        try:
            self.layers = [[self._open(layer) for layer in overlay.layers] for overlay in overlays]
            self.disk = self._open(disk)
            self.dev = self._open(DEV)
            self.empty = self._open(EMPTY)
        except BaseException:
            self.close()
            raise

    def show_as(self, userns_fd: int) -> None:
        """Show every file as its owner in the user namespace, whose ids start elsewhere on the host."""
        plain = MountAttribute.IDMAP | MountAttribute.NOSUID | MountAttribute.NODEV
        for layer in (layer for layers in self.layers for layer in layers):
            syscalls.mount_setattr(layer, plain | MountAttribute.READ_ONLY, userns_fd)
        syscalls.mount_setattr(self.disk, plain, userns_fd)
        devices = MountAttribute.IDMAP | MountAttribute.NOSUID | MountAttribute.NOEXEC | MountAttribute.READ_ONLY
        syscalls.mount_setattr(self.dev, devices, userns_fd)
        syscalls.mount_setattr(self.empty, plain | MountAttribute.READ_ONLY | MountAttribute.NOEXEC, userns_fd)

    def close(self) -> None:
        for fd in self._opened:
            os.close(fd)

    def _open(self, path: str) -> int:
        fd = syscalls.open_tree(path)
        self._opened.append(fd)
        return fd


def make_stage(layers: int, overlays: int) -> None:
    """Mount points for that many layers and overlays; made once, found ever after."""
    for name in [*(f"l{index}" for index in range(layers)), *(f"o{index}" for index in range(overlays))]:
        path = f"{STAGE}/{name}"
        if not os.path.isdir(path):
            os.mkdir(path)


def mount_overlays(overlays: tuple[Overlay, ...], trees: Trees) -> None:
    """Mount each overlay on the stage, as o0, o1 and so on.

    Paths are relative, since /proc/mounts shows them inside. Mounted from within the user namespace: then an
    overlay on idmapped layers takes writes, and keeps them on disk with owners that belong to no sandbox.
    """
    os.chdir(STAGE)
    syscalls.move_mount(trees.disk, "disk")
    position = 0
    for index, (overlay, layers) in enumerate(zip(overlays, trees.layers, strict=True)):
        names = [f"l{position + offset}" for offset in range(len(layers))]
        position += len(layers)
        for name, layer in zip(names, layers, strict=True):
            syscalls.move_mount(layer, name)
        disk = f"disk/{overlay.name}"
        options = f"lowerdir={':'.join(names)},upperdir={disk}/upper,workdir={disk}/work,userxattr"
        syscalls.mount("overlay", f"o{index}", "overlay", MountFlag.NODEV, options)


def enter_root(overlays: tuple[Overlay, ...], trees: Trees, masks: Masks) -> None:
    """Make the first overlay the root, put the rest where it belongs, and lose sight of the host."""
    others = [(syscalls.open_tree(f"o{index}"), overlay.target) for index, overlay in enumerate(overlays) if index]
    os.chdir("o0")
    syscalls.pivot_root_here()
    for tree, target in others:
        syscalls.move_mount(tree, target)
    syscalls.move_mount(trees.dev, "/dev")
    syscalls.mount("proc", "/proc", "proc", _NO_EXTRAS)
    syscalls.mount("sysfs", "/sys", "sysfs", _NO_EXTRAS | MountFlag.READ_ONLY)
    pts = "newinstance,ptmxmode=0666,mode=0620"
    syscalls.mount("devpts", "/dev/pts", "devpts", MountFlag.NOSUID | MountFlag.NOEXEC, pts)
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", _NO_EXTRAS, "mode=1777,size=64m")
    syscalls.mount("mqueue", "/dev/mqueue", "mqueue", _NO_EXTRAS)
    masks.apply(trees.empty)
    # Only now: the kernel allows a new /proc or /sys only to someone who can already see a whole one.
    syscalls.detach(".")
    os.chdir("/")
