"""A laboratory for the network: a host of its own for the gateway, and a small internet behind it.

Both are network namespaces that nothing leads out of. What a gateway does there reaches only servers of ours
(tests/lab_world.py), whatever address it is for: names of real hosts, private and public ones alike.

    gateway ── 10.9.0.1 ═══ veth ═══ 10.9.0.2 ── the internet: PUBLIC, OTHER, PRIVATE, METADATA, ...
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOST, INTERNET = "10.9.0.1", "10.9.0.2"
NAME_SERVER = INTERNET  # who is asked by UDP at another of its addresses would answer from this one
PUBLIC, OTHER = "93.184.215.14", "93.184.215.15"
PRIVATE, METADATA, SHARED, DOCUMENTED = "10.1.2.3", "169.254.169.254", "100.70.0.1", "203.0.113.9"
BEYOND = (PUBLIC, OTHER, PRIVATE, METADATA, SHARED, DOCUMENTED, "8.8.8.8")
NAMES = {
    "www.example.com": [[PUBLIC]],
    "api.example.com": [[PUBLIC]],
    "other.example.org": [[OTHER]],
    "many.example.org": [[PRIVATE, PUBLIC]],
    "private.example.org": [[PRIVATE]],
    "metadata.example.org": [[METADATA]],
    "loopback.example.org": [["127.0.0.1"]],
    "mapped.example.org": [["::ffff:127.0.0.1"]],
    "host.example.org": [[HOST]],
    "documented.example.org": [[DOCUMENTED]],
    "rebinding.example.org": [[PUBLIC], ["127.0.0.1"], [PUBLIC], [HOST], [PUBLIC], [PRIVATE]],
    "secret.tunnel.example": [[OTHER]],
    "another.tunnel.example": [[OTHER]],
    "long.example.org": [[PUBLIC] * 30],
}


@dataclass
class World:
    """Servers on one side."""

    process: subprocess.Popen[str]

    def tell(self, **order: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def met(self) -> list[list[Any]]:
        """Address, port and first words of every connection since `forget`."""
        return self.tell()["met"]  # type: ignore[no-any-return]

    def asked(self) -> list[str]:
        return self.tell()["asked"]  # type: ignore[no-any-return]

    def forget(self) -> None:
        self.tell(forget=True, names={name: [list(one) for one in lists] for name, lists in NAMES.items()})


@dataclass
class Lab:
    host: World
    internet: World
    certificate: Path

    @property
    def gateway(self) -> tuple[str, ...]:
        """What Python is told to run as a gateway that is here."""
        return self.gateway_without()

    def gateway_without(self, *defences: str) -> tuple[str, ...]:
        return (str(HERE / "lab_gateway.py"), str(self.host.process.pid), ",".join(defences))

    def forget(self) -> None:
        self.host.forget()
        self.internet.forget()


@contextmanager
def laboratory(directory: Path) -> Iterator[Lab]:
    certificate = make_certificate(directory)
    with ExitStack() as stack:
        host = World(stack.enter_context(serving(certificate)))
        internet = World(stack.enter_context(serving(certificate)))
        inside(host, f"link add wire0 type veth peer name wire1 netns {internet.process.pid}")
        inside(host, "link set wire0 up", f"addr add {HOST}/24 dev wire0")
        inside(internet, "link set wire1 up", f"addr add {INTERNET}/24 dev wire1")
        inside(internet, *(f"addr add {address}/32 dev lo" for address in BEYOND))
        inside(host, f"route add default via {INTERNET}")
        lab = Lab(host, internet, certificate)
        lab.forget()
        yield lab


@contextmanager
def serving(certificate: Path) -> Iterator[subprocess.Popen[str]]:
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    process = subprocess.Popen(
        [*command, sys.executable, "-I", str(HERE / "lab_world.py"), str(certificate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and json.loads(process.stdout.readline()) == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def inside(world: World, *lines: str) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{world.process.pid}/ns/net", "ip", "-batch", "-"],
        input="\n".join(lines),
        text=True,
        check=True,
    )


def make_certificate(directory: Path) -> Path:
    """For every name here, signed by itself; with its key in one file."""
    certificate, key = directory / "lab.pem", directory / "lab.key"
    names = ",".join(f"DNS:{name}" for name in NAMES)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "30", "-subj", "/CN=lab", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


def until(condition: Any, seconds: float = 30.0) -> None:
    """For what another process does in its own time."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
