"""The views of a terminal: the latest of what it showed, and whoever looks at it.

Rules 2 and 3 of terminal.py are kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.commands.execution import READ_SIZE
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.terminals import REPLAY_BYTES, TerminalLost, TerminalReady, TerminalResized

if TYPE_CHECKING:
    from atoll.agent.operations import Owner
    from atoll.agent.terminals.terminal import Terminal


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
    """A viewer of a terminal."""

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
