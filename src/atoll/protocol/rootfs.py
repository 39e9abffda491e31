"""A resolved image: which directories make up a sandbox's root. Images resolve to it, engines mount it."""

from __future__ import annotations

import msgspec


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """An overlay mount: read-only `layers`, top first, under a writable layer of the sandbox's own.

    `name` is what the writable layer is called on disk; `target` is where it appears inside.
    """

    name: str
    target: str
    layers: tuple[str, ...]


class Rootfs(msgspec.Struct, frozen=True, kw_only=True):
    """An image, as far as an engine needs to know it. `state` says which contents the name stood for."""

    image: str
    state: str
    overlays: tuple[Overlay, ...]
    env: dict[str, str] = {}
