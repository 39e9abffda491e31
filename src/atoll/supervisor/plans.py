"""Plans: how a sandbox is to be made, and treated from then on; what its user asked for, checked once.

One is made where a request comes in. From there on it is passed down as it is, and nobody looks at it again.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from atoll.protocol.arguments import check_lasting_variables
from atoll.protocol.durations import parse_duration
from atoll.protocol.limits import MIN_DISK, Limits, parse_limits
from atoll.protocol.network import NetworkPolicy, parse_network
from atoll.protocol.sandboxes import DEFAULT_IMAGE, SandboxOptions, check_labels, parse_lasting

SLEEP_AFTER_SECONDS = 600.0


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is treated: what it is found by, and when it is put to sleep, stopped and destroyed."""

    labels: dict[str, str] = {}
    sleep_after: float = SLEEP_AFTER_SECONDS
    keep_alive: bool = False
    stop_after: float | None = None  # from when it was put to sleep; None for never
    ttl: float | None = None  # until it is destroyed, from when it was made; None for ever


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to be made, with options that are known to be good. Whether there is such an image is not known yet."""

    image: str = DEFAULT_IMAGE
    limits: Limits = Limits()
    has_usual_disk: bool = True  # nobody gave it a size
    env: dict[str, str] = {}
    upkeep: Upkeep = Upkeep()
    network: NetworkPolicy = NetworkPolicy()

    def limits_where(self, largest_disk: int) -> Limits:
        """Its limits on a machine where no disk can be larger than that."""
        if not self.has_usual_disk or self.limits.disk <= largest_disk:
            return self.limits
        return replace(self.limits, disk=max(MIN_DISK, largest_disk))


def make_plan(options: SandboxOptions) -> Plan:
    """Or an error that says which option cannot be."""
    given = options.limits
    return Plan(
        image=DEFAULT_IMAGE if options.image is None else options.image,
        limits=parse_limits(given),
        has_usual_disk=given is None or (isinstance(given, dict) and "disk" not in given),
        env=check_lasting_variables(options.env or {}),
        upkeep=_make_upkeep(options),
        network=parse_network(options.network),
    )


def _make_upkeep(options: SandboxOptions) -> Upkeep:
    sleep_after = SLEEP_AFTER_SECONDS if options.sleep_after is None else options.sleep_after
    return Upkeep(
        labels=check_labels(options.labels or {}),
        sleep_after=parse_duration(sleep_after, "sleep_after"),
        keep_alive=bool(options.keep_alive),
        stop_after=parse_lasting("stop_after", options.stop_after),
        ttl=parse_lasting("ttl", options.ttl),
    )
