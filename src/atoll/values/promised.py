"""Promised names: what the API will have, and what to do until then.

Whoever brings one takes its line out of PROMISED, its method out of `client/promised.py` and its row out of
`docs/what-comes.md`; a test holds the three to each other.
"""

from __future__ import annotations

from typing import NoReturn

from atoll.protocol.errors import AtollError, ErrorCode, error

_PORTS = "Until then let a client inside reach it: a service listens on the sandbox's own 127.0.0.1."
_CODE = 'Until then run it as a command: exec(["python3", "-c", code]), or write it to a file first.'
_GIT = "Until then use exec(): git is in the image where the host has it, and upload() brings a checkout in."
_SNAPSHOTS = "Until then copy what matters with download(), and bring it back with upload()."
_BACKUPS = "Until then pack what you need with tar in exec(), and download() that."
_BUCKETS = "Until then copy files with upload() and download()."
_SCHEDULES = 'Until then have a background process wait and start it: start_process() with restart="always".'
_IMAGES = "Until then use the image there is, and install what is missing with exec()."

# By the name of a sandbox's method, of an option of get_sandbox (with "="), or of something in `atoll`.
PROMISED = {
    "connect_port": _PORTS,
    "atoll.proxy_to_sandbox": _PORTS,
    "run_code": _CODE,
    "run_code_stream": _CODE,
    "create_code_context": _CODE,
    "list_code_contexts": _CODE,
    "delete_code_context": _CODE,
    "interrupt_code_context": _CODE,
    "restart_code_context": _CODE,
    "fork_code_context": _CODE,
    "git_checkout": _GIT,
    "git_status": _GIT,
    "git_diff": _GIT,
    "git_commit": _GIT,
    "git_push": _GIT,
    "snapshot": _SNAPSHOTS,
    "list_snapshots": _SNAPSHOTS,
    "delete_snapshot": _SNAPSHOTS,
    "restore": _SNAPSHOTS,
    "diff": _SNAPSHOTS,
    "fork": "Until then make the others with get_sandbox(), and bring in what they need with upload().",
    "snapshot=": "Until then make the sandbox from an image, and bring in files with upload().",
    "create_backup": _BACKUPS,
    "restore_backup": _BACKUPS,
    "secrets=": "Until then pass them in env=, where commands can read them.",
    "mount_bucket": _BUCKETS,
    "unmount_bucket": _BUCKETS,
    "flush_bucket": _BUCKETS,
    "list_mounts": _BUCKETS,
    "mount_volume": _BUCKETS,
    "schedule": _SCHEDULES,
    "list_schedules": _SCHEDULES,
    "delete_schedule": _SCHEDULES,
    "atoll.Image.from_": _IMAGES,
}


def not_available_yet(name: str) -> AtollError:
    shown = f"get_sandbox({name}...)" if name.endswith("=") else f"{name}()"
    return error(
        ErrorCode.NOT_AVAILABLE_YET,
        f"{shown} is not available yet",
        remedy=PROMISED[name],
        option=name.rstrip("="),
    )


class Image:
    """An image made in Python: `Image.from_("default").pip_install(...).run(...)`. Comes later."""

    @classmethod
    def from_(cls, name: str) -> NoReturn:
        raise not_available_yet("atoll.Image.from_")


def proxy_to_sandbox(app: object) -> NoReturn:
    """An ASGI application from which preview hosts are served. Comes later."""
    raise not_available_yet("atoll.proxy_to_sandbox")
