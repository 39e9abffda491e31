"""The `host` image: the host's own /usr, over which a sandbox writes without touching it.

Nothing is downloaded and nothing is built but a small root: an /etc that says nothing about the host's people, an
empty /var with a copy of the package database, and the usual directories. It is made anew when the host's packages,
libraries or accounts change; a sandbox keeps the one it was made on.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import struct
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from atoll.images import debian_etc
from atoll.images.names import HOST
from atoll.images.skeleton import plain_umask, write_skeleton
from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.rootfs import Overlay, Rootfs
from atoll.telemetry.preparations import preparing

FORMAT = 1  # part of the state: a new way of building makes new roots
WATCHED = (
    "var/lib/dpkg/status",
    "etc/ld.so.cache",
    "etc/passwd",
    "etc/group",
    "etc/alternatives",
    "etc/ssl/certs",
    "etc/pam.d",
    "usr/lib/os-release",
)
MERGED = ("bin", "sbin", "lib")  # must lead into /usr
OPTIONALLY_MERGED = ("lib32", "lib64", "libx32")
VAR_DIRECTORIES = (
    "var/cache/apt/archives/partial",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "var/lib/apt/lists/partial",
    "var/lib/misc",
    "var/lib/pam",
    "var/lib/python",
    "var/log/apt",
    "var/mail",
    "var/opt",
    "var/spool",
)
LOCKS = ("var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend")
FLOCK = "hhqqi4x"  # struct flock, on machines of 64 bits
PATIENCE_SECONDS, PAUSE_SECONDS = 10.0, 0.2
_MAKING = "making-"  # and the builder's pid: a root under construction
ENV = {
    # Debian keeps pip away from the system's Python, which inside is the sandbox's own.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}


HostLook = tuple[tuple[str | int, ...], ...]


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the host that an image stands for."""

    digest: str
    system: str


class HostImage:
    """Builds the root when the host has changed, and finds it when not. `host` is the host's root directory."""

    def __init__(self, store: Path, host: Path = Path("/"), usr: Path | None = None) -> None:
        self._store = store / HOST
        self._host = host
        self._usr = usr or host / "usr"
        self.patience = PATIENCE_SECONDS
        self._latest: tuple[HostLook, Path, Rootfs] | None = None
        self._building = threading.Lock()

    def known(self) -> Rootfs | None:
        """The root that `resolve` would return, unless it has to build it first."""
        latest = self._latest
        if latest and latest[0] == look_at_host(self._host) and latest[1].is_dir():
            return latest[2]
        return None

    def resolve(self) -> Rootfs:
        """In any thread; one at a time builds, as it changes the umask of all."""
        with self._building:
            rootfs = self.known()
            if rootfs is None:
                seen = look_at_host(self._host)
                rootfs = self._resolve()
                self._latest = seen, Path(rootfs.overlays[0].layers[0]), rootfs
            return rootfs

    def _resolve(self) -> Rootfs:
        """While packages are installed files come and go, so a root that cannot be built then is tried again."""
        check_layout(self._host)
        deadline = time.monotonic() + self.patience
        while True:
            state = read_host_state(self._host)
            root = self._store / state.digest
            try:
                if not root.is_dir():
                    with preparing("the image of this host, as its packages are now"):
                        self._build(root, state)
                return self._rootfs(root, self._label(state))
            except OSError as cause:
                if root.is_dir():  # somebody else was faster, and theirs is as good
                    continue
                if not (pid := package_manager(self._host)):
                    raise self._not_built(cause) from cause
                if time.monotonic() > deadline:
                    raise _packages_change(pid, cause) from cause
            time.sleep(PAUSE_SECONDS)

    def recall(self, label: str) -> Rootfs:
        """The root of an earlier state. The host's /usr is the one there is now."""
        root = self._store / label.split()[0]
        if not root.is_dir():
            raise error(
                ErrorCode.IMAGE_NOT_FOUND,
                f"the host image {label!r:.100} is gone",
                remedy="Take what you need from the sandbox's disk, destroy it, and make a new one.",
                image=HOST,
            )
        return self._rootfs(root, label)

    def _rootfs(self, root: Path, label: str) -> Rootfs:
        return Rootfs(
            image=HOST,
            state=label,
            overlays=(
                Overlay(name="root", target="/", layers=(str(root / "root"),)),
                Overlay(name="usr", target="/usr", layers=(str(self._usr),)),
            ),
            env=ENV,
        )

    def forget(self, used: set[str]) -> None:
        """Remove the roots of earlier states of the host, but for those that sandboxes were made on."""
        used = used | {self._label(read_host_state(self._host))}
        for directory in self._store.glob("*"):
            if directory.name.startswith(_MAKING):
                builder = directory.name.split("-")[1]
                is_garbage = not Path(f"/proc/{builder}").exists()
            else:
                is_garbage = not any(state.startswith(directory.name) for state in used)
            if is_garbage:
                shutil.rmtree(directory, ignore_errors=True)

    @staticmethod
    def _label(state: HostState) -> str:
        return f"{state.digest} ({state.system})"

    def _build(self, target: Path, state: HostState) -> None:
        self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{_MAKING}{os.getpid()}-", dir=self._store))
        try:
            root = work / "root"
            root.mkdir(mode=0o755)
            with plain_umask():
                self._fill(root)
            (work / "state.json").write_bytes(msgspec.json.encode(state))
            work.rename(target)
        except OSError:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def _not_built(self, cause: OSError) -> AtollError:
        if (number := _number(cause)) in (errno.ENOSPC, errno.EDQUOT):
            return cannot_write(str(self._store), OSError(number, os.strerror(number)))
        return error(
            ErrorCode.HOST_IMAGE_NOT_POSSIBLE,
            f"the host image could not be built: {_reason(cause)}",
            remedy=f"Check that {self._store} is writable and has 100 MB free.",
            path=str(self._store),
        )

    def _fill(self, root: Path) -> None:
        write_skeleton(root)
        for name in (*MERGED, *OPTIONALLY_MERGED):
            if (self._host / name).is_symlink():
                (root / name).symlink_to((self._host / name).readlink())
        for name in VAR_DIRECTORIES:
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "var/run").symlink_to("/run")
        (root / "var/lock").symlink_to("/run/lock")
        debian_etc.write_etc(self._host, root / "etc")
        copy_package_database(self._host / "var/lib/dpkg", root / "var/lib/dpkg")


