"""The program `atoll` as people and scripts run it, against a server of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from atoll.client_sync.sandbox import Sandbox, get_sandbox, list_sandboxes
from tests.leaks import Surroundings
from tests.system.test_session_state import DIES_BEFORE_IT_SAVES

ATOLL = (sys.executable, "-m", "atoll.cli")
EVERY_BYTE = bytes(range(256)) * 300
PATIENCE_SECONDS = 60
WITH_ID = ("shell", "inspect", "rm", "events", "ps", "sleep", "wake")


@dataclass
class Cli:
    """The program with its server's directories in its environment."""

    environment: dict[str, str]
    url: str

    def __call__(
        self, *words: str, stdin: bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        ran = subprocess.run(
            [*ATOLL, *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=self.environment | (env or {}),
            timeout=PATIENCE_SECONDS,
        )
        assert b"Traceback" not in ran.stderr, ran.stderr.decode()
        return ran

    @contextmanager
    def start(
        self, *words: str, stdin: int = subprocess.DEVNULL, stdout: int | BinaryIO = subprocess.PIPE
    ) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(
            [*ATOLL, *words], env=self.environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()  # which changes nothing, unless the test has failed

    def document(self, *words: str) -> Any:
        ran = self(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def ids(self) -> list[str]:
        return [sandbox.id for sandbox in list_sandboxes(url=self.url)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, surroundings: Surroundings) -> Iterator[Cli]:
    directory = tmp_path_factory.mktemp("cli")
    state, runtime = directory / "state", directory / "run"
    surroundings.shared.add(directory)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    environment |= {"ATOLL_STATE_DIR": str(state), "ATOLL_RUNTIME_DIR": str(runtime), "COLUMNS": "80"}
    process = subprocess.Popen([*ATOLL, "serve", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    ready = next(line for line in process.stderr if "ready on" in line)
    cli = Cli(environment | {"TEST_TCP": ready.split(", ")[-1].strip()}, f"unix://{runtime}/server.sock")
    cli("run", "true")  # what it starts at first use, it has before the first test looks
    surroundings.processes.add(process.pid)
    try:
        yield cli
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        process.stderr.close()
        surroundings.processes.discard(process.pid)
        surroundings.shared.discard(directory)


@pytest.fixture
def cli(server: Cli) -> Iterator[Cli]:
    """Nothing but what the test itself keeps; its own connections are closed."""
    yield server
    for name in server.ids():
        get_sandbox(name, url=server.url).destroy()
    get_sandbox("any", url=server.url).close()


def sandbox(cli: Cli, name: str, **options: Any) -> Sandbox:
    made = get_sandbox(name, url=cli.url, **options)
    assert made.exec("true").success
    return made


def in_terminal(cli: Cli, *words: str) -> bytes:
    """What it shows in a terminal of 80 columns."""
    shown = bytearray()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [*ATOLL, *words], cli.environment | {"TERM": "xterm-256color"})
    with suppress(OSError):  # how a terminal says that nobody has it open any more
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    os.waitpid(child, 0)
    return bytes(shown)


def test_run_passes_input_output_and_exit_code_through(cli: Cli) -> None:
    ran = cli("run", "--", "sh", "-c", "cat; echo oops >&2; exit 7", stdin=EVERY_BYTE)
    assert (ran.stdout, ran.stderr, ran.returncode) == (EVERY_BYTE, b"oops\n", 7)
    assert cli.ids() == []


def test_one_word_is_for_the_shell_and_several_are_for_none(cli: Cli) -> None:
    assert cli("run", "echo $((2 + 2)) | tr 4 5").stdout == b"5\n"
    assert cli("run", "--", "echo", "$HOME", "|", "-n").stdout == b"$HOME | -n\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no-such-program",), 127),
        (("/etc",), 126),
        (("--", "sh", "-c", "exit 255"), 255),
        (("--", "sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL),
        (("sh -c 'kill -INT $$'",), 128 + signal.SIGINT),
        (("exit 300",), 44),
        (("--timeout", "100ms", "sleep 60"), 124),
        (("--timeout", "100ms", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"), 124),
    ],
)
def test_exit_codes_are_those_of_a_shell(cli: Cli, words: tuple[str, ...], code: int) -> None:
    assert cli("run", *words).returncode == code
    ran = cli("exec", "a", "--json", *words)
    assert ran.returncode == json.loads(ran.stdout)["exit_code"] == code


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_ctrl_c_is_130(cli: Cli, options: tuple[str, ...]) -> None:
    sandbox(cli, "a")
    with cli.start("exec", "a", *options, "echo up > up; sleep 1000") as running:
        cli("exec", "a", "--session", "other", "until [ -s /workspace/up ]; do sleep 0.01; done")
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_SECONDS) == 130


def test_options_of_a_command(cli: Cli) -> None:
    ran = cli("exec", "a", "--cwd", "/usr", "--env", "A=1=2", "--env", "B=", "pwd; echo $A${B-unset}")
    assert ran.stdout == b"/usr\n1=2\n"
    assert cli("exec", "a", "--timeout", "100ms", "--", "sleep", "60").returncode == 124


def test_exec_keeps_what_the_shell_of_a_session_knows(cli: Cli) -> None:
    assert cli("exec", "a", "cd /tmp; X=5").returncode == 0
    assert cli("exec", "a", "echo $PWD $X").stdout == b"/tmp 5\n"
    assert cli("exec", "a", "--session", "b", "cd /usr; echo $X").stdout == b"\n"
    assert cli("exec", "a", "--session", "b", "pwd").stdout == b"/usr\n"


def test_state_that_a_killed_shell_had_not_saved_is_noted(cli: Cli) -> None:
    for options in ((), ("--json",)):
        assert cli("exec", "a", DIES_BEFORE_IT_SAVES).returncode == 0
        ran = cli("exec", "a", "echo on", *options)
        assert ran.returncode == 0
        if options:
            assert json.loads(ran.stdout)["state_lost"] == 1
        else:
            assert (ran.stdout, ran.stderr.count(b"Note: the shell was killed")) == (b"on\n", 1)
    assert cli("exec", "a", "echo on").stderr == b""


def test_a_silent_pipe_holds_nothing_up(cli: Cli) -> None:
    """As in `sleep 1000 | atoll run ...`, or when a program is started with a pipe that it never closes."""
    with cli.start("exec", "a", "echo name?; read name; echo hello $name", stdin=subprocess.PIPE) as talk:
        assert talk.stdin and talk.stdout
        assert talk.stdout.readline() == b"name?\n"
        talk.stdin.write(b"you\n")
        talk.stdin.flush()
        assert talk.stdout.readline() == b"hello you\n"
        assert talk.wait(PATIENCE_SECONDS) == 0


def test_a_terminal_is_not_read(cli: Cli) -> None:
    assert in_terminal(cli, "run", "cat; echo done") == b"done\r\n"


def test_a_closed_standard_input_is_none(cli: Cli) -> None:
    script = ["sh", "-c", 'exec "$@" <&-', "sh", *ATOLL, "run", "cat; echo done"]
    ran = subprocess.run(script, env=cli.environment, capture_output=True, timeout=PATIENCE_SECONDS)
    assert (ran.stdout, ran.stderr, ran.returncode) == (b"done\n", b"", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_that_is_told_to_end_leaves_nothing(cli: Cli, number: signal.Signals) -> None:
    with cli.start("run", "--", "sh", "-c", "trap '' INT TERM; echo up; sleep 1000") as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == b"up\n"
        running.send_signal(number)
        running.send_signal(number)  # impatience changes nothing
        assert running.wait(PATIENCE_SECONDS) == 128 + number
        assert running.stderr.read() == b""
    assert cli.ids() == []


def test_a_run_that_is_itself_killed_ends_its_command_and_leaves_its_sandbox_to_rm(cli: Cli) -> None:
    with cli.start("run", "echo up; exec sleep 1000") as running:
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
        running.kill()
    (name,) = cli.ids()
    assert name.startswith("temporary-")
    assert cli("exec", name, "while pgrep -xf 'sleep 1000'; do sleep 0.05; done").returncode == 0
    assert cli("rm", name).returncode == 0
    assert cli.ids() == []


def test_ctrl_c_cancels_a_command_and_leaves_the_session_usable(cli: Cli) -> None:
    with cli.start("exec", "a", "X=5; echo up; sleep 1000") as running:
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_SECONDS) == 130
    assert cli("exec", "a", "pgrep sleep; echo $X").stdout == b"5\n"


@pytest.mark.parametrize("words", [("run", "yes"), ("run", "--json", "echo hello"), ("ls",), ("ls", "--json")])
def test_a_reader_who_leaves_is_no_drama(cli: Cli, words: tuple[str, ...]) -> None:
    sandbox(cli, "kept")
    reader, writer = os.pipe()
    os.close(reader)
    with cli.start(*words, stdout=writer) as running:
        os.close(writer)
        assert running.stderr
        assert running.stderr.read() == b""
        assert running.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE
    assert cli.ids() == ["kept"]


def test_output_that_cannot_be_written_is_said(cli: Cli) -> None:
    with open("/dev/full", "wb") as full, cli.start("run", "echo hello", stdout=full) as running:
        assert running.stderr
        assert running.stderr.read() == b"atoll: standard output cannot be written: No space left on device\n"
        assert running.wait(PATIENCE_SECONDS) == 255
    assert cli.ids() == []


def test_json_of_a_command_is_its_result(cli: Cli) -> None:
    ran = cli("run", "--json", r"printf 'a\377'; echo b >&2; exit 3")
    result = json.loads(ran.stdout)
    assert ran.returncode == result["exit_code"] == 3
    assert (result["stdout"], result["stdout_base64"], result["stderr"]) == ("a\ufffd", "Yf8=", "b\n")
    assert "stderr_base64" not in result


def test_ls_shows_those_that_fit(cli: Cli) -> None:
    assert cli("ls").stderr.startswith(b"No sandboxes.")
    assert cli.document("ls") == {"sandboxes": [], "next": None}
    sandbox(cli, "one", labels={"team": "red", "who": "\x1b[31mme"})
    sandbox(cli, "two")
    head, *rows = cli("ls").stdout.decode().splitlines()
    assert head.split() == ["ID", "STATE", "IMAGE", "AGE", "LABELS"]
    assert [row.split()[:3] for row in rows] == [["one", "running", "host"], ["two", "running", "host"]]
    assert rows[0].endswith(r"team=red, who=\x1b[31mme")
    assert [row["id"] for row in cli.document("ls", "--label", "team=red")["sandboxes"]] == ["one"]
    assert cli("ls", "--label", "team=blue").stdout == b""
    assert cli.document("ls", "--state", "stopped") == {"sandboxes": [], "next": None}
    head, row = cli("ls", "--usage", "--after", "one").stdout.decode().splitlines()
    assert head.split() == ["ID", "STATE", "IMAGE", "AGE", "CPU", "MEMORY", "DISK", "LABELS"]
    assert row.startswith("two ") and row.count("B") == 2  # of memory and of disk
    first = cli("ls", "--limit", "1")
    assert len(first.stdout.splitlines()) == 2 and first.stderr == b"There are more: --after one goes on.\n"
    assert cli.document("ls", "--limit", "1")["next"] == "one"
    assert cli("ls", "--limit", "2").stderr == b""


def test_inspect_shows_one_and_makes_none(cli: Cli) -> None:
    assert cli("inspect", "a").returncode == 1
    assert cli.ids() == []
    sandbox(cli, "a", env={"TOKEN": "secret"})
    shown = cli("inspect", "a").stdout
    assert b"running" in shown
    assert b"of 2 GiB" in shown
    assert b"TOKEN" in shown
    assert b"secret" not in shown
    assert cli.document("inspect", "a")["limits"]["memory"] == 2 * 2**30


def test_rm_takes_several_and_twice_is_fine(cli: Cli) -> None:
    for name in ("a", "b", "c"):
        sandbox(cli, name)
    assert cli("rm", "a", "No-Id").returncode == 2
    assert cli.ids() == ["a", "b", "c"]
    assert cli("rm", "a", "b").stdout == b""
    assert cli.document("rm", "a", "c") == {"destroyed": ["a", "c"]}
    assert cli.ids() == []
    assert cli("rm").returncode == 2


def test_events_tell_what_happened_and_go_on(cli: Cli) -> None:
    box = sandbox(cli, "a")
    with cli.start("events", "a", "-f", "--json") as following:
        assert following.stdout
        created = json.loads(following.stdout.readline())
        assert created["what"] == "created"
        box.set_labels({"a": "b"})
        assert json.loads(following.stdout.readline())["what"] == "labels_changed"
        assert cli("events", "a", "--since", str(created["number"])).stdout.split()[4] == b"labels_changed"
        box.destroy()
        assert json.loads(following.stdout.readline())["what"] == "destroyed"
        assert following.wait(PATIENCE_SECONDS) == 0


def test_columns_of_events_stand_below_each_other(cli: Cli) -> None:
    box = sandbox(cli, "a")
    for what in (lambda: box.set_labels({"a": "b"}), lambda: box.create_session("mine"), box.sleep):
        what()
    with cli.start("events", "a", "-f") as following:
        assert following.stdout
        followed = [following.stdout.readline().decode().rstrip("\n") for _ in range(4)]
    listed = cli("events", "a").stdout.decode().splitlines()
    assert followed == listed
    kinds = ["created", "labels_changed", "session_created", "frozen"]
    assert len({line.index(kind) for line, kind in zip(listed, kinds, strict=True)}) == 1
    causes = ["its id", "it was asked", "'mine'", "it was asked"]
    assert len({line.index(cause) for line, cause in zip(listed, causes, strict=True)}) == 1
    assert cli("events", "a", "--since", "1000").stderr == b"Nothing happened after event 1000.\n"


def test_sandboxes_are_put_to_sleep_and_woken(cli: Cli) -> None:
    box = sandbox(cli, "a")
    assert cli("sleep", "a").stdout == b""
    assert box.status().state.value == "frozen"
    assert cli.document("wake", "a")["sandboxes"][0]["state"] == "running"
    assert cli.document("sleep", "a", "--stop")["sandboxes"][0]["state"] == "stopped"
    box.set_stop_after("1h")
    assert b"after 10m without use; is stopped after 1h of sleep" in cli("inspect", "a").stdout


def test_help_names_the_variables_that_are_read(cli: Cli) -> None:
    said = " ".join(cli("serve", "--help").stdout.decode().split())
    assert "env var: ATOLL_STATE_DIR" in said
    assert "env var: ATOLL_RUNTIME_DIR" in said
    assert "ATOLL_STATE_DIR" in cli("doctor", "--help").stdout.decode()


def test_a_background_process_is_started_listed_read_and_killed(cli: Cli) -> None:
    sandbox(cli, "a")
    assert cli("ps", "a").stderr.startswith(b"No background processes.")
    assert cli.document("ps", "a") == {"processes": []}
    words = ["sh", "-c", "cat; echo \x1b[31mred; echo err >&2; exec sleep 1000"]
    assert cli("start", "a", "--name", "web", "--env", "A=1", "--", *words).stdout == b"web\n"
    named = cli("start", "a", "exit 3").stdout.decode().strip()
    box = get_sandbox("a", url=cli.url)
    box.get_process(named).wait_for_exit()
    box.get_process("web").wait_for_log("err")
    head, web, other = cli("ps", "a").stdout.decode().splitlines()
    assert head.split() == ["ID", "PID", "STATUS", "AGE", "EXIT", "RESTARTS", "COMMAND"]
    assert web.split()[0::2][:3] == ["web", "running", "-"]
    assert r"echo \x1b[31mred" in web
    assert [other.split()[n] for n in (0, 2, 4)] == [named, "failed", "3"]
    shown = cli("logs", "a", "web")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, b"\x1b[31mred\n", b"err\n")
    with cli.start("logs", "-f", "--json", "a", "web") as following:
        assert following.stdout
        first = json.loads(following.stdout.readline())
        assert first["type"] in ("stdout", "stderr")
        assert cli("kill", "a", "web", "-s", "HUP").returncode == 0
        *_, last = map(json.loads, following.stdout)
        assert (last["type"], last["status"], last["exit_code"]) == ("exit", "killed", 129)
        assert following.wait(PATIENCE_SECONDS) == 0
    rest = cli("logs", "a", "web", "--json", "--since", str(first["number"])).stdout.splitlines()
    assert [json.loads(line)["type"] for line in rest][-1] == "exit"
    assert cli.document("kill", "a", "web")["status"] == "killed"
    assert b"[PROCESS_NOT_FOUND]" in cli("logs", "a", "none").stderr
    assert b"[INVALID_SIGNAL]" in cli("kill", "a", "web", "-s", "SIGNOTHING").stderr


def test_logs_pass_every_byte_on_and_say_what_is_gone(cli: Cli) -> None:
    box = sandbox(cli, "a")
    box.exec(["tee", "bytes"], stdin=EVERY_BYTE)
    box.start_process("cat bytes", process_id="bytes").wait_for_exit()
    assert cli("logs", "-f", "a", "bytes").stdout == EVERY_BYTE
    box.start_process("head -c 20000000 /dev/zero", process_id="flood").wait_for_exit()
    shown = cli("logs", "a", "flood")
    dropped = int(shown.stderr.split()[1])
    assert dropped + len(shown.stdout) == 20_000_000


def test_a_key_opens_a_running_server_until_it_is_taken_away(cli: Cli) -> None:
    url = f"http://{cli.environment['TEST_TCP']}"
    made = cli("key", "create", "for me")
    key = made.stdout.decode().strip()
    assert key.startswith("atoll_")
    (listed,) = cli.document("key", "ls")["keys"]
    assert (listed["name"], key[6:14]) == ("for me", listed["id"])
    assert key not in cli("key", "ls").stdout.decode()
    assert cli("run", "echo in", env={"ATOLL_URL": url, "ATOLL_API_KEY": key}).stdout == b"in\n"
    assert cli("ls", "--url", url, "--api-key", key).returncode == 0
    assert cli("key", "rm", listed["id"]).returncode == 0
    denied = cli("ls", "--url", url, "--api-key", key)
    assert (denied.returncode, b"[INVALID_API_KEY]" in denied.stderr) == (1, True)
    assert b"[KEY_NOT_FOUND]" in cli("key", "rm", listed["id"]).stderr
    again = cli.document("key", "create", "x")
    assert cli.document("key", "rm", again["id"]) == {"removed": again["id"]}
    assert cli.document("key", "ls") == {"keys": []}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "--", "no-such-program", "x"), 127, "[COMMAND_NOT_FOUND]"),
        (("exec", "a", "--", "./no/such/program", "x"), 127, "[COMMAND_NOT_FOUND]"),
        (("run", "--", "/etc/passwd", "x"), 126, "[PERMISSION_DENIED]"),
        (("exec", "a", "--", "/etc", "x"), 126, "[PERMISSION_DENIED]"),
        (("exec", "a", "--cwd", "/no/such/place", "true"), 125, "[FILE_NOT_FOUND]"),
        (("exec", "Bad_Id", "true"), 125, "[INVALID_SANDBOX_ID]"),
        (("run", "--image", "none", "true"), 125, "[IMAGE_NOT_FOUND]"),
        (("run", "--timeout", "soon", "true"), 125, "[INVALID_REQUEST]"),
        (("run", "--url", "unix:///no/such", "true"), 125, "[SERVER_NOT_REACHABLE]"),
        (("exec", "a", "--session", "-", "true"), 125, "[INVALID_SESSION_ID]"),
        (("events", "nobody"), 1, "[SANDBOX_NOT_FOUND]"),
        (("ls", "--url", "ftp://x"), 2, "[INVALID_REQUEST]"),
        *(((verb, "Bad_Id"), 2, "[INVALID_SANDBOX_ID]") for verb in WITH_ID),
        *(((verb, "Bad_Id", "web"), 2, "[INVALID_SANDBOX_ID]") for verb in ("logs", "kill")),
        (("files", "ls", "Bad_Id"), 2, "[INVALID_SANDBOX_ID]"),
        (("sleep", "nobody"), 1, "[SANDBOX_NOT_FOUND]"),
        (("wake", "nobody"), 1, "[SANDBOX_NOT_FOUND]"),
        (("ls", "--url", "unix:///no/such"), 1, "[SERVER_NOT_REACHABLE]"),
        (("ls", "--state", "odd"), 2, "See `atoll ls --help`."),
        (("ls", "--label", "odd"), 2, "'odd' is not NAME=VALUE."),
        (("run", "--env", "=x", "true"), 2, "'=x' is not NAME=VALUE."),
        (("run",), 2, "CMD..."),
        (("exec", "a", "ls", "-q"), 2, "put -- before the command"),
        (("events", "a", "--since", "-1"), 2, "--since"),
        (("ps", "nobody"), 1, "[SANDBOX_NOT_FOUND]"),
        (("logs", "nobody", "web"), 1, "[SANDBOX_NOT_FOUND]"),
        (("kill", "a", "web", "-s", "SIGNOTHING"), 1, "[SANDBOX_NOT_FOUND]"),
        (("start", "a", "--name", "/", "true"), 125, "[INVALID_PROCESS_ID]"),
        (("start", "a", "--restart", "odd", "true"), 2, "--restart"),
        (("start", "a"), 2, "CMD..."),
        (("logs", "a"), 2, "PROC"),
        (("start", "a", "--timeout", "soon", "true"), 125, "[INVALID_REQUEST]"),
        (("serve", "--state-dir", "/etc/passwd"), 1, "[STATE_DIRECTORY_UNUSABLE]"),
        (("serve", "--state-dir", "/etc/passwd/state"), 1, "[STATE_DIRECTORY_UNUSABLE]"),
        (("key", "create", "\n"), 2, "printed"),
        (("dance",), 2, "dance"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    ran = cli(*words)
    assert (ran.returncode, ran.stdout) == (code, b"")
    first, *rest = ran.stderr.decode().splitlines()
    assert first.startswith("atoll: ")
    assert said in ran.stderr.decode()
    assert all(line.startswith("  ") for line in rest)
    in_json = cli(words[0], "--json", *words[1:]) if code != 2 else cli(*words, "--json")
    assert in_json.returncode == code
    problem = json.loads(in_json.stderr)
    assert problem["message"] in first
    assert problem["remedy"]


def test_a_command_that_is_not_text_is_refused(cli: Cli) -> None:
    ran = subprocess.run(
        [os.fsencode(word) for word in (*ATOLL, "run", "--", "echo")] + [b"\xff"],
        env=cli.environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert (ran.returncode, b"[INVALID_COMMAND]" in ran.stderr, b"Traceback" in ran.stderr) == (125, True, False)


def completed(cli: Cli, *words: str, **env: str) -> list[str]:
    """What a shell would offer for the last word."""
    asked = {
        "_ATOLL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("atoll", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return [line.split(",")[1] for line in cli(env=asked | env).stdout.decode().split()]


def completed_at_last(cli: Cli, *words: str) -> list[str]:
    """The same, where there is something: nobody who presses a key waits for more than a second, and may try again."""
    while not (offered := completed(cli, *words)):
        pass
    return offered


def test_verbs_options_and_ids_are_completed(cli: Cli) -> None:
    sandbox(cli, "user-1")
    sandbox(cli, "other")
    assert completed(cli, "in") == ["inspect"]
    assert completed(cli, "ls", "--st") == ["--state"]
    assert completed(cli, "ls", "--state", "f") == ["frozen"]
    assert completed_at_last(cli, "exec", "u") == ["user-1"]
    assert completed_at_last(cli, "rm", "other", "") == ["user-1"]


def test_completion_starts_no_server_and_waits_for_none(cli: Cli, tmp_path: Path) -> None:
    assert completed(cli, "rm", "", ATOLL_RUNTIME_DIR=str(tmp_path / "run")) == []
    assert not (tmp_path / "run").exists()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        while not select.select([silent], [], [], 0)[0]:  # until it was asked, for which there is a second
            assert completed(cli, "rm", "", ATOLL_URL=f"http://127.0.0.1:{silent.getsockname()[1]}") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(cli: Cli, shell: str) -> None:
    assert b"_ATOLL_COMPLETE" in cli(env={"_ATOLL_COMPLETE": f"{shell}_source"}).stdout


@pytest.mark.parametrize(
    "words", [("ls",), ("inspect", "a-sandbox-with-a-longer-name"), ("events", "a"), ("ps", "a"), ("key", "ls")]
)
def test_a_person_sees_colours_within_eighty_columns(cli: Cli, words: tuple[str, ...]) -> None:
    sandbox(cli, "a-sandbox-with-a-longer-name", labels={"team": "red", "purpose": "x" * 40})
    sandbox(cli, "a").start_process(["sleep", "1000", "x" * 90])
    shown = in_terminal(cli, *words).decode()
    if words != ("key", "ls"):
        assert "\x1b[" in shown
    plain = in_terminal(Cli(cli.environment | {"NO_COLOR": "1"}, cli.url), *words).decode()
    assert "\x1b[" not in plain
    assert all(len(line) <= 80 for line in plain.splitlines())
    assert "…" not in plain


def test_nothing_is_cut_off_however_long_it_is(cli: Cli) -> None:
    name, value = "a" * 63, "b" * 200
    sandbox(cli, name, labels={"x": value})
    assert f"x={value}" in cli("ls").stdout.decode()
    shown = in_terminal(cli, "ls").decode()
    assert name in shown
    assert shown.count("b") >= 200


VERBS = (
    "run",
    "exec",
    "shell",
    "ls",
    "inspect",
    "rm",
    "events",
    "start",
    "ps",
    "logs",
    "kill",
    "serve",
    "key",
    "doctor",
)


def test_help_names_every_verb_and_each_has_json(cli: Cli) -> None:
    shown = cli("--help").stdout.decode()
    assert all(f"  {verb} " in shown for verb in VERBS)
    assert "..." not in shown.split("Commands:")[1]
    for words in [*((verb,) for verb in VERBS if verb != "key"), *(("key", verb) for verb in ("create", "ls", "rm"))]:
        assert b"--json" in cli(*words, "--help").stdout, words
