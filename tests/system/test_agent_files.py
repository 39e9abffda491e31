"""What the agent does with files, on an image with everything and on one with nothing but busybox."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import subprocess
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atoll.agent.files.workers import IDLE_WORKERS, MAX_WATCHERS
from atoll.archives.packing import Packer
from atoll.archives.tar import END, Entry, EntryType, encode_entry
from atoll.archives.unpacking import ON_HOST, Unpacker
from atoll.protocol import files
from atoll.protocol.agents import Ping
from atoll.protocol.calls import event, result
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.file_maps import FileMap
from atoll.protocol.files import FileChange, FileType
from atoll.protocol.frames import Frame, FrameDecoder, FrameKind, encode_frame
from atoll.protocol.limits import Limits
from atoll.protocol.messages import encode_message
from atoll.protocol.sessions import CreateSession
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native
from tests.system.file_calls import FileCalls
from tests.system.test_agent_protocol import connect


@pytest.fixture
def calls(box: Box) -> FileCalls:
    return FileCalls(box.link)


@pytest.fixture
def host_calls(host_box: Box) -> FileCalls:
    return FileCalls(host_box.link)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 2**20 - 1, 2**20, 5 * 2**20 + 3])
async def test_what_is_written_is_read_back_byte_for_byte(calls: FileCalls, size: int) -> None:
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    info = await calls.write(b"/tmp/file", content)
    assert (info.size, info.type, info.mode, info.raw_path) == (size, FileType.FILE, 0o644, b"/tmp/file")
    assert await calls.read(b"/tmp/file") == content
    assert (await calls.stat(b"/tmp/file")).size == size


ODD_NAMES = [b"a b", b"line\nbreak", b"'\"", "🦀".encode(), b"\xff\xfe", b"n" * 255, b"-rf", b"*", b"\\", b"..."]


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
async def test_any_name_the_kernel_takes_is_a_name(calls: FileCalls, name: bytes) -> None:
    path = b"/tmp/odd/" + name
    assert (await calls.write(path, b"content")).raw_path == path
    assert await calls.read(path) == b"content"
    assert await calls.names(b"/tmp/odd", include_hidden=True) == [name]
    await calls.info(files.MoveFile(source=path, target=b"/tmp/odd/plain"))
    await calls.info(files.CopyFile(source=b"/tmp/odd/plain", target=path))
    assert await calls.names(b"/tmp/odd", include_hidden=True) == sorted([name, b"plain"])
    await calls.done(files.DeleteFile(path=path))
    assert await calls.names(b"/tmp/odd", include_hidden=True) == [b"plain"]


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 4, b"0123"),
        (3, None, b"3456789"),
        (8, 5, b"89"),
        (10, None, b""),
        (99, 1, b""),
        (2, 0, b""),
        (2, 2**64 - 1, b"23456789"),
        (2**63 - 1, None, b""),
        (2**63, None, b""),
        (2**64 - 1, 1, b""),
    ],
)
async def test_a_part_of_a_file_is_read(calls: FileCalls, offset: int, length: int | None, expected: bytes) -> None:
    await calls.write(b"/tmp/digits", b"0123456789")
    assert await calls.read(b"/tmp/digits", offset=offset, length=length) == expected


async def test_a_file_of_four_gibibytes_is_read_and_copied_in_constant_memory(
    host_calls: FileCalls, host_box: Box
) -> None:
    await host_box.text("cd /tmp; truncate -s 4G large; printf end | dd of=large bs=1 seek=4294967293 conv=notrunc")
    copy = await host_calls.info(files.CopyFile(source=b"/tmp/large", target=b"/tmp/copy"))
    assert copy.size == 2**32
    assert int(await host_box.text("du -k /tmp/copy | cut -f1")) < 1024
    assert await host_calls.read(b"/tmp/copy", offset=2**32 - 5) == b"\0\0end"
    assert await host_calls.weigh(b"/tmp/copy") == (2**32, b"end")


async def test_files_of_the_kernel_without_a_size_are_read_to_their_end(calls: FileCalls) -> None:
    assert (await calls.stat(b"/proc/version")).size == 0
    assert (await calls.read(b"/proc/version")).startswith(b"Linux version")
    assert b"MemTotal" in await calls.read(b"/proc/meminfo", length=100)
    assert await calls.read(b"/proc/meminfo", offset=2, length=3) == b"mTo"


@pytest.mark.parametrize("path", [b"/tmp/pipe", b"/dev/ptmx", b"/dev/zero", b"/tmp/link-to-pipe"])
async def test_what_would_make_a_reader_wait_is_no_file(calls: FileCalls, box: Box, path: bytes) -> None:
    await box.text("mkfifo /tmp/pipe; ln -s pipe /tmp/link-to-pipe")
    for call in (
        files.ReadFile(path=path),
        files.CopyFile(source=path, target=b"/tmp/copy"),
        files.PackFiles(path=path),
    ):
        with pytest.raises(AtollError) as caught:
            await calls.ask(call)
        assert caught.value.code is ErrorCode.NOT_A_FILE, call


async def test_what_has_no_type_is_a_device_and_no_file(host_calls: FileCalls, host_box: Box) -> None:
    script = "import os, select, time; e = select.epoll(); print(os.getpid(), e.fileno(), flush=True); time.sleep(1000)"
    async with host_box.link.operation(Exec(argv=["python3", "-c", script])) as run:
        pid, fd = (await run.next_frame()).payload.split()
        path = b"/proc/%b/fd/%b" % (pid, fd)
        assert (await host_calls.stat(path)).type is FileType.DEVICE
        with pytest.raises(AtollError) as caught:
            await host_calls.read(path)
        assert caught.value.code is ErrorCode.NOT_A_FILE


async def test_whoever_waits_at_a_fifo_goes_on_waiting(calls: FileCalls, box: Box) -> None:
    async with box.link.operation(
        Exec(argv=["sh", "-c", "mkfifo /tmp/p; echo ready; echo x >/tmp/p; echo woke"])
    ) as run:
        assert (await run.next_frame()).payload == b"ready\n"
        for call in (files.ReadFile(path=b"/tmp/p"), files.WriteFile(path=b"/tmp/p"), files.StatFile(path=b"/tmp/p")):
            with suppress(AtollError):
                await calls.ask(call, b"")
        assert await box.text("cat /tmp/p") == "x"
        assert (await run.next_frame()).payload == b"woke\n"
        async for _ in run.frames():
            pass


async def test_devices_and_files_of_the_kernel_are_written_in_place(calls: FileCalls, box: Box) -> None:
    await calls.write(b"/dev/null", b"x" * 10**6)
    assert (await calls.stat(b"/dev/null")).type is FileType.DEVICE
    await box.text("mkfifo /tmp/pipe")
    with pytest.raises(AtollError, match="NOT_A_FILE"):
        await calls.write(b"/tmp/pipe", b"x")
    with pytest.raises(AtollError) as caught:
        await calls.write(b"/proc/sys/kernel/hostname", b"x")
    assert caught.value.code in (ErrorCode.READ_ONLY, ErrorCode.PERMISSION_DENIED)


async def test_a_loop_of_links_is_an_error_not_a_hang(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir /tmp/l; ln -s b /tmp/l/a; ln -s a /tmp/l/b; ln -s . /tmp/l/self")
    for call in (
        files.ReadFile(path=b"/tmp/l/a"),
        files.WriteFile(path=b"/tmp/l/a"),
        files.StatFile(path=b"/tmp/l/a"),
        files.ListFiles(path=b"/tmp/l/a"),
        files.WriteFile(path=b"/tmp/l/a/x"),
    ):
        with pytest.raises(OSError) as caught:
            await calls.ask(call, b"")
        assert (caught.value.errno, caught.value.code) == (errno.ELOOP, ErrorCode.TOO_MANY_LINKS)  # type: ignore[attr-defined]
    assert await calls.names(b"/tmp/l", recursive=True) == [b"a", b"b", b"self"]


async def test_parents_are_made_and_the_mode_is_as_asked(calls: FileCalls, box: Box) -> None:
    info = await calls.write(b"/tmp/a/b/c", b"x", mode=0o750)
    assert info.mode == 0o750
    assert await box.text("stat -c %a /tmp/a /tmp/a/b /tmp/a/b/c") == "755\n755\n750"


async def test_what_is_replaced_keeps_its_mode_and_owner(calls: FileCalls, box: Box) -> None:
    await box.text("echo old >/tmp/f; chown 1000:1001 /tmp/f; chmod 4711 /tmp/f")
    info = await calls.write(b"/tmp/f", b"new")
    assert (info.mode, info.uid, info.gid) == (0o4711, 1000, 1001)
    assert await box.text("stat -c '%a %u %g' /tmp/f; cat /tmp/f") == "4711 1000 1001\nnew"


async def test_a_link_is_followed_and_stays(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/d; ln -s d/real /tmp/link; ln -s link /tmp/link2; ln -s /tmp/new/deep /tmp/dangling")
    await calls.write(b"/tmp/link2", b"content")
    await calls.write(b"/tmp/dangling", b"made")
    assert await box.text("cat /tmp/d/real; readlink /tmp/link2; cat /tmp/new/deep") == "contentlink\nmade"


async def test_exclusive_makes_a_file_once(calls: FileCalls, box: Box) -> None:
    await calls.write(b"/tmp/once", b"1", exclusive=True)
    await box.text("ln -s nowhere /tmp/dangling")
    for path in (b"/tmp/once", b"/tmp/dangling", b"/tmp"):
        with pytest.raises(FileExistsError):
            await calls.write(path, b"2", exclusive=True)
    assert await calls.read(b"/tmp/once") == b"1"


async def test_of_many_who_make_a_file_at_once_one_does(calls: FileCalls) -> None:
    made = await asyncio.gather(
        *(calls.write(b"/tmp/race", b"%d" % number, exclusive=True) for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, files.FileInfo) for result in made) == 1
    assert sum(isinstance(result, FileExistsError) for result in made) == 19


async def test_with_sync_the_answer_comes_as_well(calls: FileCalls) -> None:
    assert (await calls.write(b"/tmp/synced", b"x" * 1000, sync=True)).size == 1000


async def test_until_all_has_come_the_old_content_is_there(calls: FileCalls, box: Box) -> None:
    await calls.write(b"/tmp/d/file", b"old")
    async with box.link.operation(files.WriteFile(path=b"/tmp/d/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"n" * 10**5))
        await worker_has_written(box)
        assert await box.text("ls -A /tmp/d; cat /tmp/d/file") == "file\nold"
        await connection.send_frame(Frame(FrameKind.INPUT, b""))
        await connection.next_frame()
    assert await calls.read(b"/tmp/d/file") == b"n" * 10**5


async def test_a_write_that_is_given_up_leaves_nothing(calls: FileCalls, box: Box) -> None:
    await calls.write(b"/tmp/d/file", b"old")
    async with box.link.operation(files.WriteFile(path=b"/tmp/d/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"n" * 10**5))
        await worker_has_written(box)
    await until_no_worker_works(box)
    assert await box.text("ls -A /tmp/d; cat /tmp/d/file") == "file\nold"


async def test_a_full_disk_is_an_error_and_leaves_nothing(workshop: Workshop) -> None:
    live = await create(workshop, "full-disk", limits=Limits(disk="64MiB"))
    async with linked(live) as link:
        calls = FileCalls(link)
        with pytest.raises(OSError) as caught:
            await calls.write(b"/workspace/large", (b"%06d" % n * 2**17 for n in range(200)))
        assert (caught.value.errno, caught.value.code) == (errno.ENOSPC, ErrorCode.NO_SPACE)  # type: ignore[attr-defined]
        assert await calls.names(b"/workspace", include_hidden=True) == []
    await workshop.destroy(live)


Failure = tuple[Any, ErrorCode, type[Exception]]
MISSING = (ErrorCode.FILE_NOT_FOUND, FileNotFoundError)
NOT_A_DIRECTORY = (ErrorCode.NOT_DIRECTORY, NotADirectoryError)
A_DIRECTORY = (ErrorCode.IS_DIRECTORY, IsADirectoryError)


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        (files.ReadFile(path=b"/tmp/none"), *MISSING),
        (files.ReadFile(path=b"/tmp/file/below"), *NOT_A_DIRECTORY),
        (files.ReadFile(path=b"/tmp"), *A_DIRECTORY),
        (files.ReadFile(path=b""), ErrorCode.INVALID_PATH, ValueError),
        (files.ReadFile(path=b"a\0b"), ErrorCode.INVALID_PATH, ValueError),
        (files.ReadFile(path=b"/" + b"x" * 5000), ErrorCode.NAME_TOO_LONG, OSError),
        (files.ReadFile(path=b"/tmp/" + b"x" * 256), ErrorCode.NAME_TOO_LONG, OSError),
        (files.ReadFile(path=b"/tmp/file", offset=-1), ErrorCode.INVALID_REQUEST, ValueError),
        (files.ReadFile(path=b"/tmp/file", length=-1), ErrorCode.INVALID_REQUEST, ValueError),
        (files.ReadFile(path=b"/tmp/file", session_id="none"), ErrorCode.SESSION_NOT_FOUND, LookupError),
        (files.WriteFile(path=b"/tmp"), *A_DIRECTORY),
        (files.WriteFile(path=b"/tmp/new/"), *A_DIRECTORY),
        (files.WriteFile(path=b"/"), *A_DIRECTORY),
        (files.WriteFile(path=b"/tmp/.."), *A_DIRECTORY),
        (files.WriteFile(path=b"/tmp/file/below"), *NOT_A_DIRECTORY),
        (files.WriteFile(path=b"/tmp/" + b"x" * 256), ErrorCode.NAME_TOO_LONG, OSError),
        (files.WriteFile(path=b"/dev/new"), ErrorCode.READ_ONLY, OSError),
        (files.WriteFile(path=b"/tmp/x", mode=0o10000), ErrorCode.INVALID_REQUEST, ValueError),
        (files.ListFiles(path=b"/tmp/none"), *MISSING),
        (files.ListFiles(path=b"/tmp/file"), *NOT_A_DIRECTORY),
        (files.ListFiles(path=b"/tmp/pipe"), *NOT_A_DIRECTORY),
        (files.StatFile(path=b"/tmp/none"), *MISSING),
        (files.MakeDirectory(path=b"/tmp/file"), ErrorCode.FILE_EXISTS, FileExistsError),
        (files.MakeDirectory(path=b"/tmp/full"), ErrorCode.FILE_EXISTS, FileExistsError),
        (files.MakeDirectory(path=b"/tmp/file", recursive=True), ErrorCode.FILE_EXISTS, FileExistsError),
        (files.MakeDirectory(path=b"/tmp/a/b"), *MISSING),
        (files.MakeDirectory(path=b"/tmp/x", mode=-1), ErrorCode.INVALID_REQUEST, ValueError),
        (files.DeleteFile(path=b"/tmp/none"), *MISSING),
        (files.DeleteFile(path=b"/tmp/full"), *A_DIRECTORY),
        (files.DeleteDirectory(path=b"/tmp/none"), *MISSING),
        (files.DeleteDirectory(path=b"/tmp/file"), *NOT_A_DIRECTORY),
        (files.DeleteDirectory(path=b"/tmp/to-full"), *NOT_A_DIRECTORY),
        (files.DeleteDirectory(path=b"/tmp/full", recursive=False), ErrorCode.DIRECTORY_NOT_EMPTY, OSError),
        (files.DeleteDirectory(path=b"/"), ErrorCode.RESOURCE_BUSY, OSError),
        (files.DeleteDirectory(path=b"/tmp/.."), ErrorCode.INVALID_PATH, ValueError),
        (files.DeleteDirectory(path=b"."), ErrorCode.INVALID_PATH, ValueError),
        (files.MoveFile(source=b"/tmp/gone", target=b"/dev/shm/gone"), ErrorCode.FILE_NOT_FOUND, FileNotFoundError),
        (files.MoveFile(source=b"/tmp/none", target=b"/tmp/x"), *MISSING),
        (files.MoveFile(source=b"/tmp/file", target=b"/tmp/a/b"), *MISSING),
        (files.MoveFile(source=b"/tmp/file", target=b"/tmp/full"), *A_DIRECTORY),
        (files.MoveFile(source=b"/tmp/full", target=b"/tmp/file"), *NOT_A_DIRECTORY),
        (files.MoveFile(source=b"/tmp/empty", target=b"/tmp/full"), ErrorCode.DIRECTORY_NOT_EMPTY, OSError),
        (files.MoveFile(source=b"/tmp/full", target=b"/tmp/full/x"), ErrorCode.INVALID_PATH, ValueError),
        (files.CopyFile(source=b"/tmp/none", target=b"/tmp/x"), *MISSING),
        (files.CopyFile(source=b"/tmp/file", target=b"/tmp/a/b"), *MISSING),
        (files.CopyFile(source=b"/tmp/file", target=b"/tmp/full"), *A_DIRECTORY),
        (files.ChangeMode(path=b"/tmp/none", mode=0o600), *MISSING),
        (files.ChangeMode(path=b"/tmp/file", mode=0o10000), ErrorCode.INVALID_REQUEST, ValueError),
        (files.PackFiles(path=b"/tmp/none"), *MISSING),
        (files.UnpackFiles(path=b"/tmp/file"), *NOT_A_DIRECTORY),
        (files.WatchFiles(path=b"/tmp/none"), *MISSING),
        (files.WatchFiles(path=b"/tmp/file"), *NOT_A_DIRECTORY),
    ],
    ids=lambda value: repr(value)[:60] if not isinstance(value, ErrorCode | type) else "",
)
async def test_what_cannot_be_done_is_an_error_with_a_code_and_a_python_type(
    calls: FileCalls, box: Box, call: Any, code: ErrorCode, kind: type[Exception]
) -> None:
    await box.text("cd /tmp; echo x >file; mkdir -p full/sub empty; ln -s full to-full; mkfifo pipe")
    with pytest.raises(kind) as caught:
        await calls.ask(call, b"x")
    assert isinstance(caught.value, AtollError) and caught.value.code is code
    assert caught.value.message and caught.value.remedy
    assert await box.text("cd /tmp; ls -A; ls full; cat file") == "empty\nfile\nfull\npipe\nto-full\nsub\nx"


async def test_an_error_names_the_path_also_if_it_is_no_text(calls: FileCalls) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await calls.read(b"/tmp/\xff\n")
    assert isinstance(caught.value, AtollError)
    assert caught.value.context == {"path": "/tmp/\ufffd\n", "path_base64": "L3RtcC//Cg=="}
    assert caught.value.filename == "/tmp/\udcff\n" and "'/tmp/\\udcff\\n'" in caught.value.message


async def test_relative_paths_count_from_the_sessions_directory(calls: FileCalls, box: Box) -> None:
    assert (await calls.write(b"before", b"1")).path == "/workspace/before"
    await box.shell("mkdir -p /tmp/here && cd /tmp/here")
    assert (await calls.write(b"./sub//../after", b"2", session_id="default")).path == "/tmp/here/sub/../after"
    await box.link.ask(CreateSession(session_id="other", cwd="/tmp"))
    assert (await calls.stat(b"here/after", session_id="other")).path == "/tmp/here/after"
    await box.shell("cd /tmp", session="other")
    assert await calls.names(b".", session_id="other") == [b"/tmp/here"]


async def test_a_session_whose_directory_is_gone_takes_absolute_paths(calls: FileCalls, box: Box) -> None:
    await box.shell("mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
    with pytest.raises(FileNotFoundError, match="directory '/tmp/gone' is gone") as caught:
        await calls.write(b"x", b"1")
    assert caught.value.filename == "/tmp/gone"
    await calls.write(b"/tmp/x", b"1")
    assert await box.text("ls /tmp") == "x"


async def test_directories_are_made_and_deleted(calls: FileCalls, box: Box) -> None:
    assert (await calls.info(files.MakeDirectory(path=b"/tmp/a", mode=0o1777))).mode == 0o1777
    assert (await calls.info(files.MakeDirectory(path=b"/tmp/a/b/c", recursive=True, mode=0o700))).mode == 0o700
    assert (await calls.info(files.MakeDirectory(path=b"/tmp/a/b/c/", recursive=True))).mode == 0o700
    await box.text("touch /tmp/a/x /tmp/a/b/y; ln -s /usr /tmp/a/usr; mkfifo /tmp/a/pipe")
    assert (await calls.done(files.DeleteDirectory(path=b"/tmp/a"))).count == 7
    assert await box.text("ls /tmp; ls -d /usr /bin | head -1") in ("/usr", "/bin")
    await calls.info(files.MakeDirectory(path=b"/tmp/e"))
    assert (await calls.done(files.DeleteDirectory(path=b"/tmp/e", recursive=False))).count == 1


async def test_moving_renames_replaces_and_goes_into_directories(calls: FileCalls, box: Box) -> None:
    await box.text("cd /tmp; echo 1 >a; echo 2 >b; mkdir d; ln -s nowhere link")
    assert (await calls.info(files.MoveFile(source=b"/tmp/a", target=b"/tmp/b"))).path == "/tmp/b"
    moved = await calls.info(files.MoveFile(source=b"/tmp/b", target=b"/tmp/d", into_directory=True))
    assert moved.path == "/tmp/d/b"
    assert (await calls.info(files.MoveFile(source=b"/tmp/link", target=b"/tmp/d/link"))).target == "nowhere"
    assert await box.text("cd /tmp; ls; ls d; cat d/b") == "d\nb\nlink\n1"


async def test_moving_to_another_file_system_keeps_everything(calls: FileCalls, box: Box) -> None:
    await box.text(
        "mkdir -p /tmp/d/sub; cd /tmp/d; echo x >sub/f; chmod 640 sub/f; chown 7:8 sub/f; ln -s sub/f l; mkfifo p;"
        "touch -d '2001-02-03 04:05:06' sub/f sub"
    )
    show = "stat -c '%n %F %a %u %g' . sub sub/f l p; stat -c %Y sub sub/f; cat l"
    before = await box.text(f"cd /tmp/d; {show}")
    await calls.info(files.MoveFile(source=b"/tmp/d", target=b"/dev/shm/moved"))
    assert await box.text(f"cd /dev/shm/moved; {show}") == before
    assert await box.text("ls -A /tmp; ls -A /dev/shm") == "moved"
    with pytest.raises(FileNotFoundError):
        await calls.info(files.MoveFile(source=b"/dev/shm/moved", target=b"/tmp/a/b"))
    assert await box.text("ls -A /tmp; ls -A /dev/shm") == "moved"


async def test_a_directory_of_the_image_can_be_moved(host_calls: FileCalls, host_box: Box) -> None:
    before = await host_box.text("ls /usr/share/dpkg")
    await host_calls.info(files.MoveFile(source=b"/usr/share/dpkg", target=b"/usr/share/moved"))
    assert await host_box.text("ls /usr/share/moved; ls /usr/share | grep -x dpkg || true") == before
    with pytest.raises(AtollError, match="into itself"):
        await host_calls.info(files.MoveFile(source=b"/usr/bin", target=b"/usr/bin/x"))


async def test_a_copy_keeps_the_mode_and_is_a_file_of_its_own(calls: FileCalls, box: Box) -> None:
    await box.text("cd /tmp; echo content >a; chmod 751 a; ln -s a link; echo other >b; chmod 600 b")
    copied = await calls.info(files.CopyFile(source=b"/tmp/link", target=b"/tmp/b"))
    assert (copied.size, copied.mode) == (8, 0o751)
    await box.text("echo more >>/tmp/a")
    assert await calls.read(b"/tmp/b") == b"content\n"
    await calls.info(files.CopyFile(source=b"/proc/version", target=b"/tmp/version"))
    assert (await calls.read(b"/tmp/version")).startswith(b"Linux")
    await calls.info(files.CopyFile(source=b"/tmp/a", target=b"/dev/shm/a"))
    assert await calls.read(b"/dev/shm/a") == b"content\nmore\n"


async def test_a_mode_is_changed_also_of_what_cannot_be_opened(calls: FileCalls, box: Box) -> None:
    await box.text("mkfifo /tmp/pipe; echo x >/tmp/file")
    assert (await calls.info(files.ChangeMode(path=b"/tmp/pipe", mode=0o600))).mode == 0o600
    assert (await calls.info(files.ChangeMode(path=b"/tmp/file", mode=0o4755))).mode == 0o4755


async def test_times_that_no_calendar_has_are_no_error(calls: FileCalls, box: Box) -> None:
    await box.text("touch -d '1901-12-13 20:45:52' /tmp/old; touch -d '2446-05-10 22:38:55' /tmp/new")
    listed = {info.name: info.modified_at.year for info in await calls.entries(b"/tmp")}
    assert listed == {"old": 1901, "new": 2446}


async def test_entries_are_listed_sorted_with_what_they_are(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/d/sub; cd /tmp/d; ln -s nowhere link; mkfifo pipe; touch file .hidden sub/deep")
    listed = await calls.entries(b"/tmp/d")
    assert [(info.name, info.type, info.target) for info in listed] == [
        ("file", FileType.FILE, None),
        ("link", FileType.SYMLINK, "nowhere"),
        ("pipe", FileType.FIFO, None),
        ("sub", FileType.DIRECTORY, None),
    ]
    everything = await calls.names(b"/tmp/d/", recursive=True, include_hidden=True)
    assert everything == [b".hidden", b"file", b"link", b"pipe", b"sub", b"sub/deep"]


async def test_a_directory_goes_in_and_out_as_an_archive(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/d/sub; cd /tmp/d; ln -s sub link; mkfifo pipe; echo x >sub/file; chmod 750 sub/file")
    pack = files.PackFiles(path=b"/tmp/d")
    *data, done = await calls.ask(pack)
    assert result(pack, done).count == 3
    archive = b"".join(frame.payload for frame in data)
    assert (await calls.done(files.UnpackFiles(path=b"/tmp/made/here"), archive)).count == 3
    assert await box.text("cd /tmp/made/here; cat link/file; stat -c %a sub/file; ls") == "x\n750\nlink\nsub"


async def test_a_hundred_thousand_entries_are_listed_page_by_page(host_calls: FileCalls, host_box: Box) -> None:
    await host_box.text("mkdir /dev/shm/many; cd /dev/shm/many; seq -f %06g 100000 | xargs touch")
    call = files.ListFiles(path=b"/dev/shm/many")
    *pages, done = await host_calls.ask(call)
    assert result(call, done).count == 10**5
    assert len(pages) >= 100
    names = [info.name for page in pages for info in event(files.FileList, page).files]
    assert names == [f"{number:06}" for number in range(1, 10**5 + 1)]
    assert (await host_calls.done(files.DeleteDirectory(path=b"/dev/shm/many"))).count == 10**5 + 1


async def test_ten_thousand_small_files_go_in_and_out(calls: FileCalls, tmp_path: Path) -> None:
    for number in range(10_000):
        directory = tmp_path / "source" / str(number % 100)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / str(number)).write_bytes(b"%d" % number)
    packed = Packer(os.fsencode(tmp_path / "source")).pieces()
    assert (await calls.done(files.UnpackFiles(path=b"/tmp/in"), packed)).count == 10_100
    assert await calls.read(b"/tmp/in/77/4277") == b"4277"
    assert len(await calls.entries(b"/tmp/in", recursive=True)) == 10_100
    *data, _ = await calls.ask(files.PackFiles(path=b"/tmp/in"))
    (tmp_path / "target").mkdir()
    target = os.open(tmp_path / "target", os.O_RDONLY)
    with Unpacker(target, ON_HOST) as unpacker:
        for frame in data:
            unpacker.feed(frame.payload)
        unpacker.close()
    os.close(target)
    assert unpacker.count == 10_100
    assert subprocess.run(["diff", "-r", tmp_path / "source", tmp_path / "target"]).returncode == 0


async def test_a_directory_that_changes_is_listed_nevertheless(calls: FileCalls, box: Box) -> None:
    script = (
        "mkdir -p /tmp/c; cd /tmp/c; touch stays; echo go; while :; do mkdir -p a/b; touch a/b/x a/y z; rm -r a z; done"
    )
    async with box.link.operation(Exec(argv=["sh", "-c", script])) as run:
        assert (await run.next_frame()).payload == b"go\n"
        for _ in range(100):
            assert b"stays" in await calls.names(b"/tmp/c", recursive=True)
            with suppress(AtollError):
                await calls.ask(files.PackFiles(path=b"/tmp/c"))


async def test_trees_deeper_than_any_path_are_deleted_and_listed(host_calls: FileCalls, host_box: Box) -> None:
    dig = "import os\nos.chdir('/tmp')\nfor _ in range(%d):\n os.mkdir('d')\n os.chdir('d')\nopen('bottom', 'w')"
    await host_box.run("python3", "-c", dig % 10_000)
    assert (await host_calls.done(files.DeleteDirectory(path=b"/tmp/d"))).count == 10_001
    await host_box.run("python3", "-c", dig % 2_500)
    listed = await host_calls.entries(b"/tmp", recursive=True)
    assert listed[-1].path == "/tmp" + "/d" * 2_500 + "/bottom"
    await host_calls.info(files.MoveFile(source=b"/tmp/d", target=b"/dev/shm/d"))
    assert (await host_calls.done(files.DeleteDirectory(path=b"/dev/shm/d"))).count == 2_501


async def test_an_archive_cannot_write_through_a_link(calls: FileCalls, box: Box) -> None:
    entries = (
        Entry(b"before", EntryType.FILE),
        Entry(b"out", EntryType.SYMLINK, target=b"/tmp/elsewhere"),
        Entry(b"out/file", EntryType.FILE),
    )
    await box.text("mkdir /tmp/elsewhere")
    with pytest.raises(ValueError, match="through a link") as caught:
        await calls.done(files.UnpackFiles(path=b"/tmp/in"), b"".join(map(encode_entry, entries)) + END)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.UNSAFE_ARCHIVE
    assert await box.text("ls -A /tmp/elsewhere /tmp/in") == "/tmp/elsewhere:\n\n/tmp/in:\nbefore\nout"


class Watch:
    """Changes of a watched directory, one after the other."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self._changes: deque[FileChange] = deque()

    async def next(self) -> tuple[str, str, str | None]:
        while not self._changes:
            frame = await self._connection.next_frame()
            self._changes.extend(event(files.FileChanges, frame).changes)
        change = self._changes.popleft()
        return change.type.value, change.path, change.old_path


