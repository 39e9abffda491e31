"""`python -m atoll.agent --listener FD`: the agent as a program, for engines that exec it.

FD is a listening Unix socket made by the host. The sandbox's environment is this program's own.
"""

import argparse
import os
import socket

from atoll.agent.main import Agent, reset_signals
from atoll.agent.scratch import make_private_directory
from atoll.cpu.own import OWN, check_cpu
from atoll.protocol.errors import AtollError


def parse_listener() -> socket.socket:
    parser = argparse.ArgumentParser(prog="python -m atoll.agent", description="The Atoll agent, PID 1 of a sandbox.")
    parser.add_argument("--listener", type=int, required=True, metavar="FD", help="a listening Unix socket")
    fd = parser.parse_args().listener
    try:
        check_cpu(OWN.name)
    except AtollError as problem:
        parser.error(f"{problem.message}. {problem.remedy}")
    try:
        listener = socket.socket(fileno=fd)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as cause:
        parser.error(f"--listener {fd}: {cause.strerror}; it must be a listening Unix socket")
    if listener.family != socket.AF_UNIX or not is_listening:
        parser.error(f"--listener {fd} must be a listening Unix socket")
    listener.set_inheritable(False)
    return listener


if __name__ == "__main__":
    reset_signals()
    agent = Agent()
    agent.open(parse_listener(), make_private_directory())
    agent.run(os.environ, on_ready=lambda: None)
