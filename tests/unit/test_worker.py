"""What a worker sends, on a real socket."""

from __future__ import annotations

import socket
import threading

import pytest

from atoll.agent.files.host_port import HostPort
from atoll.agent.files.progress import Phase, Progress
from atoll.protocol.frames import MAX_PAYLOAD, Frame, FrameDecoder, FrameKind


def frames_of(*pieces: bytes) -> tuple[list[Frame], int]:
    """What the host receives, and how far the worker says that it is."""
    host, connection = socket.socketpair()
    connection.setblocking(False)
    progress = Progress(bytearray(Progress.SIZE))

    def send() -> None:
        port = HostPort(connection.detach(), b"", memoryview(bytearray(1024)), progress)
        for piece in pieces:
            port.send_data(piece)
        port.send_last(FrameKind.DONE, b"done")
        port.close()

    sending = threading.Thread(target=send)
    sending.start()
    decoder, frames = FrameDecoder(), []
    with host:
        while data := host.recv(2**16):
            frames += decoder.feed(data)
    sending.join()
    return frames, progress.phase


@pytest.mark.parametrize("size", [0, 1, 1024, 20_000, 70_000, MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD + 7])
def test_data_of_any_size_is_sent_in_frames_that_the_protocol_allows(size: int) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    frames, phase = frames_of(b"first", content)
    *data, last = frames
    assert {frame.kind for frame in data} == {FrameKind.DATA}
    assert b"".join(frame.payload for frame in data) == b"first" + content
    assert last == Frame(FrameKind.DONE, b"done")
    assert phase == Phase.ANSWERING
