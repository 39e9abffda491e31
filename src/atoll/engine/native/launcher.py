"""The making of one sandbox, in two halves, between the nursery and the child that becomes its PID 1.

`conceive` makes an embryo: a child in its own namespaces, with the agent set up and waiting. It knows nothing yet of
the sandbox it will be, so the nursery can have some ready. `hatch` gives it a root, a name and an environment.

    nursery                                    child
    1  take a range of user ids, make a cgroup
    2  bind the agent's socket
    3  let the zygote clone3 into new
       namespaces ──────────────────────────── join the cgroup, keep some descriptors, wait
    4  write the uid and gid maps
    5  say go, with a new /dev ─────────────── 6  become root of its user namespace
                                               7  cgroup namespace, session, clocks, network
                                               8  /dev, /proc and /sys, on the stage
                                               9  open the agent, wait for an order
    10 directories for what it writes
    11 open and idmap the layers
    12 send the order ──────────────────────── 14 host name
    13 limits, meanwhile                       15 overlays
                                               16 pivot_root, move the mounts of step 8, lose the old root
                                               17 capabilities, no_new_privs
                                               18 seccomp, last: set-up needs what it forbids
                                               19 run the agent, report
    20 the cpu quota; tell the engine, which
       says keep once it has it on record ──── 21 live on

The child reports failures with the step's name. It shares no descriptor with another sandbox, no memory that is
written, and no random state. An embryo ends with the nursery, a sandbox that is on nobody's record with the engine.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from atoll.agent.commands.group import Freezing
from atoll.agent.main import Agent
from atoll.engine.native import capabilities, clocks, gateway_rules, mounts, syscalls
from atoll.engine.native.cgroups import Cgroups
from atoll.engine.native.group_files import group_name
from atoll.engine.native.orders import KEEP
from atoll.engine.native.syscalls import MountAttribute, Namespace, Prctl
from atoll.engine.native.uid_ranges import RANGE_SIZE

if TYPE_CHECKING:
    from atoll.engine.native.orders import Launch
    from atoll.engine.native.seccomp import SeccompFilter
    from atoll.engine.native.uid_ranges import UidRanges
    from atoll.engine.native.views import Views
    from atoll.engine.native.zygote import Zygote

from atoll.protocol.rootfs import Overlay

NAMESPACES = (
    Namespace.USER | Namespace.MOUNT | Namespace.PID | Namespace.NET | Namespace.IPC | Namespace.UTS
)  # and CGROUP, once the child is in its own cgroup
READY = b"ready"
PROCESS_NAME = b"atoll-agent"
SOCKETS = "/agents"
OOM_SCORE = 100  # of every agent, above whoever makes sandboxes; with CAP_SYS_RESOURCE written, also the least inside
MAX_ORDER = 1 << 18
MAX_LAYERS = 128

_LISTENER, _CHANNEL, _RANGE, _COMMANDS = 3, 4, 5, 6  # where the child keeps its descriptors; of the last there are more

_OF_NO_ACCOUNT = 65_535  # no system gives it to anybody: in 16 bits it was "no id"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_INTERFACE_REQUEST = struct.Struct("16sH22x")


class Kit(msgspec.Struct, frozen=True):
    """The tools of every launch, prepared once."""

    uid_ranges: UidRanges
    cgroups: Cgroups
    zygote: Zygote


class ChildKit(msgspec.Struct, frozen=True):
    """The things that every child needs, and finds in its memory."""

    views: Views
    seccomp: SeccompFilter
    agent: Agent  # each child opens its own copy
    open_files: tuple[int, int]  # soft and hard
    freezing: Freezing


class Embryo(msgspec.Struct, frozen=True):
    """A child that waits for its order. `channel` then reads READY, a Failure, or nothing if it was killed."""

    pid: int
    pidfd: int
    uid_base: int
    userns: int
    channel: socket.socket
    socket_name: str

    @property
    def cgroup(self) -> str:
        return group_name(self.uid_base)


class Order(msgspec.Struct, frozen=True):
    """The order that turns an embryo into a sandbox. Descriptors come along: environment, meters, disk, layers."""

    hostname: str
    overlays: tuple[Overlay, ...]
    memory: int


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
        number = cause.errno if isinstance(cause, OSError) else None
        return Failure(self.current, number or 0, str(cause) or type(cause).__name__)


_encode = msgspec.msgpack.Encoder().encode
_decode_env = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_order = msgspec.msgpack.Decoder(Order).decode
decode_failure = msgspec.msgpack.Decoder(Failure).decode


def conceive(kit: Kit) -> Embryo:
    """Steps 1 to 5. On failure nothing remains."""
    steps = Steps()
    with ExitStack() as undo, ExitStack() as close:
        try:
            return _conceive(kit, steps, undo, close)
        except Exception as cause:
            raise LaunchFailed(steps.failed(cause)) from cause


def _conceive(kit: Kit, steps: Steps, undo: ExitStack, close: ExitStack) -> Embryo:
    steps.at("take a uid range")
    uid_base, range_holder = kit.uid_ranges.take()
    close.callback(os.close, range_holder)

    steps.at("make a cgroup")
    group = group_name(uid_base)
    kit.cgroups.create(group)
    undo.callback(kit.cgroups.remove, group)
    cgroup, joins = kit.cgroups.clone_into(group), kit.cgroups.joins(group)
    commands = kit.cgroups.open_commands(group)
    for fd in (*commands, *(joins if cgroup is None else [cgroup])):
        close.callback(os.close, fd)

    steps.at("bind the agent's socket")
    socket_name = f"{os.urandom(8).hex()}.sock"
    listener = close.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(f"{SOCKETS}/{socket_name}")
    undo.callback(os.unlink, f"{SOCKETS}/{socket_name}")
    listener.listen(128)

    steps.at("clone3")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    undo.callback(ours.close)
    close.callback(theirs.close)
    pid, pidfd = kit.zygote.clone(
        uid_base, [listener.fileno(), theirs.fileno(), range_holder, *commands, *joins], cgroup
    )
    undo.callback(_kill, pid, pidfd)

    steps.at("write the id maps")
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/{pid}/{name}", f"0 {uid_base} {RANGE_SIZE}")
    _write(f"/proc/{pid}/oom_score_adj", str(OOM_SCORE))
    userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    undo.callback(os.close, userns)

    steps.at("make /dev")
    dev = mounts.make_dev(userns)
    close.callback(os.close, dev)
    socket.send_fds(ours, [b"go"], [dev])

    undo.pop_all()
    return Embryo(pid, pidfd, uid_base, userns, ours, socket_name)


def hatch(embryo: Embryo, launch: Launch, env: int, kit: Kit) -> None:
    """Steps 10 to 13. The answer comes on the embryo's channel."""
    steps = Steps()
    with ExitStack() as close:
        try:
            steps.at("make the writable layers")
            for overlay in launch.overlays:
                if _make_writable_layer(f"{launch.disk}/{overlay.name}") and overlay.target == "/":
                    _write_host_name(f"{launch.disk}/{overlay.name}/etc", launch.sandbox_id)
            mounts.make_stage(launch.overlays)

            steps.at("idmap the layers")
            trees = []
            layers = [layer for overlay in launch.overlays for layer in overlay.layers]
            read_only = MountAttribute.NODEV | MountAttribute.READ_ONLY
            for path, attributes in (
                (launch.disk, MountAttribute.NODEV),
                *((layer, read_only) for layer in layers),
            ):
                trees.append(mounts.open_idmapped(path, embryo.userns, attributes))
                close.callback(os.close, trees[-1])

            steps.at("open its meters")
            meters = kit.cgroups.meters(embryo.cgroup)
            for meter in meters:
                close.callback(os.close, meter)

            steps.at("send the order")
            order = Order(launch.sandbox_id, launch.overlays, launch.resources.memory)
            socket.send_fds(embryo.channel, [_encode(order)], [env, *meters, *trees])
            # The child is at work now, and runs nothing of the sandbox's before its answer is read.
            steps.at("set the limits")
            kit.cgroups.set_limits(embryo.cgroup, launch.resources)
        except Exception as cause:
            raise LaunchFailed(steps.failed(cause)) from cause


