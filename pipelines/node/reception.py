"""Who may send, and what comes: the policy and the sessions of associations, and open studies."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus
from ...io.dicom_network.negotiation import UNKNOWN_CALLED, UNKNOWN_CALLING, Rejection
from ...io.dicom_network.objects import ReceivedObject
from ...io.dicom_network.storage_commitment import Commitment, Referenced
from ...io.errors import WriteError
from .commitment import OwedReports, held
from .events import NodeEvent, Received, Reported, TurnedAway
from .inbox import Inbox, StudyName
from .routes import Route

REPEATED_SECONDS = 60.0
"""After which a connection that is turned away again is told of again."""
_MOST_REMEMBERED = 1000
BROKEN_OFF = 10
"""Times the quiet that a sender has to come again whose association broke off: without the rest a
series may look whole, and its translation would go to the destination.
"""


class Arriving:
    """Studies whose objects were not looked at, by when they may be; any thread may call.

    waiting: those of an inbox that is opened again, with the moment of their last change.
    """

    def __init__(self, waiting: Mapping[StudyName, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = dict(waiting)
        self._open: Counter[StudyName] = Counter()
        self._committed: set[StudyName] = set()
        self._broken_off = set(waiting)  # by the end of the node before, for all that is known

    def joined(self, study: StudyName) -> None:
        """An association brings objects of a study."""
        with self._lock:
            self._open[study] += 1

    def left(self, studies: Collection[StudyName], *, broke_off: bool) -> None:
        """That association is over; broke_off: before its sender had said all, perhaps."""
        with self._lock:
            for study in studies:
                self._open[study] -= 1
                (self._broken_off.add if broke_off else self._broken_off.discard)(study)
                if study in self._changed:
                    self._changed[study] = self._clock()

    def changed(self, study: StudyName) -> None:
        """A study has an object, which may be new, or be taken by what its route says now."""
        with self._lock:
            self._changed[study] = self._clock()
            self._committed.discard(study)

    def committed(self, study: StudyName) -> None:
        """The sender says that the study is complete."""
        with self._lock:
            self._committed.add(study)

    def complete(self, quiet: Callable[[StudyName], float | None]) -> dict[StudyName, float]:
        """Studies to be looked at now, with the moment of their last change.

        quiet: seconds without news after which a study is complete; None leaves it.
        """
        with self._lock:
            now = self._clock()
            # Where the clock was set back, the quiet begins now.
            self._changed = {study: min(since, now) for study, since in self._changed.items()}
            return {
                study: since
                for study, since in self._changed.items()
                if self._is_complete(study, since, quiet(study))
            }

    def looked_at(self, studies: Mapping[StudyName, float]) -> None:
        """What `complete` gave is done with, unless it changed meanwhile."""
        with self._lock:
            for study, since in studies.items():
                if self._changed.get(study) == since:
                    del self._changed[study]
                    self._committed.discard(study)
                    self._broken_off.discard(study)

    def is_busy(self, study: StudyName) -> bool:
        """Whether objects of it come, or came since it was looked at."""
        with self._lock:
            return self._open[study] > 0 or study in self._changed

    def __len__(self) -> int:
        return len(self._changed)

    def _is_complete(self, study: StudyName, since: float, quiet: float | None) -> bool:
        if quiet is None:
            return False
        if study in self._committed:
            return True
        needed = quiet * BROKEN_OFF if study in self._broken_off else quiet
        return self._open[study] <= 0 and self._clock() - since >= needed


class Reception:
    """Decides about associations, and gives each a session. routes: by called AE title."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        inbox: Inbox,
        arriving: Arriving,
        owed: OwedReports,
        tell: Callable[[NodeEvent], None],
    ) -> None:
        self.routes = routes
        self._inbox = inbox
        self._owed = owed
        self._arriving = arriving
        self._tell = tell
        self._lock = threading.Lock()
        self._turned_away: Counter[tuple[str, str]] = Counter()
        self._told: dict[tuple[str, str], float] = {}

    def session(self, called: str, calling: str, address: str) -> "_Session | Rejection":
        """Where the objects of an association go, or why there is none."""
        route = self.routes.get(called)
        titles = f"{calling} to {called}"
        if route is None:
            return replace(UNKNOWN_CALLED, titles=titles)
        if not route.admits(calling, address):
            return replace(UNKNOWN_CALLING, titles=titles)
        return _Session(route.title, calling, self._inbox, self._arriving, self._owed, self._tell)

    def turned_away(self, address: str, reason: str, titles: str) -> None:
        """Tell of a connection that came to nothing, but of many alike only now and then.

        A stranger may give as many titles as it likes: they make none unlike another.
        """
        now = time.monotonic()
        with self._lock:
            self._turned_away[address, reason] += 1
            if now - self._told.get((address, reason), -REPEATED_SECONDS) < REPEATED_SECONDS:
                return
            if len(self._told) > _MOST_REMEMBERED:
                self._told.clear()
                self._turned_away = Counter({(address, reason): 1})
            self._told[address, reason] = now
            count = self._turned_away.pop((address, reason))
        self._tell(TurnedAway(address, titles, reason, count))


