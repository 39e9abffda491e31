"""Sandboxes as a whole: what the server and its clients say about one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from atoll.protocol.arguments import wrong_argument
from atoll.protocol.calls import FIRST
from atoll.protocol.durations import Duration, parse_duration
from atoll.protocol.errors import ErrorCode, as_id, error, shown
from atoll.protocol.limits import Limits, parse_limits
from atoll.protocol.network import NetworkPolicy
from atoll.protocol.plain import Plain

DEFAULT_IMAGE = "host"
# The header of a request that is to make no sandbox: SANDBOX_NOT_FOUND if there is none, and nothing was done.
MUST_EXIST = ("atoll-sandbox", "existing")
MAX_LABELS, MAX_LABEL = 64, 256
LEAST_TTL_SECONDS = 1.0  # in less it may be gone before its first command
SANDBOXES_PER_PAGE, MAX_SANDBOXES_PER_PAGE = 100, 1_000  # of a list: those who ask for no number get, and may ask for


class SandboxState(StrEnum):
    RUNNING = "running"
    FROZEN = "frozen"  # asleep: memory kept, nothing moves; the next operation wakes it
    STOPPED = "stopped"  # files kept, nothing running; the next operation starts it


STATE_CHANGES = {"created", "started", "frozen", "thawed", "stopped"}  # the events that change it
REMOVED_LATER = "removed_later"  # before `destroyed`: its disk goes when disks can be written again


class SandboxOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options that a sandbox is made with; null, or left out, is the usual. They count at the first use of its id. One
    that exists keeps what it has: what differs is told in the answer, or with `strict` is SANDBOX_CONFLICT.
    """

    image: str | None = None
    limits: str | dict[str, Any] | None = None
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    sleep_after: float | str | None = None
    keep_alive: bool | None = None
    stop_after: float | str | None = None
    ttl: float | str | None = None
    network: str | dict[str, Any] | None = None
    strict: bool = False


class SleepRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """With `stop` everything that runs in it is ended; else it stands still, and memory is kept."""

    stop: bool = False


class UpkeepChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times to put it to sleep, stop and destroy it. What is not given stays as it is; of the last two null is never.

    `ttl` counts from when it was made, not from this change.
    """

    sleep_after: float | str | UnsetType = UNSET
    keep_alive: bool | UnsetType = UNSET
    stop_after: float | str | UnsetType | None = UNSET
    ttl: float | str | UnsetType | None = UNSET


class LimitChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits to set: all to those of a size by its name, then single ones. What is not given stays as it is."""

    size: str | UnsetType = UNSET
    cpus: float | str | UnsetType = UNSET
    memory: int | str | UnsetType = UNSET
    disk: int | str | UnsetType = UNSET
    pids: int | UnsetType = UNSET

    def applied_to(self, limits: Limits) -> Limits:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        size = given.pop("size", None)
        return replace(limits if size is None else parse_limits(size), **given)


class Use(Plain, frozen=True, kw_only=True):
    """The use that a running sandbox makes of the machine."""

    cpu_seconds: float
    memory: int
    processes: int
    oom_kills: int
    disk: int | None = None  # bytes; None where nobody counts them, which is where disks are plain directories


class SandboxInfo(Plain, frozen=True, kw_only=True):
    """A sandbox as its users see it. `since` and `cause` are of the last change of state."""

    id: str
    state: SandboxState
    since: datetime
    cause: str
    created_at: datetime
    image: str
    image_state: str
    isolation: str
    limits: Limits
    labels: dict[str, str]
    env: list[str]  # names only: values may be secrets
    sleep_after: float | None
    keep_alive: bool
    stop_after: float | None = None  # seconds of sleep after which it is stopped; None for never
    ttl: float | None = None  # seconds after which it is destroyed, from when it was made; None for never
    network: NetworkPolicy = NetworkPolicy()
    # Options it was asked for with just now and has otherwise: what it has, and what was asked for.
    ignored: dict[str, str] = {}
    use: Use | None = None  # None if nothing runs, or nobody asked: a list and what changes a sandbox leave it out


class SandboxQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of sandboxes for a list: those with all these labels, in this state, the first of them after an id."""

    labels: dict[str, str] = {}
    state: SandboxState | None = None
    limit: int = SANDBOXES_PER_PAGE
    after: str = ""


class SandboxList(msgspec.Struct, frozen=True, kw_only=True):
    """Sandboxes in the order of their ids. If there are more, `next` is what to give as `after` to go on."""

    sandboxes: list[SandboxInfo]
    next: str | None = None


class LostSandbox(Plain, frozen=True, kw_only=True):
    """A disk that is no sandbox's and was kept, under a name of its own. The rest is what it carries about itself."""

    name: str
    reason: str
    since: datetime
    id: str | None
    image: str | None
    created_at: datetime | None


class LostList(msgspec.Struct, frozen=True, kw_only=True):
    lost: list[LostSandbox]


class AdoptRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`id` is that of the sandbox that a lost disk becomes; its own if not given. `image` is for a disk that carries no
    record of which it was made on.
    """

    id: str | None = None
    image: str | None = None


class SandboxEvent(Plain, frozen=True, kw_only=True):
    """A line of a sandbox's timeline: what happened, when, why, who asked."""

    number: int  # from 1, and on with the next sandbox of the id; what a reader gives as `since` to go on after it
    time: datetime
    # created started frozen thawed stopped oom_killed labels_changed env_changed upkeep_changed limits_changed
    # network_changed session_created session_deleted port_exposed port_changed port_unexposed restored removed_later
    # destroyed
    what: str
    cause: str
    by: str
    count: int = 1  # how many of its kind this one stands for, in a row; the time is that of the last


class NewsEvent(SandboxEvent, frozen=True, kw_only=True):
    """The same of any sandbox. Its number is among those of its sandbox."""

    sandbox: str


class NewsList(msgspec.Struct, frozen=True, kw_only=True):
    """The latest last."""

    events: list[NewsEvent]


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    events: list[SandboxEvent]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    protocol_version: int = FIRST  # of calls it understands, and so do sandboxes that it starts
    pid: int
    started_at: datetime
    preparing: list[str] = []  # what takes seconds once, and is under way


def parse_lasting(name: str, given: Duration | None) -> float | None:
    """A time after which something is done to a sandbox, or None for never. To be destroyed takes a moment of life."""
    if given is None:
        return None
    seconds = parse_duration(given, name)
    if name == "ttl" and seconds < LEAST_TTL_SECONDS:
        remedy = f"Give {LEAST_TTL_SECONDS:g} or more seconds; destroy() ends a sandbox now."
        raise wrong_argument(name, given, "is no life at all", remedy)
    return seconds


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The same, or an error that says what labels look like."""
    if not isinstance(labels, Mapping):
        remedy = "Give a dictionary of names and values."
        raise error(ErrorCode.INVALID_REQUEST, f"{shown(labels)} are not labels", remedy=remedy, field="labels")
    for name, value in labels.items():
        if not _is_label_text(name) or not _is_label_text(value) or not name or "=" in name:
            raise error(
                ErrorCode.INVALID_REQUEST,
                f"{shown(name)}={shown(value)} is not a label",
                remedy=f"A name of 1 to {MAX_LABEL} characters without =, and a value of at most {MAX_LABEL}.",
                field="labels",
                label=as_id(name),
            )
    if len(labels) > MAX_LABELS:
        raise error(
            ErrorCode.INVALID_REQUEST,
            f"{len(labels)} labels are too many",
            remedy=f"Give {MAX_LABELS} at most.",
            field="labels",
            limit=MAX_LABELS,
        )
    return dict(labels)


def _is_label_text(value: object) -> bool:
    """Also whether it can be sent: half a character of UTF-16 cannot."""
    return isinstance(value, str) and len(value) <= MAX_LABEL and not re.search("[\ud800-\udfff]", value)
