"""Files and directories, copied between this machine and a sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable

from atoll.client.link import SandboxLink
from atoll.client.local_files import LocalSource, LocalTarget, is_directory
from atoll.client.open_files import AsyncFileStream, commit
from atoll.client.waiting import run_blocking, settle
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.files import FileInfo, FileType, ReadFile, StatFile, WriteFile, decode_file_info, to_raw_path

GATHERED_BYTES = 1024 * 1024  # each trip to a disk takes a thread, so it should be worth it

OnProgress = Callable[[int, int | None], object]
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Progress:
    """Tells how far it is."""

    def __init__(self, on_progress: OnProgress | None, total: int | None) -> None:
        self._on_progress = on_progress
        self._total = total
        self._done = 0

    async def add(self, count: int) -> None:
        self._done += count
        if self._on_progress:
            await settle(self._on_progress(self._done, self._total))


async def upload(
    link: SandboxLink, session_id: str, local: Path, remote: Path, on_progress: OnProgress | None
) -> FileInfo:
    source, target = to_raw_path(local), to_raw_path(remote)
    if await run_blocking(is_directory, source):
        return await _upload_directory(link, session_id, source, target, on_progress)
    if target.endswith(b"/"):
        target += os.path.basename(source)
    return await _upload_file(link, session_id, source, target, on_progress)


async def _upload_file(
    link: SandboxLink, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    source = await run_blocking(LocalSource, local)
    try:
        progress = Progress(on_progress, source.size)
        await progress.add(0)
        sink = await link.begin_call(WriteFile(path=remote, session_id=session_id, mode=source.mode))
        try:
            while chunk := await run_blocking(source.read):
                await sink.send(chunk)
                await progress.add(len(chunk))
            return await commit(sink)
        finally:
            sink.close()
    finally:
        source.close()


async def download(
    link: SandboxLink, session_id: str, remote: Path, local: Path, on_progress: OnProgress | None
) -> None:
    source, target = to_raw_path(remote), to_raw_path(local)
    frames = await link.call(StatFile(path=source, session_id=session_id))
    info: FileInfo = frames.decode(decode_file_info, await frames.result())
    if info.type is FileType.DIRECTORY:
        await _download_directory(link, session_id, source, target, on_progress)
        return
    if target.endswith(b"/") or await run_blocking(os.path.isdir, target):
        target = os.path.join(target, _name(source))
    await _download_file(AsyncFileStream(link, ReadFile(path=source, session_id=session_id)), target, on_progress)


async def _download_file(stream: AsyncFileStream, local: bytes, on_progress: OnProgress | None) -> None:
    async with stream:
        assert stream.info
        progress = Progress(on_progress, stream.info.size or None)
        target = await run_blocking(LocalTarget, local, stream.info.mode)
        try:
            await progress.add(0)
            gathered: list[bytes] = []
            size = 0
            async for chunk in stream:
                gathered.append(chunk)
                size += len(chunk)
                if size >= GATHERED_BYTES:
                    await run_blocking(target.write, b"".join(gathered))
                    await progress.add(size)
                    gathered, size = [], 0
            await run_blocking(target.write, b"".join(gathered))
            await progress.add(size)
            await run_blocking(target.commit)
        finally:
            target.close()


def _name(remote: bytes) -> bytes:
    """What a file is called here: as the user calls it there, not as the sandbox does."""
    name = os.path.basename(remote.rstrip(b"/"))
    if name in (b"", b".", b".."):
        message = f"{os.fsdecode(remote)!r:.200} has no name to be called by on this side"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.")
    return name


async def _upload_directory(
    link: SandboxLink, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    raise NotImplementedError


async def _download_directory(
    link: SandboxLink, session_id: str, remote: bytes, local: bytes, on_progress: OnProgress | None
) -> None:
    raise NotImplementedError
