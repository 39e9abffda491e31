"""The program `atoll`. Each verb has a file of its name in verbs/, which is loaded when the verb is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from typing import NoReturn

import click

from atoll import __version__
from atoll.cli import problems, verbs
from atoll.cli.ending import end_by_signals
from atoll.protocol.errors import AtollError

SIGPIPE = 13  # which Windows has no name for
FIRST = ("run", "exec", "shell", "ls", "inspect", "rm")  # in help, as most people begin with them
VERBS = tuple(dict.fromkeys((*FIRST, *(file.name for file in iter_modules(verbs.__path__)))))


class Verbs(click.Group):
    """Loading the server takes longer than most verbs do, so only what is asked for is loaded."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"{verbs.__name__}.{name}"), name)
        return command

    def invoke(self, context: click.Context) -> None:
        """Here, because click itself makes a reader who has left an exit code of 1."""
        try:
            super().invoke(context)
            if sys.stdout:
                sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            context.exit(128 + SIGPIPE)


@click.group(cls=Verbs, name="atoll", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="atoll")
def atoll() -> None:
    """Isolated Linux computers in which people and AI agents run untrusted code."""


def main() -> NoReturn:
    end_by_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what a terminal cannot show
    sys.exit(_main(sys.argv[1:]))


def _main(words: list[str]) -> int:
    try:
        code = atoll.main(words, prog_name="atoll", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (AtollError, click.ClickException) as problem:
        return problems.tell(problem, as_json=problems.wants_json(words))
    except OSError as problem:
        _forget_output()
        return problems.tell(problem, as_json=problems.wants_json(words))


def _forget_output() -> None:
    """Give up the rest of the buffer: it cannot be written, and must not be tried again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
