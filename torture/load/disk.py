"""A small disk for one database, which can be filled and emptied while the database is in use.

It is a file system in memory, so this needs permission to mount one.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.postgres import temporary_postgres

SIZE = 48 << 20
BLOCK = 1 << 16


class Disk:
    """A separate mounted file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no byte free for other files."""
        with open(self._ballast, "wb", buffering=0) as ballast:
            size = BLOCK
            while size:
                try:
                    ballast.write(b"x" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def empty(self) -> None:
        self._ballast.unlink()


def can_mount() -> bool:
    try:
        with small_disk():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def small_disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="duly-disk-") as folder:
        os.chmod(folder, 0o711)  # PostgreSQL may run as another user
        options = f"size={SIZE},mode=711"
        mount = ["mount", "-t", "tmpfs", "-o", options, "none", folder]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            yield Disk(Path(folder))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True, capture_output=True)


@contextmanager
def database_on(store: str, disk: Disk) -> Iterator[str]:
    """A database whose files are on the disk. On PostgreSQL its log and other databases are not."""
    if store == "sqlite":
        yield f"sqlite:///{disk.path}/duly.db"
        return
    with temporary_postgres() as server:
        name, space = f"test_{uuid4().hex[:16]}", disk.path / "space"
        space.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(space, nobody.pw_uid, nobody.pw_gid)
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE {name} LOCATION '{space}'".encode())
            connection.execute(f"CREATE DATABASE {name} TABLESPACE {name}".encode())
        yield f"{server.rpartition('/')[0]}/{name}"
