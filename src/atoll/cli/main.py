"""The program `atoll`. Each verb has a file of its name in verbs/, which is loaded when the verb is used."""

from __future__ import annotations

import os
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from typing import Any, NoReturn

import click

from atoll import __version__
from atoll.cli import problems, verbs
from atoll.cli.ending import end_by_signals
from atoll.protocol.errors import AtollError
from atoll.protocol.printable import printable
from atoll.values.sandboxes import OptionsIgnoredWarning

SIGPIPE = 13  # which Windows has no name for
FIRST = ("run", "exec", "shell", "ls", "inspect", "rm")  # in help, as most people begin with them
VERBS = tuple(dict.fromkeys((*FIRST, *(file.name for file in iter_modules(verbs.__path__)))))


OTHER_NAMES = {  # by which other programs call what ours do
    "list": "ls",
    "new": "create",
    "delete": "rm",
    "destroy": "rm",
    "remove": "rm",
    "stop": "sleep --stop",
    "freeze": "sleep",
    "pause": "sleep",
    "resume": "wake",
    "update": "set",
    "ssh": "shell",
    "console": "shell",
    "copy": "cp",
    "status": "inspect",
    "show": "inspect",
    "stats": "top",
    "history": "events",
}


class Verbs(click.Group):
    """Loading the server takes longer than most verbs do, so only what is asked for is loaded."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"{verbs.__name__}.{name}"), name)
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words and words[0] not in VERBS and not words[0].startswith("-") and not context.resilient_parsing:
            other = OTHER_NAMES.get(words[0])
            meant = [other] if other else get_close_matches(words[0], VERBS)
            hint = f" Did you mean {' or '.join(f'`atoll {one}`' for one in meant)}?" if meant else ""
            raise click.UsageError(f"No such verb {words[0]!r:.100}.{hint}", context)
        return super().resolve_command(context, words)

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
@click.option("--url", metavar="URL", help="The server, for any verb; this machine's if not given.")
@click.option("--api-key", metavar="KEY", help="The key it asks for.")
def atoll(url: str | None, api_key: str | None) -> None:
    """Isolated Linux computers in which people and AI agents run untrusted code."""
    for name, value in (("ATOLL_URL", url), ("ATOLL_API_KEY", api_key)):
        if value is not None:
            os.environ[name] = value  # where every verb looks that is not told otherwise


def main() -> NoReturn:
    end_by_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what a terminal cannot show
    sys.exit(_main(sys.argv[1:]))


def _main(words: list[str]) -> int:
    warnings.showwarning = _show_warning
    try:
        code = atoll.main(words, prog_name="atoll", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (AtollError, click.ClickException) as problem:
        return problems.tell(problem, as_json=problems.wants_json(words))
    except click.Abort:  # whoever was asked said no
        return problems.FAILED
    except OSError as problem:
        _forget_output()
        return problems.tell(problem, as_json=problems.wants_json(words))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """For people, who have not written the line at which it happened."""
    text = str(message)
    if isinstance(message, OptionsIgnoredWarning):
        told = "; ".join(f"{name}: {how}" for name, how in message.options.items())
        text = f"sandbox {message.sandbox_id} exists and keeps what it has ({told}); `atoll set` changes it"
    problems.print_to_stderr(f"atoll: {printable(text)}")


def _forget_output() -> None:
    """Give up the rest of the buffer: it cannot be written, and must not be tried again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
