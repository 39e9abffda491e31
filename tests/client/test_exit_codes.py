"""The exit codes of `atoll run` and `atoll exec`, against a server that fails as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from atoll.protocol.errors import ErrorCode, error
from tests.client.peers import ContractServer, Conversation

NOT_RUN, NOT_KNOWN = 125, 255


def atoll(stub: ContractServer, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    return subprocess.run(
        [sys.executable, "-m", "atoll.cli", *words],
        env=environment | {"ATOLL_URL": stub.url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def failing(code: ErrorCode) -> Callable[[Conversation], None]:
    return lambda conversation: conversation.failed(error(code, "it failed", remedy="Look."))


@pytest.mark.parametrize("verb", [("run",), ("exec", "user-123"), ("start", "user-123")], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (ErrorCode.AGENT_LOST, NOT_KNOWN),
        (ErrorCode.AGENT_TIMEOUT, NOT_KNOWN),
        (ErrorCode.AGENT_MISBEHAVED, NOT_KNOWN),
        (ErrorCode.INTERNAL_ERROR, NOT_KNOWN),
        (ErrorCode.SANDBOX_NOT_RUNNING, NOT_RUN),
        (ErrorCode.SANDBOX_START_FAILED, NOT_RUN),
        (ErrorCode.PROCESS_LIMIT_REACHED, NOT_RUN),
    ],
)
def test_only_what_certainly_did_not_run_has_the_code_for_that(
    stub: ContractServer, verb: tuple[str, ...], code: ErrorCode, exit_code: int
) -> None:
    stub.on_call = failing(code)
    ran = atoll(stub, *verb, "true")
    assert (ran.returncode, ran.stdout) == (exit_code, "")
    assert f"it failed [{code}]" in ran.stderr


@pytest.mark.parametrize("verb", [("run",), ("exec", "user-123")], ids=lambda words: words[0])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_command_whose_server_is_lost_may_have_run(
    stub: ContractServer, verb: tuple[str, ...], options: tuple[str, ...]
) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"begun\n")
        stub.hang_up()

    stub.on_call = agent
    ran = atoll(stub, *verb, *options, "true")
    assert (ran.returncode, ran.stdout) == (NOT_KNOWN, "" if options else "begun\n")
    assert "SERVER_LOST" in ran.stderr
    assert verb[0] == "exec" or not stub.sandboxes


def test_a_sandbox_that_cannot_be_removed_does_not_hide_that_the_command_ran(stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        stub.api_key = "another, from now on"
        conversation.stdout(b"ran\n")
        conversation.done()

    stub.on_call = agent
    ran = atoll(stub, "run", "true")
    assert (ran.returncode, ran.stdout) == (NOT_KNOWN, "ran\n")
    assert "[INVALID_API_KEY]" in ran.stderr


def test_a_sandbox_that_cannot_be_removed_is_named_beside_what_went_wrong_first(stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        stub.api_key = "another, from now on"
        stub.hang_up()

    stub.on_call = agent
    ran = atoll(stub, "run", "--json", "true")
    (name,) = stub.sandboxes
    problem = json.loads(ran.stderr)
    assert (ran.returncode, problem["code"]) == (NOT_KNOWN, "SERVER_LOST")
    assert f"`atoll rm {name}`" in problem["remedy"]
