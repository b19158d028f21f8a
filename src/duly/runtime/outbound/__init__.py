"""Outbound requests to addresses from untrusted users, which never reach internal addresses.

A host is looked up once, every answer must be a public address, and the connection goes to an
address that was checked. There are no redirects, no proxies, and one deadline for everything.
"""

from duly.runtime.outbound.client import Answer, Client
from duly.runtime.outbound.rules import Allow
from duly.runtime.outbound.url import Target, parse_url

__all__ = ["Allow", "Answer", "Client", "Target", "parse_url"]
