"""Advisory locks of a PostgreSQL server, held by a connection of their own."""

from types import TracebackType
from typing import Self
from zlib import crc32

import psycopg

from .errors import QueueLostError

CLASS = crc32(b"cuda-cyclegan workers") & 0x7FFFFFFF
_NOTICE_DEATH = b"""
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3
"""
"""Lets the server end the connection of a host that lost its power; its own default is 2 hours."""


class ServerLocks:
    """A connection that holds locks; a context manager that owns it.

    url: of the server. Methods raise QueueLostError while it does not answer.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def hold(self, name: str) -> bool:
        """Take a lock, until the connection ends; False if another one has it."""
        return self._ask("SELECT pg_try_advisory_lock(%s, %s)", CLASS, _number(name))

    def is_held(self, name: str) -> bool:
        """Whether any connection has the lock."""
        return self._ask(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
            "database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "
            "classid = %s AND objid::bigint = %s AND objsubid = 2)",
            CLASS,
            _number(name),
        )

    def renew(self, name: str) -> bool:
        """Take the lock again if the connection was lost; whether it was."""
        if self.is_held_here():
            return False
        self.hold(name)
        return True

    def is_held_here(self) -> bool:
        """Whether the connection that took the locks still stands."""
        if self._connection is None:
            return False
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._connection.close()
            self._connection = None
            return False
        return True

    def _ask(self, query: str, *values: int) -> bool:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, autocommit=True)
                self._connection.execute(_NOTICE_DEATH)
            row = self._connection.execute(query.encode(), values).fetchone()
        except psycopg.Error as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise QueueLostError(
                f"The queue's server does not answer ({' '.join(str(error).split())[:200]})."
            ) from error
        return bool(row and row[0])


def _number(name: str) -> int:
    return crc32(name.encode()) & 0x7FFFFFFF
