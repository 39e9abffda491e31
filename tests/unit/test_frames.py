"""The frame codec against honest, slow and lying peers."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.frames import (
    CONTENT,
    HEADER_SIZE,
    MAX_PAYLOAD,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode_frame,
)

frames = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=300)), max_size=8)


@given(frames, st.lists(st.integers(1, 50), min_size=1))
def test_frames_arrive_whole_however_the_bytes_are_cut_and_content_in_pieces(
    sent: list[tuple[FrameKind, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(kind, payload) for kind, payload in sent)
    decoder, received, position, turn = FrameDecoder(), list[Frame](), 0, 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert not decoder.is_mid_frame
    for kind, payload in sent:
        first = received.pop(0)
        assert first.kind is kind
        gathered = first.payload
        while len(gathered) < len(payload):
            assert kind in CONTENT
            piece = received.pop(0)
            assert piece.kind is kind and piece.payload  # an empty one would mean the end
            gathered += piece.payload
        assert gathered == payload
    assert not received


@given(st.binary(min_size=1, max_size=300), st.data())
def test_what_is_left_of_content_is_a_frame_for_whoever_decodes_it_next(content: bytes, data: st.DataObject) -> None:
    stream = encode_frame(FrameKind.INPUT, content) + encode_frame(FrameKind.INPUT)
    cut = data.draw(st.integers(0, len(stream)))
    first = FrameDecoder()
    frames = first.feed(stream[:cut])
    frames += FrameDecoder().feed(first.take_rest() + stream[cut:])
    assert b"".join(frame.payload for frame in frames) == content and frames[-1] == (FrameKind.INPUT, b"")


def test_a_lie_about_the_length_is_refused_before_any_payload_is_kept() -> None:
    with pytest.raises(FrameError, match="claims 4294967295 bytes"):
        FrameDecoder().feed(struct.pack(">IB", 2**32 - 1, FrameKind.CALL))


def test_the_largest_frame_is_allowed_and_one_byte_more_is_not() -> None:
    whole = encode_frame(FrameKind.STDOUT, b"x" * MAX_PAYLOAD)
    (frame,) = FrameDecoder().feed(whole)
    assert len(frame.payload) == MAX_PAYLOAD
    with pytest.raises(FrameError):
        encode_frame(FrameKind.STDOUT, b"x" * (MAX_PAYLOAD + 1))
    with pytest.raises(FrameError):
        FrameDecoder().feed(struct.pack(">IB", MAX_PAYLOAD + 1, FrameKind.STDOUT))


@given(st.integers(0, 255).filter(lambda kind: kind not in list(FrameKind)))
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(FrameError, match="no kind"):
        FrameDecoder().feed(struct.pack(">IB", 0, kind))


def test_a_decoder_holds_no_more_than_the_unfinished_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(FrameKind.STDOUT, b"x" * 1000) * 100 + b"\0" * (HEADER_SIZE - 1))
    assert decoder.is_mid_frame
    assert len(decoder._buffer) == HEADER_SIZE - 1


@given(st.binary(max_size=200))
def test_noise_gives_frames_or_an_error_and_nothing_else(noise: bytes) -> None:
    with suppress(FrameError):
        FrameDecoder().feed(noise)
