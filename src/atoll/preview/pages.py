"""Answers of the proxy's own: a page where a person looks, JSON where a program does."""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from atoll.protocol.errors import AtollError, ErrorBody, ErrorCode, error
from atoll.protocol.printable import printable

REFRESH_SECONDS = 2
MAX_LINE, MAX_LINES = 200, 12

_HEADERS = (
    b"Cache-Control: no-store",
    b"Referrer-Policy: no-referrer",
    b"X-Content-Type-Options: nosniff",
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
    b"Connection: close",
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
{refresh}<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 12vh auto; padding: 0 1rem; color: #222 }}
h1 {{ font-size: 1.4rem }} p {{ color: #555 }}
pre {{ background: #f3f3f3; padding: .8rem; overflow-x: auto; font-size: .85rem }}
@media (prefers-color-scheme: dark) {{ body {{ background: #161616; color: #eee }} p {{ color: #aaa }}
pre {{ background: #242424 }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{remedy}</p>
{words}</body>
</html>
"""


class LastWords(NamedTuple):
    """A background process of the sandbox, and the end of what it wrote."""

    command: str
    status: str
    lines: list[str]


NOTHING_HERE = error(
    ErrorCode.ROUTE_NOT_FOUND,
    "there is no preview at this address",
    remedy="It may have been unexposed, or its time be up, or a letter be missing: ask whoever gave it to you.",
)
# Statuses of errors that tell a visitor something else than a caller.
_STATUS = {ErrorCode.PORT_NOT_OPEN: 502, ErrorCode.SANDBOX_NOT_RUNNING: 503, ErrorCode.AGENT_MISBEHAVED: 502}


def refusal(status: int, message: str, remedy: str) -> bytes:
    """An answer to what is no request, or none that we pass on."""
    code = ErrorCode.HEAD_TOO_LARGE if status == 431 else ErrorCode.INVALID_REQUEST
    return _answer(status, "application/json", _json(ErrorBody(code=code, message=message, remedy=remedy)))


def problem_answer(problem: AtollError, *, for_people: bool, with_body: bool, words: list[LastWords]) -> bytes:
    status = _STATUS.get(problem.code, problem.code.status)
    if not for_people:
        return _answer(status, "application/json", _json(problem.to_body()), with_body=with_body)
    page = _page(problem, refreshes=problem.code in _STATUS, words=words)
    return _answer(status, "text/html; charset=utf-8", page, with_body=with_body)


def _page(problem: AtollError, *, refreshes: bool, words: list[LastWords]) -> bytes:
    """Nothing of what a sandbox says is more than text."""
    listed = "".join(map(_listed, words))
    page = _PAGE.format(
        refresh=f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">\n' if refreshes else "",
        title=_text(problem.message[:1].upper() + problem.message[1:]),
        remedy=_text(problem.remedy) + (" This page looks again by itself." if refreshes else ""),
        words=listed,
    )
    return page.encode()


def _listed(one: LastWords) -> str:
    lines = "\n".join(map(_text, one.lines[-MAX_LINES:]))
    return f"<pre>$ {_text(one.command)}   ({_text(one.status)})\n{lines}</pre>\n"


def _text(said: str) -> str:
    return escape(printable(said[:MAX_LINE]))


def _json(body: ErrorBody) -> bytes:
    return msgspec.json.encode(body)


def _answer(status: int, kind: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()), b"Content-Type: " + kind.encode()]
    lines = (*head, b"Content-Length: %d" % len(body), *_HEADERS, b"", b"")
    return b"\r\n".join(lines) + (body if with_body else b"")
