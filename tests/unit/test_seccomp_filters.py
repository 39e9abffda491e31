"""The compiled filters, one for each CPU: what each says to a call, whichever machine this is."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atoll.cpu.own import CPUS, OWN
from atoll.engine.native import seccomp

SCRIPTS = Path(__file__).parents[2] / "scripts"
EVERY_CPU = pytest.mark.parametrize("cpu", CPUS)
ALLOWED, REFUSED = 0x7FFF0000, 0x50000  # an errno is added to the latter
PERMISSION, UNKNOWN = REFUSED | errno.EPERM, REFUSED | errno.ENOSYS
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
COMPATIBLE = {"x86_64": "i386", "aarch64": "arm"}  # whose programs the kernel may run too
X32 = 0x40000000

Arguments = tuple[int, ...]


def judge(program: bytes, architecture: str, number: int, arguments: Arguments = ()) -> int:
    """What the kernel's interpreter of these programs would return."""
    data = struct.pack("<iIQ6Q", number, AUDIT_ARCHITECTURES[architecture], 0, *arguments, *(0,) * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("HBBI", program))
    position = value = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        match code:
            case 0x20:  # load the word at that place
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x54:  # and
                value &= operand
            case 0x05:  # jump
                position += operand
            case 0x15:  # jump if equal
                position += if_true if value == operand else if_false
            case 0x25:  # if greater
                position += if_true if value > operand else if_false
            case 0x35:  # if not less
                position += if_true if value >= operand else if_false
            case 0x45:  # if any of these bits is set
                position += if_true if value & operand else if_false
            case 0x06:  # return
                return int(operand)
            case _:
                raise AssertionError(f"instruction {code:#x}")


