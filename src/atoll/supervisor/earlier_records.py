"""Records as earlier versions wrote them, in the words of today.

Before engines had handles, a record had what the native engine needs in three fields of its own. Together they are the
handle that this engine would give today. Before a record said which engine's handle it has, that was the only one.
"""

from __future__ import annotations

from typing import Any

import msgspec

ONLY_ENGINE = "native"
PARTS = ("process", "uid_base", "agent_socket")


def in_todays_words(kept: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, whichever version wrote it. What makes no sense stays as it is, and is found later."""
    process = kept.get("process")
    if not isinstance(process, dict):
        return {"engine": ONLY_ENGINE} | kept if kept.get("handle") else kept
    others = {name: value for name, value in kept.items() if name not in PARTS}
    if not process.get("boot_id"):  # it was never started
        return others
    handle = msgspec.json.encode({name: kept.get(name) for name in PARTS}).decode()
    generation = " ".join(str(process.get(name)) for name in ("boot_id", "pid", "start_time"))
    return others | {"engine": ONLY_ENGINE, "handle": handle, "generation": generation, "boot_id": process["boot_id"]}
