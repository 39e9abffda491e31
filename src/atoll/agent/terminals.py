"""The terminals of a sandbox: each a program on a pty, with any number of viewers.

Rules:
1. A terminal ends with its program, or when it is closed, which ends all that the program started but daemons: who has
   left both its session and its parent is not known to be its own. A viewer that leaves ends nothing.
2. What the program shows is read whether somebody looks or not, and the last of it is kept. Each viewer has a place in
   that, and is sent what follows while its connection takes bytes; a new one begins with what is kept.
3. Viewers that keep reading miss nothing: the program waits for one that is as far behind as is kept. But not for
   long: one that takes nothing for PATIENCE_SECONDS is left behind, and told what it missed. Until it has caught up
   nobody waits for it again.
4. Input of all viewers goes to the program in the order of its arrival. While it does not read, whoever sends waits.
5. When the program has ended, each viewer gets all the rest and then its exit code; so does one that comes later.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.commands import KILL_GRACE_SECONDS
from atoll.agent.process_tree import CommandTree
from atoll.agent.pty import Pty, PtyStart, read_outcome, set_size
from atoll.agent.shell import find_shell
from atoll.agent.spawn import enter, find_program, invalid_command, spawn_error
from atoll.agent.streams import READ_SIZE
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.terminals import (
    MAX_WRITE,
    REPLAY_BYTES,
    AttachTerminal,
    CloseTerminal,
    CreateTerminal,
    ListTerminals,
    ResizeTerminal,
    TerminalInfo,
    TerminalList,
    TerminalLost,
    TerminalReady,
    TerminalResized,
    WaitTerminal,
    WriteTerminal,
    check_size,
    to_words,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.agent.commands import CommandRunner
    from atoll.agent.operations import Calls, Owner
    from atoll.agent.sessions import SessionRegistry

MAX_TERMINALS = 32
MAX_ENDED = 8  # kept so that a late viewer learns how they ended
PATIENCE_SECONDS = 2.0
INPUT_HELD = 64 * 1024
MAX_LEFT = 2**20  # far more than a pty holds of what a program that ended had written
UNOPENED_PAUSE_SECONDS = 0.1
TERM = "xterm-256color"


class TerminalRegistry:
    """Terminals by id, the oldest first."""

    def __init__(self, runner: CommandRunner, sessions: SessionRegistry) -> None:
        self._runner = runner
        self._sessions = sessions
        self._terminals: dict[str, Terminal] = {}

    def register(self, calls: Calls) -> None:
        calls.operations[CreateTerminal] = lambda call, owner: Creation(self, call, owner)
        calls.operations[AttachTerminal] = lambda call, owner: Viewer(self._get(call.terminal_id), owner)
        calls.operations[WriteTerminal] = lambda call, owner: Writing(self._get(call.terminal_id), call.data, owner)
        calls.operations[WaitTerminal] = lambda call, owner: Ending(self._get(call.terminal_id), owner)
        calls.operations[CloseTerminal] = lambda call, owner: Closing(self._get(call.terminal_id), owner)
        calls.answers[ResizeTerminal] = self.resize
        calls.answers[ListTerminals] = lambda call: self.list()

    def start(self, call: CreateTerminal) -> tuple[Terminal, int]:
        """A terminal, and the pipe that says whether its program could be run."""
        self._check(call)
        env = self._runner.env.merged({"TERM": TERM, **call.env})
        path = env.get("PATH", os.defpath)
        words = to_words(call.shell) or [find_shell(path)[0]]
        try:
            enter(self._sessions.directory_of(call.session_id), call.cwd)
            program = find_program(words[0], path)
            pty = Pty(call.cols, call.rows)
            try:
                pid, outcome = PtyStart(program, words, env, pty.slave).fork(self._runner)
            except BaseException:
                os.close(pty.master)
                raise
            finally:
                pty.close_slave()  # while we had it open, the end of the program would not be the end of its output
        except AtollError:  # some are an OSError too
            raise
        except OSError as cause:
            raise spawn_error(words[0], cause) from cause
        finally:
            os.chdir("/")
        terminal = Terminal(self._runner, pid, pty.master, words, (call.cols, call.rows), self._forget_old)
        self._terminals[terminal.id] = terminal
        return terminal, outcome

    def list(self) -> TerminalList:
        return TerminalList(terminals=[terminal.info for terminal in self._terminals.values()])

    def drop(self, terminal: Terminal) -> None:
        """Of a program that could not be run."""
        self._terminals.pop(terminal.id, None)

    def resize(self, call: ResizeTerminal) -> TerminalInfo:
        terminal = self._get(call.terminal_id)
        check_size(call.cols, call.rows)
        terminal.resize(call.cols, call.rows)
        return terminal.info

    def _check(self, call: CreateTerminal) -> None:
        check_size(call.cols, call.rows)
        check_environment(call.env)
        if any("\0" in word for word in (*(call.shell or ()), call.cwd or "")):
            raise invalid_command("a NUL character is in the command", "Take it out.")
        if sum(not terminal.has_ended for terminal in self._terminals.values()) >= MAX_TERMINALS:
            raise error(
                ErrorCode.TOO_MANY_TERMINALS,
                f"the sandbox already has {MAX_TERMINALS} terminals",
                remedy="Close those that are not needed any more.",
            )

    def _forget_old(self) -> None:
        ended = [terminal for terminal in self._terminals.values() if terminal.has_ended]
        for terminal in ended[:-MAX_ENDED]:
            self.drop(terminal)

    def _get(self, terminal_id: str) -> Terminal:
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            remedy = "Create one; list the terminals to see which there are. One that ended long ago is forgotten."
            raise error(ErrorCode.TERMINAL_NOT_FOUND, f"there is no terminal {terminal_id!r:.100}", remedy=remedy)
        return terminal


class Terminal:
    """A program on a pty."""

    def __init__(
        self,
        runner: CommandRunner,
        pid: int,
        master: int,
        command: list[str],
        size: tuple[int, int],
        on_end: Callable[[], None],
    ) -> None:
        self.id = f"terminal-{os.urandom(4).hex()}"
        self.loop = runner.loop
        self.history = History()
        self.has_ended = False
        self._runner = runner
        self._pid = pid
        self._master = master
        self._command = command
        self._cols, self._rows = size
        self._created_at = time.time()
        self._exit_code: int | None = None
        self._left = MAX_LEFT
        self._viewers: list[Viewer] = []
        self._endings: list[Callable[[], None]] = [on_end]
        self._input = bytearray()
        self._on_room: list[Callable[[], None]] = []
        self._tree = CommandTree(pid)
        self._is_closing = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None  # while the program waits for a viewer
        runner.running.add(self)
        runner.reaper.watch(pid, self._on_exit)
        self._read_on()

    @property
    def info(self) -> TerminalInfo:
        return TerminalInfo(
            id=self.id,
            pid=self._pid,
            cols=self._cols,
            rows=self._rows,
            command=self._command,
            created_at=self._created_at,
            viewers=len(self._viewers),
            exit_code=self._exit_code if self.has_ended else None,
        )

    def resize(self, cols: int, rows: int) -> None:
        if self.has_ended:
            return
        set_size(self._master, cols, rows)
        self._cols, self._rows = cols, rows
        for viewer in tuple(self._viewers):
            viewer.note_resize()

    def feed(self, data: bytes, on_room: Callable[[], None]) -> bool:
        """Input. False: `on_room` will be called when more may come."""
        if self.has_ended:
            return True
        self._input += data
        self._write()
        if len(self._input) < INPUT_HELD:
            return True
        self._on_room.append(on_room)
        return False

    def forget_room(self, on_room: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._on_room.remove(on_room)

    def close(self) -> None:
        if not (self._is_closing or self.has_ended):
            self._is_closing = True
            self._tree.hang_up()
            self._kill_timer = self.loop.call_later(KILL_GRACE_SECONDS, self._tree.kill)

    def when_ended(self, action: Callable[[], None]) -> None:
        if self.has_ended:
            action()
        else:
            self._endings.append(action)

    def not_when_ended(self, action: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._endings.remove(action)

    def add_viewer(self, viewer: Viewer) -> None:
        self._viewers.append(viewer)

    def remove_viewer(self, viewer: Viewer) -> None:
        with suppress(ValueError):
            self._viewers.remove(viewer)
        self.look_at_viewers()

    def look_at_viewers(self) -> None:
        """Rule 3. To be called whenever a viewer may have become slow, or caught up."""
        if self.has_ended:
            return
        is_waiting = self._patience is not None
        is_needed = any(viewer.is_slow for viewer in self._viewers)
        if is_needed and not is_waiting:
            self.loop.remove_reader(self._master)
            self._wait_for_viewers()
        elif is_waiting and not is_needed:
            self._stop_waiting()
            self._read_on()

    def _wait_for_viewers(self) -> None:
        for viewer in self._viewers:
            viewer.mark()
        self._patience = self.loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        for viewer in self._viewers:
            viewer.leave_behind_unless_moved()
        self._wait_for_viewers()
        self.look_at_viewers()

    def _stop_waiting(self) -> None:
        if self._patience:
            self._patience.cancel()
            self._patience = None

    def _read_on(self) -> None:
        if self.has_ended:
            return
        if self._exit_code is None:
            self.loop.add_reader(self._master, self._on_readable)
        else:
            self._read_rest()

    def _on_readable(self) -> None:
        if data := self._read():
            self._show(data)
        elif data is not None:
            # Nobody has it open. Mostly that is the end, but a program may open it again by its name.
            self.loop.remove_reader(self._master)
            self._runner.reaper.reap()
            if self._exit_code is None:
                self.loop.call_later(UNOPENED_PAUSE_SECONDS, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self._patience:
            self._read_on()

    def _show(self, data: bytes) -> None:
        self.history.add(data)
        for viewer in tuple(self._viewers):
            viewer.pull()
        self.look_at_viewers()

    def _read(self) -> bytes | None:
        """Some output; none if nobody has the pty open; None if there is nothing yet."""
        try:
            return os.read(self._master, READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _write(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._master, self._input[:READ_SIZE])]
        except BlockingIOError:
            self.loop.add_writer(self._master, self._write)
        except OSError:  # nobody has it open
            self._input.clear()
            self.loop.remove_writer(self._master)
        else:
            self.loop.remove_writer(self._master)
        if len(self._input) < INPUT_HELD:
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        waiting, self._on_room = self._on_room, []
        for on_room in waiting:
            on_room()

    def _on_exit(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self.loop.remove_reader(self._master)
        if self._kill_timer:
            self._kill_timer.cancel()
        if self._is_closing:
            self._tree.kill()
        if not self._patience:
            self._read_rest()

    def _read_rest(self) -> None:
        """What the program had written. Whoever else has the pty open may write for ever, and is not waited for."""
        while self._left > 0 and (data := self._read()):
            self._left -= len(data)
            self._show(data)
            if self._patience or self.has_ended:
                return
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        self.loop.remove_reader(self._master)
        self.loop.remove_writer(self._master)
        os.close(self._master)
        self._stop_waiting()
        self._input.clear()
        self._runner.running.discard(self)
        self._tell_of_room()
        for viewer in tuple(self._viewers):
            viewer.pull()
        endings, self._endings = self._endings, []
        for action in endings:
            action()


class History:
    """The last of what a terminal showed, at least REPLAY_BYTES of it. Places are counted from the very first byte."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.start = 0

    @property
    def end(self) -> int:
        return self.start + len(self._kept)

    def add(self, data: bytes) -> None:
        self._kept += data
        # One who is REPLAY_BYTES behind is waited for, and loses nothing by the read that brought it there. Cutting
        # now and then, not at every read, moves each byte once or twice.
        if len(self._kept) > REPLAY_BYTES + 2 * READ_SIZE:
            cut = len(self._kept) - REPLAY_BYTES - READ_SIZE
            del self._kept[:cut]
            self.start += cut

    def read(self, place: int, length: int) -> bytes:
        offset = place - self.start
        return bytes(self._kept[offset : offset + length])


