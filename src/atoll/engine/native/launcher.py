"""The making of one sandbox: `begin` in the nursery, `_live` in the child that becomes its PID 1.

    nursery                                    child
    1  take a range of user ids
    2  bind the agent's socket
    3  directories for what it writes, host name
    4  open layers as detached mounts
    5  clone3 into new namespaces ──────────── waits
    6  write the uid and gid maps
    7  idmap the mounts of step 4
    8  say go ──────────────────────────────── 9  become root of its user namespace
                                               10 cgroup namespace, session, host name, loopback
                                               11 overlays
                                               12 pivot_root, /dev, /proc, /sys, masks, lose the old root
                                               13 close every descriptor but listener, report, uid range
                                               14 capabilities, no_new_privs
                                               15 seccomp, last: set-up needs what it forbids
                                               16 run the agent; report when it listens
    17 tell the engine

The child reports failures with the step's name. It shares no descriptor with another sandbox, no memory that is
written, and no random state.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from atoll.agent import main as agent
from atoll.engine.native import capabilities, mounts, syscalls
from atoll.engine.native.syscalls import Namespace, Prctl
from atoll.engine.native.uid_ranges import RANGE_SIZE

if TYPE_CHECKING:
    from atoll.engine.native.orders import Launch
    from atoll.engine.native.seccomp import SeccompFilter
    from atoll.engine.native.uid_ranges import UidRanges

NAMESPACES = (
    Namespace.USER | Namespace.MOUNT | Namespace.PID | Namespace.NET | Namespace.IPC | Namespace.UTS
)  # and CGROUP, once the child is in its own cgroup
READY = b"R"
PROCESS_NAME = b"atoll-agent"

_LISTENER, _REPORT, _RANGE = 3, 4, 5  # where the child keeps its three descriptors

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_INTERFACE_REQUEST = struct.Struct("16sH22x")


class Kit(msgspec.Struct, frozen=True):
    """What every launch needs, prepared once."""

    uid_ranges: UidRanges
    masks: mounts.Masks
    seccomp: SeccompFilter


class Birth(msgspec.Struct, frozen=True):
    """A child on its way. `report` reads READY, a failure, or nothing if it was killed."""

    launch: Launch
    pid: int
    pidfd: int
    uid_base: int
    report: int


class Failure(msgspec.Struct, frozen=True):
    """Where a launch failed and what the kernel said."""

    step: str
    errno: int
    detail: str


class LaunchFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.step)
        self.failure = failure


class Steps:
    """Remembers the step under way, for the report of its failure."""

    def __init__(self) -> None:
        self.current = ""

    def at(self, step: str) -> None:
        self.current = step

    def failed(self, cause: BaseException) -> Failure:
        return Failure(self.current, cause.errno or 0 if isinstance(cause, OSError) else 0, str(cause))


def begin(launch: Launch, kit: Kit) -> Birth:
    """Steps 1 to 8. On failure nothing remains."""
    steps = Steps()
    with ExitStack() as undo, ExitStack() as close:
        try:
            return _begin(launch, kit, steps, undo, close)
        except Exception as cause:
            raise LaunchFailed(steps.failed(cause)) from cause


def _begin(launch: Launch, kit: Kit, steps: Steps, undo: ExitStack, close: ExitStack) -> Birth:
    steps.at("take a uid range")
    uid_base, range_holder = kit.uid_ranges.take()
    close.callback(os.close, range_holder)

    steps.at("bind the agent's socket")
    listener = close.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(launch.socket)
    undo.callback(os.unlink, launch.socket)
    listener.listen(128)

    steps.at("make the writable layers")
    for overlay in launch.overlays:
        if _make_writable_layer(f"{launch.disk}/{overlay.name}") and overlay.target == "/":
            _write_host_name(f"{launch.disk}/{overlay.name}/upper/etc", launch.sandbox_id)

    steps.at("open the layers")
    trees = mounts.Trees(launch.overlays, launch.disk)
    close.callback(trees.close)
    mounts.make_stage(sum(len(overlay.layers) for overlay in launch.overlays), len(launch.overlays))

    steps.at("clone3")
    report_reader, report_writer = os.pipe()
    close.callback(os.close, report_writer)
    undo.callback(os.close, report_reader)
    go_reader, go_writer = os.pipe()
    close.callback(os.close, go_reader)
    pid, pidfd = syscalls.clone3(NAMESPACES)
    if pid == 0:
        _Child(launch, kit, trees, listener, report_writer, range_holder).live(go_reader, go_writer)
    undo.callback(_kill, pid, pidfd)

    with os.fdopen(go_writer, "wb", buffering=0) as go:
        steps.at("write the id maps")
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{pid}/{name}", f"0 {uid_base} {RANGE_SIZE}")
        steps.at("idmap the layers")
        userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        close.callback(os.close, userns)
        trees.show_as(userns)
        go.write(b"g")

    undo.pop_all()
    return Birth(launch, pid, pidfd, uid_base, report_reader)


class _Child:
    """The child's side, steps 9 to 16."""

    def __init__(
        self,
        launch: Launch,
        kit: Kit,
        trees: mounts.Trees,
        listener: socket.socket,
        report: int,
        range_holder: int,
    ) -> None:
        self._launch = launch
        self._kit = kit
        self._trees = trees
        self._listener = listener
        self._report = report
        self._range_holder = range_holder

    def live(self, go_reader: int, go_writer: int) -> NoReturn:
        steps = Steps()
        try:
            os.close(go_writer)
            if not os.read(go_reader, 1):
                os._exit(1)  # the nursery gave up
            self._set_up(steps)
            steps.at("run the agent")
            listener = socket.socket(fileno=_LISTENER)
            agent.run(listener, self._launch.env, on_ready=lambda: _finish_report(READY))
        except BaseException as cause:
            with suppress(OSError):
                os.write(self._report, msgspec.msgpack.encode(steps.failed(cause)))
            os._exit(1)

    def _set_up(self, steps: Steps) -> None:
        steps.at("become root inside")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        steps.at("enter the cgroup namespace")
        syscalls.unshare(Namespace.CGROUP)
        os.setsid()
        steps.at("set the host name")
        syscalls.set_hostname(self._launch.sandbox_id)
        syscalls.prctl(Prctl.SET_NAME, PROCESS_NAME)
        steps.at("bring up loopback")
        _bring_up_loopback()
        steps.at("mount the overlays")
        mounts.mount_overlays(self._launch.overlays, self._trees)
        steps.at("enter the root")
        mounts.enter_root(self._launch.overlays, self._trees, self._kit.masks)
        steps.at("keep three descriptors")
        self._keep_descriptors()
        steps.at("drop capabilities")
        capabilities.drop_the_rest()
        steps.at("install the seccomp filter")
        self._kit.seccomp.install()

    def _keep_descriptors(self) -> None:
        """Listener, report and uid range to known places, /dev/null to 0, 1 and 2, everything else closed."""
        wanted = (self._listener.fileno(), self._report, self._range_holder)
        kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in wanted]  # clear of where they go
        null = os.open("/dev/null", os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        for fd, target in zip(kept, (_LISTENER, _REPORT, _RANGE), strict=True):
            os.dup2(fd, target, inheritable=False)
        self._report = _REPORT
        self._listener.detach()
        syscalls.close_from(max(_LISTENER, _REPORT, _RANGE) + 1)


def _make_writable_layer(path: str) -> bool:
    """The upper and work directories an overlay needs; True if they are new."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    os.mkdir(f"{path}/upper", 0o755)
    os.mkdir(f"{path}/work", 0o700)
    return True


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = _INTERFACE_REQUEST.pack(b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _write_host_name(etc: str, name: str) -> None:
    """What programs read to learn who they are, put straight into the new layer."""
    os.mkdir(etc, 0o755)
    _write(f"{etc}/hostname", f"{name}\n", os.O_CREAT)
    hosts = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{name}\n"
    _write(f"{etc}/hosts", hosts, os.O_CREAT)


def _finish_report(report: bytes) -> None:
    os.write(_REPORT, report)
    os.close(_REPORT)


def _write(path: str, text: str, flags: int = 0) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _kill(pid: int, pidfd: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(pidfd)
