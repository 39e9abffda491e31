"""UTF-8 in pieces: no byte is lost, no character torn, whatever the bytes and wherever they are cut."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.characters import Characters, unfinished

WHOLE = "aé€😀\ufffd".encode()
NO_TEXT = [b"", b"\xff", b"\xc3", b"a\xe2\x82b", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x00\xfe\xff" * 3]
PARTS = [*map(str.encode, WHOLE.decode()), *NO_TEXT, b"\x80", b"\xc0\x80", b"\xe0\x80", b"\xf4\x90\x80\x80"]
almost_text = st.lists(st.sampled_from(PARTS)).map(b"".join)


@pytest.mark.parametrize("end", NO_TEXT)
@pytest.mark.parametrize("size", range(1, 6))
def test_output_in_pieces_loses_no_byte_and_tears_no_character(end: bytes, size: int) -> None:
    data = WHOLE + end
    characters = Characters()
    pieces = [characters.take(data[start : start + size]) for start in range(0, len(data), size)]
    pieces.append(characters.rest())
    assert b"".join(pieces) == data
    assert "".join(piece.decode(errors="replace") for piece in pieces) == data.decode(errors="replace")


@given(pieces=st.lists(almost_text | st.binary(max_size=8)))
def test_each_piece_is_the_text_that_pythons_own_decoder_makes_of_it(pieces: list[bytes]) -> None:
    decoder, characters = codecs.getincrementaldecoder("utf-8")("replace"), Characters()
    for piece in pieces:
        assert characters.take(piece).decode(errors="replace") == decoder.decode(piece)
    assert characters.rest().decode(errors="replace") == decoder.decode(b"", final=True)


@given(data=almost_text | st.binary(max_size=8))
def test_no_more_than_the_beginning_of_one_character_waits(data: bytes) -> None:
    assert unfinished(data) <= 3
    assert unfinished(data + b"a") == 0
