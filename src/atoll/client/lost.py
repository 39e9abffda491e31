"""Disks that a server set aside, as it could not tell whose they are: listed, made sandboxes again, removed."""

from __future__ import annotations

from urllib.parse import quote

from atoll.client.plumbing.server import find_server
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.sandboxes import AdoptRequest, LostList, LostSandbox, SandboxInfo


async def list_lost_sandboxes_async(*, url: str | None = None, api_key: str | None = None) -> list[LostSandbox]:
    """The lost sandboxes that are kept, with the reason why they are none."""
    return (await find_server(url, api_key).ask("GET", "/v1/lost", LostList)).lost


async def adopt_lost_sandbox_async(
    name: str, id: str | None = None, *, image: str | None = None, url: str | None = None, api_key: str | None = None
) -> SandboxInfo:
    """Make a lost disk a sandbox again, under its own id or another. `image` is for a disk that names none."""
    asked = AdoptRequest(id=None if id is None else parse_sandbox_id(id), image=image)
    return await find_server(url, api_key).ask("POST", f"{_path(name)}/adopt", SandboxInfo, asked)


async def remove_lost_sandbox_async(name: str, *, url: str | None = None, api_key: str | None = None) -> None:
    """Remove a lost disk for good."""
    await find_server(url, api_key).tell("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/v1/lost/{quote(name, safe='')}"
