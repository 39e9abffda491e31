"""What goes wrong where the program `atoll` is used: the exit code, the value and the remedy that help."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

import pytest

from tests.system.test_cli import Cli, cli, sandbox, server

__all__ = ["cli", "server"]  # fixtures


class Foreign(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class Welcoming(Foreign):
    """Its answer is the same page to whatever is asked, as a page to log in is."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    do_POST = do_PUT = do_DELETE = do_GET


PAGE = b"<html>Please log in</html>"


@pytest.mark.parametrize(("foreign", "status"), [(Foreign, 404), (Welcoming, 200)])
@pytest.mark.parametrize("words", [("ls",), ("exec", "a", "true"), ("run", "true"), ("rm", "a"), ("ps", "a")])
def test_another_web_server_is_not_taken_for_ours(
    cli: Cli, words: tuple[str, ...], foreign: type[Foreign], status: int
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), foreign) as other:
        serving = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        url = f"http://127.0.0.1:{other.server_port}"
        ran = cli(words[0], "--json", "--url", url, *words[1:])
        other.shutdown()
        serving.join()
    body = json.loads(ran.stderr)
    assert body["code"] == "SERVER_NOT_REACHABLE"
    assert f"is no Atoll server: {status}" in body["message"] and f"127.0.0.1:{other.server_port}" in body["message"]
    assert "--url" in body["remedy"]
    assert ran.returncode == (125 if words[0] in ("exec", "run") else 1)


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (("nosuch",), 127, "COMMAND_NOT_FOUND"),
        (("./no/such",), 127, "COMMAND_NOT_FOUND"),
        (("nosuch", "with", "words"), 127, "COMMAND_NOT_FOUND"),
        (("/etc",), 126, "PERMISSION_DENIED"),
    ],
)
def test_a_background_process_without_a_program_is_told(
    cli: Cli, words: tuple[str, ...], exit_code: int, code: str
) -> None:
    sandbox(cli, "a")
    ran = cli("start", "a", "--json", "--", *words)
    assert (ran.returncode, ran.stdout) == (exit_code, b"")
    body = json.loads(ran.stderr)
    assert body["code"] == code and words[0] in body["message"] and body["remedy"]
    assert cli.document("ps", "a") == {"processes": []}


def test_a_line_for_a_shell_and_a_single_program_are_started(cli: Cli) -> None:
    made = sandbox(cli, "a")
    for words in (("true",), ("exit 3",), ("nosuch || true",), ("sh", "-c", "exit 3")):
        ran = cli("start", "a", "--", *words)
        assert ran.returncode == 0, ran.stderr
        ended = made.get_process(ran.stdout.decode().strip()).wait_for_exit(timeout=60)
        assert ended.exit_code == (3 if "exit 3" in words else 0)


@pytest.mark.parametrize("option", ["--disk-overcommit", "--memory-overcommit"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "much"])
def test_a_factor_that_is_no_number_is_refused(cli: Cli, option: str, value: str) -> None:
    refused = cli("serve", option, value)
    assert refused.returncode == 2 and option.encode() in refused.stderr
