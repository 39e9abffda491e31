"""The watch over sockets: what tables and numbers of the kernel come to, and who is one too many."""

from __future__ import annotations

import os
import socket
import struct

from atoll.engine.native.hoards import (
    OWNED,
    datagram_bytes,
    held_uncounted,
    hoarders,
    netlink_bytes,
    owned_by_nobody,
    parse_meminfo,
)

MIB = 2**20
NETLINK = b"""\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
000000001393f78a 0   0          00000000 0        0        0     2        0        4
000000004c0efaa0 0   570        00000000 212992   0        0     2        0        570
00000000aa0efaa0 0   571        00000000 2304     0        0     2        0        571
"""
UDP = b"""\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  314: 0100007F:A2F1 0100007F:0009 01 00010A00:00000100 00:00000000 00000000     0        0 9 2 00000000aa 0
"""


def test_what_waits_is_added_up() -> None:
    assert netlink_bytes(NETLINK) == 212_992 + 2304
    assert datagram_bytes(UDP, with_received=False) == 0x10A00
    assert datagram_bytes(UDP, with_received=True) == 0x10A00 + 0x100


def test_memory_of_programs_and_files_is_somebodys() -> None:
    meminfo = (
        b"MemTotal: 1000 kB\nMemFree: 300 kB\nCached: 200 kB\nAnonPages: 100 kB\nSUnreclaim: 90 kB\nHugePages_Free: 0\n"
    )
    assert parse_meminfo(meminfo) == 400 * 1024
    assert len(set(OWNED)) == len(OWNED)
    assert 0 < owned_by_nobody() < os.sysconf("SC_PHYS_PAGES") * 4096


def test_what_waits_in_this_process_is_found() -> None:
    """Of all sorts that the kernel counts for nobody."""
    before = held_uncounted(os.getpid())
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asker,
        socket.socket(type=socket.SOCK_DGRAM) as sender,
    ):
        asker.send(struct.pack("IHHIIBBHiII", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0))
        sender.connect(("127.0.0.1", 9))
        sender.send(b"x" * 60_000, socket.MSG_MORE)
        assert held_uncounted(os.getpid()) > before + 60_000


def test_one_who_holds_twice_what_it_may_is_a_hoarder() -> None:
    most = {"large": 100 * MIB, "small": 16 * MIB}
    held = {"large": 190 * MIB, "small": 31 * MIB}
    assert hoarders(held, most.__getitem__, 1000 * MIB) == []
    assert hoarders(held | {"small": 33 * MIB}, most.__getitem__, 1000 * MIB) == ["small"]
    assert hoarders({"large": 201 * MIB, "small": 33 * MIB}, most.__getitem__, 1000 * MIB) == ["large", "small"]


def test_of_many_who_hold_too_much_together_it_is_the_one_that_holds_most() -> None:
    held = {"one": 50 * MIB, "most": 60 * MIB, "other": 50 * MIB}
    assert hoarders(held, lambda name: 40 * MIB, 171 * MIB) == []
    assert hoarders(held, lambda name: 40 * MIB, 170 * MIB) == ["most"]


def test_limits_are_asked_for_only_where_much_is_held() -> None:
    nobody: dict[str, int] = {}
    assert hoarders({"idle": 0, "busy": 16 * MIB}, nobody.__getitem__, 1000 * MIB) == []
