"""Studies that arrive, and when they may be looked at."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from .study_name import StudyName

AFTER_RESTART = 10
"""Times the quiet that senders have to come again after a restart of the node."""


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
        self._before_restart = set(waiting)

    def joined(self, study: StudyName) -> None:
        """An association brings objects of a study."""
        with self._lock:
            self._open[study] += 1

    def left(self, studies: Collection[StudyName]) -> None:
        """That association is over."""
        with self._lock:
            for study in studies:
                self._open[study] -= 1
                self._before_restart.discard(study)
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
                    self._before_restart.discard(study)

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
        needed = quiet * AFTER_RESTART if study in self._before_restart else quiet
        return self._open[study] <= 0 and self._clock() - since >= needed
