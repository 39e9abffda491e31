"""A terminal: a program on a pty, with any number of viewers.

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
import signal
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from atoll.agent.commands.execution import KILL_GRACE_SECONDS, READ_SIZE
from atoll.agent.commands.guard import patience_with
from atoll.agent.commands.process_tree import CommandTree, read_stat
from atoll.agent.descriptors import reserve
from atoll.agent.terminals.pty import pty_name, set_size
from atoll.agent.terminals.views import History
from atoll.protocol.terminals import TerminalInfo

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.terminals.pty import Started
    from atoll.agent.terminals.views import Viewer

PATIENCE_SECONDS = 2.0
INPUT_HELD = 64 * 1024
MAX_LEFT = 2**20  # far more than a pty holds of what a program that ended had written
UNOPENED_PAUSE_SECONDS = 0.1


class Terminal:
    """A program on a pty."""

    def __init__(
        self,
        runner: CommandRunner,
        started: Started,
        command: list[str],
        size: tuple[int, int],
        on_end: Callable[[], None],
    ) -> None:
        self.id = f"terminal-{os.urandom(4).hex()}"
        self.loop = runner.loop
        self.history = History()
        self.has_ended = False
        self._runner = runner
        self._pid = started.pid
        self._master = started.master
        self._command = command
        self._cols, self._rows = size
        self._created_at = datetime.now(UTC)
        self._exit_code: int | None = None
        self._left = MAX_LEFT
        self._viewers: list[Viewer] = []
        self._endings: list[Callable[[], None]] = [on_end]
        self._input = bytearray()
        self._on_room: list[Callable[[], None]] = []
        name = pty_name(started.master)
        self._tree = CommandTree(started.pid, lambda: {name})
        self._is_closing = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None  # while the program waits for a viewer
        self._next_write: asyncio.TimerHandle | None = None  # while nobody has it open
        runner.running.add(self)
        runner.reaper.watch(started.pid, self._on_exit)
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
        if not self._is_closing and self._exit_code is None:
            self._is_closing = True
            self._tree.add(self._pid)  # somebody may have stopped it before it made its session
            self._tree.hang_up()
            self._kill_timer = self.loop.call_later(KILL_GRACE_SECONDS, self._tree.kill)

    def end_unexecuted(self, looks: int) -> None:
        """Of a program that somebody keeps from being executed. Then nothing is below it yet."""
        with suppress(OSError), reserve.given_up():
            if self._exit_code is None and looks >= patience_with(read_stat(self._pid).state):
                os.kill(self._pid, signal.SIGKILL)

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
            if self._next_write is None:
                self.loop.add_writer(self._master, self._on_writable)
        except OSError:  # nobody has it open
            self._input.clear()
            self.loop.remove_writer(self._master)
        else:
            self.loop.remove_writer(self._master)
        if len(self._input) < INPUT_HELD:
            self._tell_of_room()

    def _on_writable(self) -> None:
        before = len(self._input)
        self._write()
        if self._input and len(self._input) == before:
            # Nobody has it open: epoll calls that writable, and would say so for ever. It may be opened again.
            self.loop.remove_writer(self._master)
            self._next_write = self.loop.call_later(UNOPENED_PAUSE_SECONDS, self._write_again)

    def _write_again(self) -> None:
        self._next_write = None
        self._write()

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
        """Show the rest of its output. Others that have the pty open may write for ever, and are not waited for."""
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
        if self._next_write:
            self._next_write.cancel()
        self._stop_waiting()
        self._input.clear()
        self._runner.running.discard(self)
        self._tell_of_room()
        for viewer in tuple(self._viewers):
            viewer.pull()
        endings, self._endings = self._endings, []
        for action in endings:
            action()
