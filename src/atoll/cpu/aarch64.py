"""AArch64, which others call arm64."""

from atoll.cpu.facts import NEW_CALLS, Cpu

AARCH64 = Cpu(
    name="aarch64",
    elf_machine=183,
    calls={
        **NEW_CALLS,
        "add_key": 217,
        "bpf": 280,
        "clone": 220,
        "close": 57,
        "dup3": 24,
        "execve": 221,
        "exit": 93,
        "fcntl": 25,
        "io_setup": 0,
        "ioctl": 29,
        "kcmp": 272,
        "keyctl": 219,
        "mincore": 232,
        "mmap": 222,
        "mount": 40,
        "name_to_handle_at": 264,
        "openat": 56,
        "perf_event_open": 241,
        "personality": 92,
        "pivot_root": 41,
        "prctl": 167,
        "process_vm_readv": 270,
        "ptrace": 117,
        "rt_sigaction": 134,
        "rt_sigprocmask": 135,
        "seccomp": 277,
        "setns": 268,
        "setsid": 157,
        "setsockopt": 208,
        "socket": 198,
        "umount2": 39,
        "unshare": 97,
        "userfaultfd": 282,
        "write": 64,
    },
    # A system call keeps every register but the one with its answer, so nothing has to be saved.
    execute_list=(
        ("mov x9, x0", "e90300aa"),
        ("mov x10, x0", "ea0300aa"),
        # The first call is clone.
        ("ldr x8, [x9]", "280140f9"),
        ("ldp x0, x1, [x9, #8]", "208540a9"),
        ("ldp x2, x3, [x9, #24]", "228d41a9"),
        ("ldr x4, [x9, #40]", "241540f9"),
        ("svc #0", "010000d4"),
        ("cbz x0, .+8", "400000b4"),  # the child goes on behind this
        ("ret", "c0035fd6"),
        # The child, for each of the others.
        ("add x9, x9, #64", "29010191"),
        ("ldr x8, [x9]", "280140f9"),
        ("ldp x0, x1, [x9, #8]", "208540a9"),
        ("ldp x2, x3, [x9, #24]", "228d41a9"),
        ("ldr x4, [x9, #40]", "241540f9"),
        ("svc #0", "010000d4"),
        ("tbz x0, #63, .-24", "40ffffb6"),  # it went well: the next
        ("ldr x11, [x9, #48]", "2b1940f9"),
        ("cbz x11, .-32", "0bffffb4"),  # it may fail: the next
        ("str x0, [x10, #56]", "401d00f9"),
        ("mov x0, #127", "e00f80d2"),
        ("mov x8, #93", "a80b80d2"),  # exit
        ("svc #0", "010000d4"),
    ),
    become_subreaper=(
        ("mov x8, #167", "e81480d2"),  # prctl
        ("mov x0, #36", "800480d2"),  # PR_SET_CHILD_SUBREAPER
        ("mov x1, #1", "210080d2"),
        ("svc #0", "010000d4"),
        ("ldr x9, [sp]", "e90340f9"),  # the number of arguments
        ("add x1, sp, #16", "e1430091"),  # those after the first
        ("add x2, x1, x9, lsl #3", "220c098b"),  # the environment, which follows them
        ("ldr x0, [x1]", "200040f9"),  # the program
        ("mov x8, #221", "a81b80d2"),  # execve
        ("svc #0", "010000d4"),
        ("mov x0, #127", "e00f80d2"),  # what a shell says of what it cannot start
        ("mov x8, #93", "a80b80d2"),  # exit
        ("svc #0", "010000d4"),
    ),
)
