"""The agent's life: make itself fit to be PID 1, say that it is ready, serve until it is killed.

Two ways in. The native engine forks it from the nursery and calls `run` (no exec, so the image needs no Python).
Other engines exec it: `python -m atoll.agent --listener FD [--secret FD]`.

Rules:
1. Everything is imported before `run`. Then the import system is shut: what lies in the sandbox's /usr belongs to
   the sandbox, and PID 1 does not load it.
2. PID 1 opens no file by a name that the sandbox could have replaced with a FIFO. So no traceback is ever formatted
   here (that reads source files), and nothing asks the C library for users, hosts or locales (that loads plug-ins).
3. Every descriptor is close-on-exec; a command gets 0, 1 and 2 and nothing else.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.ascii
import encodings.idna
import encodings.latin_1
import encodings.utf_8
import os
import signal
import socket
import stringprep
import sys
from typing import TYPE_CHECKING, NoReturn

from atoll.agent.calls import NOUNS
from atoll.agent.commands.group import Freezing, group
from atoll.agent.commands.reaper import Reaper
from atoll.agent.commands.runner import CommandRunner, oom_score_of_commands
from atoll.agent.commands.spawn import Environment
from atoll.agent.figures import Figures
from atoll.agent.files.workers import WorkerPool
from atoll.agent.loop import AgentLoop
from atoll.agent.operations import Calls
from atoll.agent.processes.processes import ProcessRegistry
from atoll.agent.scratch import Scratch
from atoll.agent.server import AgentServer, comes_from_outside
from atoll.agent.sessions.sessions import SessionRegistry
from atoll.agent.sessions.shell_script import RESTORE, STATES
from atoll.agent.terminals.terminals import TerminalRegistry
from atoll.cpu.own import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atoll.agent.secret import Secret

# Codecs are looked up by name at first use, and that is an import: these are loaded while that is still allowed.
PRELOADED = (encodings.ascii, encodings.idna, encodings.latin_1, encodings.utf_8, stringprep)

_PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None)


class Agent:
    """Set up, opened, run. What comes between may be a fork, and the making of the sandbox around it."""

    def __init__(
        self, admits: Callable[[socket.socket], bool] = comes_from_outside, secret: Secret | None = None
    ) -> None:
        """All that holds no descriptor, so that it can be shared with whoever is forked from us."""
        self.loop = AgentLoop()
        self.loop.set_exception_handler(_survive)
        self.reaper = Reaper(self.loop)
        self.runner = CommandRunner(self.loop, self.reaper)
        self._scratch = Scratch(disposable=(*STATES, RESTORE))
        self.sessions = SessionRegistry(self.runner, self._scratch)
        self.processes = ProcessRegistry(self.runner, self.sessions)
        self.terminals = TerminalRegistry(self.runner, self.sessions)
        self.workers = WorkerPool(self.runner, self.sessions)
        calls = Calls()
        for noun in NOUNS:
            noun.register(calls, self)
        self.figures = Figures(self.loop, self._is_busy, self.runner.births.last_pid)
        calls.operations = {kind: self.figures.before(begin) for kind, begin in calls.operations.items()}
        self.server = AgentServer(self.loop, calls, admits, secret)

    def open(self, listener: socket.socket, scratch: int) -> None:
        """Get ready to serve the host on `listener`, an already listening Unix socket.

        `scratch` is a descriptor of an empty directory for what the agent and its shells tell each other.
        """
        # /proc/self belongs to us only while we are dumpable, which a change of user id ends.
        _set_dumpable(True)
        self.runner.open()
        _set_dumpable(False)
        self._scratch.open(scratch)
        self.loop.open()
        self.reaper.open()
        self.server.listen(listener)

    def put_commands_into(self, words: Freezing, fds: Sequence[int]) -> None:
        """From now on they have a control group of their own, of which we are not."""
        group.open(words, fds)

    def _is_busy(self) -> bool:
        return bool(self.runner.running) or self.workers.is_in_use

    def close(self) -> None:
        """For rehearsals; an agent proper ends with its sandbox."""
        self.server.close()
        self.reaper.close()
        self.loop.close()
        self.sessions.close()
        self.processes.close()
        self._scratch.close()
        self.runner.close()

    def run(self, env: Mapping[str, str], on_ready: Callable[[], None], *, memory: int | None = None) -> NoReturn:
        """Serve, and never return. `env` is what commands start from, `memory` all that the sandbox has, if known."""
        become_pid_1()
        if memory:
            self.runner.oom_score = oom_score_of_commands(memory)
        self.runner.env = Environment(env)
        self.runner.guard.arm()
        on_ready()
        self.loop.run_forever()
        os._exit(0)


def become_pid_1() -> None:
    """Close what a hostile neighbour in the same PID namespace could use against us."""
    os.umask(0o022)
    # Without this, root inside could read our memory and descriptors in /proc/1.
    _set_dumpable(False)
    shut_import_system()


def reset_signals() -> None:
    """The default action for every signal, none blocked: whoever started us may have had other ideas.

    "Ignore" is inherited, and commands shall start with a clean slate; PID 1 itself is immune to the default action.
    Straight to the kernel, since the C library keeps two signals to itself. What Python handles for itself stays.
    """
    action = (ctypes.c_ulong * 4)()  # handler SIG_DFL, no flags, no restorer, nothing blocked meanwhile
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
            _libc.syscall(ctypes.c_long(OWN.calls["rt_sigaction"]), number, action, None, ctypes.c_size_t(8))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def shut_import_system() -> None:
    for finders in (sys.meta_path, sys.path_hooks, sys.path, sys.path_importer_cache):
        if finders:  # the nursery has done it already, and to touch a page is to copy it
            finders.clear()


def _set_dumpable(value: bool) -> None:
    _libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(value), 0, 0, 0)


def _survive(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """A callback failed. Its connection is already closed by asyncio; PID 1 goes on for the others."""
