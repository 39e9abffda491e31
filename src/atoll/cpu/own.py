"""The CPU of this machine, among those there are facts of."""

from __future__ import annotations

import os
from collections import defaultdict

from atoll.cpu.aarch64 import AARCH64
from atoll.cpu.facts import Cpu
from atoll.cpu.x86_64 import X86_64
from atoll.protocol.errors import ErrorCode, error

CPUS = {cpu.name: cpu for cpu in (X86_64, AARCH64)}
_NO_CALL = -1  # which every kernel answers with ENOSYS


def check_cpu(name: str) -> str:
    if name not in CPUS:
        raise error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"sandboxes are made on {' and '.join(CPUS)}; this is {name}",
            remedy=f"Run a server on one of these ({', '.join(CPUS)}), and point ATOLL_URL at it.",
        )
    return name


def _unknown(name: str) -> Cpu:
    """Nothing of it is ever used: it lets a program be loaded that says so, as the doctor does."""
    return Cpu(name, 0, defaultdict(lambda: _NO_CALL), (), ())


OWN = CPUS.get(os.uname().machine) or _unknown(os.uname().machine)
