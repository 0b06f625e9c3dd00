"""Who may send, and what comes: the policy and the sessions of associations."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.negotiation import UNKNOWN_CALLED, UNKNOWN_CALLING, Rejection
from ...io.dicom_network.objects import ReceivedObject
from ...io.dicom_network.storage_commitment import Commitment, Referenced
from ...io.errors import WriteError
from .arriving import Arriving
from .commitment import OwedReports, held
from .events import NodeEvent, Received, Reported, TurnedAway
from .inbox import Inbox
from .routes import Route
from .study_name import StudyName

REPEATED_SECONDS = 60.0
"""After which a connection that is turned away again is told of again."""
_MOST_REMEMBERED = 1000
_NO_RECORD = Refusal(DimseStatus.FAILED, "the request could not be written to disk")
_TOO_MUCH = Refusal(DimseStatus.TOO_MUCH, "too many reports of storage commitment are pending")


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
        self._begun: dict[StudyName, int] = {}
        self._refused: set[str] = set()
        self._refusals = Counter[str]()
        self._reports: dict[str, tuple[str, int, int]] = {}
        self._began = time.monotonic()
        self._new = self._known = self._bytes = 0

    def place(self) -> Path | Refusal:
        """A path for an object that is offered."""
        return self._inbox.part()

    def claim(self, size: int) -> bool:
        """Whether objects that are coming may take so many bytes more."""
        return self._inbox.claim(size)

    def take(self, received: ReceivedObject) -> None:
        """Take over an object; OSError is the caller's to answer."""
        self._turn_to(self._inbox.study(self._route, received.study))
        placed = self._inbox.take(self._route, received)
        self._refused.discard(received.offer.instance)
        if placed.study not in self._studies:
            self._studies.add(placed.study)
            self._arriving.joined(placed.study)
        for study in {placed.study, *placed.awaited}:
            self._arriving.changed(study)
        if placed.is_new:
            self._new += 1
        else:
            self._known += 1
        self._bytes += received.size

    def _turn_to(self, study: StudyName) -> None:
        """Note which study the sender is at; one that it comes back to is not the only one."""
        if study in self._begun:
            return
        if study not in self._studies:
            self._leave(broke_off=False)
        self._begun[study] = self._inbox.begin(study)
        for instance in self._refused:
            self._inbox.refuse(study, instance)
        self._refused.clear()

    def _leave(self, *, broke_off: bool) -> None:
        """Note that no more of the studies at hand comes; broke_off: though it may have had to."""
        for study, begun in self._begun.items():
            self._inbox.end(study, begun, broke_off=broke_off)
        self._begun.clear()

    def refused(self, instance: str, study: str, reason: str) -> None:
        """An image was not taken; without a known study, it may be of the ones before and after."""
        if reason:
            self._refusals[reason] += 1
        if study:
            name = self._inbox.study(self._route, study)
            self._turn_to(name)
            self._inbox.refuse(name, instance)
            self._arriving.changed(name)
            return
        self._refused.add(instance)
        for at_hand in self._begun:
            self._inbox.refuse(at_hand, instance)

    def commit(self, asked: Commitment) -> Sequence[Referenced] | Refusal:
        """Those of the objects that are in the inbox, which completes their studies."""
        found = held(self._inbox, self._route, asked)
        try:
            name = self._owed.offer(self._route, self._caller, asked)
        except WriteError:
            return _NO_RECORD
        if name is None:
            return _TOO_MUCH
        self._reports[asked.transaction] = name, len(found), len(asked.referenced)
        for study in set(found.values()):
            if study in self._begun:
                self._inbox.end(study, self._begun.pop(study), broke_off=False)
            self._inbox.complete(study)
            self._arriving.changed(study)  # it may be held
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
        self._leave(broke_off=bool(reason))
        self._arriving.left(self._studies)
        is_empty = not (self._new or self._known or self._refusals)
        if is_empty and (self._reports or not reason):
            return  # who only asks for storage commitment may cut off its report; others only echo
        self._tell(
            Received(
                self._route,
                self._caller,
                self._new,
                self._known,
                tuple(self._refusals.items()),
                self._bytes,
                time.monotonic() - self._began,
                reason,
            )
        )
