"""The catalog: every attack there is."""

from __future__ import annotations

from atoll.attacks import files, neighbours, network, processes, resources, system_calls
from atoll.attacks.record import Attack

ATTACKS: tuple[Attack, ...] = (
    *system_calls.ATTACKS,
    *files.ATTACKS,
    *processes.ATTACKS,
    *neighbours.ATTACKS,
    *resources.ATTACKS,
    *network.ATTACKS,
)