def _packages_change(pid: int, cause: OSError) -> AtollError:
    return error(
        ErrorCode.HOST_IMAGE_NOT_POSSIBLE,
        f"the host image could not be built while packages of this host are installed or removed, by process {pid}: "
        f"{_reason(cause)}",
        remedy="Nothing else is wrong. Wait until apt or dpkg is done, then ask again.",
        pid=pid,
    )


def _reason(cause: OSError) -> str:
    """Of many files that could not be copied, the first."""
    if isinstance(cause, shutil.Error) and cause.args and isinstance(cause.args[0], list):
        return str(cause.args[0][0][-1])
    return str(cause)


def _number(cause: OSError) -> int | None:
    """The errno; of many files that could not be copied, of which only texts are left, of the first."""
    if cause.errno is None and (found := re.match(r"\[Errno (\d+)\]", _reason(cause))):
        return int(found[1])
    return cause.errno


def package_manager(host: Path) -> int | None:
    """The process that holds a lock of dpkg's or apt's, if one does."""
    for name in LOCKS:
        with suppress(OSError), (host / name).open("rb") as file:
            asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return int(pid)
    return None


def check_layout(host: Path) -> None:
    """Raise if /usr is not the whole system: what is outside of it would be missing inside."""
    for name in MERGED:
        link = host / name
        if not link.is_symlink() or link.readlink().parts[-2:-1] != ("usr",):
            raise error(
                ErrorCode.HOST_IMAGE_NOT_POSSIBLE,
                f"/{name} does not lead into /usr on this host",
                remedy="Install usrmerge, or use another image.",
                path=f"/{name}",
            )


def look_at_host(host: Path) -> HostLook:
    """A state of the host, by its marks. Cheap enough for each sandbox: times and sizes, not contents."""
    return tuple((name, *_identity(f"{host}/{name}")) for name in WATCHED)


def _identity(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)  # noqa: PTH116 (eight for each sandbox, and pathlib takes four times as long)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_host_state(host: Path) -> HostState:
    digest = hashlib.sha256(repr((FORMAT, look_at_host(host))).encode())
    return HostState(digest=digest.hexdigest()[:16], system=system_name(host))


def system_name(host: Path) -> str:
    """As the host calls itself, such as "Debian GNU/Linux 12 (bookworm)"."""
    release = host / "usr/lib/os-release"
    lines = release.read_text(errors="replace").splitlines() if release.exists() else []
    names = (line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME="))
    return next(names, "unknown system")


def copy_package_database(source: Path, target: Path) -> None:
    """The files by which dpkg knows what is installed. Its lock files stay behind: they are the host's."""
    if source.is_dir():
        ignore = shutil.ignore_patterns("lock", "lock-frontend", "Lock", "*-old")
        shutil.copytree(source, target, symlinks=True, ignore=ignore)
