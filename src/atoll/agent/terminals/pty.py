"""A pty, and a program started on it.

Rules:
1. The master is opened in the sandbox's own devpts, whose entries nobody can replace, and must be the device it should
   be: whatever else might lie there is neither followed nor waited for.
2. The slave comes from the master, never by a path.
3. The program leads a session whose controlling terminal is the pty. It has 0, 1 and 2 and no other descriptor.
4. Nobody waits for its exec, which somebody inside could stop: a pipe says when it has happened, or why it failed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import struct
import termios
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from atoll.agent.commands.group import group
from atoll.agent.commands.spawn import no_room
from atoll.agent.descriptors import limit
from atoll.agent.sessions.shell import NOT_STARTED
from atoll.protocol.errors import AtollError, ErrorCode, error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.commands.runner import CommandRunner

MASTERS = "/dev/pts/ptmx"  # /dev/ptmx is a link to it, which root inside may have replaced
_MASTER_DEVICE = os.makedev(5, 2)
_OPEN = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
_TIOCGPTN, _TIOCSPTLCK, _TIOCGPTPEER = (
    0x80045430,
    0x40045431,
    0x5441,
)  # from <asm-generic/ioctls.h>; Python 3.11 does not have them
_INPUT_FLAGS = 0
_IUTF8 = 0o40000


class Started(NamedTuple):
    """A program on a pty. `outcome` is a pipe that ends when it has been exec'd; before that, an errno may come."""

    pid: int
    master: int  # which does not block
    outcome: int


class PtyProgram:
    """A program to be started on a pty. A list of calls cannot say why it has no terminal, so this takes a fork."""

    def __init__(self, program: str, argv: list[str], env: Mapping[str, str]) -> None:
        self._program = program
        self._argv = argv
        self._env = env

    def start(self, runner: CommandRunner, cols: int, rows: int) -> Started:
        """Start a program, which inherits our directory."""
        master = open_master()
        try:
            slave = open_slave(master)
            try:
                prepare(slave, cols, rows)
                pid, outcome = self._fork(runner, slave)
            finally:
                # While we had it open, the end of the program would not be the end of its output.
                os.close(slave)
        except BaseException:
            os.close(master)
            raise
        return Started(pid, master, outcome)

    def _fork(self, runner: CommandRunner, slave: int) -> tuple[int, int]:
        try:
            outcome, report = os.pipe()
        except OSError as cause:
            raise no_room("a terminal", cause.strerror) from cause
        try:
            with runner.commands_oom_score():
                pid = os.fork()
                if pid == 0:
                    self._become_program(slave, report)
                runner.guard.expect_company()
        except OSError as cause:
            os.close(outcome)
            raise no_room("a terminal", cause.strerror) from cause
        finally:
            os.close(report)
        os.set_blocking(outcome, False)
        return pid, outcome

    def _become_program(self, slave: int, report: int) -> NoReturn:
        try:
            group.join()
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for target in (0, 1, 2):
                os.dup2(slave, target)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            limit.lower()
            os.execve(self._program, self._argv, self._env)
        except OSError as cause:
            os.write(report, struct.pack("i", cause.errno))
        finally:
            os._exit(NOT_STARTED)


def open_master() -> int:
    try:
        master = os.open(MASTERS, _OPEN | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as cause:
        raise no_terminal(cause.strerror) from cause
    found = os.fstat(master)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _MASTER_DEVICE:
        os.close(master)
        raise no_terminal(f"{MASTERS} is not what it should be")
    return master


def open_slave(master: int) -> int:
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, b"\0" * 4)
        return fcntl.ioctl(master, _TIOCGPTPEER, _OPEN)
    except OSError as cause:
        raise no_terminal(cause.strerror) from cause


def prepare(slave: int, cols: int, rows: int) -> None:
    """Set its size; and where the kernel edits lines itself, a backspace shall take a whole UTF-8 character."""
    try:
        attributes = termios.tcgetattr(slave)
        attributes[_INPUT_FLAGS] |= _IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        set_size(slave, cols, rows)
    except (OSError, termios.error) as cause:
        raise no_terminal(str(cause)) from cause


def set_size(pty: int, cols: int, rows: int) -> None:
    """By either end. The kernel tells the program, if it is another size than before."""
    fcntl.ioctl(pty, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))


def pty_name(master: int) -> str:
    """Of the other end, as /proc shows it."""
    (number,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, b"\0" * 4))
    return f"/dev/pts/{number}"


def read_outcome(outcome: int) -> OSError | None:
    """The error that a program's `outcome` tells of, once it can be read. None if the program runs."""
    data = os.read(outcome, 4)
    if len(data) < 4:
        return None
    (number,) = struct.unpack("i", data)
    return OSError(number, os.strerror(number))


def no_terminal(why: str | None) -> AtollError:
    return error(
        ErrorCode.PROCESS_LIMIT_REACHED,
        f"the sandbox can have no further terminal ({why})",
        remedy="Close some, or end programs that have made many; if there are none, destroy the sandbox.",
        reason=why,
    )
