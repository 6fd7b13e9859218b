"""Which addresses are the public Internet, and which are somebody's inside.

Everything is decided on numbers, from the IANA special-purpose registries, and on the address as it
would really be reached: IPv4 addresses embedded in IPv6 ones (mapped, 6to4, NAT64, ISATAP) count as
themselves. The tables are our own: those of the standard library differ between Python versions.
"""

from __future__ import annotations

from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final

import can_ada

_V4_NOT_PUBLIC: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers (CGNAT); clouds put metadata here too
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's metadata in a public range
        "169.254.0.0/16",  # link-local, most metadata services
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, a cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4, withdrawn
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_V6_PUBLIC: Final = IPv6Network("2000::/3")
_V6_NOT_PUBLIC: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_ISATAP_MARKS: Final = (0x0000_5EFE, 0x0200_5EFE)


def is_public(ip: str) -> bool:
    """Tell whether ``ip`` (an IP literal, a zone allowed) may be connected to by default.

    What cannot be read as an address is not public.
    """
    try:
        address = ip_address(ip.partition("%")[0])
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, IPv4Address) else _is_public_v6(address)


def is_address(name: str) -> bool:
    """Tell whether a host's name is an address itself; brackets are none of it."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def reached_by(ip: str) -> str:
    """Return the one name of the address that ``ip`` (an IP literal) leads to.

    IPv4 addresses embedded in IPv6 ones (mapped, NAT64) are themselves.
    """
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        return str(IPv4Address(int(address) & 0xFFFF_FFFF))
    return str(address)


def literal_private(url: str) -> bool:
    """Tell whether the URL itself names something not public: an address literal, or localhost.

    Any way of writing an address that the URL Standard reads as one counts (``0x7f.1``). A URL that
    cannot be parsed names nothing.
    """
    try:
        host: str = can_ada.parse(url).hostname
    except (ValueError, TypeError):
        return False
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        literal = IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(host)
    except AddressValueError:
        return False
    return not is_public(str(literal))


def _is_public_v4(address: IPv4Address) -> bool:
    return not any(address in network for network in _V4_NOT_PUBLIC)


def _is_public_v6(address: IPv6Address) -> bool:
    number = int(address)
    if address in _MAPPED or address in _NAT64:
        return _is_public_v4(IPv4Address(number & 0xFFFF_FFFF))
    if address not in _V6_PUBLIC or any(address in network for network in _V6_NOT_PUBLIC):
        return False
    if address in _SIX_TO_FOUR and not _is_public_v4(IPv4Address(number >> 80 & 0xFFFF_FFFF)):
        return False
    is_isatap = number >> 32 & 0xFFFF_FFFF in _ISATAP_MARKS
    return not is_isatap or _is_public_v4(IPv4Address(number & 0xFFFF_FFFF))