class _Session:
    def __init__(
        self,
        route: str,
        caller: str,
        inbox: Inbox,
        arriving: Arriving,
        owed: OwedReports,
        tell: Callable[[NodeEvent], None],
    ) -> None:
        self._route, self._caller = route, caller
        self._inbox, self._arriving, self._owed, self._tell = inbox, arriving, owed, tell
        self._studies: set[StudyName] = set()
        self._refused: set[str] = set()
        self._reports: dict[str, tuple[str, int, int]] = {}
        self._began = time.monotonic()
        self._new = self._known = self._offered = self._bytes = 0

    def place(self) -> Path | DimseStatus:
        """A path for an object that is offered."""
        self._offered += 1
        return self._inbox.part()

    def take(self, received: ReceivedObject) -> DimseStatus:
        """Take over an object; OSError is the caller's to answer."""
        placed = self._inbox.take(self._route, received)
        self._refused.discard(received.offer.instance)
        if placed.study not in self._studies:
            self._studies.add(placed.study)
            self._arriving.joined(placed.study)
            for instance in self._refused:
                self._inbox.refuse(placed.study, instance)
        for study in {placed.study, *placed.awaited}:
            self._arriving.changed(study)
        if placed.is_new:
            self._new += 1
        else:
            self._known += 1
        self._bytes += received.size
        return DimseStatus.SUCCESS

    def refused(self, instance: str, study: str) -> None:
        """An image was not taken; if its study is unknown, any of the association may lack it."""
        if study:
            self._inbox.refuse(self._inbox.study(self._route, study), instance)
            return
        self._refused.add(instance)
        for joined in self._studies:
            self._inbox.refuse(joined, instance)

    def commit(self, asked: Commitment) -> Sequence[Referenced] | DimseStatus:
        """Those of the objects that are in the inbox, which completes their studies."""
        found = held(self._inbox, self._route, asked)
        try:
            name = self._owed.offer(self._route, self._caller, asked)
        except WriteError:
            return DimseStatus.FAILED
        if name is None:
            return DimseStatus.TOO_MUCH
        self._reports[asked.transaction] = name, len(found), len(asked.referenced)
        for study in set(found.values()):
            self._arriving.committed(study)
        return list(found)

    def reported(self, transaction: str) -> None:
        """The caller has taken the report of what it asked for so."""
        if found := self._reports.pop(transaction, None):
            name, safe, asked = found
            self._owed.settle(name)
            self._tell(Reported(self._route, self._caller, safe, asked))

    def end(self, reason: str) -> None:
        """The association is over."""
        for name, *_ in self._reports.values():
            self._owed.ended(name)
        self._arriving.left(self._studies, broke_off=bool(reason))
        if not self._offered and (self._reports or not reason):
            return  # who only asks for storage commitment may cut off its report; others only echo
        self._tell(
            Received(
                self._route,
                self._caller,
                self._new,
                self._known,
                self._offered - self._new - self._known,
                self._bytes,
                time.monotonic() - self._began,
                reason,
            )
        )
