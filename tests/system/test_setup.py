"""`scripts/setup` on a small project of its own, which needs nothing from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts/setup"
PROJECT = """
[project]
name = "small"
version = "1"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import pathlib, zipfile

def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        wheel.writestr("small.py", "")
        wheel.writestr("small-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n")
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SETUP, tmp_path / "scripts/setup")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    return tmp_path


def set_up(project: Path) -> list[str]:
    ran = subprocess.run([project / "scripts/setup", "run"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_venv_that_was_cut_off_before_pip_is_made_again(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    assert [line.split()[1] for line in set_up(project)] == ["making", "installing"]
    subprocess.run([project / ".venv/bin/python", "-c", "import small"], check=True)
    assert set_up(project) == []
    stamp = (project / ".venv/.installed-run").stat().st_mtime
    os.utime(project / "pyproject.toml", (stamp + 1, stamp + 1))
    assert [line.split()[1] for line in set_up(project)] == ["installing"]
