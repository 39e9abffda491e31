"""State that a shell did not live to save: the next command has the newest there is, and its result tells what is lost.

A command is answered before its state is saved. So whoever has the answer may think that what the command set will be
there, and a shell that is killed in that moment proves them wrong.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from atoll.protocol.commands import ExecShell
from tests.conftest import Box
from tests.native import native

LARGE = "for ((n = 0; n < 300; n++)); do declare v$n='value number '$n; done"
ROUNDS = 20
WINDOW_SECONDS = 0.01
# What the shell does after a command, changed so that it ends there: before it saves anything, or in the middle.
DIRECTORY = "for dir in /proc/$$/fd/*; do [ -e $dir/after ] && break; done"
DIES_BEFORE_IT_SAVES = f"{DIRECTORY}; sed -i '/^{{/i kill -9 $$' $dir/after"
DIES_WHILE_IT_SAVES = f"{DIRECTORY}; sed -i '/umask/i kill -9 $$' $dir/after"


def shell_of(box: Box) -> int:
    """The pid, on the host, of the one shell there is."""
    agent = native(box.live).process.pid
    (shell,) = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return int(shell)


async def count(box: Box, stdin: bytes | None = None) -> tuple[int, int]:
    """What the last command that counted has left, and how many are told to be lost."""
    output = await box.shell("cat >&2; echo $x", stdin=stdin)
    assert output.stderr == (stdin or b"")
    assert not output.done.session_ended and output.done.exit_code == 0, output
    return int(output.stdout), output.done.state_lost


@pytest.mark.parametrize("first", [":", LARGE], ids=["small", "large"])
async def test_a_kill_right_after_an_answer_costs_the_state_of_one_command_at_most_and_is_told(
    host_box: Box, first: str
) -> None:
    await host_box.shell(f"{first}; x=0")
    for number in range(1, ROUNDS):
        await host_box.shell(f"x={number}")
        await asyncio.sleep(random.random() * WINDOW_SECONDS)
        os.kill(shell_of(host_box), signal.SIGKILL)
        left, lost = await count(host_box)
        assert (left, lost) in ((number, 0), (number - 1, 1))
        await host_box.shell(f"x={number}")


@pytest.mark.parametrize(
    "death", [DIES_BEFORE_IT_SAVES, DIES_WHILE_IT_SAVES], ids=["before it saves", "while it saves"]
)
@pytest.mark.parametrize("commands", [1, 2, 3, 4])
async def test_what_a_shell_did_not_live_to_save_is_told_once(box: Box, death: str, commands: int) -> None:
    for number in range(commands):
        await box.shell(f"x={number}")
    dying = await box.shell(f"x=lost; {death}")
    assert (dying.done.exit_code, dying.done.session_ended, dying.done.state_lost) == (0, False, 0)
    assert await count(box, b"input") == (commands - 1, 1)
    assert await count(box) == (commands - 1, 0)
    await box.shell("x=7")
    await box.shell("kill -9 $$")
    assert await count(box) == (7, 0)


async def test_state_that_is_too_large_to_be_saved_never_takes_the_place_of_what_was(host_box: Box) -> None:
    await host_box.shell(f"x=1; {DIRECTORY}; head -c 65000000 /dev/zero >$dir/what-fills-the-place")
    for number in (2, 3, 4):
        await host_box.shell(f"x={number}; huge=$(head -c 3000000 /dev/zero | tr '\\0' x)")
    await host_box.shell("kill -9 $$")
    assert await count(host_box) == (1, 3)


async def test_a_loss_is_told_to_the_first_who_is_there_to_hear_it(host_box: Box) -> None:
    await host_box.shell("x=1")
    await host_box.shell(f"x=2; {DIES_BEFORE_IT_SAVES}")
    async with host_box.link.operation(ExecShell(command="echo go; sleep 60")) as connection:
        assert (await connection.next_frame()).payload == b"go\n"
    assert await count(host_box) == (1, 1)
