"""The program `atoll`, to which each verb's file adds its own."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from typing import NoReturn

import click

from atoll import __version__
from atoll.cli.doctor import doctor
from atoll.cli.serve import serve
from atoll.protocol.errors import AtollError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="atoll")
def atoll() -> None:
    """Isolated Linux computers in which people and AI agents run untrusted code."""


atoll.add_command(doctor)
atoll.add_command(serve)


def main() -> NoReturn:
    # As for Ctrl-C: a program told to end still removes what it made.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold what a terminal cannot show
    try:
        atoll.main(prog_name="atoll")
    except AtollError as problem:
        sys.exit(f"atoll: {problem}")
    sys.exit(0)
