"""What people do in a sandbox made of the host's own /usr, and what the host notices of it: nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.images.host import read_host_state
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.native import agent_socket

pytestmark = pytest.mark.usefixtures("host_stays_as_it_was")


def fingerprint(*roots: str) -> str:
    """Names, sizes, owners, modes and times of everything below, without following links."""
    digest = hashlib.sha256()
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in [".", *sorted(names)]:
                try:
                    status = os.lstat(f"{directory}/{name}")
                except FileNotFoundError:
                    continue
                facts = (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns)
                digest.update(f"{directory}/{name} {facts}\n".encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def host_stays_as_it_was() -> Iterator[None]:
    watched = ("/usr/bin", "/usr/sbin", "/usr/share/doc", "/usr/lib/python3", "/usr/local", "/etc", "/var/lib/dpkg")
    before = fingerprint(*watched)
    yield
    assert fingerprint(*watched) == before, "a sandbox changed the host's files"


async def put(box: Box, path: str, content: bytes) -> None:
    output = await box.sh(f"cat >{path}", stdin=content)
    assert output.done.exit_code == 0


async def test_python_node_git_and_gcc_are_there(host_box: Box) -> None:
    assert (await host_box.text("python3 -c 'print(6 * 7)'")) == "42"
    assert (await host_box.text("node -e 'console.log(6 * 7)'")) == "42"
    assert (await host_box.text("git --version")).startswith("git version")
    program = '#include <stdio.h>\nint main(void) { printf("%d\\n", 6 * 7); return 0; }\n'
    await put(host_box, "a.c", program.encode())
    assert await host_box.text("gcc -O2 -o a a.c && ./a") == "42"


async def test_python_is_the_systems_and_not_one_the_host_keeps_elsewhere(host_box: Box) -> None:
    assert (
        await host_box.text("command -v python3; python3 -c 'import sys; print(sys.prefix)'")
        == "/usr/bin/python3\n/usr"
    )


async def test_python_threads_and_processes(host_box: Box) -> None:
    threads = "from concurrent.futures import *; print(sum(ThreadPoolExecutor(8).map(abs, range(-50, 50))))"
    assert await host_box.text(f"python3 -c '{threads}'") == "2500"
    processes = """
import multiprocessing
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(sum(pool.map(abs, range(-5, 5))))
"""
    await put(host_box, "p.py", processes.encode())
    assert await host_box.text("python3 p.py") == "25\n25\n25"


async def test_node_workers(host_box: Box) -> None:
    script = """
const { Worker, isMainThread, parentPort } = require("worker_threads");
if (isMainThread) {
  const worker = new Worker(__filename);
  worker.on("message", message => { console.log(message); worker.terminate(); });
  worker.postMessage(20);
} else parentPort.once("message", number => parentPort.postMessage(number + 22));
"""
    await put(host_box, "w.js", script.encode())
    assert await host_box.text("node w.js") == "42"


async def test_git_commits(host_box: Box) -> None:
    script = """
git init -q r && cd r && git config user.email a@b && git config user.name n
echo one >f && git add f && git commit -qm first && git clone -q . ../copy && cat ../copy/f && git log --format=%s"""
    assert await host_box.text(script) == "one\nfirst"


async def test_chown_and_su(host_box: Box) -> None:
    assert await host_box.text("touch f && chown 1234:5678 f && stat -c %u:%g f") == "1234:5678"
    assert await host_box.text("chown nobody f && stat -c %U f") == "nobody"
    assert await host_box.text("su nobody -s /bin/sh -c 'id -un'") == "nobody"
    assert await host_box.text("su nobody -s /bin/sh -c 'touch /etc/x 2>/dev/null || echo refused'") == "refused"


async def test_who_pings_is_told_that_he_may_not(host_box: Box) -> None:
    ping = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.getprotobyname('icmp'))"
    told = await host_box.sh(f'python3 -c "{ping}"')
    assert told.done.exit_code and b"PermissionError" in told.stderr


async def test_a_program_whose_file_names_a_capability_that_nobody_has_runs(host_box: Box) -> None:
    """As Debian's ping does."""
    names_net_raw = "import os; os.setxattr('p', 'security.capability', bytes.fromhex('0100000200200000' + '00' * 12))"
    await host_box.text(f'cp /bin/echo p && python3 -c "{names_net_raw}"')
    assert await host_box.text("./p yes; su nobody -s /bin/sh -c './p yes'") == "yes\nyes"


