"""System calls that lead to kernel code a sandbox has no business with."""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Family

# `reach` counts every answer of the kernel's own as success, where settings of the host decide whether the call works.
CALL = """
import ctypes, errno, mmap, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def reach(number, *arguments):
    try:
        return call(number, *arguments)
    except OSError as cause:
        if cause.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"the kernel looked at it: {cause}"

"""

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
    _attack("unshare-user-namespace", f"call(272, {NEW_USER:#x})"),
    _attack("clone-user-namespace", f"call(56, {NEW_USER | SIGCHLD:#x}, 0, 0, 0, 0) or os._exit(0)"),
    _attack(
        "clone3-user-namespace",
        f'call(435, struct.pack("11Q", {NEW_USER:#x}, 0, 0, 0, {SIGCHLD}, *[0] * 6), 88) or os._exit(0)',
    ),
    _attack("setns", 'call(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)', Defence.CAPABILITIES),
    _attack(
        "mount-in-own-namespace",
        f'(call(272, {NEW_USER | NEW_MOUNT:#x}), call(165, b"tmpfs", b"/mnt", b"tmpfs", 0, 0))',
    ),
)
MOUNTS = (
    _attack("mount", 'call(165, b"tmpfs", b"/mnt", b"tmpfs", 0, 0)', Defence.CAPABILITIES),
    _attack("bind-mount", 'call(165, b"/etc", b"/mnt", 0, 4096, 0)', Defence.CAPABILITIES),
    _attack("unmount-a-mask", 'call(166, b"/proc/irq", 2)', Defence.CAPABILITIES),
    _attack("open-tree", 'call(428, -100, b"/etc", 1)', Defence.CAPABILITIES),
    _attack("fsopen", 'call(430, b"tmpfs", 0)', Defence.CAPABILITIES),
    _attack("pivot-root", 'reach(155, b"/mnt", b"/mnt")', Defence.CAPABILITIES),
)
KERNEL_CODE = (
    _attack("keyctl", "call(250, 0, -3, 1)"),
    _attack("add-key", 'call(248, b"user", b"name", b"secret", 6, -2)'),
    _attack("bpf", "reach(321, 7, ctypes.create_string_buffer(120), 120)"),
    _attack("io-uring", "call(425, 4, ctypes.create_string_buffer(248))"),
    _attack("userfaultfd", "call(323, 1)"),  # 1: faults of user mode only, which needs no privilege
    _attack("perf-event-open", "reach(298, 0, 0, 0, 0, 1 << 40)"),
    _attack("ptrace", "call(101, 0, 0, 0, 0)"),  # of oneself, by the parent
    _attack("kcmp", "call(312, os.getpid(), os.getpid(), 0, 0, 0)"),
    _attack("file-handles", 'reach(303, -100, b"/etc/passwd", bytes(8), bytes(8), 0)'),
    _attack("asynchronous-io-of-old", "call(206, 16, ctypes.create_string_buffer(8))"),
    _attack("personality", "call(135, 0x40000)"),  # addresses that are not randomised
    _attack("personality-by-more-bits-than-an-int-has", f"call(135, 0x40000 | {BEYOND_INT})"),
    _attack("segments", "call(154, 0, ctypes.create_string_buffer(16), 16)"),
)
SOCKETS = (
    _attack("vsock", "call(41, 40, 1, 0)"),
    _attack("packet-socket", "call(41, 17, 3, 0)", Defence.CAPABILITIES),
    _attack("packet-socket-by-its-type", "call(41, 2, 10, 0)", Defence.CAPABILITIES),
    _attack(
        "packet-socket-by-more-bits-than-an-int-has",
        f"call(41, 2 | {BEYOND_INT}, 10 | {CLOSE_ON_EXEC} | {BEYOND_INT}, 3 | {BEYOND_INT})",
        Defence.CAPABILITIES,
    ),
    _attack("xdp-socket", "call(41, 44, 3, 0)", Defence.CAPABILITIES),
    _attack("netlink-audit", "call(41, 16, 3, 9)"),
    _attack("netlink-netfilter", "call(41, 16, 3, 12)"),
    _attack("netlink-generic", "call(41, 16, 3, 16)"),
    _attack("multipath-tcp", "call(41, 2, 1, 262)"),
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
    _attack("socket-filter", "call(54, udp.fileno(), 1, 26, let_all_through, 16)", before=FILTER),
    _attack(
        "socket-filter-by-more-bits-than-an-int-has",
        f"call(54, udp.fileno(), 1 | {BEYOND_INT}, 26 | {BEYOND_INT}, let_all_through, 16)",
        before=FILTER,
    ),
    _attack("reuseport-filter", "call(54, udp.fileno(), 1, 51, let_all_through, 16)", before=FILTER),
    _attack("ebpf-socket-filter", "reach(54, udp.fileno(), 1, 50, bytes(4), 4)", before=FILTER),
    _attack("ebpf-reuseport-filter", "reach(54, udp.fileno(), 1, 52, bytes(4), 4)", before=FILTER),
    _attack("seccomp-filter", "call(317, 1, 0, let_all_through)", before=FILTER),
    _attack("seccomp-filter-by-prctl", "call(157, 22, 2, let_all_through)", before=FILTER),
    _attack(
        "seccomp-filter-by-more-bits-than-an-int-has", f"call(317, 1 | {BEYOND_INT}, 0, let_all_through)", before=FILTER
    ),
    _attack(
        "seccomp-filter-by-prctl-by-more-bits-than-an-int-has",
        f"call(157, 22 | {BEYOND_INT}, 2, let_all_through)",
        before=FILTER,
    ),
)

# Of a terminal that is our own: whether the kernel then does it is a setting of the host's.
TERMINAL = """
_, terminal = os.openpty()
if os.getsid(0) != os.getpid():
    os.setsid()
call(16, terminal, 0x540E, 0)
"""
TERMINALS = (
    _attack("terminal-input", 'reach(16, terminal, 0x5412, b"x")', before=TERMINAL),
    _attack(
        "terminal-input-by-more-bits-than-an-int-has",
        f'reach(16, terminal, 0x5412 | {BEYOND_INT}, b"x")',
        before=TERMINAL,
    ),
    _attack("line-discipline", "call(16, terminal, 0x5423, bytes(4))", before=TERMINAL),
    _attack("console-input", "reach(16, terminal, 0x541C, bytes(4))", before=TERMINAL),
)

# What others have read of the host's /usr.
SHARED_FILE = """
fd = os.open("/usr/bin/env", os.O_RDONLY)
page = call(9, 0, 4096, 1, 1, fd, 0)
"""
PAGE_CACHE = (
    _attack("page-cache", "call(27, page, 4096, ctypes.create_string_buffer(1))", before=SHARED_FILE),
    _attack("page-cache-by-file", "reach(451, fd, bytes(16), bytes(40), 0)", before=SHARED_FILE),
)

OTHERS = (
    Attack(
        name="raw-socket",
        family=Family.SYSTEM_CALLS,
        defences=(Defence.CAPABILITIES,),
        payload=CALL + _JUDGE.format(expression="call(41, 2, 3, 255)"),
    ),
    Attack(
        name="32-bit-system-call",
        family=Family.SYSTEM_CALLS,
        defences=(Defence.FILTER,),
        payload=CALL + _COMPATIBILITY + _JUDGE.format(expression="call_32_bit()"),
    ),
)

ATTACKS = (*NAMESPACES, *MOUNTS, *KERNEL_CODE, *SOCKETS, *PROGRAMS, *TERMINALS, *PAGE_CACHE, *OTHERS)
