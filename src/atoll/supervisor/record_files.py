"""Records as files, as earlier versions kept them: taken over into the store, once.

Rules:
1. The rows are in the store, and whole on the disk, before the directory is touched. A kill until then leaves the
   files to the next, and what it finds in the store already, it leaves as it is.
2. The directory is renamed before a file of it is removed: half of the records must never be taken for all of them,
   neither here nor by a version that knows no table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.protocol.errors import cannot_write
from atoll.protocol.ids import parse_sandbox_id
from atoll.store.base import SandboxRow
from atoll.supervisor.records import Stage, decode_record

if TYPE_CHECKING:
    from atoll.store.base import Store

DIRECTORY, TAKEN_OVER = "records", "records.taken-over"
# In this order: where an id has several, what is created counts. Its disk could be made only because whatever was there
# before had been ended, and its disk removed.
ENDINGS = {".json": Stage.CREATED, ".removing": Stage.REMOVING, ".making": Stage.MAKING}
HALF_WRITTEN = ".new"


async def take_over_files(state: Path, store: Store) -> None:
    """Take over the files. Nobody else may be using the state directory."""
    files, done = state / DIRECTORY, state / TAKEN_OVER
    try:
        if files.is_dir():
            await store.sandboxes.take_over(_read(files))
            files.rename(done)
        if done.is_dir():
            _remove(done)
    except OSError as cause:
        raise cannot_write(str(files), cause) from cause


def _read(files: Path) -> Iterator[SandboxRow]:
    """Records as they are; damaged ones are listed as such later. A name that no sandbox can have is of nobody's."""
    for ending, stage in ENDINGS.items():
        for path in files.glob(f"*{ending}"):
            content = path.read_bytes()
            try:
                sandbox = parse_sandbox_id(path.stem)
                if stage is Stage.MAKING:
                    decode_record(content, sandbox)  # half of one is of a creation that came no further, and is undone
            except ValueError:
                continue
            yield SandboxRow(id=sandbox, stage=stage, shared=content)


def _remove(done: Path) -> None:
    for path in done.iterdir():
        if path.suffix in (*ENDINGS, HALF_WRITTEN):
            path.unlink()
    with suppress(OSError):  # somebody's own files are in there, and stay
        done.rmdir()
