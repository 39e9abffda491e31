"""Standard input of a command: of whatever kind, and never in the way of output."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.client.halves import AsyncHalf, Half
from tests.client.peers import ContractServer, Conversation
from tests.client.test_files import sandbox_of


def greet(conversation: Conversation) -> None:
    """Asks, and answers what it is told."""
    conversation.stdout(b"name? ")
    conversation.stdout(b"hello " + next(iter(conversation.input())))
    conversation.done()


def echo(conversation: Conversation) -> None:
    for piece in conversation.input():
        conversation.stdout(piece)
    conversation.done()


@pytest.mark.parametrize("name", ["exec", "exec_stream"])
async def test_a_generator_that_waits_for_output_gets_it(half: Half, stub: ContractServer, name: str) -> None:
    asked = threading.Event()

    def answers() -> Iterator[str]:
        assert asked.wait(60)
        yield "you"

    stub.on_call = greet
    sandbox = sandbox_of(half, stub)
    if name == "exec":
        result = await half.run(sandbox.exec, "greet", stdin=answers(), on_output=lambda *_: asked.set())
        assert result.stdout == "name? hello you"
        return
    shown = []
    async for event in half.iterate(sandbox.exec_stream("greet", stdin=answers())):
        shown.append(event.data)
        if event.type == "stdout":
            asked.set()
    assert "".join(shown) == "name? hello you"


async def test_a_generator_that_never_comes_holds_up_no_end(half: Half, stub: ContractServer) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def answers() -> Iterator[str]:
        try:
            yield "first"
            may_end.wait(60)
            yield "nobody wants this"
            yield from iter(lambda: "nor this" * 100_000, None)
        finally:
            has_ended.set()

    stub.on_call = greet
    assert (await half.run(sandbox_of(half, stub).exec, "greet", stdin=answers())).stdout == "name? hello first"
    may_end.set()
    assert await asyncio.to_thread(has_ended.wait, 60)


async def test_a_generator_of_much_input_goes_no_further_than_it_is_read(half: Half, stub: ContractServer) -> None:
    made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal made
        for _ in range(1000):
            made += 1
            yield bytes(64 * 1024)

    def reads_little(conversation: Conversation) -> None:
        next(iter(conversation.input()))
        conversation.done()

    stub.on_call = reads_little
    assert (await half.run(sandbox_of(half, stub).exec, "head -c 1", stdin=pieces())).success
    assert made < 200


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_pipe_that_nobody_else_has_stays_open(half: Half, stub: ContractServer) -> None:
    """Given inline, the file object is nobody's but the command's."""
    reader, writer = os.pipe()
    stub.on_call = echo
    stream = sandbox_of(half, stub).exec_stream("cat", stdin=open(reader, "rb"))  # noqa: SIM115
    gc.collect()
    os.write(writer, b"through the pipe")
    os.close(writer)
    assert "".join([event.data async for event in half.iterate(stream)]) == "through the pipe"


class Awaited:
    """Input that is waited for."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces
        self.has_begun, self.has_ended = asyncio.Event(), asyncio.Event()

    async def generate(self) -> AsyncIterator[Any]:
        self.has_begun.set()
        try:
            for piece in self.pieces:
                await asyncio.sleep(0)
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                    continue
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.has_ended.set()


async def test_input_may_be_awaited(half: Half, stub: ContractServer) -> None:
    stub.on_call = echo
    source = Awaited("grüße ", b"und ", bytearray(b"x" * 300_000))
    if half.name == "blocking":
        with pytest.raises(ValueError, match="cannot be standard input"):
            await half.run(sandbox_of(half, stub).exec, "cat", stdin=source.generate())
        return
    result = await half.run(sandbox_of(half, stub).exec, "cat", stdin=source.generate())
    assert result.stdout == "grüße und " + "x" * 300_000
    assert source.has_ended.is_set()


@pytest.fixture
def awaiting() -> AsyncHalf:
    return AsyncHalf()


async def test_awaited_input_that_waits_for_output_gets_it(stub: ContractServer, awaiting: AsyncHalf) -> None:
    stub.on_call = greet
    asked = asyncio.Event()
    source = Awaited(asked, "you")
    result = await sandbox_of(awaiting, stub).exec("x", stdin=source.generate(), on_output=lambda *_: asked.set())
    assert result.stdout == "name? hello you"
    awaiting.server.shared_server.cache_clear()


async def test_awaited_input_is_ended_with_its_command(stub: ContractServer, awaiting: AsyncHalf) -> None:
    stub.on_call = greet
    source = Awaited("first", asyncio.Event(), "never")
    result = await sandbox_of(awaiting, stub).exec("x", stdin=source.generate())
    assert result.stdout == "name? hello first"
    await asyncio.wait_for(source.has_ended.wait(), 60)
    awaiting.server.shared_server.cache_clear()


@pytest.mark.parametrize("mistake", [KeyError("mine"), BrokenPipeError("mine"), TimeoutError("mine")])
async def test_awaited_input_that_raises_ends_the_command(
    stub: ContractServer, awaiting: AsyncHalf, mistake: Exception
) -> None:
    def agent(conversation: Conversation) -> None:
        with contextlib.suppress(ValueError, OSError):
            list(conversation.input())

    stub.on_call = agent
    with pytest.raises(type(mistake), match="mine"):
        await sandbox_of(awaiting, stub).exec("cat", stdin=Awaited("a", mistake).generate())
    with pytest.raises(ValueError, match="cannot be standard input"):
        await sandbox_of(awaiting, stub).exec("cat", stdin=Awaited(5).generate())
    awaiting.server.shared_server.cache_clear()


async def test_awaited_input_is_let_go_of_when_whoever_waits_is_cancelled(
    stub: ContractServer, awaiting: AsyncHalf
) -> None:
    stub.on_call = lambda conversation: conversation.wait_for_hang_up()
    source = Awaited("a", asyncio.Event())
    running = asyncio.create_task(sandbox_of(awaiting, stub).exec("cat", stdin=source.generate()))
    await source.has_begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    await asyncio.wait_for(source.has_ended.wait(), 60)
    awaiting.server.shared_server.cache_clear()
