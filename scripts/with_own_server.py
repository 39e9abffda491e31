#!/usr/bin/env python3
"""Runs a program with a server and a state directory of its own, of which nothing is left afterwards.

scripts/with_own_server.py python examples/first_sandbox.py
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from atoll import get_sandbox, list_sandboxes


def main() -> int:
    place = Path(tempfile.mkdtemp(prefix="atoll-"))
    os.environ.update(ATOLL_STATE_DIR=str(place / "state"), ATOLL_RUNTIME_DIR=str(place / "run"))
    for name in ("ATOLL_URL", "ATOLL_API_KEY"):
        os.environ.pop(name, None)
    try:
        return subprocess.run(sys.argv[1:]).returncode
    except KeyboardInterrupt:  # the program got it too, and has tidied up
        return 128 + signal.SIGINT
    finally:
        end_server(place)
        shutil.rmtree(place)


def end_server(place: Path) -> None:
    """With all its sandboxes, if it was started at all."""
    if not (place / "run/server.sock").exists():
        return
    for sandbox in list_sandboxes():
        get_sandbox(sandbox.id).destroy()
    with suppress(ProcessLookupError):  # it left by itself
        server = os.pidfd_open(int((place / "state/lock").read_text()))
        signal.pidfd_send_signal(server, signal.SIGTERM)
        select.select([server], [], [])


if __name__ == "__main__":
    sys.exit(main())