class Viewer:
    """Somebody who looks at a terminal."""

    def __init__(self, terminal: Terminal, owner: Owner) -> None:
        self._terminal = terminal
        self._owner = owner
        self._history = terminal.history
        self._live_from = self._history.end
        self._place = max(self._history.start, self._live_from - REPLAY_BYTES)
        self._marked = self._place
        self._is_paused = self._is_left_behind = self._is_ready = self._is_done = self._was_resized = False

    @property
    def is_slow(self) -> bool:
        """Whether it will miss something if the program shows more; unless that is nobody's concern any more."""
        return not self._is_left_behind and self._history.end - self._place >= REPLAY_BYTES

    def begin(self) -> None:
        self._terminal.add_viewer(self)
        self.pull()

    def cancel(self) -> None:
        self._is_done = True
        self._terminal.forget_room(self._owner.input_drained)
        self._terminal.remove_viewer(self)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.pull()
        self._terminal.look_at_viewers()

    def feed(self, data: bytes) -> bool:
        return self._terminal.feed(data, self._owner.input_drained)

    def mark(self) -> None:
        self._marked = self._place

    def leave_behind_unless_moved(self) -> None:
        self._is_left_behind |= self.is_slow and self._place == self._marked

    def note_resize(self) -> None:
        """Told with the next bytes at the latest: who takes nothing is not sent a thousand of these."""
        self._was_resized = True
        self.pull()

    def pull(self) -> None:
        """Send what there is, while it is taken."""
        while not (self._is_paused or self._is_done):
            if self._place < self._history.start:
                self._tell(TerminalLost(bytes=self._history.start - self._place))
                self._place = self._history.start
            elif not self._is_ready and self._place >= self._live_from:
                self._is_ready = True
                self._tell(TerminalReady(terminal=self._terminal.info))
            elif self._was_resized:
                self._was_resized = False
                info = self._terminal.info
                self._tell(TerminalResized(cols=info.cols, rows=info.rows))
            elif self._place < self._history.end:
                self._send_some()
            else:
                self._is_left_behind = False
                self._finish_if_over()
                return

    def _send_some(self) -> None:
        limit = READ_SIZE if self._is_ready else min(READ_SIZE, self._live_from - self._place)
        data = self._history.read(self._place, limit)
        self._place += len(data)
        self._owner.send(FrameKind.DATA, data)

    def _tell(self, event: TerminalReady | TerminalLost | TerminalResized) -> None:
        self._owner.send(FrameKind.EVENT, encode_message(event))

    def _finish_if_over(self) -> None:
        if self._terminal.has_ended:
            self._is_done = True
            self._terminal.remove_viewer(self)
            self._owner.done(self._terminal.info)


