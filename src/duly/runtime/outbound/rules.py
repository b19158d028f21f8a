"""The rules for outbound addresses: public ones, and those that the app allows."""

# Callers without a type checker may pass other types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple

from duly.errors import AddressRefused, InvalidOption
from duly.runtime.outbound.url import Address, Target, parse_url

Network = IPv4Network | IPv6Network

# In addition to those that ipaddress knows not to be global, whose list differs between versions of
# Python.
_NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
]
# Of all IPv6 addresses only these are assigned for public use,
_GIVEN_OUT = IPv6Network("2000::/3")
# except those for special uses, for documentation, and with an embedded IPv4 address: Teredo and
# 6to4.
_NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
]
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether the address is reachable from the public internet."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        # How a machine without IPv4 reaches one that only has IPv4.
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address not in _GIVEN_OUT or any(address in network for network in _NOT_PUBLIC_6):
        return False
    return address.is_global


class _Entry(NamedTuple):
    text: str
    network: Network | None
    host: str | None
    port: int | None

    def permits(self, target: Target, address: Address) -> bool:
        if self.port is not None and self.port != target.port:
            return False
        if self.network is not None:
            return address in self.network
        return self.host == target.host


class Allow:
    """Addresses that may be sent to although they are not public.

    An entry is a network ("10.0.0.0/8"), an address, or a host name. An address or host name may
    have a port ("127.0.0.1:8000", "[::1]:8000", "billing.internal:8443").
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        if isinstance(entries, str):
            raise InvalidOption("allow", "give a list of networks and hosts, not one string")
        self._entries = tuple(map(_entry, entries))

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(entry.text for entry in self._entries)

    def check(self, target: Target, address: Address) -> None:
        """Raise AddressRefused unless the address is public or allowed."""
        if is_public(address) or any(entry.permits(target, address) for entry in self._entries):
            return
        refused = f"{target.host} resolves to {address}, which is not a public address"
        if str(address) == target.host:
            refused = f"{address} is not a public address"
        raise AddressRefused(f"{refused}; app.endpoints.allow can permit it")

    def check_literal(self, target: Target) -> None:
        """Check whatever can be checked without a lookup."""
        if target.address is not None:
            self.check(target, target.address)
        elif target.host == "localhost" or target.host.endswith(".localhost"):
            self.check(target, IPv4Address("127.0.0.1"))


def _entry(text: str) -> _Entry:
    if not isinstance(text, str):
        raise InvalidOption("allow", f"give networks and hosts as text, not {text!r}")
    try:
        return _Entry(text, ip_network(text), None, None)
    except ValueError:
        pass
    try:
        if "/" in text:
            raise AddressRefused(text)
        target = parse_url(f"http://{text}")
    except AddressRefused:
        reason = f"{text!r} is not a network, an address or a host name"
        raise InvalidOption("allow", reason) from None
    port = None if target.port == 80 and not text.endswith(":80") else target.port
    if target.address is None:
        return _Entry(text, None, target.host, port)
    return _Entry(text, ip_network(target.address), None, port)


def read_address(text: str) -> Address:
    """An address as a resolver returns it."""
    try:
        return ip_address(text)
    except ValueError:
        raise AddressRefused(f"{text!r} is not an address") from None
