from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.agent.scratch import Scratch
from atoll.protocol.errors import AtollError


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    scratch = Scratch(disposable=("saved",))
    scratch.open(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    yield scratch
    scratch.close()


def test_what_is_done_in_a_closed_directory_does_not_reach_the_next(scratch: Scratch, tmp_path: Path) -> None:
    gone = scratch.make_directory()
    number = gone.fd
    gone.write("c1", b"")
    gone.close()
    here = scratch.make_directory()
    assert here.fd == number  # the kernel gives out the lowest that is free
    here.write("c1", b"mine")
    gone.remove("c1")
    gone.rename("c1", "c2")
    assert gone.tail("c1", 4) == b""
    with pytest.raises(AtollError):
        gone.write("c2", b"")
    with pytest.raises(AtollError):
        gone.make_output("o1")
    assert [path.name for path in (tmp_path / here.name).iterdir()] == ["c1"]
    here.close()
    assert not list(tmp_path.iterdir())
