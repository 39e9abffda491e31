"""What a viewer sees of a terminal, from the frames of its answer. Values, no I/O."""

from __future__ import annotations

from typing import cast

from atoll.protocol.answers import event, misbehaved, result
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.terminals import AttachTerminal, TerminalEvent, TerminalInfo


class ViewFold:
    """Bytes and events as they come; in the end `exit_code`."""

    def __init__(self, call: AttachTerminal) -> None:
        self.exit_code: int | None = None
        self._call = call

    def take(self, frame: Frame) -> bytes | TerminalEvent | None:
        """What a frame brings; None if it is the end."""
        if frame.kind is FrameKind.DATA:
            if not frame.payload:  # it costs nothing to send, and would be read for ever
                raise misbehaved("a DATA frame came without a byte in it")
            return frame.payload
        if frame.kind is FrameKind.DONE:
            self.exit_code = exit_code_of(result(self._call, frame))
            return None
        return event(cast("type[TerminalEvent]", TerminalEvent), frame)


def exit_code_of(ended: TerminalInfo) -> int:
    if ended.exit_code is None:
        raise misbehaved("a terminal that has ended has no exit code")
    return ended.exit_code