def last_words(embryo: Embryo) -> Failure | None:
    """The reason that a child which has ended told by itself, if it did."""
    with suppress(OSError):
        report = embryo.channel.recv(4096, socket.MSG_DONTWAIT)
        return decode_failure(report) if report else None
    return None


class Child:
    """The child's side: steps 6 to 9, and 14 to 19."""

    def __init__(self, kit: ChildKit) -> None:
        self._kit = kit
        self._steps = Steps()

    def live(self, fds: list[int]) -> NoReturn:
        self._report_to = fds[1]
        try:
            self._steps.at("join the cgroup")
            kept = _COMMANDS - _LISTENER + self._kit.freezing.descriptors
            for fd in fds[kept:]:
                os.write(fd, b"0")
            self._steps.at("keep some descriptors")
            _keep_descriptors(fds[:kept])
            self._report_to = _CHANNEL
            resource.setrlimit(resource.RLIMIT_NOFILE, self._kit.open_files)
            channel = socket.socket(fileno=_CHANNEL)
            self._become_embryo(channel)
            order, env, meters = self._become_sandbox(channel)
            agent = self._kit.agent
            agent.figures.start(meters, order.memory)
            agent.run(env, on_ready=lambda: _report(channel, agent), memory=order.memory)
        except BaseException as cause:
            with suppress(OSError):
                os.write(self._report_to, _encode(self._steps.failed(cause)))
            os._exit(1)

    def _become_embryo(self, channel: socket.socket) -> None:
        (dev,) = _receive(channel)[1]
        self._steps.at("become root inside")
        os.setgroups([])
        # The third id is another one, which no command inherits: root inside may change the resource limits only of
        # a process whose three ids are all its own, and so not PID 1's. Whoever had that id could signal PID 1's forks.
        os.setresgid(0, 0, _OF_NO_ACCOUNT)
        os.setresuid(0, 0, _OF_NO_ACCOUNT)
        self._steps.at("bound its capabilities")
        capabilities.bound()
        self._steps.at("enter the cgroup namespace")
        syscalls.unshare(Namespace.CGROUP)
        os.setsid()
        syscalls.prctl(Prctl.SET_NAME, PROCESS_NAME)
        self._steps.at("start the clocks")
        clocks.start_clocks()
        self._steps.at("set up the network")
        _set_up_network()
        self._steps.at("mount /dev, /proc and /sys")
        figures = mounts.mount_system_directories(dev, self._kit.views)
        os.close(dev)
        self._steps.at("open the agent")
        self._kit.agent.open(socket.socket(fileno=_LISTENER), mounts.make_scratch())
        words = self._kit.freezing
        self._kit.agent.put_commands_into(words, range(_COMMANDS, _COMMANDS + words.descriptors))
        self._kit.agent.figures.open(figures)

    def _become_sandbox(self, channel: socket.socket) -> tuple[Order, dict[str, str], tuple[int, int, int]]:
        """Returns what it has become, the environment of what will run here, and the meters of its control group."""
        packet, (env, memory, cpu, limit, *trees) = _receive(channel)
        order = _decode_order(packet)
        self._steps.at("set the host name")
        syscalls.set_hostname(order.hostname)
        self._steps.at("mount the overlays")
        mounts.mount_overlays(order.overlays, trees[0], trees[1:])
        self._steps.at("enter the root")
        mounts.enter_root(order.overlays)
        variables = _decode_env(os.pread(env, os.fstat(env).st_size, 0))
        for fd in (env, *trees):
            os.close(fd)
        self._steps.at("drop capabilities")
        capabilities.drop_the_rest()
        self._steps.at("install the seccomp filter")
        self._kit.seccomp.install()
        self._steps.at("run the agent")
        return order, variables, (memory, cpu, limit)