@cache
def policy() -> dict[str, Any]:
    """Names by what the policy says of them, and their numbers on each CPU; negative where there is no such call."""
    ask = """
import build_seccomp, json, seccomp
refused = " ".join(build_seccomp.REFUSED.values()).split()
names = [*build_seccomp.ALLOWED, *refused, "socket", "socketpair", "clone"]
names += ["clone3", "personality", "cachestat", "getpid"]
numbers = {
    cpu: {name: seccomp.resolve_syscall(seccomp.Arch(token), name) for name in names}
    for cpu, token in build_seccomp.ARCHITECTURES.items()
}
print(json.dumps({"allowed": build_seccomp.ALLOWED, "refused": refused, "numbers": numbers}))
"""
    done = subprocess.run(["/usr/bin/python3", "-B", "-c", ask], cwd=SCRIPTS, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Filter:
    def __init__(self, cpu: str) -> None:
        self._cpu = cpu
        self._program = Path(seccomp.FILTER).with_name(f"seccomp_{cpu}.bpf").read_bytes()
        self._numbers: dict[str, int] = policy()["numbers"][cpu]

    def asks(self, name: str, *arguments: int, architecture: str | None = None) -> int:
        return judge(self._program, architecture or self._cpu, self._numbers[name], arguments)

    def asks_by_number(self, number: int) -> int:
        return judge(self._program, self._cpu, number)

    def that_are_there(self, names: list[str]) -> list[str]:
        return [name for name in names if self._numbers[name] >= 0]


def test_the_filter_of_this_machine_is_the_one_that_is_loaded() -> None:
    assert Path(seccomp.FILTER).name == f"seccomp_{OWN.name}.bpf"


@EVERY_CPU
def test_each_name_gets_what_the_policy_says(cpu: str) -> None:
    filter = Filter(cpu)
    for names, answer in ((policy()["allowed"], ALLOWED), (policy()["refused"], PERMISSION)):
        there = filter.that_are_there(names)
        assert len(there) > len(names) / 2
        assert {name: filter.asks(name) for name in there} == dict.fromkeys(there, answer)


@EVERY_CPU
def test_what_nobody_has_looked_at_is_not_there(cpu: str) -> None:
    filter = Filter(cpu)
    known = set(policy()["numbers"][cpu].values())
    others = [number for number in (*range(600), 2**31 - 1) if number not in known]
    assert {filter.asks_by_number(number) for number in others} == {UNKNOWN}
    assert {filter.asks(name) for name in ("clone3", "cachestat")} == {UNKNOWN}


@EVERY_CPU
def test_calls_of_other_machines_are_not_there(cpu: str) -> None:
    filter = Filter(cpu)
    others = set(AUDIT_ARCHITECTURES) - {cpu}
    assert COMPATIBLE[cpu] in others
    assert {filter.asks("getpid", architecture=other) for other in others} == {UNKNOWN}
    if cpu == "x86_64":
        assert filter.asks_by_number(X32 | policy()["numbers"][cpu]["getpid"]) == UNKNOWN


BEYOND_INT = 1 << 40
BY_ARGUMENT: dict[
    tuple[str, Arguments], int
] = {  # a call, its arguments, and the errno it ends with; 0 if it is allowed
    ("clone", (0x10000011,)): errno.ENOSYS,  # a user namespace
    ("clone", (0x3D0F00,)): 0,  # a thread
    ("personality", (0,)): 0,
    ("personality", (0x40000,)): errno.ENOSYS,
    ("socket", (1, 1, 0)): 0,
    ("socket", (2, 1, 6)): 0,
    ("socket", (10, 2, 17)): 0,
    ("socket", (16, 3, 0)): 0,
    ("socket", (16, 3, 9)): errno.EPROTONOSUPPORT,
    ("socket", (2, 1, 262)): errno.EPROTONOSUPPORT,
    ("socket", (40, 1, 0)): errno.EAFNOSUPPORT,
    ("socket", (17, 3, 0)): errno.EAFNOSUPPORT,
    ("socket", (2, 10, 0)): errno.ESOCKTNOSUPPORT,
    ("socket", (2, 5, 0)): errno.ESOCKTNOSUPPORT,
    ("socketpair", (1, 1, 0)): 0,
    ("socketpair", (2, 1, 0)): errno.ENOSYS,
    ("setsockopt", (3, 1, 2)): 0,
    ("setsockopt", (3, 1, 26)): errno.EPERM,
    ("setsockopt", (3, 1 | BEYOND_INT, 50 | BEYOND_INT)): errno.EPERM,
    ("prctl", (22, 1)): 0,
    ("prctl", (22, 2)): errno.EINVAL,
    ("prctl", (22 | BEYOND_INT, 2)): errno.EINVAL,
    ("seccomp", (0, 0)): 0,
    ("seccomp", (1, 0)): errno.EINVAL,
    ("ioctl", (0, 0x5401)): 0,
    ("ioctl", (0, 0x5412)): errno.EPERM,
    ("ioctl", (0, 0x541C | BEYOND_INT)): errno.EPERM,
}


@EVERY_CPU
def test_what_is_refused_by_its_arguments_is_refused_on_each(cpu: str) -> None:
    filter = Filter(cpu)
    answers = {(name, arguments): filter.asks(name, *arguments) for name, arguments in BY_ARGUMENT}
    assert answers == {call: REFUSED | error if error else ALLOWED for call, error in BY_ARGUMENT.items()}


@EVERY_CPU
def test_the_profile_for_other_runtimes_is_the_shipped_policy_but_for_what_is_refused_by_argument(cpu: str) -> None:
    """It is compiled as it is printed, by the C library that those runtimes use."""
    script = SCRIPTS / "build_seccomp.py"
    profile = subprocess.run([script, "--oci"], check=True, stdout=subprocess.PIPE).stdout
    architecture = f"build_seccomp.ARCHITECTURES[{cpu!r}]"
    compile = f"build_seccomp.policy(json.load(sys.stdin), {architecture}).export_bpf(sys.stdout)"
    refuse = f"sys.stdout.buffer.write(build_seccomp.refused_by_argument({architecture}))"
    refused, compiled = (
        subprocess.run(
            ["/usr/bin/python3", "-B", "-c", f"import json, sys, build_seccomp; {code}"],
            cwd=SCRIPTS,
            input=profile,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for code in (refuse, compile)
    )
    assert refused + compiled == Path(seccomp.FILTER).with_name(f"seccomp_{cpu}.bpf").read_bytes()
