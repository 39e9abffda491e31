"""Holds the agent of one plain sandbox: run as `plain_holder.py DISK LISTENER SECRET KEEPER REPORT LOCK`, all but the
first descriptors.

The agent ends with whoever has the other end of KEEPER, until a word comes from there. It is the first process of a PID
namespace, so that all it started ends with it, and sees its disk as /srv. LOCK is held until that word too: others can
wait for what nobody keeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# Shells keep what they tell the agent in /dev/shm, which is to go with the sandbox.
BEGIN = 'mount --bind "$0" /srv && mount -t tmpfs -o mode=1777 none /dev/shm && cd /srv && exec "$@"'


def main() -> None:
    disk, (listener, secret, keeper, report, lock) = sys.argv[1], map(int, sys.argv[2:])
    agent = [sys.executable, "-m", "atoll.agent", "--listener", str(listener), "--secret", str(secret)]
    outer = subprocess.Popen([*UNSHARE, "sh", "-c", BEGIN, disk, *agent], pass_fds=(listener, secret))
    os.close(listener)
    os.close(secret)
    inner = first_child(outer)
    os.write(report, str(inner).encode())
    os.close(report)
    if not os.read(keeper, 1):
        with suppress(ProcessLookupError):
            os.kill(inner, signal.SIGKILL)
    os.close(lock)
    outer.wait()


def first_child(parent: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.002)  # nobody tells of a fork
    return int(found[0])


if __name__ == "__main__":
    main()
