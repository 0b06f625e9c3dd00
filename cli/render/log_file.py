"""Rotated log file of a service, as text or as JSON lines."""

import json
import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from ...pipelines.timestamps import iso_time
from .service_log import Level, LogFormat, written_also_by

FILE_BYTES, FILES = 10 << 20, 10
"""Size at which a log file is rotated, and number of files that are kept."""

_LEVELS: dict[Level, int] = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
}


@contextmanager
def log_file(path: Path | None, kind: LogFormat) -> Generator[None]:
    """Write all lines of the block to a file, too, if there is a path. Raises OSError."""
    if path is None:
        yield
        return
    handler = _LogFile(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
    handler.setFormatter(_JsonLine() if kind == "json" else _TextLine())

    def write(line: str, level: Level, facts: Mapping[str, object]) -> None:
        record = logging.LogRecord("", _LEVELS[level], "", 0, line, None, None)
        record.__dict__["facts"] = facts
        handler.handle(record)

    try:
        with written_also_by(write):
            yield
    finally:
        with suppress(OSError):  # the disk may be full
            handler.close()


class _LogFile(RotatingFileHandler):
    """File of this user alone. A line that does not fit on the disk is dropped; stderr still has
    it.
    """

    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore a failed write."""


class _TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        return f"{moment:%Y-%m-%d %H:%M:%S} {record.levelname.lower()} {record.msg}"


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "message": record.msg,
            **record.__dict__["facts"],
        }
        return json.dumps(fields)
