"""Files and directories, copied between this machine and a sandbox."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from atoll.archives.packing import NAMES_LEFT_OUT
from atoll.client.link import SandboxLink
from atoll.client.local_files import (
    LocalSource,
    LocalTarget,
    LocalTree,
    LocalTreeTarget,
    flaw_in_local_name,
    is_local_directory,
    is_special,
)
from atoll.client.open_files import begin_reading
from atoll.client.server import Frames, misbehaved
from atoll.client.waiting import run_blocking, settle
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.file_maps import FileMap
from atoll.protocol.files import (
    FileDone,
    FileInfo,
    FileType,
    PackFiles,
    ReadFile,
    StatFile,
    UnpackFiles,
    WriteFile,
    decode_file_done,
    decode_file_info,
    decode_file_map,
    to_raw_path,
)
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import Call
from atoll.protocol.names import named
from atoll.protocol.transfer_bounds import Bounds, Tally
from atoll.values.files import LeftOutWarning

GATHERED_BYTES = 1024 * 1024  # each trip to a disk takes a thread, so it should be worth it

OnProgress = Callable[[int, int | None], object]
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Progress:
    """Tells how far it is."""

    def __init__(self, on_progress: OnProgress | None, total: int | None) -> None:
        self._on_progress = on_progress
        self.total = total
        self._done = 0

    async def add(self, count: int) -> None:
        self._done += count
        if self._on_progress:
            await settle(self._on_progress(self._done, self.total))


async def upload(
    link: SandboxLink, session_id: str, local: Path, remote: Path, on_progress: OnProgress | None
) -> FileInfo:
    source, target = to_raw_path(local), to_raw_path(remote)
    if await run_blocking(is_local_directory, source):
        tree = LocalTree(source)
        made = await _upload_directory(link, session_id, tree, target, on_progress)
        _warn_of_what_is_left_out(source, tree.done)
        return made
    if target.endswith(b"/"):
        target += os.path.basename(source)
    return await _upload_file(link, session_id, source, target, on_progress)


async def _upload_file(
    link: SandboxLink, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    source = await run_blocking(LocalSource, local)
    call = WriteFile(path=remote, session_id=session_id, mode=source.mode, map=source.map)
    frames = await _send_all(link, call, source, Progress(on_progress, source.size))
    written: FileInfo = frames.decode(decode_file_info, await frames.result())
    return written


async def _upload_directory(
    link: SandboxLink, session_id: str, local: LocalTree, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    call = UnpackFiles(path=remote, session_id=session_id)
    frames = await _send_all(link, call, local, Progress(on_progress, None))
    frames.decode(decode_file_done, await frames.result())
    frames = await link.call(StatFile(path=remote, session_id=session_id))
    made: FileInfo = frames.decode(decode_file_info, await frames.result())
    return made


async def _send_all(link: SandboxLink, call: Call, source: LocalSource | LocalTree, progress: Progress) -> Frames:
    try:
        await progress.add(0)
        sink = await link.begin_call(call)
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


async def download(
    link: SandboxLink, session_id: str, remote: Path, local: Path, bounds: Bounds, on_progress: OnProgress | None
) -> None:
    source, target = to_raw_path(remote), to_raw_path(local)
    frames = await link.call(StatFile(path=source, session_id=session_id))
    info: FileInfo = frames.decode(decode_file_info, await frames.result())
    is_directory = info.type is FileType.DIRECTORY
    if not is_directory and (target.endswith(b"/") or await run_blocking(os.path.isdir, target)):
        target = os.path.join(target, _name(source))
    call: PackFiles | ReadFile
    if is_directory:
        call = PackFiles(path=source, session_id=session_id, bounds=bounds)
    else:
        takes_holes = not await run_blocking(is_special, target)
        call = ReadFile(path=source, session_id=session_id, holes=takes_holes, max_bytes=bounds.max_bytes)
    frames = await link.call(call)
    tally = Tally(bounds, source)  # once more: who holds the other end may have come to be anybody
    sink: LocalTarget | LocalTreeTarget
    try:
        if is_directory:
            size = None
            sink = await run_blocking(LocalTreeTarget, target, tally)
        else:
            info = await begin_reading(frames)
            size = info.size or None
            sink = await run_blocking(LocalTarget, target, info.mode, tally)
    except BaseException:
        frames.close()
        raise
    done = await _take_all(frames, sink, Progress(on_progress, size))
    _warn_of_what_is_left_out(source, done)


async def _take_all(frames: Frames, target: LocalTarget | LocalTreeTarget, progress: Progress) -> FileDone:
    try:
        await progress.add(0)
        gathered: list[bytes] = []
        size = 0
        frame = await frames.next()
        if frame.kind is FrameKind.EVENT:
            file_map: FileMap = frames.decode(decode_file_map, frame)
            await run_blocking(target.take_map, file_map)
            progress.total = file_map.count
            frame = await frames.next()
        while frame.kind is FrameKind.DATA:
            if frame.payload:  # or nothing would grow, and be kept
                gathered.append(frame.payload)
                size += len(frame.payload)
            if size >= GATHERED_BYTES:
                await run_blocking(target.write, gathered)
                await progress.add(size)
                gathered, size = [], 0
            frame = await frames.next()
        if frame.kind is not FrameKind.DONE:
            raise misbehaved(f"a {frame.kind.name} frame came")
        await run_blocking(target.write, gathered)
        await progress.add(size)
        done: FileDone = frames.decode(decode_file_done, frame)
        await run_blocking(target.commit)
        return done
    finally:
        frames.close()
        target.close()


def _warn_of_what_is_left_out(path: bytes, done: FileDone) -> None:
    """As tar does. A socket or a FIFO is of use where it is, and no reason to copy nothing."""
    if done.left_out > 0:
        names = [repr(os.fsdecode(name))[:200] for name in done.left_out_names[:NAMES_LEFT_OUT]]
        more = f" and {done.left_out - len(names)} more" if done.left_out > len(names) else ""
        what = f"left out of {os.fsdecode(path)!r:.200}, as no file, directory or link: {', '.join(names)}{more}"
        warnings.warn(what, LeftOutWarning, stacklevel=4)  # where upload() or download() was called


def _name(remote: bytes) -> bytes:
    """What a file is called here: as the user calls it there, not as the sandbox does."""
    name = os.path.basename(remote.rstrip(b"/"))
    if name in (b"", b".", b".."):
        message = f"{os.fsdecode(remote)!r:.200} has no name to be called by on this side"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.", **named(path=remote))
    if flaw := flaw_in_local_name(name):
        message = f"{os.fsdecode(remote)!r:.200} {flaw}"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.", **named(path=remote))
    return name
