"""Variables that a sandbox has without being told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.limits import Limits

if TYPE_CHECKING:
    from atoll.protocol.rootfs import Rootfs
    from atoll.supervisor.records import SandboxRecord

ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}


def told_inside(limits: Limits) -> dict[str, str]:
    """Variables by which a sandbox knows its limits: `df` shows the pool that all disks are in, `nproc` every cpu."""
    return {
        "ATOLL_CPUS": f"{limits.cpus:g}",
        "ATOLL_MEMORY": str(limits.memory),
        "ATOLL_DISK": str(limits.disk),
        "ATOLL_PIDS": str(limits.pids),
    }


def usual(limits: Limits, rootfs: Rootfs) -> dict[str, str]:
    """The variables of every sandbox with these limits and this image."""
    return ENV | told_inside(limits) | rootfs.env


def variables_of(record: SandboxRecord, rootfs: Rootfs) -> dict[str, str]:
    """The variables that a sandbox starts with: the usual ones and its own, without those that were taken away."""
    variables = usual(record.limits, rootfs) | record.env
    return {name: value for name, value in variables.items() if value is not None}
