"""`atoll shell` as a person uses it: on a real terminal, which is as it was when the program has ended."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atoll.cli.own_terminal import Escapes, LeaveError
from tests.system.serving import RunningServer

ATOLL = (sys.executable, "-m", "atoll.cli")
PROMPT = b"# "
END = b"(nothing comes after this)"


class Person:
    """Somebody at a terminal on which a program runs."""

    process: subprocess.Popen[bytes]

    def __init__(self, master: int, slave: int) -> None:
        self._master = master
        self._slave = slave
        self.mode_before = self.mode()
        self.seen = bytearray()

    async def until(self, text: bytes) -> bytes:
        while text not in self.seen:
            data = await self._read()
            assert data, bytes(self.seen)
            self.seen += data
        end = self.seen.index(text) + len(text)
        found = bytes(self.seen[:end])
        del self.seen[:end]
        return found

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    async def exit_code(self) -> int:
        """Of the program, with all it has said seen: it is read meanwhile, or the program would wait for us."""
        descriptor = os.pidfd_open(self.process.pid)
        try:
            while descriptor not in await _readable(descriptor, self._master):
                self.seen += os.read(self._master, 65_536)
        finally:
            os.close(descriptor)
        os.write(self._slave, END)  # the kernel passes on what was written in its own time: this comes after it
        while not self.seen.endswith(END):
            self.seen += await self._read()
        del self.seen[-len(END) :]
        return self.process.wait()

    async def _read(self) -> bytes:
        await _readable(self._master)
        return os.read(self._master, 65_536)


async def _readable(*descriptors: int) -> set[int]:
    loop, found = asyncio.get_running_loop(), set()
    event = asyncio.Event()

    def note(descriptor: int) -> None:
        found.add(descriptor)
        event.set()

    for descriptor in descriptors:
        loop.add_reader(descriptor, note, descriptor)
    try:
        await event.wait()
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
    return found


@asynccontextmanager
async def person(server: RunningServer, *words: str) -> AsyncIterator[Person]:
    master, slave = os.openpty()
    try:
        somebody = Person(master, slave)
        somebody.resize(97, 31)
        somebody.process = process = subprocess.Popen(
            [*ATOLL, "shell", *words, "--url", server.unix_url],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that it hears of resizes
        )
        with process:
            try:
                yield somebody
            finally:
                process.kill()  # which changes nothing, unless the test has failed
    finally:
        os.close(master)
        os.close(slave)


async def test_a_shell_on_the_terminal_with_its_prompt_size_and_exit_code(server: RunningServer) -> None:
    async with person(server, "box") as somebody:
        await somebody.until(PROMPT)
        assert somebody.mode() != somebody.mode_before  # raw: keys are for the sandbox
        somebody.type(b"stty size; tty; pwd\r")
        await somebody.until(b"31 97\r\n/dev/pts/0\r\n/workspace\r\n")
        await somebody.until(PROMPT)
        somebody.type(b"exit 42\r")
        assert await somebody.exit_code() == 42
        assert somebody.mode() == somebody.mode_before
    assert (await terminals(server))[0]["exit_code"] == 42


async def terminals(server: RunningServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.ask("GET", "/v1/sandboxes/box/terminals")).json()["terminals"]
    return found


async def test_keys_that_would_end_us_go_to_the_sandbox(server: RunningServer) -> None:
    async with person(server, "box") as somebody:
        await somebody.until(PROMPT)
        somebody.type(b"sh -c 'echo star''ted; exec sleep 4321'\r")
        await somebody.until(b"started\r\n")
        somebody.type(b"\x03")
        await somebody.until(PROMPT)
        somebody.type(b"echo code=$?\r")
        await somebody.until(b"code=130\r\n")
        somebody.type(b"sh -c 'echo ru''nning; exec cat'\r")
        await somebody.until(b"running\r\n")
        somebody.type(b"\x1a")
        await somebody.until(b"Stopped")
        await somebody.until(PROMPT)
        somebody.type(b"exit\rexit 3\r")  # bash warns once of stopped jobs
        assert await somebody.exit_code() == 3


async def test_a_resize_of_the_window_reaches_the_program(server: RunningServer) -> None:
    async with person(server, "box", "--shell", "sh") as somebody:
        await somebody.until(PROMPT)
        somebody.type(b"sh -c \"trap 'stty size' WINCH; echo s''et; while :; do sleep 0.05; done\"\r")
        await somebody.until(b"set\r\n")
        somebody.resize(133, 55)
        await somebody.until(b"55 133\r\n")
        somebody.resize(134, 56)
        await somebody.until(b"56 134\r\n")
        somebody.type(b"\x03")
        await somebody.until(PROMPT)
        somebody.type(b"exit\r")
        await somebody.exit_code()


async def test_options_choose_program_directory_and_variables(server: RunningServer) -> None:
    words = ("--shell", "python3", "--cwd", "/usr", "--env", "WHO=me")
    async with person(server, "box", *words) as somebody:
        await somebody.until(b">>> ")
        somebody.type(b"import os; print(os.getcwd(), os.environ['WHO'])\r")
        await somebody.until(b"/usr me\r\n")
        somebody.type(b"os._exit(5)\r")
        assert await somebody.exit_code() == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_told_to_end_it_restores_the_terminal_and_ends_the_shell(
    server: RunningServer, number: signal.Signals
) -> None:
    async with person(server, "box", "--shell", "cat") as somebody:
        somebody.type(b"hello\r")
        await somebody.until(b"hello\r\nhello\r\n")
        somebody.process.send_signal(number)
        assert await somebody.exit_code() == 128 + number
        assert somebody.mode() == somebody.mode_before
    assert [one["exit_code"] for one in await terminals(server)] == [129]


async def test_a_lost_server_restores_the_terminal_and_says_so(own_server: RunningServer) -> None:
    async with person(own_server, "box", "--shell", "cat") as somebody:
        somebody.type(b"hello\r")
        await somebody.until(b"hello\r\nhello\r\n")
        await own_server.kill()
        assert await somebody.exit_code() == 1
        assert b"SERVER_LOST" in somebody.seen
        assert somebody.mode() == somebody.mode_before
    await own_server.start()
    assert [one["exit_code"] for one in await terminals(own_server)] == [None]  # it lives on


async def test_a_terminal_that_runs_already_is_attached_to_and_not_ended(server: RunningServer) -> None:
    made = await server.ask("POST", "/v1/sandboxes/box/terminals", {"shell": ["sh", "-c", "echo earlier; exec cat"]})
    async with person(server, "box", "--attach", made.json()["id"]) as somebody:
        await somebody.until(b"earlier\r\n")
        somebody.type(b"mine\r")
        await somebody.until(b"mine\r\nmine\r\n")
        while (await terminals(server))[0]["cols"] != 97:  # it is told in its own time
            await asyncio.sleep(0.01)
        somebody.process.send_signal(signal.SIGTERM)
        assert await somebody.exit_code() == 143
    assert (await terminals(server))[0]["exit_code"] is None


async def test_a_tilde_and_a_dot_leave_the_program_running(server: RunningServer) -> None:
    async with person(server, "box", "--shell", "cat") as somebody:
        somebody.type(b"~~ ~. ~x\r")
        await somebody.until(b"~ ~. ~x\r\n~ ~. ~x\r\n")
        somebody.type(b"~")
        somebody.type(b".")
        assert await somebody.exit_code() == 0
        assert somebody.mode() == somebody.mode_before
        (terminal,) = await terminals(server)
        assert terminal["exit_code"] is None
        assert f"atoll shell box --attach {terminal['id']}".encode() in somebody.seen


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ([b"ls\r"], b"ls\r"),
        ([b"a~.b"], b"a~.b"),
        ([b"~", b"x"], b"~x"),
        ([b"~", b"~", b"."], b"~."),
        ([b"\r~", b"\r~~"], b"\r~\r~"),
        ([b"~~~~"], b"~~~"),
        ([b"~"], b""),
    ],
)
def test_escapes_pass_on_all_other_keys(typed: list[bytes], passed: bytes) -> None:
    escapes = Escapes()
    assert b"".join(map(escapes.take, typed)) == passed


@pytest.mark.parametrize("typed", [[b"~."], [b"~", b"."], [b"ls\r~."], [b"x\n", b"~", b".y"]])
def test_escapes_leave_at_the_beginning_of_a_line(typed: list[bytes]) -> None:
    escapes = Escapes()
    with pytest.raises(LeaveError):
        for keys in typed:
            escapes.take(keys)


async def test_large_output_comes_through_byte_for_byte(server: RunningServer) -> None:
    async with person(server, "box", "--shell", "sh") as somebody:
        await somebody.until(PROMPT)
        somebody.type(b"stty -opost; seq 100000; stty opost; echo do''ne\r")
        shown = await somebody.until(b"done\r\n")
        assert b"".join(b"%d\n" % number for number in range(1, 100_001)) in shown
        somebody.type(b"exit\r")
        await somebody.exit_code()


@pytest.mark.parametrize("words", [("--shell", "no-such-shell"), ("--attach", "terminal-none"), ("--cwd", "/no/where")])
async def test_what_cannot_be_opened_is_told_and_leaves_the_terminal_alone(
    server: RunningServer, words: tuple[str, ...]
) -> None:
    async with person(server, "box", *words) as somebody:
        assert await somebody.exit_code() == 1
        assert b"NOT_FOUND" in somebody.seen
        assert somebody.mode() == somebody.mode_before


async def test_attaching_to_a_sandbox_that_is_not_there_makes_none(server: RunningServer) -> None:
    async with person(server, "nobody", "--attach", "terminal-none") as somebody:
        assert await somebody.exit_code() == 1
        assert b"SANDBOX_NOT_FOUND" in somebody.seen
    looked = await asyncio.to_thread(
        subprocess.run, [*ATOLL, "inspect", "nobody", "--url", server.unix_url], capture_output=True
    )
    assert b"SANDBOX_NOT_FOUND" in looked.stderr


async def test_options_for_a_new_terminal_do_not_go_with_one_that_runs(server: RunningServer) -> None:
    async with person(server, "box", "--attach", "terminal-none", "--cwd", "/") as somebody:
        assert await somebody.exit_code() == 2
        assert b"do not apply" in somebody.seen


async def test_without_a_terminal_there_is_an_error_with_a_remedy(server: RunningServer) -> None:
    command = [*ATOLL, "shell", "box", "--json", "--url", server.unix_url]
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        ran = await asyncio.to_thread(subprocess.run, command, stdin=stdin, capture_output=True)
        assert ran.returncode == 2
        assert "atoll exec" in json.loads(ran.stderr)["remedy"]
