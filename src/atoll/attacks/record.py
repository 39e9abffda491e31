"""An attack as a record: everything that is needed to run it and to judge how it went.

A payload is Python, run by the image's python3, as root, with nothing but the standard library. It prints one verdict:
a line that begins with BREACH if it got through, or with HELD if it did not. Without either it is broken, and proves
nothing. An attack on resources says its verdict as soon as it knows, and goes on until it is ended.

No payload needs more than it takes to prove the point: none writes to the host, and each stops by itself before it
could hurt a machine on which the defence is missing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from atoll.protocol.limits import Limits

BREACH, HELD, READY = "BREACH", "HELD", "READY"


class Family(StrEnum):
    SYSTEM_CALLS = "system calls"
    FILES = "files"
    PROCESSES = "processes"
    NEIGHBOURS = "neighbours"
    RESOURCES = "resources"
    NETWORK = "network"


class Defence(StrEnum):
    """The defences, a layer each. A value is the name of its switch."""

    FILTER = "filter"  # seccomp
    CAPABILITIES = "capabilities"
    NO_NEW_PRIVILEGES = "no-new-privileges"
    NO_SET_USER_ID = "no-set-user-id"  # nosuid
    USER_NAMESPACE = "user-namespace"
    PID_NAMESPACE = "pid-namespace"
    NETWORK_NAMESPACE = "network-namespace"
    IPC_NAMESPACE = "ipc-namespace"
    UID_RANGE = "uid-range"  # no two sandboxes have a user id in common
    NAMESPACE_OWNER = "namespace-owner"  # what the kernel counts by user, it counts for each sandbox
    OLD_ROOT_DETACHED = "old-root-detached"
    SMALL_ROOT = "small-root"  # that old root is the nursery's, and not the host's
    HIDDEN_PATHS = "hidden-paths"  # and what is shown in their place
    OWN_CLOCKS = "own-clocks"
    READ_ONLY_PATHS = "read-only-paths"
    NO_DEVICES = "no-devices"  # nodev
    OWN_DEV = "own-dev"  # a /dev for each
    AGENT_UNDUMPABLE = "agent-undumpable"
    AGENT_IDS = "agent-ids"  # the agent's third user id is not root's
    AGENT_ID_UNUSED = "agent-id-unused"  # nor any account's
    AGENT_SOCKET_OUTSIDE = "agent-socket-outside"
    SPAWN_GUARD = "spawn-guard"  # the agent waits for no exec that somebody holds up
    BACK_PRESSURE = "back-pressure"
    OOM_ORDER = "oom-order"  # commands are killed before the agent
    COMMANDS_GROUP = "commands-group"  # the memory that commands fill is not the agent's
    PIDS_LIMIT = "pids-limit"
    MEMORY_LIMIT = "memory-limit"
    SOCKET_LIMIT = "socket-limit"  # what waits in sockets is memory too
    HOARD_WATCH = "hoard-watch"  # and also where the kernel counts it for nobody
    CPU_LIMIT = "cpu-limit"
    NO_PING = "no-ping"  # nobody has sockets for it
    PTY_LIMIT = "pty-limit"
    FILE_MAX = "file-max"  # of open files the machine allows more than fit into any sandbox's memory
    DISK_QUOTA = "disk-quota"
    # The gateway's
    PUBLIC_ONLY = "public-only"  # an address that is not public is reached by no rule without one
    OWN_ADDRESSES = "own-addresses"  # nor one of the host's by any
    ONE_LOOKUP = "one-lookup"  # what was judged is what is connected to
    SERVER_NAME = "server-name"  # over TLS the same name is asked for
    PORTS = "ports"
    OWN_ANSWERS = "own-answers"  # no question of DNS leaves the machine before somebody connects


class Evidence(StrEnum):
    """By what one knows that an attack succeeded."""

    VERDICT = "the payload, or its witness, says BREACH"
    AGENT_LOST = "the sandbox's agent hangs up"
    LIVES_ON = "the payload, which has said READY, lives to say BREACH"


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """An attack. Each of its `defences` is enough to stop it; with all of them off, it succeeds.

    A `witness` runs in the same sandbox, beside a payload that cannot speak for itself, and gives the verdict.
    A `victim` runs in a neighbour: it says READY, and ends with its standard input.
    A `bait` is a program that the host runs in the sandbox when the payload has said READY.
    """

    name: str
    family: Family
    defences: tuple[Defence, ...]
    payload: str
    evidence: Evidence = Evidence.VERDICT
    witness: str | None = None
    victim: str | None = None
    bait: str | None = None
    limits: Limits = Limits()
