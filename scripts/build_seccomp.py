#!/usr/bin/python3
"""Compiles the sandbox's system-call policy into the BPF programs that ship with the package, one for each CPU.

    scripts/build_seccomp.py            write seccomp_*.bpf, for sandboxes and for the gateway of their network
    scripts/build_seccomp.py --check    exit 1 if a shipped file is another
    scripts/build_seccomp.py --oci      print the same policy as an OCI profile, for comparison with other runtimes

Needs libseccomp's Python binding (Debian: python3-seccomp), so it runs under the system's own python3. Sandboxes
load the result as it is: compiling it at each start would cost more than everything else of a start together.

The policy: what is listed is allowed. What is known and refused answers EPERM, as a missing capability would. What
nobody here has looked at answers ENOSYS, and programs fall back as on an older kernel: cachestat for one, which tells
what is in the page cache. What remains of that is how long a read takes, and which pages a fault maps beside its own;
reads that do not wait (RWF_NOWAIT) are nothing an overlay can do.
"""

import argparse
import errno
import json
import platform
import struct
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import seccomp
from seccomp import ALLOW, EQ, ERRNO, GT, MASKED_EQ, NE, Arch, Arg, Attr

OUTPUT = Path(__file__).parents[1] / "src/atoll/engine/native"
OF_GATEWAY = Path(__file__).parents[1] / "src/atoll/network"
ARCHITECTURES = {"x86_64": Arch.X86_64, "aarch64": Arch.AARCH64}  # as `uname -m` has them

ALLOWED = """
    accept accept4 access adjtimex alarm arch_prctl bind brk capget capset chdir chmod chown chroot clock_adjtime
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown
    fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate
    futex futex_waitv futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid
    getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
    getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch ioctl
    ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown
    lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier
    memfd_create mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify
    mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall
    munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
    pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_madvise process_mrelease
    pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
    remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list
    set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
    setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo
    tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
    timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork
    vmsplice wait4 waitid write writev
""".split()

# Refused with a reason, so that nobody has to wonder whether one was forgotten.
REFUSED = {
    "namespaces, in which an unprivileged user is root and old kernel code is within reach": "unshare setns",
    "the mount family": "mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr",
    "keyrings are not namespaced": "keyctl add_key request_key",
    "programs and probes in the kernel": "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter "
    "io_uring_register fanotify_init fanotify_mark",
    "other processes' memory and descriptors": "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd",
    "files by handle go round the root directory": "name_to_handle_at open_by_handle_at",
    "the machine itself": "reboot kexec_load kexec_file_load init_module finit_module delete_module swapon swapoff "
    "acct quotactl quotactl_fd syslog settimeofday clock_settime sethostname setdomainname iopl ioperm vhangup",
    "asynchronous I/O of old, whose queues are one pool for the whole machine": "io_setup io_submit io_getevents "
    "io_pgetevents io_cancel io_destroy",
    "16-bit segments": "modify_ldt",
    "what others have read of files that sandboxes share": "mincore",
}

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
NEW_NAMESPACES = 0x7E020000
# Linux, Linux32, and asking which it is; the rest weakens address randomisation or emulates dead systems.
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
STREAM, DATAGRAM, RAW, SEQUENCED = 1, 2, 3, 5
IP_PROTOCOLS = (0, 1, 6, 17, 58, 255)  # default, ICMP, TCP, UDP, ICMPv6, raw; SCTP, DCCP and MPTCP stay out

WHOLE = 0xFFFFFFFF


class Condition(NamedTuple):
    """An argument's lower half, masked, is one of some values."""

    argument: int
    values: Collection[int]
    mask: int = WHOLE


class Refusal(NamedTuple):
    """Calls that are refused although their name is allowed: all conditions hold."""

    name: str
    error: int
    conditions: Sequence[Condition]


DO_NOT_BLOCK = 0x5421  # FIONBIO
SOL_SOCKET = 1
ATTACH = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF and _REUSEPORT_EBPF
TERMINAL_INPUT = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
PR_SET_SECCOMP, MODE_FILTER, SET_MODE_FILTER = 22, 2, 1
NO_TYPE = set(range(16)) - {STREAM, DATAGRAM, RAW, SEQUENCED}

