"""The facts of each CPU, held against those who know: assemblers, libseccomp, and an emulator where it is not ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from atoll.cpu.aarch64 import AARCH64
from atoll.cpu.facts import Code, Cpu, to_bytes
from atoll.cpu.own import CPUS, OWN, check_cpu
from atoll.protocol.errors import AtollError, ErrorCode

EVERY_CPU = pytest.mark.parametrize("cpu", CPUS.values(), ids=CPUS.keys())
CODES = [
    pytest.param(cpu, code, id=f"{cpu.name}-{index}") for cpu in CPUS.values() for index, code in enumerate(cpu[3:])
]


@pytest.mark.parametrize(("cpu", "code"), CODES)
def test_the_code_is_what_it_says(tmp_path: Path, cpu: Cpu, code: Code) -> None:
    source = "".join(f"{instruction}\n" for instruction, _ in code)
    assemble(cpu, source, tmp_path / "made.o")
    copy = [f"{cpu.name}-linux-gnu-objcopy", "-O", "binary", "-j", ".text", "made.o", "made"]
    subprocess.run(copy, cwd=tmp_path, check=True)
    assert (tmp_path / "made").read_bytes() == to_bytes(code)


@EVERY_CPU
def test_the_numbers_are_those_that_libseccomp_knows(cpu: Cpu) -> None:
    ask = "import json, seccomp, sys; name, calls = json.load(sys.stdin)"
    ask += "; print(json.dumps([seccomp.resolve_syscall(seccomp.Arch(name), call) for call in calls]))"
    asked = json.dumps([cpu.name, list(cpu.calls)])
    known = subprocess.run(["/usr/bin/python3", "-c", ask], input=asked, stdout=subprocess.PIPE, text=True, check=True)
    assert dict(zip(cpu.calls, json.loads(known.stdout), strict=True)) == cpu.calls


def test_one_cpu_lacks_no_call_that_another_has() -> None:
    """But for what AArch64 never had: 16-bit segments."""
    assert CPUS["x86_64"].calls.keys() - CPUS["aarch64"].calls.keys() == {"modify_ldt"}
    assert CPUS["aarch64"].calls.keys() <= CPUS["x86_64"].calls.keys()


def test_this_machine_is_one_of_them() -> None:
    assert OWN is CPUS[os.uname().machine]


def test_another_is_refused_by_name_with_those_there_are() -> None:
    with pytest.raises(AtollError) as caught:
        check_cpu("riscv64")
    assert caught.value.code is ErrorCode.MACHINE_NOT_SUPPORTED
    assert all(name in caught.value.message for name in ("x86_64", "aarch64", "riscv64"))


# A program that has the list executed, waits for the child, and ends with its exit code.
LIST = """
.global _start
_start:
    adr x0, list
    bl code
    sub sp, sp, #16
    mov x1, sp
    mov x2, #0
    mov x3, #0
    mov x8, #260  // wait4
    svc #0
    ldrb w0, [sp, #1]
    mov x8, #93  // exit
    svc #0
code:
    .incbin "code"
    .balign 8
list:
    .quad {clone}, 0x4111, 0, 0, 0, 0, 0, 0
    .quad {close}, 99, 0, 0, 0, 0, 0, 0  // fails, and may
    .quad {write}, 1, text, 6, 0, 0, 1, 0
    .quad {last}
text:
    .ascii "first\n"
    .balign 8
program:
    .asciz "/bin/sh"
    .balign 8
words:
    .quad program, option, script, 0
option:
    .asciz "-c"
script:
    .asciz "echo second; exit 3"
"""


@pytest.mark.parametrize(
    ("last", "said", "exit_code"),
    [
        ("{execve}, program, words, 0, 0, 0, 1, 0", b"first\nsecond\n", 3),
        ("{close}, 99, 0, 0, 0, 0, 1, 0", b"first\n", 127),
    ],
    ids=["the last becomes another program", "the last fails and must not"],
)
def test_the_calls_of_a_list_are_made_in_order(tmp_path: Path, last: str, said: bytes, exit_code: int) -> None:
    """Ours is tried by whoever starts a command. An emulator makes the child a fork, which has a list of its own."""
    (tmp_path / "code").write_bytes(to_bytes(AARCH64.execute_list))
    assemble(AARCH64, LIST.format(last=last.format_map(AARCH64.calls), **AARCH64.calls), tmp_path / "list.o")
    link = ["aarch64-linux-gnu-ld", "-N", "-o", "list", "list.o"]  # -N: what is executed may be written too
    subprocess.run(link, cwd=tmp_path, check=True)
    done = subprocess.run(["qemu-aarch64", "list"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert (done.stdout, done.returncode) == (said, exit_code)


def assemble(cpu: Cpu, source: str, target: Path) -> None:
    command = [f"{cpu.name}-linux-gnu-as", "-o", str(target)]
    subprocess.run(command, cwd=target.parent, input=source.encode(), check=True)
