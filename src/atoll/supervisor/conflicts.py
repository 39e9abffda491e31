"""Conflicts: options that a sandbox which exists has otherwise than whoever asks for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec.structs import asdict as asdict_of

from atoll.protocol.errors import ErrorCode, error
from atoll.supervisor.plans import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.protocol.sandboxes import SandboxOptions
    from atoll.supervisor.records import SandboxRecord

TREATMENT = ("sleep_after", "keep_alive", "stop_after", "ttl")


def check_agreement(options: SandboxOptions, record: SandboxRecord) -> None:
    if found := differences(options, record):
        told = "; ".join(f"{name}: {how}" for name, how in found.items())
        raise error(
            ErrorCode.SANDBOX_CONFLICT,
            f"sandbox {record.id!r} exists with other options: {told}",
            remedy="Ask for it with those it has, which status() tells; change them (set_limits() and others); or take "
            "another id.",
            sandbox=record.id,
            options=", ".join(found),
        )


def differences(options: SandboxOptions, record: SandboxRecord) -> dict[str, str]:
    """The options that are not as they were given, each with what it is; of variables no value, as it may be secret."""
    return dict(_differences(options, record))


def _differences(options: SandboxOptions, record: SandboxRecord) -> Iterator[tuple[str, str]]:
    asked = make_plan(options)
    if options.image is not None and options.image != record.image:
        yield "image", _in_words(record.image, options.image)
    limits, has = asdict(asked.limits), asdict(record.limits)
    for name in options.limits if isinstance(options.limits, dict) else limits if options.limits else ():
        if limits[name] != has[name]:
            yield f"limits.{name}", _in_words(has[name], limits[name])
    for name in asked.env:
        if record.env.get(name) != asked.env[name]:
            yield f"env.{name}", "it has another value" if record.env.get(name) is not None else "it is not set"
    for name, value in asked.upkeep.labels.items():
        if record.upkeep.labels.get(name) != value:
            yield f"labels.{name}", _in_words(record.upkeep.labels.get(name), value)
    if options.network is not None and asked.network != record.network:
        yield "network", _in_words(asdict_of(record.network), asdict_of(asked.network))
    for name in TREATMENT:
        if getattr(options, name) is not None and getattr(asked.upkeep, name) != getattr(record.upkeep, name):
            yield name, _in_words(getattr(record.upkeep, name), getattr(asked.upkeep, name))


def _in_words(has: object, asked: object) -> str:
    return f"it is {has!r:.100}, not {asked!r:.100}"
