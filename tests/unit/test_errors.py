"""Errors keep their code, words and built-in class wherever they travel."""

import pickle

import pytest

from atoll.protocol.errors import AtollError, ErrorBody, ErrorCode, InternalError, error, from_body


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


def test_a_code_from_the_future_keeps_its_words() -> None:
    received = from_body(ErrorBody(code="TOO_MANY_MOONS", message="eclipse"))
    assert isinstance(received, InternalError)
    assert isinstance(received, AtollError)
    assert "eclipse" in received.message and "TOO_MANY_MOONS" in received.message
