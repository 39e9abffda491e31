"""The two halves of the SDK under one test: the blocking one is driven from threads, and then reads like the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from atoll.client import sandbox as async_sandbox
from atoll.client.plumbing import local_server as async_local_server
from atoll.client.plumbing import network as async_network
from atoll.client.plumbing import server as async_server
from atoll.client.plumbing import transport as async_transport
from atoll.client_sync import sandbox as sync_sandbox
from atoll.client_sync.plumbing import local_server as sync_local_server
from atoll.client_sync.plumbing import network as sync_network
from atoll.client_sync.plumbing import server as sync_server
from atoll.client_sync.plumbing import transport as sync_transport


class AsyncHalf:
    name = "async"
    network: Any = async_network
    transport: Any = async_transport
    server: Any = async_server
    local_server: Any = async_local_server
    get_sandbox: Any = staticmethod(async_sandbox.get_async_sandbox)
    temporary_sandbox: Any = staticmethod(async_sandbox.temporary_async_sandbox)

    async def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return await function(*arguments, **options)

    async def list_sandboxes(self, **options: Any) -> Any:
        return await async_sandbox.list_sandboxes_async(**options)

    async def iterate(self, stream: Any) -> AsyncIterator[Any]:
        async for event in stream:
            yield event

    async def close(self, stream: Any) -> None:
        await stream.aclose()

    @asynccontextmanager
    async def entered(self, context: Any) -> AsyncIterator[Any]:
        async with context as entered:
            yield entered


class BlockingHalf:
    name = "blocking"
    network: Any = sync_network
    transport: Any = sync_transport
    server: Any = sync_server
    local_server: Any = sync_local_server
    get_sandbox: Any = staticmethod(sync_sandbox.get_sandbox)
    temporary_sandbox: Any = staticmethod(sync_sandbox.temporary_sandbox)

    async def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *arguments, **options)

    async def list_sandboxes(self, **options: Any) -> Any:
        return await asyncio.to_thread(sync_sandbox.list_sandboxes, **options)

    async def iterate(self, stream: Any) -> AsyncIterator[Any]:
        over = object()
        while (event := await asyncio.to_thread(next, stream, over)) is not over:
            yield event

    async def close(self, stream: Any) -> None:
        await asyncio.to_thread(stream.close)

    @asynccontextmanager
    async def entered(self, context: Any) -> AsyncIterator[Any]:
        entered = await asyncio.to_thread(context.__enter__)
        try:
            yield entered
        except BaseException as problem:
            await asyncio.to_thread(context.__exit__, type(problem), problem, None)
            raise
        await asyncio.to_thread(context.__exit__, None, None, None)


Half = AsyncHalf | BlockingHalf