# Of an int the kernel takes the lower half and ignores what is above it, so that is what is compared here. libseccomp
# compares all 64 bits, which is safe where something is allowed: a value with more above it is then another one.
BY_ARGUMENT = (
    # Every filter is compiled into memory of which the machine has one pool, 0.5 GiB here. One sandbox could take all
    # of it, and no filter can then be installed, ours included: no sandbox starts. Programs that narrow what they
    # receive go on without.
    Refusal("setsockopt", errno.EPERM, (Condition(1, [SOL_SOCKET]), Condition(2, ATTACH))),
    # The same pool: 280 KB for each process. EINVAL is what a kernel without filters says, and what man, sshd and
    # browsers take for that; Landlock is there. Strict mode needs no filter.
    Refusal("prctl", errno.EINVAL, (Condition(0, [PR_SET_SECCOMP]), Condition(1, [MODE_FILTER]))),
    Refusal("seccomp", errno.EINVAL, (Condition(0, [SET_MODE_FILTER]),)),
    # Typing into a terminal, and kernel code for modems.
    Refusal("ioctl", errno.EPERM, (Condition(1, TERMINAL_INPUT),)),
    # SOCK_PACKET makes a packet socket of any family. Other types choose a protocol by themselves: SCTP, DCCP.
    Refusal("socket", errno.ESOCKTNOSUPPORT, (Condition(1, NO_TYPE, mask=0xF),)),
    Refusal("socket", errno.ESOCKTNOSUPPORT, (Condition(0, [INET, INET6]), Condition(1, [SEQUENCED], mask=0xF))),
    Refusal("socketpair", errno.ESOCKTNOSUPPORT, (Condition(1, NO_TYPE, mask=0xF),)),
)

ALLOWING, UNKNOWN = "SCMP_ACT_ALLOW", errno.ENOSYS
COMPARISONS = {"SCMP_CMP_EQ": EQ, "SCMP_CMP_NE": NE, "SCMP_CMP_GT": GT, "SCMP_CMP_MASKED_EQ": MASKED_EQ}


# Of the gateway: what an event loop with sockets and memory needs, and nothing that opens a file or starts a program.
GATEWAY = """
    accept4 brk clock_gettime clock_nanosleep close connect epoll_create1 epoll_ctl epoll_pwait epoll_wait exit
    exit_group fcntl futex getpeername getpid getrandom getsockname getsockopt gettid gettimeofday lseek madvise
    mmap mprotect mremap munmap poll ppoll read recvfrom recvmsg restart_syscall rt_sigaction rt_sigprocmask
    rt_sigreturn sched_yield sendmsg sendto setsockopt shutdown sigaltstack write
""".split()


def gateway_rules() -> Iterator[dict]:
    yield allowing(*GATEWAY)
    yield allowing("ioctl", args=[compared(1, "EQ", DO_NOT_BLOCK)])
    for family in (INET, INET6):
        yield allowing("socket", args=[compared(0, "EQ", family)])


def rules() -> Iterator[dict]:
    """The policy, as an OCI profile says it: names, an action, and what arguments must be for it."""
    yield allowing(*ALLOWED)
    yield refusing(errno.EPERM, *" ".join(REFUSED.values()).split())
    for personality in PERSONALITIES:
        yield allowing("personality", args=[compared(0, "EQ", personality)])
    # clone3 passes its flags in memory, where a filter cannot look; on ENOSYS the C library uses clone.
    yield allowing("clone", args=[compared(0, "MASKED_EQ", NEW_NAMESPACES, 0)])
    yield from socket_rules()


def socket_rules() -> Iterator[dict]:
    """Four families. AF_VSOCK above all stays out: it is not namespaced and reaches what is below this machine."""
    yield allowing("socketpair", args=[compared(0, "EQ", UNIX)])
    yield allowing("socket", args=[compared(0, "EQ", UNIX)])
    is_netlink = compared(0, "EQ", NETLINK)
    yield allowing("socket", args=[is_netlink, compared(2, "EQ", NETLINK_ROUTE)])
    yield refusing(errno.EPROTONOSUPPORT, "socket", args=[is_netlink, compared(2, "NE", NETLINK_ROUTE)])
    for family in (INET, INET6):
        is_family = compared(0, "EQ", family)
        for protocol in IP_PROTOCOLS:
            yield allowing("socket", args=[is_family, compared(2, "EQ", protocol)])
        yield refusing(errno.EPROTONOSUPPORT, "socket", args=[is_family, compared(2, "GT", max(IP_PROTOCOLS))])
    for family in set(range(NETLINK)) - {UNIX, INET, INET6}:
        yield refusing(errno.EAFNOSUPPORT, "socket", args=[compared(0, "EQ", family)])
    yield refusing(errno.EAFNOSUPPORT, "socket", args=[compared(0, "GT", NETLINK)])


def allowing(*names: str, args: Sequence[dict] = ()) -> dict:
    return {"names": list(names), "action": ALLOWING, "args": list(args)}


