"""Spawning: a call turned into a process, its words checked, its directory and program found, its pipes made."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from atoll.agent.commands.vfork import Vector, descriptor_actions, make_vector, vfork_exec
from atoll.agent.descriptors import FEW_LEFT, limit
from atoll.agent.files.errors import file_error
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.names import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.protocol.commands import Exec, ExecShell

MAX_TIMEOUT_SECONDS = 10**7


class Environment:
    """The sandbox's own variables, ready for the kernel, as most commands take them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._vector = variables_vector(self._variables)

    def with_changes(self, changes: Mapping[str, str | None]) -> tuple[Vector, str]:
        """The variables of a command, and the PATH among them. None takes a variable away."""
        if not changes:
            return self._vector, self._variables.get("PATH", os.defpath)
        variables = self.merged(changes)
        return variables_vector(variables), variables.get("PATH", os.defpath)

    def merged(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        changed = {**self._variables, **changes}
        return {name: value for name, value in changed.items() if value is not None}

    def changes_to(self, other: Environment) -> dict[str, str | None]:
        """The changes that would make these of the other's variables."""
        ours, theirs = self._variables, other._variables
        missing: dict[str, str | None] = dict.fromkeys(theirs.keys() - ours.keys())
        return missing | {name: value for name, value in ours.items() if theirs.get(name) != value}


def variables_vector(variables: Mapping[str, str]) -> Vector:
    return make_vector([f"{name}={value}" for name, value in variables.items()])


def spawn(call: Exec, pipes: Pipes, env: Environment, base: str) -> int:
    """The pid of the new process, which leads its own session and holds no descriptor but 0, 1 and 2.

    A list of calls has no place for a directory that may be gone, so the agent goes there itself for a moment.
    """
    try:
        vector, path = env.with_changes(call.env)
        enter(base, call.cwd)
        stdin = pipes.stdin[0] if pipes.stdin else None
        program = find_program(call.argv[0], path)
        actions = descriptor_actions(stdin, pipes.stdout[1], pipes.stderr[1])
        return vfork_exec(program, call.argv, vector, actions)
    except AtollError:
        pipes.close_ours()
        raise
    except OSError as cause:
        pipes.close_ours()
        raise spawn_error(call.argv[0], cause) from cause
    finally:
        pipes.close_theirs()
        os.chdir("/")


def enter(base: str, cwd: str | None) -> None:
    """Go to `cwd`, counted from `base`."""
    try:
        os.chdir(base)
    except OSError:
        os.chdir("/")  # somebody removed it
    try:
        if cwd:
            os.chdir(cwd)
    except OSError as cause:
        raise directory_error(_absolute(cwd or base), cause) from cause


def _absolute(cwd: str) -> str:
    """Counted from where we are."""
    try:
        return os.path.join(os.getcwd(), cwd)
    except OSError:  # which is nowhere any more
        return cwd


def find_program(name: str, path: str) -> str:
    """Where `name` is, as execvp would find it: what cannot be executed is passed over."""
    if "/" in name:
        return name
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{name}"
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    if any(os.path.exists(f"{directory or '.'}/{name}") for directory in path.split(":")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class Pipes:
    """The pipes of a command. Our ends do not block."""

    def __init__(self, with_stdin: bool) -> None:
        pairs: list[tuple[int, int]] = []
        try:
            for _ in range(3 if with_stdin else 2):
                pairs.append(os.pipe())
            if not limit.has_room_after(pairs[-1][1]):
                raise OSError(errno.EMFILE, FEW_LEFT)
        except OSError as cause:
            for fd in (fd for pair in pairs for fd in pair):
                os.close(fd)
            raise no_room("a command", cause.strerror) from cause
        self.stdout, self.stderr = pairs[:2]
        self.stdin = pairs[2] if with_stdin else None
        self._ours = [self.stdout[0], self.stderr[0], *(pair[1] for pair in pairs[2:])]
        self._theirs = [self.stdout[1], self.stderr[1], *(pair[0] for pair in pairs[2:])]
        for fd in self._ours:
            os.set_blocking(fd, False)

    def close_ours(self) -> None:
        for fd in self._ours:
            os.close(fd)

    def close_theirs(self) -> None:
        for fd in self._theirs:
            os.close(fd)


def pipe_name(fd: int) -> str:
    """As /proc shows it."""
    return f"pipe:[{os.fstat(fd).st_ino}]"


def check_words(call: Exec) -> None:
    """Refuse words that the kernel, or this agent, cannot take."""
    if not call.argv or not call.argv[0]:
        raise invalid_command("the command is empty", "Give a program and its arguments.", command="")
    check_call(call, call.argv)


def check_call(call: Exec | ExecShell, words: Sequence[str]) -> None:
    check_environment(call.env)
    check_no_nul(*words)
    if call.cwd:
        check_directory_name(call.cwd)
    if call.timeout is not None and not 0 <= call.timeout <= MAX_TIMEOUT_SECONDS:
        remedy = f"Give 0 to {MAX_TIMEOUT_SECONDS} seconds, or none for no limit."
        raise invalid_command(f"a timeout of {call.timeout} seconds cannot be kept", remedy, timeout=call.timeout)
    if call.max_output is not None and call.max_output < 0:
        message = f"max_output={call.max_output} is less than nothing"
        raise invalid_command(message, "Give bytes, or none for no limit.", max_output=call.max_output)


def check_no_nul(*words: str) -> None:
    for word in words:
        if "\0" in word:
            raise invalid_command("a NUL character is in the command", "Take it out.", command=word[:200])


def check_directory_name(cwd: str) -> None:
    if "\0" in cwd:
        raise invalid_command("a NUL character is in the directory", "Take it out.", path=cwd[:200])


def invalid_command(message: str, remedy: str, **context: str | int | float) -> AtollError:
    return error(ErrorCode.INVALID_COMMAND, message, remedy=remedy, **context)


def directory_error(cwd: str, cause: OSError) -> AtollError:
    path = os.fsencode(cwd)
    if cause.errno == errno.ENOENT:
        message = f"there is no directory {cwd!r:.200}"
        return error(ErrorCode.FILE_NOT_FOUND, message, remedy="Make it first.", **named(path=path))
    return file_error(OSError(cause.errno, cause.strerror), path)


def spawn_error(program: str, cause: OSError) -> AtollError:
    """Why a program did not start, in the caller's words."""
    match cause.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return error(
                ErrorCode.COMMAND_NOT_FOUND,
                f"{program!r:.200} was not found in the sandbox",
                remedy=_how_to_find(program),
                command=program[:200],
            )
        case errno.EAGAIN | errno.ENOMEM:
            return no_room(f"{program!r:.200}", cause.strerror, command=program[:200])
        case errno.E2BIG:
            remedy = "Pass what is large on standard input or in a file."
            message = "the arguments and variables are longer than the kernel takes"
            return invalid_command(message, remedy, command=program[:200])
    return error(
        ErrorCode.PERMISSION_DENIED,
        f"{program!r:.200} cannot be run: {cause.strerror}",
        remedy="It must be a program that the sandbox's user may execute.",
        command=program[:200],
    )


def _how_to_find(program: str) -> str:
    words = program.split()
    if len(words) > 1:
        return f"No shell takes this apart. Give the program and its arguments as a list: {words!r:.200}."
    return "Check the spelling and PATH, or install it in the sandbox first."


def no_room(what: str, why: str | None, **context: str) -> AtollError:
    return error(
        ErrorCode.PROCESS_LIMIT_REACHED,
        f"{what} could not start: the sandbox has no room for another process ({why})",
        remedy="End some of its processes, or all of them with sleep(stop=True), which keeps its files.",
        reason=why,
        **context,
    )
