"""Descriptors of the server: how many it may use, and what the last of them are for.

Rules:
1. What is kept, an agent's connection, what an engine holds of a sandbox, a client, takes none of the reserve; a client
   on the Unix socket may take half of it, and any that comes while others are idle may take it for one request, but for
   the last quarter. So what needs some for a moment finds them: to list, to look, to freeze, to destroy.
2. What is not used is closed before anything is refused.

The kernel gives the lowest number that is free: who gets one of the reserve knows that there is no other.
"""

from __future__ import annotations

import errno
import os
import resource

from atoll.protocol.errors import AtollError, ErrorCode, error, too_many_open_files

FEWEST_OPEN_FILES = 256  # a shell keeps its own descriptors above 200, out of its commands' way
RESERVED = 64  # or a quarter, if there are few at all


def is_reserved(fd: int, part: float = 1.0) -> bool:
    """Whether a new descriptor is of the last `part` of the reserve."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and fd >= limit - int(min(RESERVED, limit // 4) * part)


def has_room() -> bool:
    """Whether something new may be kept."""
    try:
        fd = os.dup(0)
    except OSError:
        return False
    os.close(fd)
    return not is_reserved(fd + 2)  # a sandbox comes with two


def check_room_for(sandboxes: int) -> None:
    """Raise if there is none to go on with so many that run, each of which takes one, and keep the reserve."""
    with open(os.devnull, "rb") as lowest:  # noqa: PTH123 (what it has is the lowest number that is free)
        needed = lowest.fileno() + sandboxes
    if is_reserved(needed):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise error(
            ErrorCode.TOO_MANY_OPEN_FILES,
            f"{sandboxes} sandboxes run, for which a server needs {needed + RESERVED + 1} open files, and this one may "
            f"have {limit}",
            remedy="They run on. Raise the limit: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit of a service.",
            sandboxes=sandboxes,
            limit=limit,
        )


def no_room() -> AtollError:
    return too_many_open_files(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))


def check_limit(limit: int) -> None:
    """Raise if no server can live with so many, nor the shells of sandboxes, which have the same limit."""
    if limit < FEWEST_OPEN_FILES and limit != resource.RLIM_INFINITY:
        raise error(
            ErrorCode.TOO_MANY_OPEN_FILES,
            f"a server needs {FEWEST_OPEN_FILES} open files at least, and this one may have {limit}",
            remedy="Raise the limit: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit of a service.",
            limit=limit,
        )
