"""Files over HTTP, as clients that are not the SDK use them."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import socket
import tarfile
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.system.serving import HANG_SECONDS, Answer, RunningServer, connect_unix

BASE = "/v1/sandboxes/web/files"
LARGE = bytes(range(256)) * 16_000


async def ask(server: RunningServer, method: str, route: str, body: object = None, /, **queries: Any) -> Answer:
    headers = queries.pop("headers", None)
    return await server.ask(method, f"{BASE}{route}?{urlencode(queries)}", body, headers=headers)


async def put(server: RunningServer, path: str, content: bytes, **queries: Any) -> Any:
    answer = await ask(server, "PUT", "/content", content, path=path, **queries)
    assert answer.status == 200, answer
    return answer.json()


@pytest.mark.parametrize("content", [b"", b"x", "grün".encode(), LARGE], ids=len)
async def test_content_goes_in_and_comes_out_as_it_is(server: RunningServer, content: bytes) -> None:
    written = await put(server, "some/where/a.txt", content, mode="0600", sync="true")
    assert (written["path"], written["name"]) == ("/workspace/some/where/a.txt", "a.txt")
    assert (written["type"], written["size"], written["mode"]) == ("file", len(content), "0600")
    read = await ask(server, "GET", "/content", path="some/where/a.txt")
    assert (read.status, read.body) == (200, content)
    assert read.headers["content-length"] == str(len(content))
    assert read.headers["content-type"].startswith("text/plain")
    assert read.headers["x-content-type-options"] == "nosniff"
    assert read.headers["etag"]
    head = await ask(server, "HEAD", "/content", path="some/where/a.txt")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "date": ""} == {**read.headers, "date": ""}


async def test_a_part_is_content_of_its_own(server: RunningServer) -> None:
    await put(server, "a", LARGE)
    size = len(LARGE)
    for header, expected, where in (
        ("bytes=0-0", LARGE[:1], f"bytes 0-0/{size}"),
        ("bytes=100000-1100000", LARGE[100_000:1_100_001], f"bytes 100000-1100000/{size}"),
        ("bytes=-10", LARGE[-10:], f"bytes {size - 10}-{size - 1}/{size}"),
    ):
        part = await ask(server, "GET", "/content", path="a", headers={"range": header})
        assert (part.status, part.body) == (206, expected)
        assert (part.headers["content-range"], part.headers["content-length"]) == (where, str(len(expected)))
    beyond = await ask(server, "GET", "/content", path="a", headers={"range": f"bytes={size}-"})
    assert (beyond.status, beyond.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert beyond.headers["content-range"] == f"bytes */{size}"
    for headers in ({"range": "lines=1-2"}, {"range": "bytes=0-0", "if-range": '"another"'}):
        whole = await ask(server, "GET", "/content", path="a", headers=headers)
        assert (whole.status, whole.body) == (200, LARGE)
    tag = whole.headers["etag"]
    part = await ask(server, "GET", "/content", path="a", headers={"range": "bytes=0-0", "if-range": tag})
    assert part.status == 206


async def test_what_has_no_size_is_read_to_its_end(server: RunningServer) -> None:
    for path in ("/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"):
        for headers in ({}, {"range": "bytes=0-100000"}):
            read = await ask(server, "GET", "/content", path=path, headers=headers)
            assert read.status in (200, 206)
            assert read.body.endswith(b"\n")
            assert len(read.body) > 10


async def test_a_part_beyond_the_real_end_is_refused_whatever_the_size_says(server: RunningServer) -> None:
    path = "/dev/mqueue/queue"  # of 80 bytes, says its size, of which 60 can be read
    await server.ask("POST", "/v1/sandboxes/web/exec", {"command": f"touch {path}"})
    assert (await ask(server, "GET", "/info", path=path)).json()["size"] == 80
    beyond = await ask(server, "GET", "/content", path=path, headers={"range": "bytes=70-79"})
    assert (beyond.status, beyond.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert beyond.json()["remedy"]


async def test_names_that_are_not_utf8_go_both_ways(server: RunningServer) -> None:
    raw = b"/workspace/not \xff utf-8\n"
    encoded = base64.b64encode(raw).decode()
    assert (await ask(server, "PUT", "/content", b"x", path_base64=encoded)).json()["path_base64"] == encoded
    assert (await server.ask("GET", f"{BASE}/content?path={quote(raw)}")).body == b"x"
    listed = (await ask(server, "GET", "", path=".")).json()["files"]
    assert [(file["path"], file["path_base64"]) for file in listed] == [("/workspace/not � utf-8\n", encoded)]
    moved = {"source_base64": encoded, "target": "plain"}
    assert (await server.ask("POST", f"{BASE}/move", moved)).json()["path"] == "/workspace/plain"


async def test_a_list_of_any_length_is_one_document(server: RunningServer) -> None:
    assert (await ask(server, "GET", "", path=".")).json() == {"files": [], "count": 0}
    command = {"command": "mkdir -p many/sub && cd many && touch $(seq 5000) .hidden sub/x && ln -s sub link && cd .."}
    assert (await server.ask("POST", "/v1/sandboxes/web/exec", command)).json()["exit_code"] == 0
    listed = (await ask(server, "GET", "", path="many")).json()
    assert listed["count"] == len(listed["files"]) == 5002
    assert next(file for file in listed["files"] if file["name"] == "link")["target"] == "sub"
    listed = (await ask(server, "GET", "", path="many", recursive="true", hidden="1")).json()
    assert listed["count"] == 5004


async def test_everything_else_that_can_be_done_with_files(server: RunningServer) -> None:
    made = await server.ask("POST", f"{BASE}/directory", {"path": "a/b", "recursive": True, "mode": "0700"})
    assert (made.status, made.json()["mode"], made.json()["type"]) == (201, "0700", "directory")
    await put(server, "a/b/file", b"1")
    copied = await server.ask("POST", f"{BASE}/copy", {"source": "a/b/file", "target": "copy"})
    assert copied.json()["path"] == "/workspace/copy"
    moved = await server.ask("POST", f"{BASE}/move", {"source": "copy", "target": "a", "into_directory": True})
    assert moved.json()["path"] == "/workspace/a/copy"
    changed = await server.ask("POST", f"{BASE}/mode", {"path": "a/copy", "mode": "4755"})
    assert changed.json()["mode"] == "4755"
    assert (await ask(server, "GET", "/info", path="a/copy")).json()["size"] == 1
    assert (await ask(server, "PUT", "/content", b"", path="a/copy", exclusive="true")).status == 409
    assert (await ask(server, "DELETE", "", path="a")).json()["code"] == "IS_DIRECTORY"
    assert (await ask(server, "DELETE", "", path="a", recursive="true")).status == 204
    assert (await ask(server, "GET", "/info", path="a")).status == 404


async def test_a_session_says_where_relative_paths_begin(server: RunningServer) -> None:
    assert (await server.ask("POST", "/v1/sandboxes/web/sessions", {"id": "mine", "cwd": "/var"})).status == 201
    written = await put(server, "file", b"x", session_id="mine")
    assert written["path"] == "/var/file"
    assert (await ask(server, "GET", "", path=".", session_id="no-such")).json()["code"] == "SESSION_NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "route", "queries"),
    [
        ("GET", "", {"path": ""}),
        ("GET", "", {"path": "a\0b"}),
        ("GET", "", {"path": "a", "path_base64": "YQ=="}),
        ("GET", "", {"path_base64": "!"}),
        ("GET", "", {"path": ".", "recursive": "perhaps"}),
        ("GET", "/content", {}),
        ("GET", "/content", {"path": "x" * 5000}),
        ("PUT", "/content", {"path": "a", "mode": "rwx"}),
        ("PUT", "/content", {"path": "a", "mode": "99"}),
        ("PUT", "/content", {"path": "a", "sync": ""}),
        ("GET", "/info", {"path": "a", "follow": "2"}),
        ("GET", "/info", {"path": "a", "session_id": "\n"}),
        ("GET", "/watch", {"path": ".", "include": ""}),
        ("DELETE", "", {}),
    ],
)
async def test_a_query_that_makes_no_sense_is_told(
    server: RunningServer, method: str, route: str, queries: dict[str, str]
) -> None:
    answer = await ask(server, method, route, **queries)
    problem = answer.json()
    assert answer.status == 400, problem
    assert problem["code"] in ("INVALID_REQUEST", "INVALID_PATH", "NAME_TOO_LONG", "INVALID_SESSION_ID")
    assert problem["remedy"]


async def test_the_same_parameter_twice_is_told(server: RunningServer) -> None:
    assert (await server.ask("GET", f"{BASE}?path=a&path=b")).status == 400


async def test_files_that_are_not_there_or_none_are_told_apart(server: RunningServer) -> None:
    await server.ask("POST", "/v1/sandboxes/web/exec", {"command": "mkdir dir; mkfifo fifo; ln -s loop loop"})
    for path, status, code in (
        ("no", 404, "FILE_NOT_FOUND"),
        ("dir", 409, "IS_DIRECTORY"),
        ("loop", 400, "TOO_MANY_LINKS"),
        ("fifo", 409, "NOT_A_FILE"),
    ):
        answer = await ask(server, "GET", "/content", path=path)
        assert (answer.status, answer.json()["code"]) == (status, code)


async def test_a_body_without_a_length_is_written_as_it_comes(server: RunningServer) -> None:
    def send() -> int:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connect_unix(server.socket)
        body = (LARGE for _ in range(20))
        connection.request(
            "PUT", f"{BASE}/content?path=big", body, encode_chunked=True, headers={"transfer-encoding": "chunked"}
        )
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert await asyncio.to_thread(send) == 200
    assert (await ask(server, "GET", "/info", path="big")).json()["size"] == 20 * len(LARGE)


async def test_a_client_that_hangs_up_in_the_middle_writes_nothing(server: RunningServer) -> None:
    await put(server, "file", b"before")

    def send_half() -> None:
        with connect_unix(server.socket) as peer:
            head = f"PUT {BASE}/content?path=file HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
            peer.sendall(head.encode() + LARGE[:500_000])
            peer.shutdown(socket.SHUT_RDWR)

    await asyncio.to_thread(send_half)
    while len((await ask(server, "GET", "", path=".", hidden="true")).json()["files"]) > 1:
        await asyncio.sleep(0.01)
    assert (await ask(server, "GET", "/content", path="file")).body == b"before"


async def test_a_write_that_fails_is_answered_before_everything_is_sent(server: RunningServer) -> None:
    await server.ask("POST", f"{BASE}/directory", {"path": "dir"})

    def send() -> bytes:
        with connect_unix(server.socket) as peer:
            head = f"PUT {BASE}/content?path=dir HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000000\r\n\r\n"
            peer.sendall(head.encode() + b"x")
            return peer.recv(65536)

    assert b" 409 " in (await asyncio.to_thread(send)).split(b"\r\n")[0]


async def test_a_list_without_a_path_is_of_the_sessions_directory(server: RunningServer) -> None:
    await put(server, "listed/sub/file", b"1")
    exec_at = BASE.replace("/files", "/exec")
    await server.ask("POST", exec_at, {"command": "cd /workspace/listed"})
    listed = (await ask(server, "GET", "", recursive="true")).json()["files"]
    await server.ask("POST", exec_at, {"command": "cd /workspace"})
    assert [(file["relative_path"], file["path"]) for file in listed] == [
        ("sub", "/workspace/listed/sub"),
        ("sub/file", "/workspace/listed/sub/file"),
    ]
    assert "relative_path" not in (await ask(server, "GET", "/info", path="listed/sub")).json()


async def test_content_is_appended_and_directories_are_copied(server: RunningServer) -> None:
    await put(server, "grown/log", b"one\n")
    assert (await put(server, "grown/log", b"two\n", append="true"))["size"] == 8
    assert (await ask(server, "GET", "/content", path="grown/log")).body == b"one\ntwo\n"
    copied = await ask(server, "POST", "/copy", {"source": "grown", "target": "copied"})
    assert (copied.status, copied.json()["type"]) == (200, "directory")
    assert (await ask(server, "GET", "/content", path="copied/log")).body == b"one\ntwo\n"


async def test_a_directory_goes_in_and_out_as_a_tar_archive(server: RunningServer) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("sub/file")
        member.size = len(LARGE)
        archive.addfile(member, io.BytesIO(LARGE))
    assert (await ask(server, "PUT", "/archive", buffer.getvalue(), path="tree")).json() == {"count": 1}
    packed = await ask(server, "GET", "/archive", path="tree")
    assert packed.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(packed.body)) as archive:
        assert archive.getnames() == [".", "sub", "sub/file"]
        assert archive.extractfile("sub/file").read() == LARGE  # type: ignore[union-attr]
    packed = await ask(server, "GET", "/archive", path="tree", exclude="file")
    with tarfile.open(fileobj=io.BytesIO(packed.body)) as archive:
        assert archive.getnames() == [".", "sub"]
    assert (await ask(server, "GET", "/archive", path="tree", exclude="")).status == 400
    with tarfile.open(fileobj=(evil := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../evil"))
    answer = await ask(server, "PUT", "/archive", evil.getvalue(), path="tree")
    assert (answer.status, answer.json()["code"]) == (400, "UNSAFE_ARCHIVE")
    assert (await ask(server, "PUT", "/archive", b"no archive", path="tree")).status == 400
    assert (await ask(server, "GET", "/archive", path="no")).status == 404


async def test_changes_come_as_events(server: RunningServer) -> None:
    await put(server, "dir/first", b"")

    def watch() -> list[bytes]:
        with connect_unix(server.socket) as peer, peer.makefile("rb") as stream:
            peer.sendall(f"GET {BASE}/watch?path=dir&exclude=*.tmp HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            lines: list[bytes] = []
            while True:
                lines.append(stream.readline())
                if lines[-1] == b"event: ready\n":
                    server._ask("PUT", f"{BASE}/content?path=dir/new", b"x", False, {})
                if lines[-1].startswith(b"data:") and b"/dir/new" in lines[-1]:
                    return lines

    lines = await asyncio.to_thread(watch)
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in lines
    assert lines[-2] in (b"event: create\n", b"event: move\n")
    assert (await ask(server, "GET", "/watch", path="no")).status == 404


async def test_a_file_that_shrinks_while_it_is_read_breaks_off(server: RunningServer) -> None:
    await server.ask("POST", "/v1/sandboxes/web/exec", {"command": "truncate -s 1G shrinking"})

    def read() -> None:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connect_unix(server.socket)
        connection.request("GET", f"{BASE}/content?path=shrinking")
        answer = connection.getresponse()
        assert len(answer.read(2**20)) == 2**20
        server._ask("POST", "/v1/sandboxes/web/exec", {"command": "truncate -s 0 shrinking"}, False, {})
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        connection.close()

    await asyncio.to_thread(read)
    async with asyncio.timeout(HANG_SECONDS):  # the log is written when there is time
        while "an answer breaks off" not in server.log.read_text():
            await asyncio.sleep(0.01)


async def test_a_file_that_grows_while_it_is_read_is_as_long_as_it_was(server: RunningServer) -> None:
    await server.ask("POST", "/v1/sandboxes/web/exec", {"command": "truncate -s 64M growing"})

    def read() -> int:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connect_unix(server.socket)
        connection.request("GET", f"{BASE}/content?path=growing")
        answer = connection.getresponse()
        answer.read(2**20)
        server._ask("POST", "/v1/sandboxes/web/exec", {"command": "truncate -s 128M growing"}, False, {})
        rest = len(answer.read())
        connection.close()
        return rest

    assert await asyncio.to_thread(read) == 2**26 - 2**20


async def test_more_than_4_gib_can_be_asked_for_and_stream_in_constant_memory(server: RunningServer) -> None:
    size, part = 4 * 2**30 + 2**28, 2**29
    await server.ask("POST", "/v1/sandboxes/web/exec", {"command": f"truncate -s {size} sparse"})
    before = server.memory()

    def read() -> tuple[int, int]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connect_unix(server.socket)
        connection.request("GET", f"{BASE}/content?path=sparse", headers={"range": f"bytes=-{part}"})
        answer = connection.getresponse()
        assert answer.getheader("content-length") == str(part)
        assert answer.getheader("content-range") == f"bytes {size - part}-{size - 1}/{size}"
        count = most = 0
        while chunk := answer.read(2**20):
            count += len(chunk)
            if count % 2**25 == 0:
                most = max(most, server.memory())
        connection.close()
        return count, most

    count, most = await asyncio.to_thread(read)
    assert count == part
    assert (await ask(server, "HEAD", "/content", path="sparse")).headers["content-length"] == str(size)
    assert most - before < 64 * 2**20
