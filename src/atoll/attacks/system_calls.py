"""System calls that lead to kernel code a sandbox has no business with."""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Family
from atoll.cpu.own import OWN
from atoll.cpu.x86_64 import X86_64

# `reach` counts every answer of the kernel's own as success, where settings of the host decide whether the call works.
CALL = (
    f"NUMBERS = {dict(OWN.calls)}\n"
    + """
import ctypes, errno, mmap, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(name, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def reach(name, *arguments):
    try:
        return call(name, *arguments)
    except OSError as cause:
        if cause.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"the kernel looked at it: {cause}"

"""
)

_JUDGE = """
try:
    print("BREACH", {expression}, flush=True)
except OSError as cause:
    print("HELD", cause)
"""


def _attack(name: str, expression: str, *others: Defence, before: str = "") -> Attack:
    return Attack(
        name=name,
        family=Family.SYSTEM_CALLS,
        defences=(Defence.FILTER, *others),
        payload=CALL + before + _JUDGE.format(expression=expression),
    )


BEYOND_INT = 1 << 40  # the kernel takes arguments that are ints without it, and a filter must not see another value
CLOSE_ON_EXEC = 0o2000000
NEW_USER, NEW_MOUNT, SIGCHLD = 0x1000_0000, 0x2_0000, 17

# By interrupt 0x80, where the kernel takes 32-bit calls and their numbers: number 20 is getpid.
_COMPATIBILITY = """
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3"))
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

def call_32_bit():
    result = function()
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
"""

NAMESPACES = (
    _attack("unshare-user-namespace", f'call("unshare", {NEW_USER:#x})'),
    _attack("clone-user-namespace", f'call("clone", {NEW_USER | SIGCHLD:#x}, 0, 0, 0, 0) or os._exit(0)'),
    _attack(
        "clone3-user-namespace",
        f'call("clone3", struct.pack("11Q", {NEW_USER:#x}, 0, 0, 0, {SIGCHLD}, *[0] * 6), 88) or os._exit(0)',
    ),
    _attack("setns", 'call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0)', Defence.CAPABILITIES),
    _attack(
        "mount-in-own-namespace",
        f'(call("unshare", {NEW_USER | NEW_MOUNT:#x}), call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, 0))',
    ),
)
MOUNTS = (
    _attack("mount", 'call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, 0)', Defence.CAPABILITIES),
    _attack("bind-mount", 'call("mount", b"/etc", b"/mnt", 0, 4096, 0)', Defence.CAPABILITIES),
    _attack("unmount-a-mask", 'call("umount2", b"/proc/irq", 2)', Defence.CAPABILITIES),
    _attack("open-tree", 'call("open_tree", -100, b"/etc", 1)', Defence.CAPABILITIES),
    _attack("fsopen", 'call("fsopen", b"tmpfs", 0)', Defence.CAPABILITIES),
    _attack("pivot-root", 'reach("pivot_root", b"/mnt", b"/mnt")', Defence.CAPABILITIES),
)
KERNEL_CODE = (
    _attack("keyctl", 'call("keyctl", 0, -3, 1)'),
    _attack("add-key", 'call("add_key", b"user", b"name", b"secret", 6, -2)'),
    _attack("bpf", 'reach("bpf", 7, ctypes.create_string_buffer(120), 120)'),
    _attack("io-uring", 'call("io_uring_setup", 4, ctypes.create_string_buffer(248))'),
    _attack("userfaultfd", 'call("userfaultfd", 1)'),  # 1: faults of user mode only, which needs no privilege
    _attack("perf-event-open", 'reach("perf_event_open", 0, 0, 0, 0, 1 << 40)'),
    _attack("ptrace", 'call("ptrace", 0, 0, 0, 0)'),  # of oneself, by the parent
    _attack("kcmp", 'call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)'),
    _attack("file-handles", 'reach("name_to_handle_at", -100, b"/etc/passwd", bytes(8), bytes(8), 0)'),
    _attack("asynchronous-io-of-old", 'call("io_setup", 16, ctypes.create_string_buffer(8))'),
    _attack("personality", 'call("personality", 0x40000)'),  # addresses that are not randomised
    _attack("personality-by-more-bits-than-an-int-has", f'call("personality", 0x40000 | {BEYOND_INT})'),
)
SOCKETS = (
    _attack("vsock", 'call("socket", 40, 1, 0)'),
    _attack("packet-socket", 'call("socket", 17, 3, 0)', Defence.CAPABILITIES),
    _attack("packet-socket-by-its-type", 'call("socket", 2, 10, 0)', Defence.CAPABILITIES),
    _attack(
        "packet-socket-by-more-bits-than-an-int-has",
        f'call("socket", 2 | {BEYOND_INT}, 10 | {CLOSE_ON_EXEC} | {BEYOND_INT}, 3 | {BEYOND_INT})',
        Defence.CAPABILITIES,
    ),
    _attack("xdp-socket", 'call("socket", 44, 3, 0)', Defence.CAPABILITIES),
    _attack("netlink-audit", 'call("socket", 16, 3, 9)'),
    _attack("netlink-netfilter", 'call("socket", 16, 3, 12)'),
    _attack("netlink-generic", 'call("socket", 16, 3, 16)'),
    _attack("multipath-tcp", 'call("socket", 2, 1, 262)'),
)
# One that lets everything through. Each is compiled into memory of which the machine has one pool, and when that is
# used up no sandbox can start; resources.py takes more of it.
FILTER = """
import socket
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF_0000))
let_all_through = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
"""
PROGRAMS = (
    _attack("socket-filter", 'call("setsockopt", udp.fileno(), 1, 26, let_all_through, 16)', before=FILTER),
    _attack(
        "socket-filter-by-more-bits-than-an-int-has",
        f'call("setsockopt", udp.fileno(), 1 | {BEYOND_INT}, 26 | {BEYOND_INT}, let_all_through, 16)',
        before=FILTER,
    ),
    _attack("reuseport-filter", 'call("setsockopt", udp.fileno(), 1, 51, let_all_through, 16)', before=FILTER),
    _attack("ebpf-socket-filter", 'reach("setsockopt", udp.fileno(), 1, 50, bytes(4), 4)', before=FILTER),
    _attack("ebpf-reuseport-filter", 'reach("setsockopt", udp.fileno(), 1, 52, bytes(4), 4)', before=FILTER),
    _attack("seccomp-filter", 'call("seccomp", 1, 0, let_all_through)', before=FILTER),
    _attack("seccomp-filter-by-prctl", 'call("prctl", 22, 2, let_all_through)', before=FILTER),
    _attack(
        "seccomp-filter-by-more-bits-than-an-int-has",
        f'call("seccomp", 1 | {BEYOND_INT}, 0, let_all_through)',
        before=FILTER,
    ),
    _attack(
        "seccomp-filter-by-prctl-by-more-bits-than-an-int-has",
        f'call("prctl", 22 | {BEYOND_INT}, 2, let_all_through)',
        before=FILTER,
    ),
)

