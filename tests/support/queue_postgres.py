"""A PostgreSQL server of Debian's package on loopback, with a data folder of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from support.ports import reserved_port
from support.processes import descendants, runs
from support.waiting import ENOUGH, eventually


@dataclass(frozen=True)
class Server:
    folder: Path
    address: str
    port: int

    @property
    def url(self) -> str:
        """Return the URL of its queue; connections have the patience of a test."""
        where = f"{self.address}:{self.port}"
        return f"postgresql://worker@{where}/jobs?connect_timeout={ENOUGH:.0f}"

    @property
    def _login(self) -> dict[str, Any]:
        return {"host": self.address, "port": self.port, "user": "worker"}

    def start(self) -> None:
        self._start("data", self.port)

    def _start(self, data: str, port: int) -> None:
        options = (
            f"-p {port} -c listen_addresses={self.address} -c fsync=off -c unix_socket_directories="
        )
        log = self.folder / "log"
        try:
            _control(self.folder / data, "-l", str(log), "-o", options, "start")
        except subprocess.CalledProcessError as error:
            error.add_note(log.read_text()[-4000:])
            raise

    def restore(self, dump: str) -> None:
        """Make the database from what pg_dump wrote as INSERT statements."""
        with psycopg.connect(dbname="postgres", **self._login) as connection:
            connection.autocommit = True
            connection.execute("CREATE DATABASE jobs")
        with psycopg.connect(dbname="jobs", **self._login) as connection:
            connection.execute(dump.encode())

    def let_write(self, database: str, *, may: bool) -> None:
        """Let who connects to a database from now on write, or end all and let them only read."""
        with psycopg.connect(dbname="postgres", autocommit=True, **self._login) as connection:
            setting = "default_transaction_read_only"
            value = f"RESET {setting}" if may else f"SET {setting} = on"
            connection.execute(f'ALTER DATABASE "{database}" {value}'.encode())
            if not may:
                end = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(end, [database])

    def stop(self, mode: str = "fast") -> None:
        _control(self.folder / "data", "-m", mode, "stop")

    def add_standby(self) -> None:
        """Start a second server, which has each transaction before it counts as committed."""
        where = ("-h", self.address, "-p", str(self.port), "-U", "worker")
        standby = str(self.folder / "standby")
        _run("pg_basebackup", "-D", standby, *where, "-R", "--checkpoint=fast", "--no-sync")
        with reserved_port(self.address) as port:
            self._start("standby", port)
        with psycopg.connect(dbname="postgres", autocommit=True, **self._login) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")

    def fail_over(self, seconds: float) -> None:
        """Kill the server, and have the standby take its place: first read-only, so many seconds
        later promoted.
        """
        self.kill()
        data, standby = self.folder / "data", self.folder / "standby"
        _control(standby, "-m", "fast", "stop")
        shutil.rmtree(data)
        standby.rename(data)
        self.start()
        time.sleep(seconds)
        _control(data, "promote")

    def kill(self) -> None:
        """Kill all of its processes, so that `start` finds what a crash leaves."""
        lock = self.folder / "data" / "postmaster.pid"
        first = int(lock.read_text().split()[0])
        os.kill(first, signal.SIGSTOP)  # so that it makes no more of them
        killed = [first, *descendants(first)]
        for process in killed:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        eventually(lambda: not any(map(runs, killed)))
        lock.unlink()  # it would be taken for alive where nobody waits for dead orphans


@contextmanager
def server(address: str = "127.0.0.1") -> Generator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="queue-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, _account())
    flags = ("--no-sync", "--no-locale", "--encoding=UTF8")
    _run("initdb", "-D", str(folder / "data"), "-U", "worker", "-A", "trust", *flags)
    with (folder / "data" / "pg_hba.conf").open("a") as rights:
        rights.write(f"host all all {address}/24 trust\n")
    with reserved_port(address) as port:
        found = Server(folder, address, port)
        found.start()
        try:
            yield found
        finally:
            with suppress(subprocess.CalledProcessError):  # a test that failed had stopped it
                found.stop("immediate")
            shutil.rmtree(folder)


def is_installed() -> bool:
    return _program("initdb") is not None


def _program(name: str) -> str | None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(debian[-1]) if debian else None)


def _account() -> str:
    """PostgreSQL refuses to run as root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _control(data: Path, *arguments: str) -> None:
    """Start, stop or promote the server of a folder; by itself it waits no longer than a minute."""
    _run("pg_ctl", "-D", str(data), "-w", "-t", f"{ENOUGH:.0f}", *arguments)


def _run(name: str, *arguments: str) -> None:
    command = [_program(name) or name, *arguments]
    account = _account() if os.getuid() == 0 else None
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", user=account)
