"""The mounts of a sandbox, and the small root from which the nursery makes them.

Paths inside a sandbox are resolved only after pivot_root, where a symbolic link in an image can lead nowhere but
into the image.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import MountAttribute, MountFlag, Namespace

if TYPE_CHECKING:
    from collections.abc import Collection

    from atoll.engine.native.orders import Exposure
    from atoll.engine.native.views import Views
    from atoll.protocol.rootfs import Overlay

MAX_PTYS = 64  # twice what the agent's terminals take; the kernel has 4,096 for all together, unless told otherwise
STAGE = "/stage"  # mount points in the nursery's root; every child uses them in its own mount namespace

_NO_EXTRAS = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC

_DEVICES = {
    "null": os.makedev(1, 3),
    "zero": os.makedev(1, 5),
    "full": os.makedev(1, 7),
    "random": os.makedev(1, 8),
    "urandom": os.makedev(1, 9),
    "tty": os.makedev(5, 0),
}
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_DEV_DIRECTORIES = ("pts", "shm", "mqueue")


def enter_small_root(runtime: str, exposures: Collection[Exposure]) -> None:
    """Leave the host's tree for one that holds only what sandboxes are made of.

    A child copies the mounts it starts with: from here that is a handful, however many the host has, and none of
    them leads to a host directory that was not exposed.
    """
    syscalls.unshare(Namespace.MOUNT)
    syscalls.mount(None, "/", None, MountFlag.RECURSIVE | MountFlag.PRIVATE)
    trees = {exposure.name: syscalls.open_tree(exposure.path, recursive=True) for exposure in exposures}
    for exposure in exposures:
        if exposure.is_written:
            # A disk that somebody mounted read-only, and for writing again, is told so to his mount alone.
            syscalls.let_write(trees[exposure.name])
    syscalls.mount("tmpfs", runtime, "tmpfs", _NO_EXTRAS, "mode=755,size=1m")
    os.chdir(runtime)
    for name, tree in trees.items():
        os.mkdir(name)
        syscalls.move_mount(tree, name)
        os.close(tree)
    for name in (
        "proc",
        "sys",
        "stage",
        "stage/disk",
        "stage/dev",
        "stage/proc",
        "stage/sys",
        "stage/own",
        "copy",
        "empty",
        "dev",
    ):
        os.mkdir(name)
    syscalls.mount("proc", "proc", "proc", _NO_EXTRAS)
    syscalls.mount("sysfs", "sys", "sysfs", _NO_EXTRAS)
    syscalls.mount("tmpfs", "copy", "tmpfs", _NO_EXTRAS, "mode=755,size=64m")
    syscalls.mount("tmpfs", "dev", "tmpfs", MountFlag.NOSUID | MountFlag.NOEXEC, "mode=755,size=64k")
    dev = os.open("dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _fill_dev(dev)  # the nursery's own: its children start with this /dev/null
    os.close(dev)
    syscalls.pivot_root_here()
    syscalls.detach(".")
    os.chdir("/")


def make_dev(userns: int) -> int:
    """A /dev for one sandbox, as a detached mount.

    Each has its own: on shared inodes, sandboxes could lock each other out with flock, and watch each other with
    inotify. Its file system is read-only, for good.
    """
    files = syscalls.NewFilesystem("tmpfs", mode="755", size="64k")
    try:
        tree = files.mount(MountAttribute.NONE)
        _fill_dev(tree)
        files.make_read_only()
    finally:
        files.close()
    idmap(tree, userns, MountAttribute.READ_ONLY | MountAttribute.NOEXEC | MountAttribute.NOSUID)
    return tree


def make_scratch() -> int:
    """A small file system without a path, for the agent and its shells, which start from there. It counts as the
    sandbox's memory.
    """
    files = syscalls.NewFilesystem("tmpfs", mode="700", size="64m", nr_inodes="8192")
    try:
        return files.mount(MountAttribute.NOSUID | MountAttribute.NODEV)
    finally:
        files.close()


def _fill_dev(directory: int) -> None:
    umask = os.umask(0)
    for name, device in _DEVICES.items():
        os.mknod(name, 0o666 | stat.S_IFCHR, device, dir_fd=directory)
    for name, target in _DEV_LINKS.items():
        os.symlink(target, name, dir_fd=directory)
    for name in _DEV_DIRECTORIES:
        os.mkdir(name, 0o755, dir_fd=directory)
    os.umask(umask)


def mount_system_directories(dev: int, views: Views) -> int:
    """Mount dev, proc and sys on the stage, where they wait for a root to be moved into. Returns the directory of
    what /proc shows of the sandbox itself.

    This comes before the host is out of sight: the kernel allows a new /proc only to someone who can see a whole one
    already. The views come before something is mounted on dev/shm, which stands for an empty directory.
    """
    os.chdir(STAGE)
    syscalls.move_mount(dev, "dev")
    syscalls.mount("proc", "proc", "proc", _NO_EXTRAS)
    figures = views.mount()
    # The kernel has some thousands of ptys for all sandboxes together.
    pts = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_PTYS}"
    syscalls.mount("devpts", "dev/pts", "devpts", MountFlag.NOSUID | MountFlag.NOEXEC, pts)
    syscalls.mount("tmpfs", "dev/shm", "tmpfs", _NO_EXTRAS, "mode=1777,size=64m")
    syscalls.mount("mqueue", "dev/mqueue", "mqueue", _NO_EXTRAS)
    return figures


def open_idmapped(path: str, userns: int, attributes: MountAttribute) -> int:
    """The directory at `path` as a detached mount, every file shown as its owner in the user namespace."""
    tree = syscalls.open_tree(path)
    try:
        idmap(tree, userns, attributes | MountAttribute.NOSUID)
    except OSError:
        os.close(tree)
        raise
    return tree


def idmap(tree: int, userns: int, attributes: MountAttribute) -> None:
    syscalls.mount_setattr(tree, attributes | MountAttribute.IDMAP, userns)


def make_stage(overlays: tuple[Overlay, ...]) -> None:
    """Mount points for the overlays and their layers; made once, found ever after."""
    layers = sum(len(overlay.layers) for overlay in overlays)
    for name in [*(f"l{index}" for index in range(layers)), *(f"o{index}" for index in range(len(overlays)))]:
        with suppress(FileExistsError):
            os.mkdir(f"{STAGE}/{name}")


def mount_overlays(overlays: tuple[Overlay, ...], disk: int, layers: list[int]) -> None:
    """Mount each overlay on the stage, as o0, o1 and so on. `layers` are those of all overlays, in order.

    Paths are relative, since /proc/mounts shows them inside. Mounted from within the user namespace: then an
    overlay on idmapped layers takes writes, and keeps them on disk with owners that belong to no sandbox.

    With nosuid a file's capabilities are ignored rather than demanded: `ping` names one that nobody has.
    """
    os.chdir(STAGE)
    syscalls.move_mount(disk, "disk")
    for index, layer in enumerate(layers):
        syscalls.move_mount(layer, f"l{index}")
    names = (f"l{index}" for index in range(len(layers)))
    for index, overlay in enumerate(overlays):
        lower = ":".join(islice(names, len(overlay.layers)))
        writable = f"upperdir=disk/{overlay.name},workdir=disk/{overlay.name}.work"
        options = f"lowerdir={lower},{writable},userxattr"
        syscalls.mount("overlay", f"o{index}", "overlay", MountFlag.NOSUID | MountFlag.NODEV, options)


def enter_root(overlays: tuple[Overlay, ...]) -> None:
    """Make the first overlay the root, move everything else to its place in it, and lose sight of the host."""
    moves = [(syscalls.hold_mount(f"o{index}"), overlay.target) for index, overlay in enumerate(overlays) if index]
    moves += [(syscalls.hold_mount(name), f"/{name}") for name in ("dev", "proc", "sys")]
    os.chdir("o0")
    syscalls.pivot_root_here()
    for held, target in moves:
        syscalls.move_mount(held, target)
        os.close(held)
    syscalls.detach(".")
    os.chdir("/")
