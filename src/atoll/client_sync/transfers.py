# Generated from client/transfers.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Files and directories, copied between this machine and a sandbox."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from atoll.archives.packing import NAMES_LEFT_OUT
from atoll.client_sync.local_files import (
    LocalSource,
    LocalTarget,
    LocalTree,
    LocalTreeTarget,
    flaw_in_local_name,
    is_local_directory,
    is_special,
)
from atoll.client_sync.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.client_sync.plumbing.waiting import run_blocking, settle
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

OnProgress = Callable[[int, int | None], object]
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Progress:
    """Tells how far it is."""

    def __init__(self, on_progress: OnProgress | None, total: int | None) -> None:
        self._on_progress = on_progress
        self.total = total
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        if self._on_progress:
            settle(self._on_progress(self._done, self.total))


def upload(
    sandbox: RemoteSandbox, session_id: str, local: Path, remote: Path, on_progress: OnProgress | None
) -> FileInfo:
    source, target = to_raw_path(local), to_raw_path(remote)
    if run_blocking(is_local_directory, source):
        tree = LocalTree(source)
        made = _upload_directory(sandbox, session_id, tree, target, on_progress)
        _warn_of_what_is_left_out(source, tree.done)
        return made
    if target.endswith(b"/"):
        target += os.path.basename(source)
    return _upload_file(sandbox, session_id, source, target, on_progress)


def _upload_file(
    sandbox: RemoteSandbox, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    source = run_blocking(LocalSource, local)
    call = WriteFile(path=remote, session_id=session_id, mode=source.mode, map=source.map)
    return _send_all(sandbox, call, source, Progress(on_progress, source.size))


def _upload_directory(
    sandbox: RemoteSandbox, session_id: str, local: LocalTree, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    call = UnpackFiles(path=remote, session_id=session_id)
    _send_all(sandbox, call, local, Progress(on_progress, None))
    return sandbox.ask(StatFile(path=remote, session_id=session_id))


def _send_all(
    sandbox: RemoteSandbox, call: Call[Answer], source: LocalSource | LocalTree, progress: Progress
) -> Answer:
    try:
        progress.add(0)
        sink = sandbox.begin_call(call)
        try:
            while chunk := run_blocking(source.read):
                sink.send(chunk)
                progress.add(len(chunk))
        except BaseException:
            sink.close()
            raise
        return sink.finish()
    finally:
        source.close()


def download(
    sandbox: RemoteSandbox, session_id: str, remote: Path, local: Path, bounds: Bounds, on_progress: OnProgress | None
) -> None:
    source, target = to_raw_path(remote), to_raw_path(local)
    info = sandbox.ask(StatFile(path=source, session_id=session_id))
    is_directory = info.type is FileType.DIRECTORY
    if not is_directory and (target.endswith(b"/") or run_blocking(os.path.isdir, target)):
        target = os.path.join(target, _name(source))
    tally = Tally(bounds, source)  # once more: who holds the other end may have come to be anybody
    if is_directory:
        pack = PackFiles(path=source, session_id=session_id, bounds=bounds)
        done = _download_directory(sandbox, pack, target, tally, on_progress)
    else:
        takes_holes = not run_blocking(is_special, target)
        read = ReadFile(path=source, session_id=session_id, holes=takes_holes, max_bytes=bounds.max_bytes)
        done = _download_file(sandbox, read, target, tally, on_progress)
    _warn_of_what_is_left_out(source, done)


def _download_directory(
    sandbox: RemoteSandbox, call: PackFiles, local: bytes, tally: Tally, on_progress: OnProgress | None
) -> FileDone:
    frames = sandbox.call(call)
    try:
        target = run_blocking(LocalTreeTarget, local, tally)
    except BaseException:
        frames.close()
        raise
    return _take_all(frames, PackFold(call), target, Progress(on_progress, None))


def _download_file(
    sandbox: RemoteSandbox, call: ReadFile, local: bytes, tally: Tally, on_progress: OnProgress | None
) -> FileDone:
    frames, fold = sandbox.call(call), ReadFold(call)
    try:
        while fold.info is None:
            fold.take(frames.next())
        target = run_blocking(LocalTarget, local, fold.info.mode, tally)
    except BaseException:
        frames.close()
        raise
    return _take_all(frames, fold, target, Progress(on_progress, fold.info.size or None))


def _take_all(
    frames: Frames[FileDone], fold: ReadFold | PackFold, target: LocalTarget | LocalTreeTarget, progress: Progress
) -> FileDone:
    try:
        progress.add(0)
        gathered: list[bytes] = []
        size = 0
        while (data := fold.take(frames.next())) is not None:
            if data:
                gathered.append(data)
                size += len(data)
            elif isinstance(fold, ReadFold) and fold.map:
                run_blocking(target.take_map, fold.map)
                progress.total = fold.map.count
            if size >= GATHERED_BYTES:
                run_blocking(target.write, gathered)
                progress.add(size)
                gathered, size = [], 0
        run_blocking(target.write, gathered)
        progress.add(size)
        run_blocking(target.commit)
        assert fold.done, "what came to its end has said so"
        return fold.done
    finally:
        frames.close()
        target.close()


def _warn_of_what_is_left_out(path: bytes, done: FileDone) -> None:
    """Warns as tar does. A socket or a FIFO is of use where it is, and no reason to copy nothing."""
    if done.left_out > 0:
        names = [repr(os.fsdecode(name))[:200] for name in done.left_out_names[:NAMES_LEFT_OUT]]
        more = f" and {done.left_out - len(names)} more" if done.left_out > len(names) else ""
        what = f"left out of {os.fsdecode(path)!r:.200}, as no file, directory or link: {', '.join(names)}{more}"
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
