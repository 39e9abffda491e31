# Generated from src/atoll/client/transfers.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Files and directories, copied between this machine and a sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable

from atoll.client_sync.link import SandboxLink
from atoll.client_sync.local_files import LocalSource, LocalTarget, is_directory
from atoll.client_sync.open_files import FileStream, commit
from atoll.client_sync.waiting import run_blocking, settle
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

    def add(self, count: int) -> None:
        self._done += count
        if self._on_progress:
            settle(self._on_progress(self._done, self._total))


def upload(link: SandboxLink, session_id: str, local: Path, remote: Path, on_progress: OnProgress | None) -> FileInfo:
    source, target = to_raw_path(local), to_raw_path(remote)
    if run_blocking(is_directory, source):
        return _upload_directory(link, session_id, source, target, on_progress)
    if target.endswith(b"/"):
        target += os.path.basename(source)
    return _upload_file(link, session_id, source, target, on_progress)


def _upload_file(
    link: SandboxLink, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    source = run_blocking(LocalSource, local)
    try:
        progress = Progress(on_progress, source.size)
        progress.add(0)
        sink = link.begin_call(WriteFile(path=remote, session_id=session_id, mode=source.mode))
        try:
            while chunk := run_blocking(source.read):
                sink.send(chunk)
                progress.add(len(chunk))
            return commit(sink)
        finally:
            sink.close()
    finally:
        source.close()


def download(link: SandboxLink, session_id: str, remote: Path, local: Path, on_progress: OnProgress | None) -> None:
    source, target = to_raw_path(remote), to_raw_path(local)
    frames = link.call(StatFile(path=source, session_id=session_id))
    info: FileInfo = frames.decode(decode_file_info, frames.result())
    if info.type is FileType.DIRECTORY:
        _download_directory(link, session_id, source, target, on_progress)
        return
    if target.endswith(b"/") or run_blocking(os.path.isdir, target):
        target = os.path.join(target, _name(source))
    _download_file(FileStream(link, ReadFile(path=source, session_id=session_id)), target, on_progress)


def _download_file(stream: FileStream, local: bytes, on_progress: OnProgress | None) -> None:
    with stream:
        assert stream.info
        progress = Progress(on_progress, stream.info.size or None)
        target = run_blocking(LocalTarget, local, stream.info.mode)
        try:
            progress.add(0)
            gathered: list[bytes] = []
            size = 0
            for chunk in stream:
                gathered.append(chunk)
                size += len(chunk)
                if size >= GATHERED_BYTES:
                    run_blocking(target.write, b"".join(gathered))
                    progress.add(size)
                    gathered, size = [], 0
            run_blocking(target.write, b"".join(gathered))
            progress.add(size)
            run_blocking(target.commit)
        finally:
            target.close()


def _name(remote: bytes) -> bytes:
    """What a file is called here: as the user calls it there, not as the sandbox does."""
    name = os.path.basename(remote.rstrip(b"/"))
    if name in (b"", b".", b".."):
        message = f"{os.fsdecode(remote)!r:.200} has no name to be called by on this side"
        raise error(ErrorCode.INVALID_PATH, message, remedy="Say what it shall be called.")
    return name


def _upload_directory(
    link: SandboxLink, session_id: str, local: bytes, remote: bytes, on_progress: OnProgress | None
) -> FileInfo:
    raise NotImplementedError


def _download_directory(
    link: SandboxLink, session_id: str, remote: bytes, local: bytes, on_progress: OnProgress | None
) -> None:
    raise NotImplementedError
