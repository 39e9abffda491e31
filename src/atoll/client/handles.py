"""Handles: what stands for something at a server. Two that name the same are equal, wherever they came from."""

from __future__ import annotations

from atoll.client.plumbing.remote_sandbox import RemoteSandbox


class Handle:
    """A handle of a sandbox, or of something in one that has an id. It can be a key, and a member of a set."""

    _sandbox: RemoteSandbox

    @property
    def id(self) -> str:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle) or type(self) is not type(other):
            return NotImplemented
        return self._sandbox.place == other._sandbox.place and self.id == other.id

    def __hash__(self) -> int:
        return hash((type(self), self._sandbox.place, self.id))
