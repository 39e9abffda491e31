"""Values as people read them in a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta

from atoll.protocol.printable import printable

UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Three digits at most: 512 B, 3.7 MiB, 2 GiB."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in UNITS:
        value /= 1024
        if value < 999.5 or unit == UNITS[-1]:
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def span(time: timedelta) -> str:
    """The two largest units that matter: 12s, 5m, 3h 20m, 4d 1h."""
    seconds = max(0, int(time.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24}h" if hours % 24 else f"{days}d"
    if hours:
        return f"{hours}h {minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{minutes}m" if minutes else f"{seconds}s"


def local_time(moment: datetime) -> str:
    return _local(moment).strftime("%Y-%m-%d %H:%M:%S")


def day(moment: datetime) -> str:
    return _local(moment).strftime("%Y-%m-%d")


def short_time(moment: datetime) -> str:
    return _local(moment).strftime("%b %d %H:%M:%S")


def _local(moment: datetime) -> datetime:
    try:
        return moment.astimezone()
    except (OverflowError, ValueError, OSError):  # at either end of the calendar a file's time may be none here
        return moment


def pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{printable(name)}={printable(value)}" for name, value in sorted(values.items()))