def _keep_descriptors(wanted: list[int]) -> None:
    """Move descriptors to known places, in this order, /dev/null to 0, 1 and 2, and close everything else."""
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in wanted]  # clear of where they go
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for target in (0, 1, 2):
        os.dup2(null, target)
    for target, fd in enumerate(kept, _LISTENER):
        os.dup2(fd, target, inheritable=False)
    syscalls.close_from(_LISTENER + len(kept))


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    packet, fds, _, _ = socket.recv_fds(channel, MAX_ORDER, MAX_LAYERS + 5)
    if not packet:
        os._exit(0)  # the nursery is gone, and nobody knows of us
    for fd in fds:
        os.set_inheritable(fd, False)
    return packet, fds


def _report(channel: socket.socket, agent: Agent) -> None:
    """Say that we are ready, and live on only if somebody hears it: a sandbox nobody knows of must not be left."""
    channel.send(READY)
    agent.loop.add_reader(channel, _take_answer, channel, agent)


def _take_answer(channel: socket.socket, agent: Agent) -> None:
    if channel.recv(len(KEEP)) != KEEP:
        os._exit(0)
    agent.loop.remove_reader(channel)
    channel.close()


def _make_writable_layer(path: str) -> bool:
    """The upper and work directories an overlay needs; True if they are new."""
    with suppress(FileExistsError):
        os.mkdir(f"{path}.work", 0o700)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return False
    return True


def _write_host_name(etc: str, name: str) -> None:
    """The files in which programs read who they are, put straight into the new layer."""
    os.mkdir(etc, 0o755)
    _write(f"{etc}/hostname", f"{name}\n", os.O_CREAT)
    hosts = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{name}.local {name}\n"
    _write(f"{etc}/hosts", hosts, os.O_CREAT)
    # Whoever asks another is answered by the same.
    _write(f"{etc}/resolv.conf", f"nameserver {gateway_rules.GATEWAY}\n", os.O_CREAT)


def _set_up_network() -> None:
    """Loopback up, and all else led to the gateway.

    Nobody may ping: what waits in sockets for that is counted for nobody, and grows by 4 GB/s.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = _INTERFACE_REQUEST.pack(b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    with suppress(OSError):  # a kernel without a packet filter: whoever wants to listen for the gateway learns of it
        gateway_rules.set_up()


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
