"""The gateway, in a network namespace that a test made. Only tests start it, as

    python -I tests/lab_gateway.py PID WITHOUT FD

PID is of a process in that namespace, WITHOUT names defences that are taken away, each alone, or is empty.
"""

from __future__ import annotations

import ctypes
import os
import sys

from atoll.network import gateway

NEW_NET = 0x4000_0000


def main() -> None:
    fd = os.open(f"/proc/{sys.argv[1]}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)
    gateway.main()


if __name__ == "__main__":
    main()
