"""Whatever tests, torture and benchmarks run connects to this machine only.

`only()` guards the process. Its folder goes first into PYTHONPATH, so the Python processes that it
starts import this file as `sitecustomize` and are guarded too. What is refused is also written into
a file: a run fails even if the code under test makes nothing of the error.

libpq is no Python code and is not seen; the PostgreSQL of the tests listens to nobody elsewhere.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # every process that is started waits for what is imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = "LOOPBACK_REFUSED"
# What each event says of where it goes, as one argument: an address, or a name to look up.
PLACE = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
}
SENDS_NOTHING_FOR_NUMBERS = ("socket.getaddrinfo", "socket.gethostbyname")


class Refused(Exception):
    """A test must not connect to anything but this machine."""


def only() -> None:
    """Guard this process, for as long as it lives, and those it starts."""
    import tempfile

    file, os.environ[RECORD] = tempfile.mkstemp(prefix="loopback-refused-")
    os.close(file)
    paths = [HERE, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.path.insert(0, HERE)
    guard()


def refused() -> list[str]:
    """What was refused since `only`, in all of these processes; asked once, at the end."""
    name = os.environ.pop(RECORD)
    with open(name) as record:
        lines = record.read().splitlines()
    os.unlink(name)
    return lines


def run(main: Callable[[], int]) -> int:
    """The exit code of a program, guarded; 1 if it succeeds though something was refused."""
    only()
    code = main()
    lines = refused()
    for line in lines:
        sys.stderr.write(f"refused: {line}\n")
    return code or min(1, len(lines))


def guard() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    place = PLACE.get(event)
    if place is None or _is_here(event, args[place]):
        return
    told = f"{event} {args[place]!r} in {os.environ.get('PYTEST_CURRENT_TEST', sys.argv[0])}"
    if name := os.environ.get(RECORD):
        record = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.write(record, f"{told}\n".encode())
        os.close(record)
    raise Refused(told)


def _is_here(event: str, place: Any) -> bool:
    if isinstance(place, tuple):
        place = place[0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        return True  # a file, or the address of a socket that is connected already
    if isinstance(place, bytes):
        place = place.decode("ascii", "replace")
    if not isinstance(place, str):
        return True  # this machine's kernel, or the machine itself
    # The machine's own name is looked up by whatever makes an id for a message.
    return place in ("", "localhost", os.uname().nodename) or _is_here_by_number(event, place)


def _is_here_by_number(event: str, place: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(place.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    # Unspecified is where servers listen, and to connect there is to connect to this machine.
    here = address.is_loopback or address.is_unspecified
    return here or event in SENDS_NOTHING_FOR_NUMBERS


def _import_what_this_hides() -> None:
    """The `sitecustomize` that this one stands in front of, if there is one."""
    this, paths = sys.modules.pop("sitecustomize"), sys.path[:]
    sys.path[:] = [path for path in paths if os.path.abspath(path) != HERE]
    try:
        __import__("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = this
    finally:
        sys.path[:] = paths


if __name__ == "sitecustomize":
    guard()
    _import_what_this_hides()
