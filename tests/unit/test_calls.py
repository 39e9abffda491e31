"""Answers: which type each call names, and what is made of frames that hold something else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atoll.protocol.agents import Ping, Pong
from atoll.protocol.calls import MAX_ERROR, Call, answer_type, event, failure, result
from atoll.protocol.commands import ExecDone, ExecShell
from atoll.protocol.errors import AgentMisbehavedError, ErrorBody
from atoll.protocol.files import FileDone, FileList, ListFiles
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.kinds import KINDS
from atoll.protocol.messages import encode_message
from atoll.protocol.processes import ProcessList
from atoll.protocol.sessions import ListSessions, Sessions
from atoll.protocol.terminals import TerminalList

FILES = ListFiles(path=b"/")
PONG = encode_message(Pong(protocol_version=1, commands_running=0))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_call_names_the_type_of_its_answer(kind: type[Call[Any]]) -> None:
    assert issubclass(answer_type(kind), msgspec.Struct)


def test_an_answer_is_of_the_type_that_its_call_names() -> None:
    assert result(Ping(), Frame(FrameKind.DONE, PONG)) == Pong(protocol_version=1, commands_running=0)
    for call, answer in (
        (FILES, FileDone(count=3)),
        (ListSessions(), Sessions(sessions=[])),
        (ExecShell(command="true"), ExecDone(exit_code=0, duration=1.0)),
    ):
        assert result(call, Frame(FrameKind.DONE, encode_message(answer))) == answer


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.EVENT, PONG),
        Frame(FrameKind.WAITING, b""),
        Frame(FrameKind.DONE, b""),
        Frame(FrameKind.DONE, b"\xc1"),
        Frame(FrameKind.DONE, PONG + b"\0"),
        Frame(FrameKind.DONE, encode_message({"protocol_version": -1, "commands_running": 0})),
        *(
            Frame(FrameKind.DONE, encode_message(other))
            for other in (ProcessList(processes=[]), TerminalList(terminals=[]))
        ),
    ],
)
def test_anything_else_is_misbehaviour(frame: Frame) -> None:
    with pytest.raises(AgentMisbehavedError):
        result(Ping(), frame)


def test_an_event_is_of_the_shape_that_is_expected_or_misbehaviour() -> None:
    for frame in (
        Frame(FrameKind.DATA, b"x"),
        Frame(FrameKind.EVENT, b"\xc1"),
        Frame(FrameKind.EVENT, encode_message(FileList(files=[]))),  # it costs nothing, and would be read for ever
    ):
        with pytest.raises(AgentMisbehavedError):
            event(FileList, frame)


def test_an_error_has_bounds() -> None:
    def said(message: str) -> Frame:
        return Frame(FrameKind.FAILED, encode_message(ErrorBody(code="NO_SPACE", message=message)))

    assert failure(said("full")).code == "NO_SPACE"
    for frame in (said("x" * MAX_ERROR), Frame(FrameKind.FAILED, b"\x82\xa4code\xa1\xff\xa7message\xa1x")):
        assert isinstance(failed_to_open(frame), AgentMisbehavedError)


def failed_to_open(frame: Frame) -> Exception:
    try:
        return failure(frame)
    except AgentMisbehavedError as problem:
        return problem
