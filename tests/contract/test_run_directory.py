"""What a run of tests does with the directories that other runs have left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run_directory import KEPT, PREFIX

QUICK = "tests/unit/test_moments.py::test_now_is_a_moment_of_this_boot_and_later_than_the_one_before"
NOBODY = 2**30  # more than a pid can be


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """What runs that were killed have left, with something mounted: where they leave it now, and where pytest would."""
    ours, pytests = tmp_path / f"{PREFIX}{NOBODY}-mounted", tmp_path / "pytest-of-root" / "garbage-1"
    for directory in (ours / "disk", pytests / "disk"):
        directory.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "ours", directory], check=True)
        (directory / "file").touch()
    os.utime(ours, (0, 0))
    yield ours
    for disk in tmp_path.glob("*/disk"), tmp_path.glob("*/*/disk"):
        for directory in disk:
            subprocess.run(["umount", directory], check=True)


def test_what_other_runs_have_left_fails_no_run_and_is_bounded(mounted: Path, tmp_path: Path) -> None:
    left = [tmp_path / f"{PREFIX}{NOBODY + number}-killed" for number in range(2 * KEPT)]
    for age, directory in enumerate(left, 1):
        (directory / "state").mkdir(parents=True)
        os.utime(directory, (age, age))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", QUICK]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(tmp_path.glob(f"{PREFIX}*")) == {mounted, *left[-KEPT:]}
    assert (mounted / "disk" / "file").exists()
