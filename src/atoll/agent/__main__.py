"""`python -m atoll.agent --listener FD [--secret FD]`: the agent as a program, for engines that exec it.

The first FD is a listening socket made by the host, the second a pipe with the secret by which hosts are known, without
which only a Unix socket will do. The sandbox's environment is this program's own.
"""

import argparse
import os
import socket

from atoll.agent.main import Agent, reset_signals
from atoll.agent.scratch import make_private_directory
from atoll.agent.secret import Secret
from atoll.agent.server import comes_from_outside
from atoll.cpu.own import OWN, check_cpu
from atoll.protocol.errors import AtollError

UNIX, ANY = (socket.AF_UNIX,), (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)


def parse_arguments() -> tuple[socket.socket, Secret | None]:
    parser = argparse.ArgumentParser(prog="python -m atoll.agent", description="The Atoll agent, PID 1 of a sandbox.")
    parser.add_argument("--listener", type=int, required=True, metavar="FD", help="a listening socket")
    parser.add_argument("--secret", type=int, metavar="FD", help="where the secret is read that hosts begin with")
    given = parser.parse_args()
    try:
        check_cpu(OWN.name)
        secret = None if given.secret is None else Secret.read(given.secret)
    except AtollError as problem:
        parser.error(f"{problem.message}. {problem.remedy}")
    except (OSError, ValueError) as cause:
        parser.error(f"--secret {given.secret}: {cause}")
    return listener_at(given.listener, parser, ANY if secret else UNIX), secret


def listener_at(fd: int, parser: argparse.ArgumentParser, families: tuple[socket.AddressFamily, ...]) -> socket.socket:
    wanted = "a listening socket" if len(families) > 1 else "a listening Unix socket"
    try:
        listener = socket.socket(fileno=fd)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as cause:
        parser.error(f"--listener {fd}: {cause.strerror}; it must be {wanted}")
    if listener.family not in families or not is_listening:
        parser.error(f"--listener {fd} must be {wanted}")
    listener.set_inheritable(False)
    return listener


def whoever(peer: socket.socket) -> bool:
    """For who has said the secret."""
    return True


if __name__ == "__main__":
    reset_signals()
    listener, secret = parse_arguments()
    agent = Agent(whoever if secret else comes_from_outside, secret)
    agent.open(listener, make_private_directory())
    agent.run(os.environ, on_ready=lambda: None)
