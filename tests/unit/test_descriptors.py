"""What an agent does when descriptors are few. Each test is a process of its own, whose limits nobody else has."""

from __future__ import annotations

import subprocess
import sys

LOW = """
import os, resource, signal, threading
from atoll.agent import descriptors
from atoll.agent.descriptors import limit, reserve
from atoll.agent.commands.guard import SpawnGuard
from atoll.agent.commands.process_tree import read_process_table

def limits():
    return resource.getrlimit(resource.RLIMIT_NOFILE)

def take(count=None):
    taken = []
    try:
        while count is None or len(taken) < count:
            taken.append(os.dup(0))
    except OSError:
        pass
    return taken
"""


def run(script: str, *, soft: int, hard: int) -> None:
    limited = LOW + f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n" + script
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_soft_limit_is_raised_for_the_agent_when_it_has_many_and_lowered_for_a_command() -> None:
    run(
        """
limit.open()
assert limit.has_room_after(10)
with limit:
    assert limits() == (100, 4000)
assert limits() == (100, 4000)
assert limit.has_room_after(take(30)[-1])
assert limits() == (4000, 4000)
with limit:
    assert limits() == (100, 4000)
assert limits() == (4000, 4000)
limit.close()
assert limits() == (100, 4000)
""",
        soft=100,
        hard=4000,
    )


def test_there_is_no_room_once_few_are_left() -> None:
    run(
        """
limit.open()
taken = take(4000 - descriptors.DESCRIPTORS_LEFT - 20)
assert limit.has_room_after(taken[-1])
assert not limit.has_room_after(take(20)[-1])
""",
        soft=4000,
        hard=4000,
    )


def test_processes_are_found_when_no_descriptor_is_left() -> None:
    run(
        """
reserve.open()
take()
for _ in range(3):
    assert os.getpid() in [process.pid for process in read_process_table()]
""",
        soft=50,
        hard=50,
    )


def test_the_guard_stays_on_duty_when_no_descriptor_is_left() -> None:
    run(
        """
guard = SpawnGuard()
guard.arm()
for _ in range(2):
    with guard:
        pass
taken = take()
(thread,) = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
with guard:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
assert thread.is_alive()
os.closerange(taken[0], taken[-1] + 1)  # a thread that is there when Python ends opens a library to end itself
""",
        soft=50,
        hard=50,
    )
