"""Preparations: what takes seconds once, so that nobody wonders what they are waiting for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_under_way: list[str] = []

logger = logging.getLogger("atoll.preparations")


@contextmanager
def preparing(what: str) -> Iterator[None]:
    """Says so in the log and to whoever asks this process, while it lasts. In any thread."""
    logger.info("preparing %s", what)
    begin = time.monotonic()
    _under_way.append(what)
    try:
        yield
    finally:
        _under_way.remove(what)
        logger.info("%s took %.1f seconds", what, time.monotonic() - begin)


def under_way() -> list[str]:
    return list(_under_way)
