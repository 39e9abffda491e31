"""Who gives way to whom among connections that have sent no whole head."""

from __future__ import annotations

import pytest

from atoll.server.strangers import (
    JUST_COME_SECONDS,
    LITTLE_PATIENCE_SECONDS,
    MANY,
    MAX_PER_ADDRESS,
    PATIENCE_SECONDS,
    Strangers,
    group_of,
)


class Connection:
    has_given_way = False

    def give_way(self) -> None:
        self.has_given_way = True


def arrive(strangers: Strangers, number: int, address: str, now: float) -> list[Connection]:
    connections = [Connection() for _ in range(number)]
    for connection in connections:
        strangers.add(connection, address, now)
    return connections


def test_an_address_keeps_so_many_and_the_oldest_make_room() -> None:
    strangers = Strangers()
    first = arrive(strangers, MAX_PER_ADDRESS, "192.0.2.1", 0)
    others = arrive(strangers, MAX_PER_ADDRESS, "192.0.2.2", 0)
    arrive(strangers, 3, "192.0.2.1", JUST_COME_SECONDS)
    assert [connection.has_given_way for connection in first[:4]] == [True, True, True, False]
    assert not any(connection.has_given_way for connection in others)
    assert len(strangers) == 2 * MAX_PER_ADDRESS


def test_many_that_begin_at_once_are_given_a_moment() -> None:
    strangers = Strangers()
    burst = arrive(strangers, 10 * MAX_PER_ADDRESS, "192.0.2.1", 0)
    assert not any(connection.has_given_way for connection in burst)
    arrive(strangers, 1, "192.0.2.1", JUST_COME_SECONDS)
    assert sum(connection.has_given_way for connection in burst) == 9 * MAX_PER_ADDRESS + 1


def test_when_all_is_full_the_oldest_makes_room_for_whoever_comes() -> None:
    strangers = Strangers()
    (oldest,) = arrive(strangers, 1, "192.0.2.1", 0)
    (newcomer,) = arrive(strangers, 1, "192.0.2.2", 0)
    assert strangers.make_room(newcomer)
    assert (oldest.has_given_way, newcomer.has_given_way) == (True, False)
    assert not strangers.make_room(newcomer)


def test_patience_is_shorter_when_there_are_many() -> None:
    strangers = Strangers()
    assert strangers.patience == PATIENCE_SECONDS
    connections = arrive(strangers, MANY, "192.0.2.1", 0)
    assert strangers.patience == LITTLE_PATIENCE_SECONDS
    for connection in (*connections, *connections):
        strangers.discard(connection)
    assert len(strangers) == 0
    assert strangers.patience == PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:a:b:c:d", "2001:0db8:0000:0001"),
        ("2001:db8:0:1::2", "2001:0db8:0000:0001"),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_network_that_one_client_has_is_one_address(address: str, group: str) -> None:
    assert group_of(address) == group
