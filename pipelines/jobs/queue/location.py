"""Location of the queue: a file of this user, or a PostgreSQL server for several machines."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ....io.files.own_files import folder_of_user, is_trusted_owner
from ....io.links import first_link, resolutions
from ...errors import QueueError

VARIABLE = "CUDA_CYCLEGAN_QUEUE"
_KEEPALIVE = (
    "connect_timeout=5",
    "keepalives_idle=10",
    "keepalives_interval=5",
    "keepalives_count=3",
    "tcp_user_timeout=25000",
)
"""Options by which a connection detects within 30 s that the server's host is gone."""

_URL = re.compile(
    r"postgres(?:ql)?://"
    r"(?:(?P<user>[^:/?@]*)(?::(?P<password>[^/?@]*))?@)?"
    r"(?P<host>\[[^][/?@]+\]|[^][:/?@]*)(?::(?P<port>[0-9]+))?"
    r"/(?P<database>[^/?@]+)(?:\?(?P<query>[^?@]*))?"
)
"""Accepted URLs, fewer than libpq accepts: with a stray `/`, `?` or `@` in a password, a piece of
it could be shown as the server.
"""

_SECRETS = ("password", "sslpassword")
"""Options of libpq that are passwords."""

_ADDRESS = re.compile(
    r"://|^(?!/[^/]|\.).*(:.*@|\b(password|host|hostaddr|dbname|user|service)\s*=)",
    re.IGNORECASE | re.DOTALL,
)
"""Pattern of texts that are meant as a server's address, not as a file."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Address of a queue; file: of an embedded queue, None for a server.

    url: as libpq accepts it. It may contain a password: show `str(place)` instead.
    """

    url: str = field(repr=False)
    file: Path | None

    def __str__(self) -> str:
        return str(self.file) if self.file else _shown(self.url)


def queue_place(asked: str | None) -> QueuePlace:
    """Return the requested queue, else that of the environment, else this user's own.

    Raises QueueError for an address of another kind.
    """
    text = asked or os.environ.get(VARIABLE) or str(own_folder() / "queue.db")
    if _is_url(text):
        return QueuePlace(_alive(re.sub("^postgres(ql)?:", "postgresql:", text)), None)
    if _ADDRESS.search(text):
        raise QueueError(
            "The queue's address is neither a file nor a valid "
            "postgresql://USER@HOST:PORT/DATABASE (it is not shown, as it may hold a password); "
            "keep the password in ~/.pgpass, or write %, :, /, ? and @ in it as %25, %3A, %2F, "
            "%3F and %40."
        )
    file = Path(os.path.abspath(text))  # noqa: PTH100
    return QueuePlace(f"sqlite:///{file}", file)


def has_password(asked: str) -> bool:
    """Return whether a server's address holds a password; also without psycopg."""
    parts = _URL.fullmatch(asked)
    if parts is None:
        return False
    options = (unquote(option.partition("=")[0]) for option in (parts["query"] or "").split("&"))
    return bool(parts["password"]) or not {*options}.isdisjoint(_SECRETS)


def _is_url(text: str) -> bool:
    """Return whether this program and libpq both accept the URL. Raises QueueError."""
    if not _URL.fullmatch(text) or not text.isprintable():
        return False
    driver = postgres_driver()
    try:
        driver.conninfo.conninfo_to_dict(text)
    except (driver.ProgrammingError, UnicodeError):  # which may quote it
        return False
    return True


def postgres_driver() -> Any:
    """Return psycopg. Raises QueueError if it, or the library that it needs, is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise QueueError(
            "A queue on PostgreSQL needs psycopg, which is not installed; run pip install "
            "'cuda-cyclegan[postgres]', or give a file with setting queue."
        ) from error
    return psycopg


def _alive(url: str) -> str:
    address, _, options = url.partition("?")
    missing = [option for option in _KEEPALIVE if option.partition("=")[0] not in options]
    return f"{address}?{'&'.join([*([options] if options else []), *missing])}"


def _shown(url: str) -> str:
    """Return the URL without password and options."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return "on a server"
    user, password = parts["user"], parts["password"]
    named = f"{user or ''}{':***' if password is not None else ''}"
    port = f":{parts['port']}" if parts["port"] else ""
    return f"postgresql://{named and f'{named}@'}{parts['host']}{port}/{parts['database']}"


def check_private(file: Path) -> None:
    """Raise QueueError if other users could change the queue, and with it what workers do."""
    folders = [(folder, "folder") for folder in _folders_on_path(file)]
    for path, what in (*folders, (file, "file")):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if what == "file" and not stat.S_ISREG(status.st_mode):
            raise QueueError(f"The queue {path} is not a file; give one with setting queue.")
        if not is_trusted_owner(status):
            raise QueueError(f"The queue's {what} {path} belongs to another user; choose another.")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise QueueError(
                f"Other users can write to the queue's {what} {path}, so they could run work as "
                "you; remove that permission (chmod go-w) or choose another location; several "
                "users need a PostgreSQL server."
            )


def _folders_on_path(file: Path) -> Iterator[Path]:
    """Yield the folders whose writers control a path, including those of links on the way."""
    for place in resolutions(file):
        yield (first_link(place) or place).parent


def make_private(file: Path) -> None:
    """Create an empty queue file, and its folder, for this user alone. Raises QueueError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(file)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise QueueError(
            f"The queue {file} cannot be created or written ({error.strerror}); give this user "
            "write access, or choose another with setting queue."
        ) from error


def own_folder() -> Path:
    """Return the folder for this user's state. Raises QueueError."""
    from platformdirs import user_state_path

    folder = folder_of_user(user_state_path)
    if folder is None:
        raise QueueError(
            "This user has no home folder to keep a queue or the names of workers in; set HOME, "
            "or give a file with setting queue."
        )
    return folder
