"""The program `atoll` on sandboxes as a whole: made with options, changed, watched, destroyed by label."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.system.test_cli import (
    ATOLL,
    PATIENCE_SECONDS,
    Cli,
    cli,
    completed,
    completed_at_last,
    in_terminal,
    sandbox,
    server,
)

__all__ = ["cli", "server"]  # fixtures
MIB = 2**20
OPTIONS = ("--cpus", "1/2", "--memory", "256MiB", "--disk", "64MiB", "--pids", "64", "--label", "team=red")
TIMES = ("--sleep-after", "5m", "--stop-after", "1h", "--ttl", "2d", "--keep-alive")


def test_create_makes_a_sandbox_with_the_options_it_is_given(cli: Cli) -> None:
    made = cli("create", "a", *OPTIONS, *TIMES, "-e", "A=1", "--image", "host")
    assert (made.stdout, made.stderr, made.returncode) == (b"a\n", b"", 0)
    info = cli.document("inspect", "a")
    assert info["limits"] == {"cpus": 0.5, "memory": 256 * MIB, "disk": 64 * MIB, "pids": 64}
    assert (info["labels"], info["env"], info["keep_alive"]) == ({"team": "red"}, ["A"], True)
    assert (info["sleep_after"], info["stop_after"], info["ttl"]) == (300.0, 3600.0, 172800.0)
    assert cli("exec", "a", "echo $A").stdout == b"1\n"
    shown = cli("inspect", "a").stdout.decode()
    assert "2d after it was made" in shown
    assert cli.document("create", "b", "--size", "lite", "--pids", "64")["limits"]["memory"] == 256 * MIB


def test_the_same_options_make_what_run_and_exec_use(cli: Cli) -> None:
    for words in (("run",), ("exec", "a")):
        assert cli(*words, "--memory", "128MiB", "-e", "A=1", "echo $A $ATOLL_MEMORY").stdout == b"1 134217728\n"
    assert cli.document("inspect", "a")["limits"]["memory"] == 128 * MIB


def test_options_that_an_existing_sandbox_has_otherwise_are_said_on_a_line_or_fail(cli: Cli) -> None:
    cli("create", "a", "--memory", "128MiB")
    ran = cli("exec", "a", "--memory", "256MiB", "echo on")
    assert (ran.stdout, ran.returncode) == (b"on\n", 0)
    (line,) = ran.stderr.decode().splitlines()
    assert line.startswith("atoll: sandbox a exists and keeps what it has (limits.memory: it is 134217728, not")
    strict = cli("exec", "a", "--memory", "256MiB", "--strict", "echo on")
    assert (strict.stdout, strict.returncode) == (b"", 125)
    assert b"[SANDBOX_CONFLICT]" in strict.stderr


def test_set_changes_what_is_given_and_leaves_the_rest(cli: Cli) -> None:
    cli("create", "a", *OPTIONS, *TIMES, "-e", "A=1", "-e", "B=2")
    changes = ("--memory", "512MiB", "--no-keep-alive", "--stop-after", "never", "--label", "tier=1", "--no-env", "A")
    assert cli("set", "a", *changes, "-e", "C=3", "--ttl", "never").returncode == 0
    info = cli.document("inspect", "a")
    assert info["limits"] == {"cpus": 0.5, "memory": 512 * MIB, "disk": 64 * MIB, "pids": 64}
    assert (info["labels"], info["env"]) == ({"team": "red", "tier": "1"}, ["B", "C"])
    assert (info["keep_alive"], info["sleep_after"], info["stop_after"], info["ttl"]) == (False, 300.0, None, None)
    assert cli("exec", "a", "echo ${A:-none} $B $C $ATOLL_MEMORY").stdout == b"none 2 3 536870912\n"
    assert cli.document("set", "a", "--no-label", "team", "--size", "basic")["labels"] == {"tier": "1"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("set", "a"), 2, "at least one option"),
        (("set", "nobody", "--cpus", "1"), 1, "[SANDBOX_NOT_FOUND]"),
        (("set", "a", "--memory", "1B"), 2, "[INVALID_LIMITS]"),
        (("set", "a", "--ttl", "0"), 2, "[INVALID_REQUEST]"),
        (("create", "a", "--size", "huge"), 2, "--size"),
        (("create", "Bad_Id"), 2, "[INVALID_SANDBOX_ID]"),
        (("create", "a", "--memmory", "1GiB"), 2, "--memory"),
        (("rm",), 2, "--all"),
        (("rm", "a", "--all"), 2, "--label"),
        (("rm", "--all", "--lost"), 2, "ls --lost"),
        (("top", "a", "--label", "x=y"), 2, "not both"),
        (("top", "nobody", "--once"), 1, "[SANDBOX_NOT_FOUND]"),
        (("logs", "a", "p", "--tail", "3", "--json"), 2, "--since"),
        (("exce", "a"), 2, "`atoll exec`"),
        (("list",), 2, "`atoll ls`"),
        (("stop", "a"), 2, "`atoll sleep --stop`"),
        (("xyzzy",), 2, "No such verb 'xyzzy'."),
        (("ls", "--usge"), 2, "--usage"),
        (("files", "sl", "a"), 2, "files --help"),
        (("cp", "/etc/hostname", "/etc/hosts", "a:/etc/hostname"), 2, "takes only one"),
        (("cp", "a:/etc/hostname", "a:/etc/hosts", "/no/such"), 2, "takes only one"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_probably_meant(
    cli: Cli, words: tuple[str, ...], code: int, said: str
) -> None:
    sandbox(cli, "a")
    ran = cli(*words)
    assert (ran.returncode, ran.stdout) == (code, b"")
    assert said in ran.stderr.decode()
    assert cli.ids() == ["a"]


def test_the_server_is_named_before_the_verb_too_and_counts_more_than_the_environment(cli: Cli) -> None:
    sandbox(cli, "a")
    elsewhere = {"ATOLL_URL": "unix:///no/such"}
    assert cli("ls", env=elsewhere).returncode == 1
    assert cli("--url", cli.url, "ls", "-q", env=elsewhere).stdout == b"a\n"
    assert cli("--url", "unix:///no/such", "ls", "--url", cli.url, "-q", env=elsewhere).stdout == b"a\n"
    refused = cli("--url", f"http://{cli.environment['TEST_TCP']}", "--api-key", "wrong", "ls")
    assert b"[INVALID_API_KEY]" in refused.stderr


def test_quietly_ids_alone_are_listed(cli: Cli) -> None:
    box = sandbox(cli, "a", labels={"team": "red"})
    sandbox(cli, "b")
    box.start_process(["sleep", "1000"], process_id="web")
    box.create_session("build")
    terminal = box.create_terminal()
    assert cli("ls", "-q").stdout == b"a\nb\n"
    assert cli("ls", "-q", "--label", "team=red").stdout == b"a\n"
    assert cli("ps", "a", "-q").stdout == b"web\n"
    assert cli("sessions", "a", "-q").stdout.split() == [b"default", b"build"]
    assert cli("terminals", "a", "-q").stdout.decode() == f"{terminal.id}\n"
    assert (cli("ls", "-q", "--label", "team=none").stdout, cli("terminals", "b", "-q").stdout) == (b"", b"")


def test_sessions_and_terminals_are_listed(cli: Cli) -> None:
    box = sandbox(cli, "a")
    box.create_session("build", cwd="/usr")
    terminal = box.create_terminal(cols=100, rows=30, shell="sh")
    head, *rows = cli("sessions", "a").stdout.decode().splitlines()
    assert head.split() == ["ID", "AGE", "WAITING", "DIRECTORY"]
    assert [row.split()[0] for row in rows] == ["default", "build"] and rows[1].endswith("/usr")
    head, row = cli("terminals", "a").stdout.decode().splitlines()
    assert head.split() == ["ID", "PID", "SIZE", "VIEWERS", "AGE", "COMMAND"]
    assert row.split()[0] == terminal.id and "100x30" in row and row.endswith("sh")
    assert [one["id"] for one in cli.document("sessions", "a")["sessions"]] == ["default", "build"]
    assert [one["id"] for one in cli.document("terminals", "a")["terminals"]] == [terminal.id]
    for verb in ("sessions", "terminals"):
        assert cli(verb, "nobody").returncode == 1
    assert cli.ids() == ["a"]


def test_top_says_what_each_uses_of_what_it_may(cli: Cli) -> None:
    busy = sandbox(cli, "busy", limits={"memory": "256MiB", "cpus": 1}, labels={"team": "red"})
    busy.start_process("while :; do :; done", process_id="loop")
    sandbox(cli, "calm").sleep()
    sandbox(cli, "gone").sleep(stop=True)
    head, *rows = cli("top").stdout.decode().splitlines()
    assert head.split() == ["ID", "STATE", "CPU", "MEMORY", "PROCESSES", "DISK"]
    assert [row.split()[:2] for row in rows] == [["busy", "running"], ["calm", "frozen"]]
    assert "of 256 MiB" in rows[0] and "of 100%" in rows[0] and "of 1024" in rows[0]
    assert "0% of 200%" in rows[1]
    used = {one["id"]: one for one in cli.document("top")["sandboxes"]}
    assert used["busy"]["cpus"] > used["calm"]["cpus"] == 0
    assert used["busy"]["processes"] > 1
    assert cli("top", "--label", "team=red").stdout.count(b"\n") == 2
    assert cli("top", "calm", "busy").stdout.count(b"\n") == 3
    assert cli("top", "gone").stderr == b"No sandbox is awake or asleep.\n"
    assert cli.document("inspect", "calm")["state"] == "frozen"  # looking woke it not


def test_top_goes_on_where_a_person_watches_and_leaves_the_screen_as_it_was(cli: Cli) -> None:
    sandbox(cli, "watched")
    child, terminal = pty.fork()
    if child == 0:
        environment = cli.environment | {"TERM": "xterm-256color"}
        os.execve(sys.executable, [*ATOLL, "top", "--interval", "0.1"], environment)
    shown = b""
    while shown.count(b"watched") < 3:
        shown += os.read(terminal, 65536)
    os.kill(child, signal.SIGINT)
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:  # the end of it
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown
    assert b"Traceback" not in shown
    once = in_terminal(cli, "top", "--once")
    assert b"watched" in once and b"\x1b[?1049h" not in once


def test_the_last_lines_of_a_log_and_then_what_comes(cli: Cli) -> None:
    box = sandbox(cli, "a")
    box.start_process("seq 1 100; echo oops >&2; until [ -e go ]; do sleep 0.02; done; echo more", process_id="count")
    box.get_process("count").wait_for_log("oops")
    tail = cli("logs", "a", "count", "--tail", "3")
    assert (tail.stdout, tail.stderr) == (b"99\n100\n", b"oops\n")
    assert cli("logs", "a", "count", "--tail", "0").stdout == b""
    with cli.start("logs", "a", "count", "--tail", "2", "-f") as following:
        assert following.stdout
        assert following.stdout.readline() == b"100\n"
        box.exec("touch go")
        assert following.stdout.readline() == b"more\n"
        assert following.wait(PATIENCE_SECONDS) == 0


def test_sandboxes_are_destroyed_by_label_or_all(cli: Cli) -> None:
    for name, team in (("a", "red"), ("b", "red"), ("c", "blue"), ("d", "none")):
        sandbox(cli, name, labels={"team": team})
    assert cli.document("rm", "--label", "team=red") == {"destroyed": ["a", "b"]}
    assert cli("rm", "--label", "team=red").returncode == 0
    assert cli.ids() == ["c", "d"]
    assert cli.document("rm", "--all") == {"destroyed": ["c", "d"]}
    assert cli.document("rm", "--all") == {"destroyed": []}


@pytest.mark.parametrize(("answer", "left"), [(b"n\r", ["a", "b"]), (b"\r", ["a", "b"]), (b"y\r", [])])
def test_a_person_is_asked_before_all_are_destroyed(cli: Cli, answer: bytes, left: list[str]) -> None:
    for name in ("a", "b"):
        sandbox(cli, name)
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [*ATOLL, "rm", "--all"], cli.environment)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 65536)
    assert b"Destroy a, b?" in shown
    os.write(terminal, answer)
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == bool(left)
    assert cli.ids() == left
    assert b"Traceback" not in shown


def test_several_are_copied_into_a_directory(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/leaf").write_text("leaf")
    sources = [str(tmp_path / name) for name in ("one", "two", "tree")]
    sandbox(cli, "a")
    copied = cli.document("cp", *sources, "a:/workspace")["copied"]
    assert [Path(one["source"]).name for one in copied] == ["one", "two", "tree"]
    assert cli("exec", "a", "cat one two tree/leaf").stdout == b"onetwoleaf"
    (tmp_path / "back").mkdir()
    assert cli("cp", "-q", "a:/workspace/one", "a:/workspace/tree", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/one").read_text() + (tmp_path / "back/tree/leaf").read_text() == "oneleaf"


def test_ids_of_what_is_in_a_sandbox_are_completed_and_nothing_is_woken_for_it(cli: Cli) -> None:
    box = sandbox(cli, "a")
    box.start_process(["sleep", "1000"], process_id="web")
    box.create_session("build")
    terminal = box.create_terminal()
    assert completed_at_last(cli, "logs", "a", "") == ["web"]
    assert completed_at_last(cli, "exec", "a", "--session", "b") == ["build"]
    assert completed_at_last(cli, "shell", "a", "--attach", "") == [terminal.id]
    assert completed(cli, "logs", "nobody", "") == []
    box.sleep()
    assert completed(cli, "logs", "a", "") == []
    assert json.loads(cli("inspect", "a", "--json").stdout)["state"] == "frozen"
    assert cli.ids() == ["a"]


def test_a_key_is_made_for_some_sandboxes_for_reading_and_for_a_time(cli: Cli) -> None:
    made = cli.document(
        "key", "create", "narrow", "--id", "red-*", "--label", "team=red", "--read-only", "--expires", "1h"
    )
    try:
        (listed,) = [one for one in cli.document("key", "ls")["keys"] if one["id"] == made["id"]]
        assert listed["scope"] == {"patterns": ["red-*"], "labels": {"team": "red"}, "reads_only": True}
        assert listed["expires_at"] and listed["last_used"] is None
        assert "red-*, team=red, to read" in cli("key", "ls").stdout.decode()
        sandbox(cli, "red-1", labels={"team": "red"})
        sandbox(cli, "blue-1")
        elsewhere = ("--url", f"http://{cli.environment['TEST_TCP']}", "--api-key", made["key"])
        assert cli(*elsewhere, "ls", "-q").stdout == b"red-1\n"
        refused = cli(*elsewhere, "exec", "red-1", "true")
        assert (refused.returncode, b"[KEY_NOT_ALLOWED]" in refused.stderr) == (125, True)
        assert b"[KEY_NOT_ALLOWED]" in cli(*elsewhere, "inspect", "blue-1").stderr
    finally:
        cli("key", "rm", made["id"])


@pytest.mark.parametrize(
    "options", [("--id", "Red"), ("--id", "a/b"), ("--expires", "soon"), ("--label", "x"), ("--id", "")]
)
def test_a_key_for_what_cannot_be_is_refused(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("key", "create", "x", *options).returncode == 2
    assert cli.document("key", "ls") == {"keys": []}
