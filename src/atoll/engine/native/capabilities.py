"""The capabilities root keeps inside its own user namespace: Docker's fourteen but NET_RAW.

They are there so that apt, su and chown work. With NET_RAW a sandbox could make packet and raw sockets, old kernel code
with a long record of holes, and there is nothing to see or send with them: no wire, and no neighbour on the network.
What people want it for is `ping`, which would reach nobody.
"""

from enum import IntEnum

from atoll.engine.native.syscalls import Prctl, prctl, set_capabilities

LAST_CAPABILITY = 40  # CAP_CHECKPOINT_RESTORE, since Linux 5.9; dropping one the kernel lacks is an error


class Capability(IntEnum):
    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    FSETID = 4
    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    NET_BIND_SERVICE = 10
    SYS_CHROOT = 18
    MKNOD = 27
    AUDIT_WRITE = 29
    SETFCAP = 31


MASK = sum(1 << capability for capability in Capability)


def bound() -> None:
    """Let no file and no set-user-id program bring back one of the rest. What we have now stays for the time being.

    A call per capability, some 7 us each.
    """
    for number in range(LAST_CAPABILITY + 1):
        if not MASK >> number & 1:
            prctl(Prctl.CAPBSET_DROP, number)


def drop_the_rest() -> None:
    """For good."""
    prctl(Prctl.SET_NO_NEW_PRIVS, 1)
    set_capabilities(MASK)
