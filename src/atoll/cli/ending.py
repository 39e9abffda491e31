"""The end from outside: Ctrl-C, SIGTERM, or a terminal that was closed.

The first such signal raises SystemExit wherever we are, so that what was made is removed on the way out. The next ones
are not heard, so that nobody impatient keeps us from it; nothing on that way waits for ever.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

# Windows has no terminal that hangs up.
SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def end_by_signals() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # whoever starts us so, as nohup does, means it
            signal.signal(number, _end)


def hold_signals() -> None:
    """From here on we end by ourselves."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _not_now)


def _end(number: int, _: object) -> NoReturn:
    hold_signals()
    sys.exit(128 + number)


def _not_now(number: int, _: object) -> None:
    """A function, because a server that we start would inherit SIG_IGN."""
