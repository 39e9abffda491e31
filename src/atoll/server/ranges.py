"""The Range header of RFC 9110: which part of a file a request asks for."""

from __future__ import annotations

import re

from atoll.protocol.errors import AtollError, ErrorCode, error

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE | re.ASCII)


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Offset and length. None, which means everything, for what is no range of bytes or more than one."""
    found = _RANGE.fullmatch(header.strip())
    first, last = found.groups() if found else ("", "")
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        if not length:
            raise _nothing(header, size)
        return size - length, length
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise _nothing(header, size)
    end = min(int(last), size - 1) if last else size - 1
    return int(first), end - int(first) + 1


def _nothing(header: str, size: int) -> AtollError:
    message = f"the file has {size} bytes, none of which are in {header!r:.100}"
    return error(ErrorCode.RANGE_NOT_SATISFIABLE, message, remedy="Ask for bytes that are there.", size=size)
