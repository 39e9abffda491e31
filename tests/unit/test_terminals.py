"""What a viewer sees, folded: bytes and events in their order, and an agent that lies is found out."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import AgentMisbehavedError
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.terminals import (
    AttachTerminal,
    TerminalInfo,
    TerminalLost,
    TerminalReady,
    TerminalResized,
    ViewFold,
)

CALL = AttachTerminal(terminal_id="t")
RUNNING = TerminalInfo(
    id="t", pid=7, cols=80, rows=24, command=["sh"], created_at=datetime(2026, 1, 1, tzinfo=UTC), viewers=1
)
ENDED = Frame(FrameKind.DONE, encode_message(msgspec.structs.replace(RUNNING, exit_code=3)))
EVENTS = [TerminalReady(terminal=RUNNING), TerminalLost(bytes=5), TerminalResized(cols=100, rows=30)]
shown = st.lists(st.binary(min_size=1, max_size=9) | st.sampled_from(EVENTS))


@given(shown=shown)
def test_everything_is_seen_as_it_comes(shown: list[bytes | TerminalReady | TerminalLost | TerminalResized]) -> None:
    fold = ViewFold(CALL)
    for one in shown:
        frame = Frame(FrameKind.DATA, one) if isinstance(one, bytes) else Frame(FrameKind.EVENT, encode_message(one))
        assert fold.take(frame) == one
    assert fold.exit_code is None
    assert fold.take(ENDED) is None
    assert fold.exit_code == 3


@pytest.mark.parametrize(
    "lie",
    [
        Frame(FrameKind.DATA, b""),
        Frame(FrameKind.STDOUT, b"x"),
        Frame(FrameKind.EVENT, encode_message({"type": "explode"})),
        Frame(FrameKind.EVENT, encode_message({"type": "lost", "bytes": -1})),
        Frame(FrameKind.DONE, encode_message(RUNNING)),
        Frame(FrameKind.DONE, b"\xc1"),
    ],
)
def test_a_lie_is_misbehaviour(lie: Frame) -> None:
    with pytest.raises(AgentMisbehavedError):
        ViewFold(CALL).take(lie)
