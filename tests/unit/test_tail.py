"""The last lines of a log, of two streams that come in pieces."""

from __future__ import annotations

from atoll.cli.tail import Tail


def last(lines: int, *pieces: tuple[str, bytes]) -> list[tuple[str, bytes]]:
    tail = Tail(lines)
    for stream, data in pieces:
        tail.add(stream, data)
    return tail.lines()


def test_the_last_lines_are_kept_and_no_more() -> None:
    assert last(2, ("stdout", b"1\n2\n3\n")) == [("stdout", b"2\n"), ("stdout", b"3\n")]
    assert last(0, ("stdout", b"1\n2\n")) == []
    assert last(9, ("stdout", b"1\n2")) == [("stdout", b"1\n"), ("stdout", b"2")]
    assert last(9) == []


def test_a_line_that_comes_in_pieces_is_one_also_with_another_stream_between() -> None:
    pieces = (("stdout", b"a"), ("stderr", b"x\ny"), ("stdout", b"b\nc"), ("stderr", b"z\n"))
    assert last(9, *pieces) == [("stdout", b"ab\n"), ("stderr", b"x\n"), ("stderr", b"yz\n"), ("stdout", b"c")]


def test_the_rest_of_a_line_that_is_no_longer_kept_does_not_begin_one() -> None:
    assert last(1, ("stdout", b"long"), ("stderr", b"x\n"), ("stdout", b"er\n")) == [("stderr", b"x\n")]


def test_only_a_line_feed_ends_a_line_and_every_byte_is_kept() -> None:
    progress = b"1%\r2%\x0b\x85\xff\r\n"
    assert last(1, ("stdout", progress)) == [("stdout", progress)]
