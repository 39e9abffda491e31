"""Sandboxes made straight in a workshop, without the server that would check what they are to be."""

from __future__ import annotations

from typing import Any

import msgspec

from atoll.engine.base import LiveSandbox
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import DEFAULT_IMAGE, SandboxOptions
from atoll.supervisor.plans import make_plan
from atoll.supervisor.workshop import Workshop


async def create(
    workshop: Workshop,
    sandbox_id: str,
    *,
    image: str = DEFAULT_IMAGE,
    limits: Limits | str | dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
) -> LiveSandbox:
    """A new sandbox, by options as users give them."""
    given = msgspec.to_builtins(limits) if isinstance(limits, Limits) else limits
    plan = make_plan(SandboxOptions(image=image, limits=given, env=env or {}))
    return await workshop.make(parse_sandbox_id(sandbox_id), plan)
