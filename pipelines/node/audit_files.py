"""Files of an audit trail: one a day of JSON lines, each a message of PS3.15, section A.5.

A thread of its own writes them, so that neither a slow nor a full disk delays the node. Messages
that cannot be written wait in memory; those for which there is no space there are counted, and
their number is stated in the trail itself.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from ...io.files.disk import flush
from ...io.files.own_files import open_own
from ...io.files.regular import open_regular
from ..retries import Once
from . import audit_messages as messages
from .audit import AuditTrail
from .audit_messages import Tree
from .events import NodeEvent, Trouble
from .periodic_thread import PeriodicThread

_MOST_WAITING = 10_000
"""Messages that wait in memory; 1.6 kB each, usually."""
_BATCH = 100
"""Messages written with one flush of the disk."""
_LONGEST_LINE = 1 << 16
_KILLED = (
    "the node ended without a stop message: messages of its last transfers and removals may be "
    "missing here"
)


class AuditFiles(AuditTrail):
    """Trail in a folder.

    titles: AE titles of the node. emit: callback for failures. clock: seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        titles: Iterable[str],
        emit: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._titles = folder, tuple(titles)
        self._emit, self._clock = emit, clock
        self._lock, self._trouble = threading.Lock(), Once()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._missing = 0
        self._is_open = True
        self._thread = PeriodicThread("audit trail", self.write, emit)

    def start(self) -> None:
        """Record that the node starts, and that it was killed before, if so. Raises OSError."""
        if self._was_killed():
            self.record(messages.gap(self._titles, _KILLED))
        self.record(messages.activity(self._titles, starts=True))

    def close(self) -> None:
        """Record that the node stops, and write what is left, if the disk takes it."""
        self._thread.stop()
        self._finish()
        self.record(messages.activity(self._titles, starts=False))
        with self._lock:
            self._is_open = False
        self._finish()
        if lost := len(self._waiting) + self._missing:
            self._emit(Trouble(f"{lost} messages of the audit trail in {self._folder} are lost"))

    def _finish(self) -> None:
        """Write what waits, unless the thread still does."""
        if self._thread.join():
            while self.write():
                pass

    @property
    def is_kept(self) -> bool:
        """Whether messages are kept."""
        return True

    def record(self, message: Tree) -> None:
        """Have a message written, or count it as missing."""
        with self._lock:
            if not self._is_open or len(self._waiting) >= _MOST_WAITING:
                self._missing += 1
                is_first = self._missing == 1
            else:
                is_first = False
                if self._missing:
                    reason = f"{self._missing} audit messages before this one are lost"
                    self._add(messages.gap(self._titles, reason))
                    self._missing = 0
                self._add(message)
        if is_first:
            self._emit(
                Trouble(
                    f"a message of the audit trail in {self._folder} is lost, and others may be "
                    "until it can be written"
                )
            )
        self._thread.wake()

    def _add(self, message: Tree) -> None:
        moment = datetime.fromtimestamp(self._clock(), UTC)
        event = message["EventIdentification"]
        assert isinstance(event, dict)
        event = event | {"EventDateTime": moment.isoformat(timespec="milliseconds")}
        line = json.dumps(message | {"EventIdentification": event}, ensure_ascii=False) + "\n"
        self._waiting.append((f"{moment:%Y%m%d}.jsonl", line.encode("utf-8", "replace")))

    def write(self) -> bool:
        """Write the next messages; return whether there may be more."""
        with self._lock:
            batch = list(islice(self._waiting, _BATCH))
        if not batch:
            return False
        name = batch[0][0]
        lines = [line for file, line in batch if file == name]
        try:
            self._append(self._folder / name, b"".join(lines))
        except OSError as error:
            if self._trouble.is_new(str(error.strerror)):
                self._emit(
                    Trouble(
                        f"the audit trail in {self._folder} cannot be written ({error.strerror}); "
                        "its messages wait in memory"
                    )
                )
            return False
        with self._lock:
            for _ in lines:
                self._waiting.popleft()
        self._trouble.passed()
        return True

    @staticmethod
    def _append(path: Path, lines: bytes) -> None:
        """Append lines durably. Raises OSError; some lines may then be there, and come twice."""
        file = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            end = os.lseek(file, 0, os.SEEK_END)
            os.lseek(file, max(end - 1, 0), os.SEEK_SET)
            is_cut = os.read(file, 1) not in (b"", b"\n")  # by a power failure
            data, count = b"\n" * is_cut + lines, 0
            try:
                while count < len(data):
                    count += os.write(file, data[count:])
                os.fsync(file)
            except OSError:
                os.ftruncate(file, end + data.rfind(b"\n", 0, count) + 1)  # no part of a line
                raise
        finally:
            os.close(file)
        if not end:
            flush(path.parent)

    def _was_killed(self) -> bool:
        """Return whether the last message is not one of a stop. Raises OSError."""
        for file in reversed(trail_files(self._folder)):
            with open_regular(file) as opened:
                end = opened.seek(0, os.SEEK_END)
                opened.seek(max(end - _LONGEST_LINE, 0))
                last = opened.read()
            if last:
                return f'"csd-code": "{messages.STOP}"'.encode() not in last.splitlines()[-1]
        return False


def trail_files(folder: Path) -> list[Path]:
    """Return the files of a trail, oldest first."""
    return sorted(folder.glob("[0-9]" * 8 + ".jsonl"))