@asynccontextmanager
async def watching(calls: FileCalls, path: bytes, **options: Any) -> AsyncIterator[Watch]:
    async with calls.link.operation(files.WatchFiles(path=path, **options)) as connection:
        frame = await connection.next_frame()
        assert event(files.FileChanges, frame).changes == []
        yield Watch(connection)


async def test_changes_are_told_as_they_happen(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/w/sub")
    async with watching(calls, b"/tmp/w") as watch:
        await box.text("echo x >/tmp/w/sub/file")
        assert await watch.next() == ("create", "/tmp/w/sub/file", None)
        await box.text("for i in 1 2 3 4 5; do echo $i >>/tmp/w/sub/file; done; rm /tmp/w/sub/file")
        changes = [await watch.next()]
        while changes[-1][0] != "delete":
            changes.append(await watch.next())  # what is more than a moment apart is told apart
        assert set(changes) == {("modify", "/tmp/w/sub/file", None), ("delete", "/tmp/w/sub/file", None)}
        await box.text("touch /tmp/w/a; mv /tmp/w/a /tmp/w/sub/b")
        assert await watch.next() == ("create", "/tmp/w/a", None)
        assert await watch.next() == ("move", "/tmp/w/sub/b", "/tmp/w/a")
        await calls.write(b"/tmp/w/sub/b", b"new")
        assert await watch.next() == ("modify", "/tmp/w/sub/b", None)


async def test_new_directories_are_watched_with_what_is_in_them(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir /tmp/w")
    async with watching(calls, b"/tmp/w") as watch:
        await box.text("mkdir -p /tmp/w/a/b/c; touch /tmp/w/a/b/c/deep")
        assert [await watch.next() for _ in range(4)] == [
            ("create", f"/tmp/w/{path}", None) for path in ("a", "a/b", "a/b/c", "a/b/c/deep")
        ]
        await box.text("mv /tmp/w/a /tmp/w/moved; touch /tmp/w/moved/b/c/new; rm /tmp/w/moved/b/c/new")
        assert await watch.next() == ("move", "/tmp/w/moved", "/tmp/w/a")
        assert await watch.next() == ("create", "/tmp/w/moved/b/c/new", None)
        assert await watch.next() == ("delete", "/tmp/w/moved/b/c/new", None)
        await box.text("mv /tmp/w/moved /tmp/out; touch /tmp/out/b/unseen /tmp/w/seen")
        assert await watch.next() == ("delete", "/tmp/w/moved", None)
        assert await watch.next() == ("create", "/tmp/w/seen", None)
        await box.text("mv /tmp/out /tmp/w/back; touch /tmp/w/back/b/c/again")
        assert await watch.next() == ("create", "/tmp/w/back", None)
        assert {await watch.next() for _ in range(5)} == {
            ("create", f"/tmp/w/back/{path}", None) for path in ("b", "b/c", "b/c/deep", "b/unseen", "b/c/again")
        }


async def test_patterns_choose_what_is_told(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/w/node_modules/x /tmp/w/src")
    async with watching(calls, b"/tmp/w", include=[b"*.py"], exclude=[b"node_modules", b"src/gen*"]) as watch:
        await box.text(
            "cd /tmp/w; touch a.txt node_modules/x/b.py src/generated.py src/c.py; mv a.txt d.py; mv d.py e.txt;"
            "mv src/c.py src/f.py; touch last.py"
        )
        told = [await watch.next() for _ in range(5)]
        assert told == [
            ("create", "/tmp/w/src/c.py", None),
            ("create", "/tmp/w/d.py", None),
            ("delete", "/tmp/w/d.py", None),
            ("move", "/tmp/w/src/f.py", "/tmp/w/src/c.py"),
            ("create", "/tmp/w/last.py", None),
        ]


async def test_without_recursive_only_the_directory_itself_is_watched(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/w/sub")
    async with watching(calls, b"/tmp/w", recursive=False) as watch:
        await box.text("touch /tmp/w/sub/unseen /tmp/w/seen")
        assert await watch.next() == ("create", "/tmp/w/seen", None)


async def test_more_than_the_kernel_holds_is_said_to_be_unknown_and_watching_goes_on(
    host_calls: FileCalls, host_box: Box
) -> None:
    await host_box.text("mkdir /tmp/w")
    async with watching(host_calls, b"/tmp/w") as watch:
        worker = await host_box.text(WORKERS)
        await host_box.text(f"kill -STOP {worker}; cd /tmp/w; seq 20000 | xargs touch; kill -CONT {worker}")
        while (change := await watch.next())[0] != "overflow":
            assert change[0] == "create"
        assert change == ("overflow", "/tmp/w", None)
        await host_box.text("mkdir /tmp/w/after; touch /tmp/w/after/x")
        while (await watch.next())[1] != "/tmp/w/after/x":
            pass


async def test_a_watched_directory_that_goes_is_the_end(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir /tmp/w")
    async with calls.link.operation(files.WatchFiles(path=b"/tmp/w")) as connection:
        await connection.next_frame()
        await box.text("rmdir /tmp/w")
        frame = await connection.next_frame()
        (change,) = event(files.FileChanges, frame).changes
        assert (change.type.value, change.path) == ("delete", "/tmp/w")
        assert (await connection.next_frame()).kind is FrameKind.DONE


async def test_watches_have_a_bound_and_leave_room_for_others(calls: FileCalls, box: Box) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await stack.enter_async_context(watching(calls, b"/tmp"))
        with pytest.raises(AtollError, match="AGENT_BUSY"):
            await calls.ask(files.WatchFiles(path=b"/tmp"))
        await calls.write(b"/tmp/x", b"1")
    await until_no_worker_works(box)


# Workers: killed, stopped, too many, and what they must not be led to.

WORKERS = 'cd /proc; for p in [0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = atoll-files ] && echo $p; done | xargs'


async def worker_has_written(box: Box) -> None:
    """Until the one worker waits for more."""
    while not (worker := await box.text(WORKERS)) or "S" not in await box.text(f"cut -d' ' -f3 /proc/{worker}/stat"):
        await asyncio.sleep(0.01)


async def until_no_worker_works(box: Box) -> None:
    """A cancelled one ends; none is left but the idle ones."""
    while len((await box.text(WORKERS)).split()) > IDLE_WORKERS:
        await asyncio.sleep(0.01)


async def test_a_killed_worker_fails_its_operation_and_no_other(calls: FileCalls, box: Box) -> None:
    async with box.link.operation(files.WriteFile(path=b"/tmp/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"x" * 1000))
        await worker_has_written(box)
        await box.text(f"kill -9 $({WORKERS})")
        with pytest.raises(AtollError) as caught:
            await connection.next_frame()
    assert caught.value.code is ErrorCode.AGENT_LOST and "killed" in caught.value.message
    await calls.write(b"/tmp/file", b"next")
    assert await box.text("ls -A /tmp; cat /tmp/file") == "file\nnext"


async def test_a_worker_killed_while_it_sends_is_an_error(calls: FileCalls, box: Box) -> None:
    await box.text("head -c 50000000 /dev/zero >/tmp/file")
    async with box.link.operation(files.ReadFile(path=b"/tmp/file")) as connection:
        await connection.next_frame()
        await box.text(f"kill -9 $({WORKERS})")
        with pytest.raises(ConnectionError):
            async for _ in connection.frames():
                pass
    assert await calls.read(b"/tmp/file", length=1) == b"\0"


async def test_a_worker_killed_while_idle_is_not_missed(calls: FileCalls, box: Box) -> None:
    for _ in range(20):
        await calls.write(b"/tmp/file", b"next")
        await box.text(f"kill -9 $({WORKERS}) || true")  # it may have left by itself


async def test_a_worker_is_out_of_reach_for_whoever_is_not_root(host_box: Box) -> None:
    kill = f"kill -9 $({WORKERS}) 2>&1 | grep -c 'not permitted'"
    async with host_box.link.operation(files.WriteFile(path=b"/tmp/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"x"))
        await worker_has_written(host_box)
        assert await host_box.text(f"setpriv --reuid=nobody --clear-groups sh -c {shlex.quote(kill)}") == "1"
        await connection.send_frame(Frame(FrameKind.INPUT, b""))
        assert (await connection.next_frame()).kind is FrameKind.DONE


KILL_WORKERS = """
echo ready
while :; do
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <$process/comm && [ "$name" = atoll-files ] && kill -9 ${process#/proc/}
    done
    sleep 0.002
done
"""


async def test_a_worker_killed_at_its_answer_spoils_no_other_call(calls: FileCalls, box: Box) -> None:
    killed = 0
    async with box.link.operation(Exec(argv=["sh", "-c", KILL_WORKERS])) as killer:
        await killer.next_frame()
        calls_made = 0
        while not killed or calls_made < 400:
            calls_made += 1
            try:
                await calls.stat(b"/tmp")
            except AtollError as problem:
                assert problem.code is ErrorCode.AGENT_LOST
                killed += 1
            assert (await box.link.ping()).protocol_version


async def test_a_stopped_worker_ends_with_its_operation(calls: FileCalls, box: Box) -> None:
    async with box.link.operation(files.WriteFile(path=b"/tmp/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"x" * 1000))
        await worker_has_written(box)
        worker = await box.text(WORKERS)
        await box.text(f"kill -STOP {worker}")
    while worker in (await box.text(WORKERS)).split():
        await asyncio.sleep(0.01)
    assert await box.text("ls -A /tmp") == ""
    await calls.write(b"/tmp/file", b"next")


async def test_a_stopped_worker_goes_on(calls: FileCalls, box: Box) -> None:
    async with box.link.operation(files.WriteFile(path=b"/tmp/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"whole"))
        await worker_has_written(box)
        await box.text(f"kill -STOP $({WORKERS})")
        await connection.send_frame(Frame(FrameKind.INPUT, b""))
        assert (await connection.next_frame()).kind is FrameKind.DONE
    assert await box.text("cat /tmp/file") == "whole"


async def test_fifty_operations_at_once_all_end(calls: FileCalls, box: Box) -> None:
    async with AsyncExitStack() as stack:
        writes = []
        for number in range(50):
            call = files.WriteFile(path=b"/tmp/%d" % number)
            writes.append(await stack.enter_async_context(box.link.operation(call)))
        for number, write in enumerate(writes):
            await write.send_frame(Frame(FrameKind.INPUT, b"%d" % number))
        assert (await box.link.ping()).protocol_version
        for write in writes[40:42]:
            write.abort()  # one of those that wait
        for write in writes[:40] + writes[42:]:
            await write.send_frame(Frame(FrameKind.INPUT, b""))
        for write in writes[:40] + writes[42:]:
            assert (await write.next_frame()).kind is FrameKind.DONE
    assert len(await calls.entries(b"/tmp")) == 48
    read = await asyncio.gather(*(calls.read(b"/tmp/%d" % number) for number in range(40)))
    assert read == [b"%d" % number for number in range(40)]


async def test_many_operations_cost_pid_1_no_memory_and_no_descriptors(calls: FileCalls, box: Box) -> None:
    async def use() -> None:
        for number in range(50):
            await calls.write(b"/tmp/file", b"x" * number * 1000)
            await calls.read(b"/tmp/file")
        with suppress(FileNotFoundError):
            await calls.read(b"/tmp/none")
        async with box.link.operation(files.WriteFile(path=b"/tmp/file")):
            pass

    await use()
    await settled(box)
    before = usage(box)
    for _ in range(5):
        await use()
    await settled(box)
    descriptors, memory = usage(box)
    assert descriptors == before[0]
    assert memory - before[1] < 512 * 1024


def usage(box: Box) -> tuple[int, int]:
    """Descriptors and bytes of memory of the agent."""
    process = Path("/proc", str(native(box.live).process.pid))
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("RssAnon"))
    return len(os.listdir(process / "fd")), int(line.split()[1]) * 1024


async def settled(box: Box) -> None:
    """Until every worker has ended, also the idle."""
    children = Path(f"/proc/{native(box.live).process.pid}/task/{native(box.live).process.pid}/children")
    while children.read_text():
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("target", ["/proc/1/mem", "/proc/1/fd/3", "/proc/1/cwd", "/proc/self/mem"])
async def test_a_planted_link_leads_to_nothing_of_the_agents(calls: FileCalls, box: Box, target: str) -> None:
    await box.text(f"ln -s {target} /tmp/planted")
    for call in (
        files.ReadFile(path=b"/tmp/planted"),
        files.WriteFile(path=b"/tmp/planted"),
        files.CopyFile(source=b"/tmp/planted", target=b"/tmp/copy"),
        files.ChangeMode(path=b"/tmp/planted", mode=0o777),
        files.ListFiles(path=b"/tmp/planted"),
    ):
        with pytest.raises((PermissionError, NotADirectoryError)):
            await calls.ask(call, b"overwritten")
    assert await box.text("echo alive") == "alive"


@pytest.mark.parametrize("number", range(8))
async def test_a_workers_own_descriptors_are_of_no_use(calls: FileCalls, box: Box, number: int) -> None:
    """It may open what is its own: three times nothing, sockets that nobody can open, directories of the sandbox."""
    await box.text(f"ln -s /proc/self/fd/{number} /tmp/planted")
    for call in (
        files.ReadFile(path=b"/tmp/planted"),
        files.WriteFile(path=b"/tmp/planted"),
        files.CopyFile(source=b"/tmp/planted", target=b"/tmp/copy"),
        files.ChangeMode(path=b"/tmp/planted", mode=0),
        files.ListFiles(path=b"/tmp/planted"),
        files.PackFiles(path=b"/tmp/planted"),
    ):
        with suppress(AtollError):
            await calls.ask(call, b"overwritten")
    await calls.write(b"/tmp/file", b"next")
    assert await box.text("cat /tmp/file; ls /tmp") == "nextfile\nplanted"


async def test_a_worker_is_closed_to_the_rest_of_the_sandbox(host_calls: FileCalls, host_box: Box) -> None:
    async with host_box.link.operation(files.WriteFile(path=b"/tmp/file")) as connection:
        await connection.send_frame(Frame(FrameKind.INPUT, b"x" * 1000))
        await worker_has_written(host_box)
        worker = await host_box.text(WORKERS)
        for name in ("fd", "mem", "maps", "environ", "map_files"):
            output = await host_box.sh(f"cat /proc/{worker}/{name}/* /proc/{worker}/{name}; ls /proc/{worker}/{name}/")
            assert output.stdout == b"" and b"Permission denied" in output.stderr, name
        descriptors = await asyncio.to_thread(descriptors_of, "atoll-files", host_box)
        assert len(descriptors) <= 7, (
            descriptors
        )  # three of nothing, the control, the connection, the file, its directory


def descriptors_of(name: str, box: Box) -> list[str]:
    agent = native(box.live).process.pid
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (worker,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name)
    return [os.readlink(f"/proc/{worker}/fd/{fd}") for fd in os.listdir(f"/proc/{worker}/fd")]


# The connection, which goes to a worker and comes back.


async def exchange(box: Box, sent: bytes, answers: int) -> list[Frame]:
    """Everything sent at once, so that PID 1 reads more than its own."""
    reader, writer = await connect(box)
    writer.write(sent)
    decoder = FrameDecoder()
    frames: list[Frame] = []
    while sum(frame.kind in (FrameKind.DONE, FrameKind.FAILED) for frame in frames) < answers:
        data = await reader.read(2**16)
        assert data, frames
        frames += decoder.feed(data)
    writer.close()
    return frames


def call_frame(call: Any) -> bytes:
    return encode_frame(FrameKind.CALL, encode_message(call))


def input_frames(content: bytes) -> bytes:
    pieces = (content[start : start + 50_000] for start in range(0, len(content), 50_000))
    return b"".join(encode_frame(FrameKind.INPUT, piece) for piece in pieces) + encode_frame(FrameKind.INPUT)


async def test_calls_and_input_sent_all_at_once_are_answered_in_order(box: Box) -> None:
    content = bytes(range(256)) * 2000
    write, look = files.WriteFile(path=b"/tmp/f"), files.StatFile(path=b"/tmp/f")
    sent = call_frame(write) + input_frames(content)
    sent += call_frame(Ping()) + call_frame(look) + call_frame(files.ReadFile(path=b"/tmp/f"))
    frames = await exchange(box, sent, 4)
    assert result(write, frames[0]).size == len(content)
    assert frames[1].kind is FrameKind.DONE
    assert result(look, frames[2]).size == len(content)
    assert b"".join(frame.payload for frame in frames if frame.kind is FrameKind.DATA) == content


async def test_input_of_a_write_that_failed_is_passed_over(box: Box) -> None:
    failing = call_frame(files.WriteFile(path=b"/tmp")) + input_frames(b"x" * 10**6)
    frames = await exchange(box, (failing + call_frame(Ping())) * 20, 40)
    assert [frame.kind for frame in frames] == [FrameKind.FAILED, FrameKind.DONE] * 20


async def test_a_call_in_the_middle_of_a_write_ends_the_connection(box: Box) -> None:
    reader, writer = await connect(box)
    writer.write(call_frame(files.WriteFile(path=b"/tmp/f")) + encode_frame(FrameKind.INPUT, b"x") + call_frame(Ping()))
    (frame,) = FrameDecoder().feed(await reader.read())
    assert frame.kind is FrameKind.FAILED
    writer.close()
    assert await box.text("ls -A /tmp") == ""


async def test_a_host_that_does_not_read_holds_up_nobody_else(calls: FileCalls, box: Box) -> None:
    await box.text("head -c 50000000 /dev/zero >/tmp/large")
    readers = [await connect(box) for _ in range(5)]
    for _, writer in readers:
        writer.write(call_frame(files.ReadFile(path=b"/tmp/large")))
    for number in range(10):
        await calls.write(b"/tmp/%d" % number, b"x")
    for _, writer in readers:
        writer.close()
    await until_no_worker_works(box)


async def test_a_call_larger_than_a_packet_is_taken(calls: FileCalls, box: Box) -> None:
    async with watching(calls, b"/tmp", exclude=[b"x" * 1000] * 900) as watch:
        await box.text("touch /tmp/seen")
        assert await watch.next() == ("create", "/tmp/seen", None)


@pytest.mark.parametrize(
    ("file_map", "content"),
    [
        (FileMap(size=10, places=[(5, 6)]), b"123456"),
        (FileMap(size=10, places=[(5, 2)]), b"123"),
        (FileMap(size=10, places=[(5, 2)]), b"1"),
        (FileMap(size=-10, places=[]), b""),
    ],
    ids=["beyond the end", "too much", "too little", "of no size"],
)
async def test_a_map_that_does_not_fit_is_told_and_leaves_what_was_there(
    calls: FileCalls, file_map: FileMap, content: bytes
) -> None:
    await calls.write(b"/tmp/mapped", b"before")
    with pytest.raises(AtollError) as caught:
        await calls.write(b"/tmp/mapped", content, map=file_map)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert await calls.read(b"/tmp/mapped") == b"before"


async def test_what_keeps_nothing_has_no_holes(calls: FileCalls) -> None:
    with pytest.raises(OSError, match="device") as caught:
        await calls.write(b"/dev/null", b"x", map=FileMap(size=10, places=[(5, 1)]))
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.NOT_A_FILE
