"""Errors keep their code, words and built-in class wherever they travel."""

import errno
import json
import os
import pickle

import msgspec
import pytest

from atoll.protocol.calls import encode_call
from atoll.protocol.commands import ExecShell
from atoll.protocol.errors import (
    AtollError,
    CallerError,
    Context,
    ErrorBody,
    ErrorCode,
    HostError,
    InternalError,
    SandboxError,
    as_id,
    error,
    from_body,
    shown,
)
from atoll.protocol.names import named


@pytest.mark.parametrize(
    ("code", "builtin"),
    [
        (ErrorCode.COMMAND_NOT_FOUND, FileNotFoundError),
        (ErrorCode.FILE_NOT_FOUND, FileNotFoundError),
        (ErrorCode.NOT_DIRECTORY, NotADirectoryError),
        (ErrorCode.PERMISSION_DENIED, PermissionError),
        (ErrorCode.NOT_ROOT, PermissionError),
        (ErrorCode.AGENT_TIMEOUT, TimeoutError),
        (ErrorCode.AGENT_LOST, ConnectionError),
        (ErrorCode.INVALID_LIMITS, ValueError),
        (ErrorCode.IMAGE_NOT_FOUND, LookupError),
        (ErrorCode.SANDBOX_EXISTS, FileExistsError),
    ],
)
def test_an_error_is_also_the_built_in_that_fits(code: ErrorCode, builtin: type[Exception]) -> None:
    made = error(code, "it failed", remedy="do this", path="/x")
    assert isinstance(made, builtin)
    assert not isinstance(made, OSError) or made.errno
    assert str(made) == f"it failed [{code}]\n  do this"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_travels_and_comes_back_the_same(code: ErrorCode) -> None:
    sent = error(code, "it failed", remedy="do this", path="/x", number=3)
    for received in (from_body(sent.to_body()), pickle.loads(pickle.dumps(sent))):
        assert type(received) is type(sent)
        assert (received.code, received.message, received.context, received.remedy) == (
            code,
            "it failed",
            {"path": "/x", "number": 3},
            "do this",
        )


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_row_says_all_there_is_to_know_about_a_code(code: ErrorCode) -> None:
    made = error(code, "it failed")
    assert code.value == code.name == str(code)
    assert type(made) is code.kind and made.code is code
    assert getattr(made, "errno", None) == code.errno
    assert issubclass(code.kind, OSError) == (code.errno is not None)
    branch = {CallerError: 400, SandboxError: 400, HostError: 500, InternalError: 500}
    (lowest,) = (status for kind, status in branch.items() if isinstance(made, kind))
    assert lowest <= code.status < 600


def test_a_code_from_the_future_keeps_its_words() -> None:
    received = from_body(ErrorBody(code="TOO_MANY_MOONS", message="eclipse"))
    assert isinstance(received, InternalError)
    assert isinstance(received, AtollError)
    assert "eclipse" in received.message and "TOO_MANY_MOONS" in received.message


@pytest.mark.parametrize("path", [b"/a", "/grün".encode(), b"/caf\xe9", b"/new\nline", b"/\xff" * 100])
def test_the_file_name_is_the_exact_one_wherever_the_error_has_travelled(path: bytes) -> None:
    sent = error(ErrorCode.FILE_NOT_FOUND, "it is not there", remedy="Look.", **named(path=path))
    as_json = msgspec.json.decode(msgspec.json.encode(sent.to_body()), type=ErrorBody)
    as_message = msgspec.msgpack.decode(msgspec.msgpack.encode(sent.to_body()), type=ErrorBody)
    for received in (sent, from_body(as_json), from_body(as_message), pickle.loads(pickle.dumps(sent))):
        assert isinstance(received, FileNotFoundError) and isinstance(received, AtollError)
        assert os.fsencode(received.filename) == path
        assert (received.errno, received.strerror) == (errno.ENOENT, "it is not there")
        assert str(received) == "it is not there [FILE_NOT_FOUND]\n  Look."
        json.dumps(received.context).encode()


def test_what_is_not_about_a_file_has_no_file_name() -> None:
    for code in (ErrorCode.SESSION_EXISTS, ErrorCode.AGENT_LOST, ErrorCode.PROCESS_EXIT_TIMEOUT):
        made = error(code, "it failed", session_id="s").about(
            **named(path=b"/x") if code != ErrorCode.SESSION_EXISTS else {}
        )
        assert isinstance(made, OSError) and made.filename is None and made.errno
    ran = error(ErrorCode.COMMAND_NOT_FOUND, "not found", command="sl")
    assert isinstance(ran, FileNotFoundError) and ran.filename == "sl"
    cwd = error(ErrorCode.FILE_NOT_FOUND, "not there", command="ls", path="/no")
    assert isinstance(cwd, FileNotFoundError) and cwd.filename == "/no"


def test_more_is_said_about_an_error_but_nothing_else() -> None:
    problem = error(ErrorCode.FILE_NOT_FOUND, "not there", **named(path=b"/known"))
    assert problem.about(session_id="s", **named(path=b"/caf\xe9", source=b"\xff")) is problem
    assert problem.context == {"path": "/known", "session_id": "s", "source": "\ufffd", "source_base64": "/w=="}
    assert isinstance(problem, FileNotFoundError) and problem.filename == "/known"


@pytest.mark.parametrize(
    "context", [{"path": 3}, {"path_base64": "!"}, {"path": "/x", "path_base64": "=="}, {"path": None}]
)
def test_a_context_that_makes_no_sense_harms_nobody(context: Context) -> None:
    body = ErrorBody(code="FILE_NOT_FOUND", message="made up", context=context)
    received = from_body(body)
    assert isinstance(received, FileNotFoundError)
    assert received.filename in (None, "/x")


def test_half_a_character_is_no_obstacle_for_an_error_that_travels() -> None:
    made = error(ErrorCode.INVALID_REQUEST, "bad \ud800", remedy="Not \udcff.", value="\udcff", number=3)
    body = msgspec.json.decode(msgspec.json.encode(made.to_body()), type=ErrorBody)
    assert (body.message, body.remedy) == ("bad \\ud800", "Not \\udcff.")
    assert body.context == {"value": "\\udcff", "number": 3}


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (10**400, "1" + 99 * "0"),
        ("ä", "'ä'"),
        (10**5000, "<int that cannot be shown>"),
        ({"a": -(10**5000)}, "<dict that cannot be shown>"),
        (Shy(), "<Shy that cannot be shown>"),
    ],
    ids=["long", "text", "longer", "inside", "refusing"],
)
def test_a_value_is_shown_whatever_it_is(value: object, words: str) -> None:
    assert shown(value) == words
    assert as_id(value)[:100].strip("'") == words.strip("'")


def test_a_number_that_cannot_be_sent_is_not_said_to_be_text() -> None:
    with pytest.raises(AtollError) as caught:
        encode_call(ExecShell(command="true", max_output=10**5000))
    assert caught.value.context == {"field": "max_output", "value": "<int that cannot be shown>"}
    assert caught.value.remedy == f"Give {2**63 - 1} at most."