class Waiting:
    """An operation that takes no input, gives no output, and ends with what is known of its terminal."""

    def __init__(self, terminal: Terminal, owner: Owner) -> None:
        self._terminal = terminal
        self._owner = owner

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def feed(self, data: bytes) -> bool:
        return True

    def _done(self) -> None:
        self._owner.done(self._terminal.info)


class Ending(Waiting):
    """Somebody waits for the end of a program."""

    def begin(self) -> None:
        self._terminal.when_ended(self._done)

    def cancel(self) -> None:
        self._terminal.not_when_ended(self._done)


class Closing(Ending):
    def begin(self) -> None:
        self._terminal.close()
        super().begin()


class Writing(Waiting):
    """Input that comes with its call."""

    def __init__(self, terminal: Terminal, data: bytes, owner: Owner) -> None:
        super().__init__(terminal, owner)
        self._data = data

    def begin(self) -> None:
        if len(self._data) > MAX_WRITE:
            message = f"{len(self._data)} bytes are too many for one write"
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=f"Write {MAX_WRITE} at a time.")
        if self._terminal.feed(self._data, self._done):
            self._done()

    def cancel(self) -> None:
        self._terminal.forget_room(self._done)


class Creation(Waiting):
    """A terminal whose program is being started."""

    def __init__(self, registry: TerminalRegistry, call: CreateTerminal, owner: Owner) -> None:
        self._registry = registry
        self._call = call
        self._owner = owner

    def begin(self) -> None:
        self._terminal, self._outcome = self._registry.start(self._call)
        self._terminal.loop.add_reader(self._outcome, self._on_outcome)

    def cancel(self) -> None:
        """Nobody knows its id."""
        self._stop_waiting()
        self._terminal.close()

    def _on_outcome(self) -> None:
        try:
            failure = read_outcome(self._outcome)
        except BlockingIOError:
            return
        self._stop_waiting()
        if failure:
            self._registry.drop(self._terminal)
            self._owner.fail(spawn_error(self._terminal.info.command[0], failure))
        else:
            self._done()

    def _stop_waiting(self) -> None:
        self._terminal.loop.remove_reader(self._outcome)
        os.close(self._outcome)
