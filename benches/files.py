"""What files cost through the SDK and the server, against a local copy through a Unix socket and against a command.

    .venv/bin/python benches/files.py [--rounds 100]

The local copy: one process reads a file and writes it to a socket, another reads that and writes a file. Everything is
measured in one run, in turns. Compare the ratios: absolute times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import atoll

WARM_UP = 5
LARGE_BYTES = 100_000_000
LARGE_ROUNDS = 7
SIZES = {"1 KB": 1024, "100 KB": 100_000, "1 MB": 2**20}
FILES = 1000
TREE_ROUNDS = 3
CHUNK = 256 * 1024


def measure(variants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = WARM_UP) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warm_up + rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            if number >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def copy_through_a_socket(source: Path, target: Path) -> None:
    near, far = socket.socketpair()
    reader = os.fork()
    if not reader:
        far.close()
        with source.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                near.sendall(chunk)
        os._exit(0)
    near.close()
    with far, target.open("wb", buffering=0) as file:
        while chunk := far.recv(CHUNK):
            file.write(chunk)
    os.waitpid(reader, 0)


def write_and_read(sandbox: atoll.Sandbox, size: int) -> Callable[[], None]:
    content, path = b"x" * size, f"of-{size}"

    def run() -> None:
        sandbox.write_file(path, content)
        assert sandbox.read_file(path, encoding="bytes").size == size

    return run


def write_and_read_here(directory: Path, size: int) -> Callable[[], None]:
    """As whole as a sandbox's: under another name first, and then in its place."""
    content, path, new = b"x" * size, directory / f"of-{size}", directory / "new"

    def run() -> None:
        new.write_bytes(content)
        new.rename(path)
        assert len(path.read_bytes()) == size

    return run


def small(sandbox: atoll.Sandbox, rounds: int) -> None:
    sandbox.exec(f"mkdir -p many && cd many && touch $(seq {FILES})")
    sandbox.exec("cd /workspace")

    def list_all() -> None:
        assert len(sandbox.list_files("many")) == FILES

    variants = {f"write + read {name}": write_and_read(sandbox, size) for name, size in SIZES.items()}
    medians = measure({"exec": lambda: sandbox.exec("true"), **variants, "list": list_all}, rounds)
    bare = medians["exec"]
    for name, median in medians.items():
        print(f"{name:24}{median * 1e3:8.2f} ms{median / bare:8.2f} × a session exec")
    print(f"write + read of 1 KB: {medians['write + read 1 KB'] / bare:.2f} × a session exec (target ≤ 2.5)")
    print(f"list_files of {FILES}: {medians['list'] / bare:.2f} × a session exec (target ≤ 8)")
    theirs = Path(os.environ["ATOLL_STATE_DIR"], "disks")
    here = measure({name: write_and_read_here(theirs, size) for name, size in SIZES.items()}, rounds)
    for name, median in here.items():
        slower = medians[f"write + read {name}"] / median
        print(f"write + read of {name}: {slower:.1f} × the same on their disk without a sandbox")
    print()


def large(sandbox: atoll.Sandbox, directory: Path) -> None:
    """An upload ends on the disk of sandboxes, which is slower than the host's own: it is compared to both."""
    source, target = directory / "large", directory / "copy"
    on_their_disk = Path(os.environ["ATOLL_STATE_DIR"], "disks/bench-copy")
    source.write_bytes(os.urandom(LARGE_BYTES))
    medians = measure(
        {
            "local copy": lambda: copy_through_a_socket(source, target),
            "the same to their disk": lambda: copy_through_a_socket(source, on_their_disk),
            "upload": lambda: sandbox.upload(source, "large"),
            "download": lambda: sandbox.download("large", target),
        },
        LARGE_ROUNDS,
        warm_up=1,
    )
    assert target.read_bytes() == source.read_bytes()
    on_their_disk.unlink()
    local, theirs = medians["local copy"], medians["the same to their disk"]
    for name, median in medians.items():
        print(f"{name:24}{LARGE_BYTES / median / 1e6:8.0f} MB/s{local / median:8.2f} of the local copy")
    print(f"upload: {local / medians['upload']:.2f} of the local copy (target ≥ 0.3), ", end="")
    print(f"{theirs / medians['upload']:.2f} of the same to their disk")
    print(f"download: {local / medians['download']:.2f} of the local copy (target ≥ 0.3)")


def tree(sandbox: atoll.Sandbox, directory: Path) -> None:
    local = directory / "tree"
    local.mkdir()
    for number in range(FILES):
        (local / f"file-{number}").write_bytes(b"%d" % number * 100)

    def one_by_one() -> None:
        for path in local.iterdir():
            sandbox.write_file(f"tree/{path.name}", path.read_bytes())

    variants: dict[str, Callable[[], object]] = {
        "one by one": one_by_one,
        "as an archive": lambda: sandbox.upload(local, "archive"),
    }
    medians = measure(variants, TREE_ROUNDS, warm_up=1)
    faster = medians["one by one"] / medians["as an archive"]
    print(f"\nupload of {FILES} small files: {medians['as an archive'] * 1e3:.0f} ms, {faster:.1f} × ", end="")
    print("faster than as many writes (target ≥ 5)")
    assert len(sandbox.list_files("archive")) == FILES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as directory, atoll.temporary_sandbox() as sandbox:
        small(sandbox, rounds)
        large(sandbox, Path(directory))
        tree(sandbox, Path(directory))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as state, tempfile.TemporaryDirectory(dir="/run") as run:
        os.environ |= {"ATOLL_STATE_DIR": f"{state}/state", "ATOLL_RUNTIME_DIR": f"{run}/atoll"}
        try:
            main()  # the first call starts the server
        finally:
            server = os.pidfd_open(int(Path(state, "state/lock").read_text()))
            signal.pidfd_send_signal(server, signal.SIGTERM)
            select.select([server], [], [])
