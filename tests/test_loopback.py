"""Nothing that is run here connects to another machine. Only the audit event is raised: none of
these tests sends anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.support import PATIENCE
from tests.loopback import sitecustomize as loopback

TOP = Path(__file__).parent.parent

STRAYS = """
import contextlib, subprocess, sys, threading

def stray(event, *args):
    # The code under test may make nothing of what it is told.
    with contextlib.suppress(Exception):
        sys.audit(event, *args)
        print("let through")

def test_here(capsys):
    stray("socket.connect", None, ("192.0.2.1", 80))
    stray("socket.getaddrinfo", "example.com", 80, 0, 0, 0)
    assert capsys.readouterr().out == ""

def test_in_a_thread(capsys):
    thread = threading.Thread(target=stray, args=("socket.sendto", None, ("2001:db8::1", 53)))
    thread.start()
    thread.join()
    assert capsys.readouterr().out == ""

def test_in_a_child():
    code = "import sys; sys.audit('socket.connect', None, ('192.0.2.2', 80))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Refused: socket.connect ('192.0.2.2', 80) in " in child.stderr
"""


def test_what_connects_to_another_machine_fails_the_run(tmp_path: Path):
    (tmp_path / "test_strays.py").write_text(STRAYS)
    command = ["-m", "pytest", "-p", "tests.conftest", "-n", "1", "-q", "--rootdir", str(TOP)]
    ran = run(*command, "-c", str(TOP / "pyproject.toml"), str(tmp_path / "test_strays.py"))
    assert "3 passed" in ran.stdout
    assert ran.returncode == 1
    told = ran.stdout.partition("only connections to this machine are allowed")[2]
    for stray in (
        "socket.connect ('192.0.2.1', 80) in ",
        "socket.getaddrinfo 'example.com' in ",
        "socket.sendto ('2001:db8::1', 53) in ",
        "socket.connect ('192.0.2.2', 80) in ",
    ):
        assert stray in told, ran.stdout


@pytest.mark.parametrize(
    ("address", "code"), [("'127.0.0.1', 80", 0), ("'192.0.2.1', 80", 1)], ids=["here", "elsewhere"]
)
def test_what_connects_to_another_machine_fails_a_program(address: str, code: int):
    program = f"""
import subprocess, sys
from tests.loopback import sitecustomize as loopback

def main():
    stray = "import sys; sys.audit('socket.connect', None, ({address}))"
    subprocess.run([sys.executable, "-c", stray])
    return 0

sys.exit(loopback.run(main))
"""
    assert run("-c", program).returncode == code


@pytest.mark.parametrize("program", ["bench/run.py", "torture/run.py"])
def test_a_program_is_guarded(program: str):
    """Looked at while it reads its arguments."""
    look = f"""
import argparse, runpy, sys

def stray(*_):
    sys.audit("socket.connect", None, ("192.0.2.1", 80))

argparse.ArgumentParser.parse_args = stray
runpy.run_path({program!r}, run_name="__main__")
"""
    ran = run("-c", look)
    assert "Refused: socket.connect ('192.0.2.1', 80) in " in ran.stderr.splitlines()[-1]


def test_a_sitecustomize_that_was_there_before_is_still_imported(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    paths = os.pathsep.join([loopback.HERE, str(tmp_path)])
    ran = run("-c", "print('program')", PYTHONPATH=paths)
    assert ran.stdout == "mine\nprogram\n"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TOP,
        env=os.environ | {"PYTHONPATH": ""} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("event", "place"),
    [
        ("socket.connect", ("127.0.0.1", 80)),
        ("socket.connect", ("127.8.9.10", 80)),
        ("socket.connect", ("::1", 80, 0, 0)),
        ("socket.connect", ("::ffff:127.0.0.1", 80, 0, 0)),
        ("socket.connect", ("0.0.0.0", 80)),
        ("socket.connect", ("localhost", 80)),
        ("socket.connect", "/run/some.socket"),
        ("socket.connect", b"\0abstract"),
        ("socket.connect", (0, 0)),  # netlink
        ("socket.sendmsg", None),
        ("socket.getaddrinfo", None),
        ("socket.getaddrinfo", b"localhost"),
        ("socket.getaddrinfo", "192.0.2.1"),  # a number is looked up nowhere
    ],
)
def test_this_machine_may_be_reached(event: str, place: object):
    assert loopback._is_here(event, place)


@pytest.mark.parametrize(
    ("event", "place"),
    [
        ("socket.connect", ("192.0.2.1", 80)),
        ("socket.connect", ("10.0.0.1", 80)),
        ("socket.connect", ("169.254.169.254", 80)),
        ("socket.connect", ("2001:db8::1", 80, 0, 0)),
        ("socket.connect", ("fe80::1%eth0", 80, 0, 2)),
        ("socket.connect", ("example.com", 80)),
        ("socket.sendto", ("192.0.2.1", 53)),
        ("socket.sendmsg", ("192.0.2.1", 53)),
        ("socket.getaddrinfo", "example.com"),
        ("socket.getaddrinfo", b"example.com"),
        ("socket.gethostbyname", "localhost.example.com"),
        ("socket.gethostbyaddr", "192.0.2.1"),
        ("socket.getnameinfo", ("192.0.2.1", 80)),
    ],
)
def test_another_machine_may_not(event: str, place: object):
    assert not loopback._is_here(event, place)