def refusing(error: int, *names: str, args: Sequence[dict] = ()) -> dict:
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": list(args)}


def compared(index: int, op: str, value: int, value_two: int | None = None) -> dict:
    """With MASKED_EQ the first value is the mask, and the second what must be left."""
    second = {} if value_two is None else {"valueTwo": value_two}
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value} | second


def oci_profile(allowed: Iterator[dict]) -> dict:
    """What OCI runtimes compile at each start. It cannot say what is refused by an argument."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": UNKNOWN,
        "architectures": [f"SCMP_ARCH_{platform.machine().upper()}"],
        "syscalls": list(allowed),
    }


def policy(profile: dict, architecture: int) -> "seccomp.SyscallFilter":
    """What an OCI profile says for one architecture, as libseccomp takes it; calls that are not there are left out."""
    policy = seccomp.SyscallFilter(ERRNO(profile["defaultErrnoRet"]))
    if not policy.exist_arch(architecture):
        policy.add_arch(architecture)
        policy.remove_arch(Arch.NATIVE)
    policy.set_attr(Attr.ACT_BADARCH, ERRNO(profile["defaultErrnoRet"]))  # 32-bit and x32 system calls
    policy.set_attr(Attr.CTL_OPTIMIZE, 2)  # a binary tree
    for rule in profile["syscalls"]:
        action = ALLOW if rule["action"] == ALLOWING else ERRNO(rule["errnoRet"])
        arguments = [
            Arg(one["index"], COMPARISONS[one["op"]], one["value"], one.get("valueTwo", 0)) for one in rule["args"]
        ]
        for name in rule["names"]:
            policy.add_rule(action, name, *arguments)
    return policy


INSTRUCTION = struct.Struct("HBBI")
LOAD, MASK, JUMP, JUMP_IF_EQUAL, RETURN = 0x20, 0x54, 0x05, 0x15, 0x06  # classic BPF
RETURN_ERROR = 0x50000
NUMBER, ARGUMENTS = 0, 16  # offsets in what a filter is given; eight bytes for each argument, the lower half first


def refused_by_argument(architecture: int) -> bytes:
    """What comes before libseccomp's program. It allows nothing, so it need not look at the architecture."""
    return b"".join(block(refusal, architecture) for refusal in BY_ARGUMENT)


def block(refusal: Refusal, architecture: int) -> bytes:
    """Runs into what follows unless all holds. The kernel knows of other numbers that this never concerns them."""
    program = instruction(RETURN, RETURN_ERROR | refusal.error)
    for condition in reversed(refusal.conditions):
        program = unless(condition, skip=program) + program
    number = seccomp.resolve_syscall(Arch(architecture), refusal.name)
    skipped = len(program) // INSTRUCTION.size
    return instruction(LOAD, NUMBER) + instruction(JUMP_IF_EQUAL, number, 0, skipped) + program


def unless(condition: Condition, skip: bytes) -> bytes:
    values = sorted(condition.values)
    program = instruction(LOAD, ARGUMENTS + 8 * condition.argument)
    if condition.mask != WHOLE:
        program += instruction(MASK, condition.mask)
    for index, value in enumerate(values):
        program += instruction(JUMP_IF_EQUAL, value, len(values) - index)
    return program + instruction(JUMP, len(skip) // INSTRUCTION.size)


def instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return INSTRUCTION.pack(code, if_true, if_false, operand)


def compile_policy(architecture: int) -> bytes:
    return refused_by_argument(architecture) + compile_rules(rules(), architecture)


def compile_rules(allowed: Iterator[dict], architecture: int) -> bytes:
    with tempfile.TemporaryFile() as file:
        policy(oci_profile(allowed), architecture).export_bpf(file)
        file.seek(0)
        return file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--oci", action="store_true", help="print an OCI profile")
    arguments = parser.parse_args()
    if arguments.oci:
        print(json.dumps(oci_profile(rules())))
        return
    for name, architecture in ARCHITECTURES.items():
        write(OUTPUT / f"seccomp_{name}.bpf", compile_policy(architecture), compare=arguments.check)
        gateway = compile_rules(gateway_rules(), architecture)
        write(OF_GATEWAY / f"seccomp_{name}.bpf", gateway, compare=arguments.check)


def write(output: Path, program: bytes, *, compare: bool) -> None:
    if not compare:
        output.write_bytes(program)
        print(f"{output.name}: {len(program) // INSTRUCTION.size} instructions")
    elif output.read_bytes() != program:
        sys.exit(f"{output.name} is not what {Path(__file__).name} makes; run it without --check")


if __name__ == "__main__":
    main()
