"""Preparations, told on a person's terminal when they take longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.cli.problems import print_to_stderr
from atoll.client_sync.plumbing.local_server import LocalServer
from atoll.client_sync.plumbing.server import find_server
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import ServerInfo

PATIENCE_SECONDS, LOOK_SECONDS = 1.0, 0.3
QUIET_LOOKS = 3  # after so many in which nothing is prepared, what takes its time is the command


@contextmanager
def telling_preparations(url: str | None, api_key: str | None) -> Iterator[None]:
    """Only where a person watches; nothing is started for it."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    is_over = threading.Event()
    threading.Thread(target=_tell, args=(url, api_key, is_over), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _tell(url: str | None, api_key: str | None, is_over: threading.Event) -> None:
    told, quiet_looks, patience = "", 0, PATIENCE_SECONDS
    while quiet_looks < QUIET_LOOKS and not is_over.wait(patience):
        patience = LOOK_SECONDS
        what = look(url, api_key)
        quiet_looks = 0 if what else quiet_looks + 1
        if what and what != told and not is_over.is_set():
            print_to_stderr(f"atoll: preparing {printable(what)[:200]}")
            told = what


def look(url: str | None, api_key: str | None) -> str:
    """The names of what is being prepared; none, if that cannot be known."""
    try:
        address = url or str(LocalServer.from_environment().address)
        return ", ".join(find_server(address, api_key).ask("GET", "/v1/server", ServerInfo).preparing)
    except AtollError as problem:
        return "the server of this machine" if problem.code is ErrorCode.SERVER_NOT_REACHABLE and not url else ""
