"""The blocking SDK is the one that the generator makes, and importing the package stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import atoll

ROOT = Path(__file__).parents[1]


def test_the_blocking_sdk_is_the_generated_one() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/build_sync_client.py", "--check"], check=True)


def test_the_blocking_sdk_has_every_file_of_the_async_one() -> None:
    def names(half: str) -> set[str]:
        directory = ROOT / "src/atoll" / half
        return {str(path.relative_to(directory)) for path in directory.rglob("*.py")}

    assert names("client_sync") == names("client") - {"plumbing/blocking_waiting.py", "plumbing/proactor.py"}


def test_the_two_ways_to_wait_have_the_same_functions() -> None:
    def signatures(name: str) -> dict[str, str]:
        tree = ast.parse((ROOT / "src/atoll/client/plumbing" / name).read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return {node.name: ast.unparse(node.args) for node in functions if not node.name.startswith("_")}

    assert signatures("waiting.py") == signatures("blocking_waiting.py")


def test_importing_atoll_loads_next_to_nothing() -> None:
    """The agent of every sandbox imports the package."""
    program = f"""if True:
        import sys
        sys.path.insert(0, {str(ROOT / "src")!r})
        before = set(sys.modules)
        import atoll
        print(*sorted(set(sys.modules) - before))
    """
    shown = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    loaded = shown.stdout.split()
    heavy = {"asyncio", "httptools", "msgspec", "ssl", "socket", "subprocess", "importlib.metadata"}
    assert not heavy & set(loaded), loaded
    assert [name for name in loaded if name.startswith("atoll")] == ["atoll"]


def test_the_blocking_sdk_needs_no_event_loop() -> None:
    program = "import sys, atoll; atoll.get_sandbox('a'); print('asyncio' in sys.modules, 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False False\n"


def test_every_exported_name_is_there_and_no_other() -> None:
    assert set(atoll.__all__) == set(atoll._PLACE)
    for name in atoll.__all__:
        assert getattr(atoll, name).__name__ == name
    assert set(atoll.__all__) <= set(dir(atoll))
    assert not hasattr(atoll, "no_such_thing")
