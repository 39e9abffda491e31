"""Types as a user's program meets them: mypy accepts what works, and finds what does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

RIGHT = """
import io
from datetime import timedelta
from pathlib import Path

import atoll


def blocking(sandbox: atoll.Sandbox) -> None:
    text: str = io.TextIOWrapper(sandbox.open_file("x")).read()
    with io.TextIOWrapper(sandbox.open_file("x", "wb")) as file:
        file.write(text)
    lines: list[str] = [line for line in sandbox.open_file("x", "r")]
    sandbox.open_file("x", "a").write(lines[0])
    sandbox.exec(["ls", Path("/")], cwd=Path("/"), timeout=timedelta(minutes=1), stdin=(str(n) for n in range(3)))
    sandbox.start_process("true", restart="on-failure").wait_for_port(80, mode="tcp", timeout="1h30m")
    atoll.list_sandboxes(state="running")
    content: bytes = sandbox.read_file("x", encoding="bytes").content
    sandbox.write_file("y", content, encoding="base64")
    plain: dict[str, object] = sandbox.exec("true").to_dict()
    print(sandbox.status().state == "running", plain, {sandbox: 1})
    sandbox.download("x", "y", exclude=["a"], exclude_from=Path("z"), max_bytes="1GiB")


async def awaited(sandbox: atoll.AsyncSandbox) -> None:
    async with sandbox.open_file("x", "r", encoding="utf-8") as file:
        line: str = await file.readline()
    await sandbox.exec("cat", stdin=sandbox.read_file_stream("x"))
    await sandbox.write_file("y", sandbox.read_file_stream("x"))
    await sandbox.close()
    print(line)
"""

WRONG = """
import atoll


def blocking(sandbox: atoll.Sandbox) -> None:
    sandbox.start_process("true", restart="sometimes")
    sandbox.start_process("true").wait_for_port(80, mode="udp")
    sandbox.read_file("x", encoding="latin-1")
    sandbox.write_file("x", "y", encoding="latin-1")
    sandbox.open_file("x", "r+")
    sandbox.open_file("x", "rb", encoding="utf-8")
    atoll.list_sandboxes(state="asleep")
    sandbox.exec("true", timeout=[1])
    sandbox.exec(["true", 1])
    sandbox.exec("true", cwd=5)
    sandbox.run_code("1", language="cobol")


def promised(sandbox: atoll.Sandbox) -> None:
    sandbox.connect_port("80")


def unreachable(sandbox: atoll.Sandbox) -> None:
    sandbox.connect_port(8080)
    print("it is not available yet")
"""


def check(program: str, directory: Path, *options: str) -> list[str]:
    """The lines of the program that mypy complains of."""
    path = directory / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache")]
    ran = subprocess.run([*command, *options, str(path)], capture_output=True, text=True, cwd=directory, check=False)
    lines = program.splitlines()
    found = [line.split(":", 3) for line in ran.stdout.splitlines() if ": error:" in line]
    assert all(Path(name).name == "program.py" for name, *_ in found), ran.stdout
    return [lines[int(number) - 1].strip() for _, number, *_ in found]


def test_what_works_is_right(tmp_path: Path) -> None:
    assert check(RIGHT, tmp_path) == []


def test_what_does_not_work_is_found(tmp_path: Path) -> None:
    calls = [line.strip() for line in WRONG.splitlines() if line.startswith("    ")]
    found = check(WRONG, tmp_path, "--warn-unreachable")
    assert list(dict.fromkeys(found)) == [line for line in calls if line != "sandbox.connect_port(8080)"]
