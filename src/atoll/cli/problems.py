"""Errors as people and programs read them: what failed, its code, what to do; and the exit code."""

from __future__ import annotations

import os
import sys
from itertools import takewhile

import click
import msgspec

from atoll.protocol.errors import AtollError, ErrorBody, ErrorCode
from atoll.protocol.printable import printable, printable_json, printable_lines

FAILED, USAGE = 1, 2


def wants_json(words: list[str]) -> bool:
    """Whether --json was asked for; also where the rest makes no sense."""
    return "--json" in takewhile(lambda word: word != "--", words)


def tell(problem: AtollError | click.ClickException | OSError, *, as_json: bool) -> int:
    """Say on standard error what is wrong, and return the exit code."""
    if type(problem).__name__ == "NoArgsIsHelpError" and isinstance(problem, click.ClickException):
        problem.show()
        return USAGE
    body = to_body(problem)
    if as_json:
        print_to_stderr(printable_json(msgspec.json.encode(body).decode()))
    else:
        code = f" [{body.code}]" if isinstance(problem, AtollError) else ""
        print_to_stderr(f"{_name()} {printable_lines(body.message)}{code}")
        for line in body.remedy.split("\n") if body.remedy else ():
            print_to_stderr(f"  {printable(line)}")
    if isinstance(problem, click.ClickException):
        return problem.exit_code
    return USAGE if isinstance(problem, AtollError) and is_usage(problem) else FAILED


def is_usage(problem: AtollError) -> bool:
    """Whether it was asked wrongly, so that asking again would not help. A key may be right somewhere else."""
    return problem.code.startswith("INVALID_") and problem.code is not ErrorCode.INVALID_API_KEY


def to_body(problem: AtollError | click.ClickException | OSError) -> ErrorBody:
    if isinstance(problem, AtollError):
        return problem.to_body()
    if isinstance(problem, click.UsageError):
        remedy = f"See `{problem.ctx.command_path} --help`." if problem.ctx else "See `atoll --help`."
        return ErrorBody(code=ErrorCode.INVALID_REQUEST, message=problem.format_message(), remedy=remedy)
    if isinstance(problem, click.ClickException):
        return ErrorBody(code=ErrorCode.INVALID_REQUEST, message=problem.format_message())
    return ErrorBody(code=ErrorCode.INTERNAL_ERROR, message=str(problem))


def print_to_stderr(line: str) -> None:
    if sys.stderr:
        click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)


def _name() -> str:
    return click.style("atoll:", fg="red", bold=True)
