"""What the native engine needs of the machine, asked before anything is made."""

from __future__ import annotations

import os
import platform
import re

from atoll.protocol.errors import AtollError, ErrorCode, error

MINIMUM_KERNEL = (5, 19)  # overlay mounts on idmapped layers
MACHINES = ("x86_64",)


def check_machine() -> None:
    """Raise the first reason why no sandbox can be made here."""
    problem = find_problem(os.geteuid(), platform.system(), platform.release(), platform.machine())
    if problem:
        raise problem


def find_problem(euid: int, system: str, release: str, machine: str) -> AtollError | None:
    if system != "Linux":
        return error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"sandboxes need Linux; this is {system}",
            remedy="Run a server on Linux, and point ATOLL_URL at it.",
        )
    if machine not in MACHINES:
        return error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"the system-call filter is made for {', '.join(MACHINES)}; this is {machine}",
            remedy="Run a server on an x86-64 machine.",
        )
    if parse_kernel(release) < MINIMUM_KERNEL:
        return error(
            ErrorCode.KERNEL_TOO_OLD,
            f"the kernel is {release}; overlay mounts on idmapped layers need {'.'.join(map(str, MINIMUM_KERNEL))}",
            remedy="Boot a newer kernel; Debian 12 and Ubuntu 24.04 have one.",
            release=release,
        )
    if euid != 0:
        return error(
            ErrorCode.NOT_ROOT,
            f"making sandboxes needs root; this process runs as uid {euid}",
            remedy="Run it with sudo, or point ATOLL_URL at a server that has root.",
            uid=euid,
        )
    return None


def parse_kernel(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
