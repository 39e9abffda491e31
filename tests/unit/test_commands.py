"""The answer to a command, folded: the same however it is cut into frames, and an agent that lies is found out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.commands import STDERR, STDOUT, CommandFold, CommandText, Exec, ExecDone, Turn
from atoll.protocol.errors import AgentMisbehavedError
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import encode_message

CALL = Exec(argv=["true"])
ENDED = ExecDone(exit_code=3, duration=1.0)
DONE = Frame(FrameKind.DONE, encode_message(ENDED))
KINDS = {STDOUT: FrameKind.STDOUT, STDERR: FrameKind.STDERR}
streams = st.sampled_from([STDOUT, STDERR])
writes = st.lists(st.tuples(streams, st.text("aé€😀", min_size=1).map(str.encode) | st.binary(min_size=1, max_size=9)))


def frame(stream: str, data: bytes) -> Frame:
    return Frame(KINDS[stream], data)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % len(data) for place in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(written=writes, at=st.lists(st.integers(0, 100), max_size=5))
def test_output_is_the_same_however_its_frames_are_cut(written: list[tuple[str, bytes]], at: list[int]) -> None:
    expected = {name: b"".join(data for stream, data in written if stream == name) for name in KINDS}
    fold, text = CommandFold(CALL), CommandText()
    seen = dict.fromkeys(KINDS, "")
    for stream, data in written:
        for part in cut(data, at):
            piece = fold.take(frame(stream, part))
            assert piece == (stream, part)
            seen[stream] += text.take(piece).decode(errors="replace")
    assert fold.done is None
    assert fold.take(DONE) is None
    for piece in text.rest():
        seen[piece.stream] += piece.data.decode(errors="replace")
    output = fold.output
    assert (output.stdout, output.stderr, output.done) == (expected[STDOUT], expected[STDERR], ENDED)
    assert seen == {name: data.decode(errors="replace") for name, data in expected.items()}


@given(written=writes, allowed=st.integers(0, 20))
def test_no_stream_brings_more_than_it_may(written: list[tuple[str, bytes]], allowed: int) -> None:
    fold = CommandFold(Exec(argv=["true"], max_output=allowed))
    came = dict.fromkeys(KINDS, 0)
    for stream, data in written:
        came[stream] += len(data)
        if came[stream] > allowed:
            with pytest.raises(AgentMisbehavedError):
                fold.take(frame(stream, data))
            return
        assert fold.take(frame(stream, data))
    fold.take(DONE)
    assert {STDOUT: len(fold.output.stdout), STDERR: len(fold.output.stderr)} == came


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "lie",
    [
        frame(STDOUT, b""),
        frame(STDERR, b""),
        Frame(FrameKind.DATA, b"x"),
        Frame(FrameKind.EVENT, encode_message(ENDED)),
        Frame(FrameKind.WAITING, b""),
        Frame(FrameKind.DONE, b"\xc1"),
        Frame(FrameKind.DONE, encode_message({"exit_code": 256, "duration": 1.0})),
    ],
)
def test_what_is_no_output_and_no_end_is_misbehaviour(lie: Frame, keeps: bool) -> None:
    fold = CommandFold(CALL, keeps=keeps)
    fold.take(frame(STDOUT, b"x"))
    with pytest.raises(AgentMisbehavedError):
        fold.take(lie)


WORDS = {
    "w": FrameKind.WAITING,
    "s": FrameKind.STARTED,
    "o": FrameKind.STDOUT,
    "d": FrameKind.DONE,
    "f": FrameKind.FAILED,
}


@pytest.mark.parametrize("said", ["", "o", "ood", "d", "f", "w", "ws", "wso", "wsod", "wd", "wf", "wsf"])
def test_a_command_may_wait_before_it_begins(said: str) -> None:
    turn = Turn(may_wait=True)
    for word in said:
        turn.take(WORDS[word])
    assert turn.is_waiting == (said[:1] == "w" and "s" not in said)


@pytest.mark.parametrize("said", ["s", "ww", "wss", "wsw", "wo", "ow", "os"])
def test_it_waits_once_and_says_nothing_meanwhile(said: str) -> None:
    turn = Turn(may_wait=True)
    for word in said[:-1]:
        turn.take(WORDS[word])
    with pytest.raises(AgentMisbehavedError):
        turn.take(WORDS[said[-1]])


def test_a_command_without_a_session_waits_for_nobody() -> None:
    with pytest.raises(AgentMisbehavedError):
        Turn(may_wait=False).take(FrameKind.WAITING)