async def test_useradd_makes_a_user_who_owns_a_home(host_box: Box) -> None:
    assert await host_box.text("useradd -m ada && su ada -c 'cd && pwd && touch f && stat -c %U f'") == "/home/ada\nada"


async def test_dpkg_installs_and_removes_a_package(host_box: Box, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(
        "Package: atoll-test\nVersion: 1\nArchitecture: all\nMaintainer: n <a@b>\nDescription: a test\n"
    )
    (package / "DEBIAN/postinst").write_text("#!/bin/sh\nset -e\ntouch /var/lib/atoll-test\n")
    (package / "DEBIAN/postinst").chmod(0o755)
    (package / "usr/bin").mkdir(parents=True)
    (package / "usr/bin/atoll-test").write_text("#!/bin/sh\necho installed\n")
    (package / "usr/bin/atoll-test").chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", package, tmp_path / "x.deb"], check=True, stdout=subprocess.DEVNULL
    )
    await put(host_box, "x.deb", (tmp_path / "x.deb").read_bytes())
    await host_box.text("dpkg -i x.deb && test -e /var/lib/atoll-test")
    assert await host_box.text("atoll-test") == "installed"
    await host_box.text("dpkg -r atoll-test && ! command -v atoll-test")
    assert await host_box.text("dpkg -s bash | grep ^Status") == "Status: install ok installed"


async def test_pip_installs_a_wheel(host_box: Box, tmp_path: Path) -> None:
    wheel = tmp_path / "tiny_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_thing.py", "answer = 42\n")
        archive.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        archive.writestr(
            "tiny_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_thing-1.0.dist-info/RECORD", "")
    await put(host_box, wheel.name, wheel.read_bytes())
    await host_box.text(f"pip install --no-index ./{wheel.name}")
    assert await host_box.text("python3 -c 'import tiny_thing; print(tiny_thing.answer)'") == "42"


async def test_python_venv(host_box: Box) -> None:
    assert await host_box.text("python3 -m venv v && v/bin/python -c 'import sys; print(sys.prefix)'") == "/workspace/v"


async def test_usr_can_be_written_renamed_and_deleted(host_box: Box) -> None:
    await host_box.text("echo mine >/usr/bin/true && rm /usr/bin/env && mv /usr/share/doc /usr/share/docs")
    assert (
        await host_box.text(
            "cat /usr/bin/true; ls /usr/share/docs | wc -l | grep -v ^0$ >/dev/null; ls /usr/bin/env || true"
        )
        == "mine"
    )
    assert Path("/usr/bin/env").exists() and Path("/usr/share/doc").exists()


async def test_what_is_written_belongs_to_no_range_of_ids_on_disk(host_box: Box, workshop: Workshop) -> None:
    await host_box.text("touch /etc/by-root /usr/by-root && touch /tmp/by-1000 && chown 1000:1000 /tmp/by-1000")
    disk = agent_socket(host_box.live).parents[2] / "state/disks" / host_box.live.id
    owners = {path.name: path.stat().st_uid for path in disk.rglob("by-*")}
    assert owners == {"by-root": 0, "by-1000": 1000}
    assert disk.stat().st_mode & 0o077 == 0


async def test_files_of_the_image_belong_to_root(host_box: Box) -> None:
    assert (
        await host_box.text("stat -c %U:%G /usr/bin/env /etc/passwd /usr /dev/null /workspace | sort -u") == "root:root"
    )


async def test_a_sandbox_records_the_state_of_the_host_it_was_made_on(host_box: Box, workshop: Workshop) -> None:
    record = workshop.record(host_box.live.id)
    state = read_host_state(Path("/"))
    assert record.image == "host"
    assert record.image_state == f"{state.digest} ({state.system})"


async def test_certificates_and_time_zone_work(host_box: Box) -> None:
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 10)"
    assert await host_box.text(f'python3 -c "{code}"') == "True"
    assert await host_box.text("TZ=Asia/Tokyo date +%Z; readlink /etc/localtime") == "JST\n/usr/share/zoneinfo/Etc/UTC"
