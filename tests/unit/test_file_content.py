"""What is in a file, how JSON has it, and which part of it is asked for: pure functions."""

from __future__ import annotations

import base64
import mimetypes
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.content_types import Base64Decoder, check_encoding, is_text, mime_type
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.files import FileInfo, FileType
from atoll.protocol.names import to_shown
from atoll.server.file_bodies import choose_path, parse_mode, to_info_body
from atoll.server.ranges import parse_range


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=50))
def test_text_is_text_wherever_it_is_cut(text: str) -> None:
    data = text.encode()
    assert is_text(data)
    for end in range(len(data)):
        assert is_text(data[:end], is_whole=False)


@pytest.mark.parametrize("data", [b"a\0b", b"\xff", b"a\xc3", "grün".encode()[:3], b"\xed\xa0\x80", b"\xf0\x9f\x98"])
def test_what_is_not_utf8_or_has_a_nul_is_no_text(data: bytes) -> None:
    assert not is_text(data)


def test_a_character_that_is_cut_counts_only_at_the_end() -> None:
    assert is_text("grün".encode()[:3], is_whole=False)
    assert not is_text("grün".encode()[:3] + b"x", is_whole=False)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.txt", b"x", "text/plain"),
        ("a.HTML", b"x", "text/html"),
        ("a.json", b"{}", "application/json"),
        ("a.py", b"print()", "text/x-python"),
        ("a.ts", b"let a", "text/x-typescript"),
        ("a.png", b"", "image/png"),
        ("a.png", b"%PDF-1.7", "application/pdf"),
        ("photo", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a.docx", b"PK\x03\x04", mimetypes.MimeTypes().guess_type("a.docx")[0] or "application/zip"),
        ("a.bin", b"PK\x03\x04", "application/octet-stream"),
        ("a", b"PK\x03\x04", "application/zip"),
        ("a.tar.gz", b"", "application/gzip"),
        ("a.tar.gz", b"\x1f\x8b", "application/gzip"),
        ("a", b"\0" * 257 + b"ustar", "application/x-tar"),
        ("a", b"RIFF....WEBPVP8", "image/webp"),
        ("a", b"plain words", "text/plain"),
        ("a", b"\x01\xff", "application/octet-stream"),
        ("a", b"", "inode/x-empty"),
        ("data:text/html,x", b"x", "text/plain"),
        ("a.toString", b"x", "text/plain"),
        (".", b"x", "text/plain"),
        ("\udcff.txt", b"x", "text/plain"),
    ],
)
def test_a_type_is_known_by_sight_or_by_name(name: str, data: bytes, expected: str) -> None:
    assert mime_type(name, data) == expected


@given(st.text(max_size=20), st.binary(max_size=300))
def test_everything_has_a_type(name: str, data: bytes) -> None:
    assert "/" in mime_type(name, data)
    mime_type(name, data, is_whole=False)


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=50))
def test_base64_is_decoded_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    text, decoder, decoded = base64.encodebytes(data), Base64Decoder(), b""
    for cut in cuts:
        decoded += decoder.decode(text[:cut])
        text = text[cut:]
    decoded += decoder.decode(text.decode(), is_last=True)
    assert decoded == data


def test_what_follows_the_end_of_base64_is_refused() -> None:
    with pytest.raises(AtollError):
        Base64Decoder().decode("aGVsbG8=aGVsbG8=", is_last=True)


@pytest.mark.parametrize("encoding", ["latin-1", "", None, 3, "utf-8-sig", "utf-16"])
def test_an_encoding_that_is_none_is_told(encoding: object) -> None:
    with pytest.raises(AtollError, match="is not supported"):
        check_encoding(encoding, ("utf-8", "base64"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 10)),
        ("bytes=3-5", (3, 3)),
        ("Bytes = 3 - 5", (3, 3)),
        ("bytes=3-500", (3, 7)),
        ("bytes=-3", (7, 3)),
        ("bytes=-300", (0, 10)),
        ("bytes=5-3", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("", None),
        ("bytes=٣-٥", None),
        (f"bytes=0-{'9' * 30}", None),
    ],
)
def test_a_range_is_a_part_or_everything(header: str, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=-5", 0), ("bytes=0-", 0)])
def test_a_range_without_a_byte_is_refused(header: str, size: int) -> None:
    with pytest.raises(AtollError) as caught:
        parse_range(header, size)
    assert caught.value.code is ErrorCode.RANGE_NOT_SATISFIABLE


@given(st.binary(min_size=1, max_size=50))
def test_a_name_comes_back_as_it_went(raw: bytes) -> None:
    text, encoded = to_shown(raw)
    text.encode()
    if b"\0" not in raw:
        assert choose_path(None if encoded else text, encoded) == raw


@pytest.mark.parametrize(
    ("text", "encoded"),
    [(None, None), ("a", "YQ=="), ("", None), (None, ""), (None, "!"), (None, "ü"), ("\ud800", None), (None, "AA==")],
)
def test_a_path_that_is_none_is_told(text: str | None, encoded: str | None) -> None:
    with pytest.raises(AtollError) as caught:
        choose_path(text, encoded)
    assert caught.value.remedy


def test_modes_are_octal() -> None:
    assert (parse_mode("644"), parse_mode("0644"), parse_mode("04755"), parse_mode("0")) == (0o644, 0o644, 0o4755, 0)
    for text in ("", "8", "0o644", "77777", "-1", " 644", "٦"):
        with pytest.raises(AtollError, match="not a file's mode"):
            parse_mode(text)


def test_a_file_in_json_has_all_there_is_to_know() -> None:
    info = FileInfo(
        raw_path=b"/a/\xffb",
        type=FileType.SYMLINK,
        size=3,
        mode=0o777,
        modified_at=datetime(2026, 1, 1, tzinfo=UTC),
        raw_target=b"\xff",
    )
    body = to_info_body(info)
    assert (body.path, body.name, body.path_base64) == ("/a/�b", "�b", base64.b64encode(b"/a/\xffb").decode())
    assert (body.target, body.target_base64, body.mode) == ("�", "/w==", "0777")
