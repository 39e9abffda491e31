"""What a sandbox makes to fill the disk of whoever downloads it, or to keep them busy for ever; and honest holes."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

EXBIBYTE = 2**60
DEEP = """
import os
os.mkdir("/dev/shm/deep")
os.chdir("/dev/shm/deep")
for _ in range(6000):
    os.mkdir("d")
    os.chdir("d")
"""


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


@pytest.fixture
def sandbox(half: Half, server: RunningServer) -> Any:
    return half.get_sandbox("downloads", url=server.unix_url)


async def test_a_file_of_7_eib_costs_nobody_anything(half: Half, sandbox: Any, tmp_path: Path) -> None:
    made = await half.run(sandbox.exec, f"truncate -s {7 * EXBIBYTE} /dev/shm/vast")
    assert made.success, made
    with pytest.raises(OSError) as caught:
        await half.run(sandbox.download, "/dev/shm/vast", tmp_path / "vast")
        raise OSError(f"this file system has room for {os.stat(tmp_path / 'vast').st_blocks} blocks of it")
    if isinstance(caught.value, AtollError):  # ext4 has no file as large
        assert caught.value.code is ErrorCode.FILE_TOO_LARGE
        assert os.listdir(tmp_path) == []
    for read in (sandbox.read_file, lambda path: sandbox.read_file(path, length=6 * EXBIBYTE)):
        with pytest.raises(AtollError, match="keeps them in memory"):
            await half.run(read, "/dev/shm/vast")
    with pytest.raises(AtollError) as refused:  # where there can be no holes, zeros are bytes
        await half.run(sandbox.download, "/dev/shm/vast", "/dev/null")
    assert refused.value.code is ErrorCode.DOWNLOAD_TOO_LARGE
    await half.run(sandbox.exec, "mkdir -p /dev/shm/tree; mv /dev/shm/vast /dev/shm/tree/")
    with pytest.raises(OSError):
        await half.run(sandbox.download, "/dev/shm/tree", tmp_path / "tree")
        raise OSError("it fits, as a hole")


async def test_6000_directories_in_each_other_are_refused(half: Half, sandbox: Any, tmp_path: Path) -> None:
    assert (await half.run(sandbox.exec, ["python3", "-c", DEEP])).success
    with pytest.raises(AtollError, match="max_depth=256") as caught:
        await half.run(sandbox.download, "/dev/shm/deep", tmp_path / "deep")
    assert caught.value.code is ErrorCode.DOWNLOAD_TOO_LARGE
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("bound", "limit"), [("max_bytes", 3000), ("max_entries", 2), ("max_depth", 1)], ids=["bytes", "entries", "depth"]
)
async def test_each_bound_is_told_with_its_value_and_how_to_raise_it(
    half: Half, sandbox: Any, tmp_path: Path, bound: str, limit: int
) -> None:
    await half.run(sandbox.exec, "mkdir -p tree/sub; head -c 2000 /dev/urandom | tee tree/a tree/sub/b >tree/c")
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.download, "tree", tmp_path / "tree", **{bound: limit})
    problem = caught.value
    assert problem.code is ErrorCode.DOWNLOAD_TOO_LARGE
    assert problem.context["bound"] == bound and problem.context["limit"] == limit
    assert f"{bound}={limit:,}" in problem.message and f"{bound}=" in problem.remedy
    assert os.listdir(tmp_path) == []
    await half.run(sandbox.download, "tree", tmp_path / "tree", **{bound: None})
    assert (tmp_path / "tree/sub/b").stat().st_size == 2000


async def test_holes_go_in_and_out_as_holes(half: Half, sandbox: Any, tmp_path: Path) -> None:
    """A disk image of 300 MiB with a little in it: by itself, in a directory, there and back."""
    size, written = 300 * 2**20 + 17, b"data" * 1000
    (tmp_path / "tree").mkdir()
    image = tmp_path / "tree/disk.img"
    with image.open("wb") as file:
        file.seek(2**27)
        file.write(written)
        file.truncate(size)
    numbers: list[int] = []
    await half.run(sandbox.upload, image, "disk.img", on_progress=lambda done, total: numbers.append(done))
    await half.run(sandbox.upload, tmp_path / "tree", "tree", on_progress=lambda done, total: numbers.append(done))
    assert max(numbers) < 2**20
    inside = await half.run(
        sandbox.exec, "stat -c '%s %b' disk.img tree/disk.img; cmp disk.img tree/disk.img && echo same"
    )
    sizes, same = inside.stdout.splitlines()[:2], inside.stdout.splitlines()[2:]
    assert same == ["same"], inside
    assert all(int(line.split()[0]) == size and int(line.split()[1]) < 1000 for line in sizes)
    await half.run(sandbox.download, "disk.img", tmp_path / "back.img")
    await half.run(sandbox.download, "tree", tmp_path / "back")
    for back in (tmp_path / "back.img", tmp_path / "back/disk.img"):
        assert (back.stat().st_size, back.stat().st_blocks < 1000) == (size, True)
        with back.open("rb") as file:
            file.seek(2**27 - 5)
            assert file.read(len(written) + 10) == bytes(5) + written + bytes(5)


async def test_over_http_there_are_the_same_bounds(server: RunningServer) -> None:
    base = "/v1/sandboxes/web-downloads/files"
    await server.ask("POST", "/v1/sandboxes/web-downloads/exec", {"command": f"truncate -s {EXBIBYTE} /dev/shm/vast"})
    refused = await server.ask("GET", f"{base}/content?path=/dev/shm/vast")
    assert (refused.status, refused.json()["code"]) == (413, "DOWNLOAD_TOO_LARGE")
    assert "max_bytes=" in refused.json()["remedy"]
    part = await server.ask("GET", f"{base}/content?path=/dev/shm/vast", headers={"range": "bytes=5-9"})
    assert (part.status, part.body) == (206, bytes(5))
    most = await server.ask("GET", f"{base}/content?path=/dev/shm/vast", headers={"range": f"bytes=5-{2**50}"})
    assert most.status == 413
    head = await server.ask("HEAD", f"{base}/content?path=/dev/shm/vast")
    assert (head.status, head.headers["content-length"]) == (200, str(EXBIBYTE))
    command = (
        "mkdir -p tree/a/b; head -c 1000 /dev/urandom >tree/a/b/c; mv /dev/shm/vast tree || truncate -s 1G tree/vast"
    )
    await server.ask("POST", "/v1/sandboxes/web-downloads/exec", {"command": command})
    for bound in ("max_bytes=999", "max_entries=3", "max_depth=2"):
        archive = await server.ask("GET", f"{base}/archive?path=tree&{bound}")
        assert (archive.status, archive.json()["code"]) == (413, "DOWNLOAD_TOO_LARGE")
    wrong = await server.ask("GET", f"{base}/archive?path=tree&max_depth=deep")
    assert (wrong.status, wrong.json()["code"]) == (400, "INVALID_REQUEST")
    whole = await server.ask("GET", f"{base}/archive?path=tree&max_bytes=none")
    assert whole.status == 200 and len(whole.body) < 2**16
    with tarfile.open(fileobj=io.BytesIO(whole.body)) as tar:
        assert tar.getmember("vast").size >= 2**30


async def test_cp_takes_the_bounds_and_keeps_holes(server: RunningServer, tmp_path: Path) -> None:
    await server.sandbox("cp-downloads").exec("mkdir -p tree/a/b; truncate -s 1G tree/a/sparse")

    def cp(*words: str) -> subprocess.CompletedProcess[str]:
        command = [".venv/bin/atoll", "cp", "--url", server.unix_url, *words, str(tmp_path / "tree")]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])

    refused = cp("--max-depth", "1", "cp-downloads:tree")
    assert refused.returncode == 1
    assert "DOWNLOAD_TOO_LARGE" in refused.stderr and "--max-depth" in refused.stderr
    assert os.listdir(tmp_path) == []
    assert cp("--max-entries", "many", "cp-downloads:tree").returncode == 2
    done = cp("--max-depth", "none", "--max-bytes", "1MB", "cp-downloads:tree")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tree/a/sparse").stat().st_size == 2**30
    assert (tmp_path / "tree/a/sparse").stat().st_blocks == 0
