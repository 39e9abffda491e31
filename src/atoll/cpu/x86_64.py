"""x86-64, which others call amd64."""

from atoll.cpu.facts import NEW_CALLS, Cpu

X86_64 = Cpu(
    name="x86_64",
    elf_machine=62,
    calls={
        **NEW_CALLS,
        "add_key": 248,
        "bpf": 321,
        "clone": 56,
        "close": 3,
        "dup3": 292,
        "execve": 59,
        "exit": 60,
        "fcntl": 72,
        "io_setup": 206,
        "ioctl": 16,
        "kcmp": 312,
        "keyctl": 250,
        "mincore": 27,
        "mmap": 9,
        "modify_ldt": 154,
        "mount": 165,
        "name_to_handle_at": 303,
        "openat": 257,
        "perf_event_open": 298,
        "personality": 135,
        "pivot_root": 155,
        "prctl": 157,
        "process_vm_readv": 310,
        "ptrace": 101,
        "rt_sigaction": 13,
        "rt_sigprocmask": 14,
        "seccomp": 317,
        "setns": 308,
        "setsid": 112,
        "setsockopt": 54,
        "socket": 41,
        "umount2": 166,
        "unshare": 272,
        "userfaultfd": 323,
        "write": 1,
    },
    execute_list=(
        ("push %rbx", "53"),
        ("push %r12", "4154"),
        ("mov %rdi, %rbx", "4889fb"),
        ("mov %rdi, %r12", "4989fc"),
        # The first call is clone.
        ("mov (%rbx), %rax", "488b03"),
        ("mov 8(%rbx), %rdi", "488b7b08"),
        ("mov 16(%rbx), %rsi", "488b7310"),
        ("mov 24(%rbx), %rdx", "488b5318"),
        ("mov 32(%rbx), %r10", "4c8b5320"),
        ("mov 40(%rbx), %r8", "4c8b4328"),
        ("syscall", "0f05"),
        ("test %rax, %rax", "4885c0"),
        ("jz .+6", "7404"),  # the child goes on behind this
        ("pop %r12", "415c"),
        ("pop %rbx", "5b"),
        ("ret", "c3"),
        # The child, for each of the others.
        ("add $64, %rbx", "4883c340"),
        ("mov (%rbx), %rax", "488b03"),
        ("mov 8(%rbx), %rdi", "488b7b08"),
        ("mov 16(%rbx), %rsi", "488b7310"),
        ("mov 24(%rbx), %rdx", "488b5318"),
        ("mov 32(%rbx), %r10", "4c8b5320"),
        ("mov 40(%rbx), %r8", "4c8b4328"),
        ("syscall", "0f05"),
        ("test %rax, %rax", "4885c0"),
        ("jns .-32", "79de"),  # it went well: the next
        ("cmpq $0, 48(%rbx)", "48837b3000"),
        ("je .-39", "74d7"),  # it may fail: the next
        ("mov %rax, 56(%r12)", "4989442438"),
        ("mov $127, %edi", "bf7f000000"),
        ("mov $60, %eax", "b83c000000"),  # exit
        ("syscall", "0f05"),
    ),
    become_subreaper=(
        ("mov $157, %eax", "b89d000000"),  # prctl
        ("mov $36, %edi", "bf24000000"),  # PR_SET_CHILD_SUBREAPER
        ("mov $1, %esi", "be01000000"),
        ("syscall", "0f05"),
        ("mov (%rsp), %rcx", "488b0c24"),  # the number of arguments
        ("lea 16(%rsp), %rsi", "488d742410"),  # those after the first
        ("lea 16(%rsp,%rcx,8), %rdx", "488d54cc10"),  # the environment, which follows them
        ("mov (%rsi), %rdi", "488b3e"),  # the program
        ("mov $59, %eax", "b83b000000"),  # execve
        ("syscall", "0f05"),
        ("mov $127, %edi", "bf7f000000"),  # what a shell says of what it cannot start
        ("mov $60, %eax", "b83c000000"),  # exit
        ("syscall", "0f05"),
    ),
)