# Of a terminal that is our own: whether the kernel then does it is a setting of the host's.
TERMINAL = """
_, terminal = os.openpty()
if os.getsid(0) != os.getpid():
    os.setsid()
call("ioctl", terminal, 0x540E, 0)
"""
TERMINALS = (
    _attack("terminal-input", 'reach("ioctl", terminal, 0x5412, b"x")', before=TERMINAL),
    _attack(
        "terminal-input-by-more-bits-than-an-int-has",
        f'reach("ioctl", terminal, 0x5412 | {BEYOND_INT}, b"x")',
        before=TERMINAL,
    ),
    _attack("line-discipline", 'call("ioctl", terminal, 0x5423, bytes(4))', before=TERMINAL),
    _attack("console-input", 'reach("ioctl", terminal, 0x541C, bytes(4))', before=TERMINAL),
)

# What others have read of the host's /usr.
SHARED_FILE = """
fd = os.open("/usr/bin/env", os.O_RDONLY)
page = call("mmap", 0, 4096, 1, 1, fd, 0)
"""
PAGE_CACHE = (
    _attack("page-cache", 'call("mincore", page, 4096, ctypes.create_string_buffer(1))', before=SHARED_FILE),
    _attack("page-cache-by-file", 'reach("cachestat", fd, bytes(16), bytes(40), 0)', before=SHARED_FILE),
)

RAW_SOCKET = Attack(
    name="raw-socket",
    family=Family.SYSTEM_CALLS,
    defences=(Defence.CAPABILITIES,),
    payload=CALL + _JUDGE.format(expression='call("socket", 2, 3, 255)'),
)
# What other CPUs have no call for, and no such instruction.
ONLY_ON_X86_64 = (
    _attack("segments", 'call("modify_ldt", 0, ctypes.create_string_buffer(16), 16)'),
    _attack("32-bit-system-call", "call_32_bit()", before=_COMPATIBILITY),
)

ATTACKS = (
    *(*NAMESPACES, *MOUNTS, *KERNEL_CODE, *SOCKETS, *PROGRAMS, *TERMINALS, *PAGE_CACHE, RAW_SOCKET),
    *(ONLY_ON_X86_64 if OWN is X86_64 else ()),
)
