"""Files and directories, copied between this machine and a sandbox."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from atoll.archives.packing import NAMES_LEFT_OUT
from atoll.client.local_files import (
    LinksLeftOut,
    LocalSource,
    LocalTarget,
    LocalTree,
    LocalTreeTarget,
    flaw_in_local_name,
    is_local_directory,
    is_special,
)
from atoll.client.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.client.plumbing.waiting import run_blocking
from atoll.client.progress import OnProgress, Progress
from atoll.protocol.calls import Answer, Call
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.file_answers import PackFold, ReadFold
from atoll.protocol.files import (
    FileDone,
    FileInfo,
    FileType,
    PackFiles,
    ReadFile,
    StatFile,
    UnpackFiles,
    WriteFile,
    to_raw_path,
)
from atoll.protocol.names import named
from atoll.protocol.transfer_bounds import Bounds, Tally
from atoll.values.files import LeftOutWarning

GATHERED_BYTES = 1024 * 1024  # each trip to a disk takes a thread, so it should be worth it

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The common part of upload and download: whose files, who is told, and what of a directory stays where it is."""

    sandbox: RemoteSandbox
    session_id: str
    on_progress: OnProgress | None
    exclude: list[bytes]


async def upload(transfer: Transfer, local: Path, remote: Path) -> FileInfo:
    source, target = to_raw_path(local), to_raw_path(remote)
    if await run_blocking(is_local_directory, source):
        tree = LocalTree(source, transfer.exclude)
        with Progress(source, transfer.on_progress) as progress:
            await _send_all(transfer, UnpackFiles(path=target, session_id=transfer.session_id), tree, progress)
        made = await transfer.sandbox.ask(StatFile(path=target, session_id=transfer.session_id))
        _warn(_odd_ones(source, tree.done))
        return made
    if target.endswith(b"/"):
        target += os.path.basename(source)
    file = await run_blocking(LocalSource, source)
    call = WriteFile(path=target, session_id=transfer.session_id, mode=file.mode, map=file.map)
    with Progress(source, transfer.on_progress, file.size) as progress:
        return await _send_all(transfer, call, file, progress)


async def _send_all(
    transfer: Transfer, call: Call[Answer], source: LocalSource | LocalTree, progress: Progress
) -> Answer:
    try:
        await progress.add(0)
        sink = await transfer.sandbox.begin_call(call)
        try:
            while chunk := await run_blocking(source.read):
                await sink.send(chunk)
                await progress.add(len(chunk))
        except BaseException:
            sink.close()
            raise
        return await sink.finish()
    finally:
        source.close()


async def download(transfer: Transfer, remote: Path, local: Path, bounds: Bounds) -> None:
    sandbox, session_id = transfer.sandbox, transfer.session_id
    source, target = to_raw_path(remote), to_raw_path(local)
    info = await sandbox.ask(StatFile(path=source, session_id=session_id))
    is_directory = info.type is FileType.DIRECTORY
    if not is_directory and (target.endswith(b"/") or await run_blocking(os.path.isdir, target)):
        target = os.path.join(target, _name(source))
    tally = Tally(bounds, source)  # once more: who holds the other end may have come to be anybody
    with Progress(source, transfer.on_progress) as progress:
        if is_directory:
            pack = PackFiles(path=source, session_id=session_id, bounds=bounds, exclude=transfer.exclude)
            told = await _download_directory(sandbox, pack, target, tally, progress)
        else:
            takes_holes = not await run_blocking(is_special, target)
            read = ReadFile(path=source, session_id=session_id, holes=takes_holes, max_bytes=bounds.max_bytes)
            told = await _download_file(sandbox, read, target, tally, progress)
    _warn(*told)


async def _download_directory(
    sandbox: RemoteSandbox, call: PackFiles, local: bytes, tally: Tally, progress: Progress
) -> list[str]:
    """Words for what was left out."""
    frames = await sandbox.call(call)
    try:
        target = await run_blocking(LocalTreeTarget, local, tally)
    except BaseException:
        frames.close()
        raise
    done = await _take_all(frames, PackFold(call), target, progress)
    return [_odd_ones(call.path, done), _links_out(call.path, target.left_out)]


async def _download_file(
    sandbox: RemoteSandbox, call: ReadFile, local: bytes, tally: Tally, progress: Progress
) -> list[str]:
    frames, fold = await sandbox.call(call), ReadFold(call)
    try:
        while fold.info is None:
            fold.take(await frames.next())
        target = await run_blocking(LocalTarget, local, fold.info.mode, tally)
    except BaseException:
        frames.close()
        raise
    progress.total = fold.info.size or None
    return [_odd_ones(call.path, await _take_all(frames, fold, target, progress))]


async def _take_all(
    frames: Frames[FileDone], fold: ReadFold | PackFold, target: LocalTarget | LocalTreeTarget, progress: Progress
) -> FileDone:
    try:
        await progress.add(0)
        gathered: list[bytes] = []
        size = 0
        while (data := fold.take(await frames.next())) is not None:
            if data:
                gathered.append(data)
                size += len(data)
            elif isinstance(fold, ReadFold) and fold.map:
                await run_blocking(target.take_map, fold.map)
                progress.total = fold.map.count
            if size >= GATHERED_BYTES:
                await run_blocking(target.write, gathered)
                await progress.add(size)
                gathered, size = [], 0
        await run_blocking(target.write, gathered)
        await progress.add(size)
        await run_blocking(target.commit)
        assert fold.done, "what came to its end has said so"
        return fold.done
    finally:
        frames.close()
        target.close()


def _odd_ones(path: bytes, done: FileDone) -> str:
    """Of what an archive does not take, as tar does: a socket or a FIFO is of use where it is."""
    names = [repr(os.fsdecode(name))[:200] for name in done.left_out_names[:NAMES_LEFT_OUT]]
    return _left_out(path, "no file, directory or link", done.left_out, names)


def _links_out(path: bytes, links: LinksLeftOut) -> str:
    """Of links that lead to what is not in the directory, and so is not copied with it."""
    names = [f"{os.fsdecode(name)!r:.200} to {os.fsdecode(target)!r:.200}" for name, target in links.some]
    return _left_out(path, "a link that leads out of it", links.number, names)


def _left_out(path: bytes, reason: str, count: int, names: list[str]) -> str:
    if count <= 0:
        return ""
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"left out of {os.fsdecode(path)!r:.200}, as {reason}: {', '.join(names)}{more}"


def _warn(*told: str) -> None:
    for what in filter(None, told):
        warnings.warn(what, LeftOutWarning, stacklevel=4)  # where upload() or download() was called


def _name(remote: bytes) -> bytes:
    """A remote file's name here: as the user calls it there, not as the sandbox does."""
    name = os.path.basename(remote.rstrip(b"/"))
    if name in (b"", b".", b".."):
        message = f"{os.fsdecode(remote)!r:.200} has no name to be called by on this side"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.", **named(path=remote))
    if flaw := flaw_in_local_name(name):
        message = f"{os.fsdecode(remote)!r:.200} {flaw}"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.", **named(path=remote))
    return name
