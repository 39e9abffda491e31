"""Who belongs to a command, decided on tables of processes."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from atoll.agent.commands import process_tree
from atoll.agent.commands.process_tree import (
    BackgroundTree,
    BirthClock,
    CommandTree,
    Endings,
    ProcessStat,
    ProcessTable,
    born_below,
    members_of,
    parse_stat,
    read_process_table,
)


def process(pid: int, parent: int, session: int, *, start: int = 1, zombie: bool = False) -> ProcessStat:
    return ProcessStat(pid, parent, session, start, b"Z" if zombie else b"S", b"sh")


@pytest.mark.parametrize("name", [b"sh", b"a b", b") S 1 1 1", b"((", b"\xff\xfe"])
def test_a_name_full_of_brackets_does_not_shift_the_fields(name: bytes) -> None:
    tail = b"S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3"
    assert parse_stat(b"42 (" + name + b") " + tail) == ProcessStat(42, 7, 41, 9876, b"S", name, 4194560)


def test_descendants_and_session_mates_belong_and_others_do_not() -> None:
    table = [
        process(1, 0, 1),
        process(10, 1, 10),
        process(11, 10, 10),
        process(12, 11, 12),  # moved to a session of its own
        process(13, 1, 10),  # lost its parent
        process(20, 1, 20),
        process(21, 20, 20),
    ]
    assert {pid for pid, _ in members_of(10, set(), table)} == {10, 11, 12, 13}


def test_one_seen_before_is_found_when_its_parents_are_gone_but_not_a_reused_pid() -> None:
    table = [process(1, 0, 1), process(12, 1, 12, start=5), process(14, 12, 14), process(15, 1, 15, start=9)]
    assert {pid for pid, _ in members_of(10, {(12, 5), (15, 3)}, table)} == {12, 14}


def test_a_session_lives_on_without_its_leader_but_its_number_may_be_given_to_another() -> None:
    tree = BackgroundTree(10, outputs=set)
    assert tree.leader_ended([process(11, 1, 10), process(20, 1, 20)])
    assert tree.is_alive([process(11, 1, 10), process(12, 1, 10, start=2)])  # forked by 11, and orphaned
    assert tree.is_alive([process(12, 1, 10, start=2)])
    assert not tree.is_alive([process(10, 1, 10, start=3), process(13, 10, 10, start=3)])


def test_one_that_left_nobody_is_not_mistaken_for_who_gets_its_pid() -> None:
    tree = BackgroundTree(10, outputs=set)
    assert not tree.leader_ended([process(1, 0, 1)])
    assert not tree.is_alive([process(10, 1, 10, start=9)])


def test_who_is_gone_is_forgotten_and_who_only_looks_dead_is_not() -> None:
    tree = CommandTree(10)
    for pid in range(11, 1000):
        assert tree.is_alive([process(10, 1, 10), process(5, 1, 5), process(pid, 10, pid)])
    assert tree._known == {(10, 1), (999, 1)}
    assert not tree.is_alive([process(999, 1, 999, zombie=True)])
    assert tree.is_alive([process(999, 1, 999, zombie=True), process(1000, 999, 1000)])


def test_the_dead_are_not_counted() -> None:
    assert members_of(10, set(), [process(10, 1, 10, zombie=True)]) == set()


def test_a_shells_command_is_what_was_born_after_it_began() -> None:
    table = [
        process(10, 1, 10, start=1),
        process(11, 10, 10, start=2),  # a job of an earlier command
        process(12, 11, 10, start=7),  # which goes on forking
        process(13, 10, 10, start=5),  # born in the tick in which the command began, but before it
        process(20, 10, 10, start=5),
        process(21, 20, 21, start=6),
        process(22, 21, 21, start=6, zombie=True),
        process(30, 1, 30, start=9),
    ]
    assert {pid for pid, _ in born_below(10, (5, 15), set(), table)} == {20, 21}


def test_a_shells_command_is_still_found_when_the_shell_is_gone() -> None:
    table = [process(20, 1, 10, start=5), process(21, 20, 21, start=6), process(40, 1, 40, start=6)]
    assert {pid for pid, _ in born_below(10, (4, 1), {(20, 5), (40, 1)}, table)} == {20, 21}


def test_a_child_is_born_after_the_moment_before_it_and_before_the_moment_after() -> None:
    clock = BirthClock()
    clock.open()
    is_certain = False
    while not is_certain:
        before = clock.now()
        child = subprocess.Popen(["sleep", "60"])
        stat = parse_stat(Path(f"/proc/{child.pid}/stat").read_bytes())
        after = clock.now()
        child.kill()
        child.wait()
        is_certain = before[1] < after[1]  # the kernel has not begun to give out small pids again
    clock.close()
    assert before < stat.birth <= after


def sleeper() -> subprocess.Popen[bytes]:
    """A program that does not listen, with a child in a session of its own."""
    script = "trap '' TERM; setsid sleep 1000 & echo up; exec sleep 1000"
    started = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout and started.stdout.readline()
    return started


async def test_one_look_is_enough_for_all_that_are_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look() -> ProcessTable:
        """What there is in a sandbox: nobody else's processes, whose ends would be waited for as well."""
        nonlocal looks
        looks += 1
        return ProcessTable(process for process in read_process_table() if process.pid in ours)

    programs = [sleeper() for _ in range(20)]
    below = (born_below(program.pid, (0, 0), set(), read_process_table()) for program in programs)
    ours = {program.pid for program in programs} | {pid for found in below for pid, _ in found}
    monkeypatch.setattr(process_tree, "read_process_table", look)
    trees = [CommandTree(program.pid) for program in programs]
    endings, killed = Endings(asyncio.get_running_loop()), asyncio.Semaphore(0)
    for tree in trees:
        endings.ask(tree.terminate)
        endings.kill(tree, then=killed.release)
    for program in programs:
        await killed.acquire()
        assert program.wait() == -9
        assert program.stdout and not program.stdout.read()  # which its child had as well
        program.stdout.close()
    assert looks <= 3


def test_who_is_on_its_way_out_counts_as_leaving_until_it_is_a_zombie() -> None:
    assert process(10, 1, 10)._replace(flags=4194564).is_leaving
    assert not process(10, 1, 10)._replace(flags=4194560).is_leaving
    assert not process(10, 1, 10)._replace(flags=4194564, state=b"Z").is_leaving
