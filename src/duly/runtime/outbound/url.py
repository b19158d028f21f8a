"""Splits a URL into host, port and path, and refuses anything ambiguous."""

# Callers without a type checker may pass other types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

from duly.errors import AddressRefused

Address = IPv4Address | IPv6Address

MAX_URL = 2_000
MAX_HOST = 253
PORTS = {"http": 80, "https": 443}

_FORM = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]\[]*\]|[^/?#:\[\]@\\%]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Names that some resolvers read as a number: 2130706433, 0x7f000001, 017700000001.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Target(NamedTuple):
    """The host, port and path of a URL, before any lookup."""

    scheme: str
    host: str
    """ASCII, lowercase; an IPv6 address without its brackets."""
    port: int
    path: str
    """With the query string."""
    address: Address | None
    """Set if the host is an IP address."""

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> Target:
    """Split a URL. Raises AddressRefused if it is not plainly an HTTP address."""
    if not isinstance(url, str):
        raise AddressRefused(f"give an address, not {url!r}")
    if len(url) > MAX_URL:
        raise AddressRefused(f"give an address of at most {MAX_URL:,} characters")
    # Not even around it: some readers strip it, others send it.
    if any(letter.isspace() or not letter.isprintable() for letter in url):
        raise AddressRefused("the address has a space or a control character in it")
    found = _FORM.fullmatch(url)
    if found is None:
        raise AddressRefused(
            "give an address such as https://host/path, without user, password or fragment"
        )
    scheme = found["scheme"].lower()
    host, address = _host(found["host"])
    path = (found["path"] or "/") + (found["query"] or "")
    if not path.isascii() or "\\" in path:
        raise AddressRefused("the path must be in ASCII, with anything else percent-encoded")
    return Target(scheme, host, _port(found["port"], scheme), path, address)


def _port(text: str | None, scheme: str) -> int:
    port = PORTS[scheme] if text is None else int(text)
    if not 1 <= port <= 65_535:
        raise AddressRefused(f"{port} is not a valid port")
    return port


def _host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        address = _ipv6(text[1:-1])
        return str(address), address
    host = to_ascii(text)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        if not text.isascii():
            raise AddressRefused(f"{text!r} is an address with non-ASCII digits")
        return host, _ipv4(host)
    return host, None


def to_ascii(host: str) -> str:
    """A host name as it is looked up."""
    name = host.lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise AddressRefused(f"{host!r} is not a valid host name") from None
    labels = name.split(".")
    if len(name) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressRefused(f"{host!r} is not a valid host name")
    return name


def _ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise AddressRefused(f"write {text!r} as four decimal numbers, such as 192.0.2.1") from None


def _ipv6(text: str) -> IPv6Address:
    try:
        # A zone would choose the network interface of this machine.
        if "%" in text or not text.isascii():
            raise AddressValueError(text)
        return IPv6Address(text)
    except AddressValueError:
        raise AddressRefused(f"{text!r} is not an IPv6 address without a zone") from None
