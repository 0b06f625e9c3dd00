"""Audit trail that is kept in files, and sent from these to a syslog server over TLS.

The position up to which all was sent is on disk, so that a restart continues there. Messages that
the server is not known to have read are sent again: it may have some twice.
"""

import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...io.dicom_network.errors import CertificateError, NetworkError
from ...io.dicom_network.syslog import SyslogServer, frame_of, send
from ...io.dicom_network.tls import Certificates
from ...io.errors import WriteError
from ...io.files.atomic import whole_file
from ...io.files.regular import open_regular, read_regular
from ..errors import ConfigError
from ..retries import Once
from .audit import AuditTrail
from .audit_files import AuditFiles, trail_files
from .audit_messages import Party, document_of, not_authenticated
from .delivery import sending_backoff
from .events import NodeEvent, Trouble
from .periodic_thread import PeriodicThread

POSITION = "sent.json"
_BATCH = 100
"""Messages sent on one connection, before the position is stored."""
_CLOSE_SECONDS = 10.0
"""Time for what is left when the node stops."""
_DAMAGED = (ValueError, TypeError, KeyError, RecursionError)


@contextmanager
def audit_trail(
    folder: Path | None,
    server: SyslogServer | None,
    certificates: Certificates | None,
    titles: Iterable[str],
    emit: Callable[[NodeEvent], None],
    clock: Callable[[], float],
) -> Generator[AuditTrail]:
    """Return the trail of a node that starts, and stops with the block. Raises ConfigError.

    folder: of its files, or None for no trail. server: receives the messages, or None.
    certificates: for TLS; without, the system's authorities. titles: AE titles of the node. emit:
    callback for failures. clock: seconds since 1970.
    """
    if folder is None:
        if server:
            raise ConfigError(
                "Give a folder for the trail: setting audit-syslog needs setting audit."
            )
        yield AuditTrail()
        return
    names = sorted(titles)
    trail = AuditFiles(folder, names, emit, clock)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trail.start()
    except OSError as error:
        raise ConfigError(
            f"The audit trail cannot be kept in {folder} ({error.strerror}); choose another folder "
            "with setting audit."
        ) from error
    sender = AuditSender(folder, server, certificates, trail, names, emit) if server else None
    try:
        if sender:
            sender.thread.wake()
        yield trail
    finally:
        trail.close()
        if sender:
            sender.close()


@dataclass(frozen=True, slots=True)
class _Position:
    """Place in the trail up to which all was sent. file: its name. offset: bytes in it."""

    file: str = ""
    offset: int = 0


class AuditSender:
    """Sender of a trail, in a thread of its own.

    folder: of the trail. trail: records failed authentications. titles: AE titles of the node.
    Other parameters: as of `audit_trail`.
    """

    def __init__(
        self,
        folder: Path,
        server: SyslogServer,
        certificates: Certificates | None,
        trail: AuditTrail,
        titles: Iterable[str],
        emit: Callable[[NodeEvent], None],
    ) -> None:
        self._folder, self._server, self._certificates = folder, server, certificates
        self._trail, self._titles, self._emit = trail, tuple(titles), emit
        self._trouble, self._backoff = Once(), sending_backoff()
        self._host = _host()
        self.thread = PeriodicThread("audit sender", self.send_pending, emit)

    def close(self) -> None:
        """Send what is left, for some seconds; the rest is sent after the next start."""
        end = time.monotonic() + _CLOSE_SECONDS
        if self.thread.close():
            while self.send_pending() and time.monotonic() < end:
                pass

    def send_pending(self) -> bool:
        """Send the next messages; return whether there may be more."""
        if not self._backoff.is_over:
            return False
        try:
            position, frames = self._next(self._position())
            if frames:
                send(self._server, self._context(), frames)
            if position:
                self._store(position)
        except (NetworkError, WriteError, OSError) as error:
            self._backoff.lengthen()
            self._note(error)
            return False
        self._trouble.passed()
        self._backoff.reset()
        return position is not None

    def _note(self, error: NetworkError | WriteError | OSError) -> None:
        reason = f"{error.strerror}" if isinstance(error, OSError) else str(error)
        if not self._trouble.is_new(reason):
            return
        self._emit(
            Trouble(
                f"the audit trail is not sent to {self._server}: {reason}; its messages stay in "
                f"{self._folder} and are sent later"
            )
        )
        if isinstance(error, CertificateError):
            peer = Party("", self._server.host)
            self._trail.record(not_authenticated(self._titles, peer, f"syslog: {reason}"))

    def _context(self) -> ssl.SSLContext:
        files = self._certificates
        return files.client_context() if files else ssl.create_default_context()

    def _next(self, position: _Position) -> tuple[_Position | None, list[bytes]]:
        """Return the messages from a position on, and the position after them, None at the end."""
        files = {file.name: file for file in trail_files(self._folder)}
        if position.file and position.file not in files:
            self._emit(
                Trouble(
                    f"{self._folder / position.file} is gone: any messages of it that were not "
                    f"sent to {self._server} are missing there"
                )
            )
            later = [name for name in files if name > position.file]
            return _Position(min(later, default="")), []
        for name in [name for name in files if name >= position.file]:
            start = position.offset if name == position.file else 0
            frames, end = self._frames(files[name], start)
            if end > start:
                return _Position(name, end), frames
        return None, []

    def _frames(self, file: Path, start: int) -> tuple[list[bytes], int]:
        """Return the next messages of a file, and where they end."""
        frames: list[bytes] = []
        with open_regular(file) as opened:
            opened.seek(start)
            for _ in range(_BATCH):
                line = opened.readline()
                if not line.endswith(b"\n"):
                    break  # it is being written, or was cut
                start += len(line)
                try:
                    frames.append(self._frame(line))
                except _DAMAGED:
                    self._emit(Trouble(f"a line of {file} is damaged, and is not sent"))
        return frames, start

    def _frame(self, line: bytes) -> bytes:
        message = json.loads(line)
        moment = str(message["EventIdentification"]["EventDateTime"])
        return frame_of(document_of(message), moment, self._host, str(os.getpid()))

    def _position(self) -> _Position:
        """Return the stored position. Raises OSError, or NetworkError if it is damaged."""
        path = self._folder / POSITION
        try:
            found = json.loads(read_regular(path))
            return _Position(str(found["file"]), int(found["offset"]))
        except FileNotFoundError:
            return _Position()
        except _DAMAGED:
            raise NetworkError(
                f"{path} is damaged; remove it to send the whole trail again"
            ) from None

    def _store(self, position: _Position) -> None:
        """Store the position. Raises WriteError."""
        with whole_file(self._folder / POSITION) as part:
            part.write_text(json.dumps({"file": position.file, "offset": position.offset}))


def _host() -> str:
    """Return the name of this machine as syslog may hold it."""
    return "".join(one for one in socket.gethostname() if "!" <= one <= "~")[:255] or "-"
