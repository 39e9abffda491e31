"""Tests that leave something behind, for test_leaks.py to see them fail. Not collected by name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import leaks

leaks.PATIENCE_SECONDS = 0.1


@pytest.fixture(scope="module")
def cleaner() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_leaves_nothing() -> None:
    pass


def test_leaves_a_descriptor(cleaner: ExitStack) -> None:
    cleaner.callback(os.close, os.open("/dev/null", os.O_RDONLY))


def test_leaves_a_process_in_a_namespace(cleaner: ExitStack) -> None:
    child = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    cleaner.callback(child.wait)
    cleaner.callback(child.kill)
    assert child.stdout
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"


def test_leaves_a_mount(cleaner: ExitStack, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "ours", tmp_path], check=True)
    cleaner.callback(subprocess.run, ["umount", str(tmp_path)], check=True)
