"""The ways out of this machine: what its operator says of them, and what it is set to, as name servers and a proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from urllib.parse import urlsplit

from atoll.network.control import Upstream
from atoll.network.resolver import read_server
from atoll.protocol.errors import AtollError, ErrorCode, error, shown

RESOLV_CONF = "/etc/resolv.conf"
MAX_SERVERS = 3  # as programs read that file
PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
SCHEMES = ("http", "socks5", "socks5h")


def ways_out(
    resolv_conf: str,
    variables: Mapping[str, str],
    *,
    servers: Iterable[str] = (),
    counted: Iterable[str] = (),
    refused: Iterable[str] = (),
    proxy: str | None = None,
) -> Upstream:
    """The arguments count before what is set; a proxy that is given as nothing is none, whatever the variables say."""
    direct = [text.strip() for text in _first(variables, "no_proxy", "NO_PROXY").split(",") if text.strip()]
    used = _first(variables, *PROXY_VARIABLES) if proxy is None else proxy
    return Upstream(
        name_servers=_servers(servers) or _servers_of(resolv_conf),
        counted=_ranges(counted),
        refused=_ranges(refused),
        proxy=_checked_proxy(used) if used and "*" not in direct else None,
        direct=direct,
    )


def _first(variables: Mapping[str, str], *names: str) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _servers(given: Iterable[str]) -> list[str]:
    for text in given:
        try:
            read_server(text)
        except ValueError as cause:
            raise _wrong(
                text, "is no name server", 'Give its address, such as "10.0.0.53" or "10.0.0.53:5353".'
            ) from cause
    return list(given)


def _servers_of(resolv_conf: str) -> list[str]:
    found = []
    for line in resolv_conf.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            try:
                read_server(words[1])
            except ValueError:  # with a zone, say, which nobody here knows
                continue
            found.append(words[1])
    return found[:MAX_SERVERS]


def _ranges(given: Iterable[str]) -> list[str]:
    for text in given:
        try:
            ip_network(text)
        except ValueError as cause:
            raise _wrong(text, f"is no range of addresses: {cause}", 'Give one such as "10.0.0.0/8".') from cause
    return list(given)


def _checked_proxy(given: str) -> str:
    remedy = 'Give "http://HOST:PORT" or "socks5://HOST:PORT", or "" for none.'
    try:
        parts = urlsplit(given)
        _ = parts.port
    except ValueError as cause:
        raise _wrong(_without_login(given), "is no proxy", remedy) from cause
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise _wrong(_without_login(given), "is no proxy", remedy)
    return given


def _without_login(url: str) -> str:
    return url.rpartition("@")[2]


def _wrong(value: str, what: str, remedy: str) -> AtollError:
    return error(ErrorCode.INVALID_REQUEST, f"{shown(value)} {what}", remedy=remedy, value=shown(value))
