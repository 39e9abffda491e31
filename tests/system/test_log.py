"""What the log of a real server tells its operator, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import kept
from tests.client.peers import ContractServer
from tests.leaks import Surroundings
from tests.system.serving import RunningServer

TELL = """
import sys
from atoll.cli.preparations import telling_preparations
with telling_preparations(sys.argv[1], None):
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
async def logging_server(
    tmp_path_factory: pytest.TempPathFactory, surroundings: Surroundings
) -> AsyncIterator[RunningServer]:
    """The log is both its standard error and its --log-file."""
    directory = tmp_path_factory.mktemp("log")
    server = RunningServer(directory, ("--log-file", str(directory / "serve.log"), "--log-format", "json"))
    surroundings.shared.add(directory)
    await server.start()
    surroundings.processes.add(server.process.pid)
    yield server
    await server.close()
    surroundings.processes.discard(server.process.pid)
    surroundings.shared.discard(directory)


def entries(server: RunningServer) -> list[dict[str, str]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


async def entry(server: RunningServer, **wanted: str) -> dict[str, str]:
    """The first with these fields, once it is there."""
    while True:
        for found in entries(server):
            if wanted.items() <= found.items():
                return found
        await asyncio.sleep(0.01)


async def test_every_change_of_a_sandbox_is_a_line_that_says_why_and_who(logging_server: RunningServer) -> None:
    sandbox = logging_server.sandbox("life", tcp=True)
    await sandbox.exec("true")
    await sandbox.sleep()
    await sandbox.exec("true")
    await sandbox.sleep(stop=True)
    await sandbox.destroy()
    await sandbox.aclose()
    await entry(logging_server, event="destroyed", sandbox="life")
    found = [line for line in entries(logging_server) if line.get("sandbox") == "life"]
    assert [line["event"] for line in found] == ["created", "frozen", "thawed", "stopped", "destroyed"]
    assert all(line["cause"] and line["by"].startswith("key ") for line in found)
    assert found[0]["message"].startswith("sandbox life: created, its id was used for the first time, by key ")


async def test_what_the_first_sandbox_waits_for_is_said(logging_server: RunningServer) -> None:
    await logging_server.sandbox("first").exec("true")
    told = [line["message"] for line in entries(logging_server) if line["logger"] == "atoll.preparations"]
    prepared = [message.removeprefix("preparing ") for message in told if message.startswith("preparing ")]
    assert len(prepared) == 3
    assert all(any(message.startswith(f"{what} took ") for message in told) for what in prepared)
    assert (await logging_server.ask("GET", "/v1/server")).json()["preparing"] == []


async def test_nothing_that_is_nobodys_business_is_in_the_log(logging_server: RunningServer) -> None:
    marker = "not-for-the-log"
    sandbox = logging_server.sandbox("private", tcp=True)
    await sandbox.set_env_vars({"SECRET": f"{marker}-1"})
    await sandbox.exec(f"echo {marker}-2; exit 1", env={"A": f"{marker}-3"}, stdin=f"{marker}-4")
    with pytest.raises(FileNotFoundError):
        await sandbox.exec([f"/{marker}-5"])
    with pytest.raises(FileNotFoundError):
        await sandbox.exec(["true"], cwd=f"/{marker}-6")
    await sandbox.write_file(f"{marker}-7", f"{marker}-8")
    process = await sandbox.start_process(f"echo {marker}-9")
    await process.wait_for_exit()
    wrong = {"Authorization": f"Bearer atoll_wrong_{marker}-10"}
    refused = await logging_server.ask("GET", f"/v1/sandboxes?label={marker}=11", tcp=True, headers=wrong)
    assert refused.status == 401
    await logging_server.ask("GET", f"/v1/sandboxes/private/files?path={marker}-12")
    await sandbox.destroy()
    await sandbox.aclose()
    await entry(logging_server, event="destroyed", sandbox="private")
    log = logging_server.log.read_text()
    assert marker not in log
    assert logging_server.key not in log


async def test_a_refused_key_is_a_line_that_nobody_can_forge(logging_server: RunningServer) -> None:
    path = "/v1/x%0A2026%1b[31m%C2%9B"
    assert (await logging_server.ask("GET", path, tcp=True)).status == 401
    found = await entry(logging_server, code="INVALID_API_KEY", level="warning")
    assert "was refused: " in found["message"]
    assert " from 127.0.0.1:" in found["message"]
    assert logging_server.log.read_text().isascii()
    assert "\x1b" not in logging_server.log.read_text()


async def test_a_key_with_an_odd_name_stays_on_its_line(logging_server: RunningServer) -> None:
    key = kept.make_key(logging_server.state, "odd\n\x1b[31m")
    headers = {"Authorization": f"Bearer {key}"}
    assert (await logging_server.ask("PUT", "/v1/sandboxes/odd", {}, tcp=True, headers=headers)).status == 201
    assert (await entry(logging_server, event="created", sandbox="odd"))["by"].endswith("(odd\n\x1b[31m)")
    assert all(json.loads(line) for line in logging_server.log.read_text().splitlines())


async def test_a_log_that_was_put_away_is_begun_anew(logging_server: RunningServer) -> None:
    await entry(logging_server, logger="atoll.server")
    put_away = logging_server.log.rename(logging_server.log.with_suffix(".old"))
    logging_server.process.send_signal(signal.SIGHUP)
    while not logging_server.log.exists():
        await logging_server.ask("GET", "/v1/sandboxes", tcp=True)
        await logging_server.ask("PUT", "/v1/sandboxes/anew", {})
        await logging_server.ask("DELETE", "/v1/sandboxes/anew")
    await entry(logging_server, sandbox="anew")
    put_away.unlink()


async def test_the_first_and_last_lines_say_what_ended_it(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    await server.start()
    await server.end()
    *lines, last = server.log.read_text().splitlines()
    assert any(line.endswith(f"process {server.process.pid} serves {server.state}") for line in lines)
    assert last.endswith("INFO atoll.server: it ends, told by SIGTERM")


async def test_a_server_that_cannot_begin_says_why(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "atoll.cli",
        "serve",
        "--state-dir",
        "/etc/passwd",
        "--log-file",
        str(tmp_path / "log"),
    ]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True)
    assert ran.returncode == 1
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert "ERROR atoll.server: it ends: " in last
    assert last.endswith("[STATE_DIRECTORY_UNUSABLE]")


async def test_a_person_who_waits_is_told_what_for(tmp_path: Path) -> None:
    """The server here prepares something for as long as anybody waits."""
    server = ContractServer(tmp_path / "server.sock")
    server.preparing.append("the image\x1b[31m")
    controller, terminal = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-c", TELL, server.url], stdin=subprocess.PIPE, stderr=terminal) as told:
            said = b""
            while b"\n" not in said:
                said += await asyncio.to_thread(os.read, controller, 1_000)
            assert told.stdin
            told.stdin.close()
        assert said == rb"atoll: preparing the image\x1b[31m" + b"\r\n"
    finally:
        os.close(controller)
        os.close(terminal)
        server.stop()


async def test_whoever_reads_by_program_is_told_nothing(tmp_path: Path) -> None:
    server = ContractServer(tmp_path / "server.sock")
    server.preparing.append("the image")
    try:
        command = [sys.executable, "-c", TELL.replace("sys.stdin.read()", "import time; time.sleep(2)"), server.url]
        ran = await asyncio.to_thread(subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True)
        assert ran.stderr == b""
    finally:
        server.stop()
