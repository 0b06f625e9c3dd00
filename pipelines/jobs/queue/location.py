"""Where the queue is: a file of this user on this machine, or a PostgreSQL server for several."""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ...errors import QueueError

VARIABLE = "CUDA_CYCLEGAN_QUEUE"
_URL = re.compile(r"postgres(ql)?://.+")
_KEEPALIVE = (
    "connect_timeout=5",
    "keepalives_idle=10",
    "keepalives_interval=5",
    "keepalives_count=3",
    "tcp_user_timeout=25000",
)
"""By these a connection notices within half a minute that the server's host is gone."""

_PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A queue's address; file: of an embedded queue, None for a server.

    url: as SQLAlchemy takes it. It may hold a password: show `str(place)` instead.
    """

    url: str
    file: Path | None

    def __str__(self) -> str:
        return str(self.file) if self.file else _shown(self.url)


def queue_place(asked: str | None) -> QueuePlace:
    """The place that was asked for, or that the environment names, or else this user's own.

    Raises QueueError for an address of another kind.
    """
    text = asked or os.environ.get(VARIABLE) or str(own_folder() / "queue.db")
    if _URL.fullmatch(text):
        return QueuePlace(_alive(re.sub("^postgres(ql)?:", "postgresql:", text)), None)
    if "://" in text:
        raise QueueError(
            f"{_shown(text)} is no place for a queue; give a file, or "
            "postgresql://USER@HOST/DATABASE."
        )
    file = Path(os.path.abspath(text))  # noqa: PTH100
    return QueuePlace(f"sqlite:///{file}", file)


def _alive(url: str) -> str:
    missing = [option for option in _KEEPALIVE if option.partition("=")[0] not in url]
    return "&".join([url if "?" in url else f"{url}?", *missing]).replace("?&", "?")


def _shown(url: str) -> str:
    return _PASSWORD.sub("***", url.partition("?")[0])


def check_private(file: Path) -> None:
    """Raise QueueError if other users could change the queue, and with it what workers do."""
    folder = file.parent
    for path, what in ((folder, "folder"), (file, "file")):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if status.st_uid not in (os.getuid(), 0):
            raise QueueError(f"The queue's {what} {path} belongs to another user; choose another.")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise QueueError(
                f"Other users can write to the queue's {what} {path}, so they could run work as "
                f"you; take that right away (chmod go-w) or choose another place."
            )


def make_private(file: Path) -> None:
    """Create an empty queue file, and its folder, for this user alone. Raises QueueError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(file)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise QueueError(
            f"The queue {file} cannot be made ({error.strerror}); choose another with --queue."
        ) from error


def own_folder() -> Path:
    """Where this user's programs keep what they must remember."""
    from platformdirs import user_state_path

    return user_state_path("cuda-cyclegan", appauthor=False)
