"""Studies that are done with leave the inbox; what is known of them stays in the ledger."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from ..results.record_folder import found_record
from .arriving import Arriving
from .events import Emptied, NodeEvent
from .inbox import Inbox
from .ledger import Ledger, StudyRecord
from .routes import Route
from .study_name import StudyName
from .submission import digest_of, output_of


class Emptier:
    """Removes studies a while after all of their results were confirmed."""

    def __init__(
        self,
        inbox: Inbox,
        ledger: Ledger,
        arriving: Arriving,
        results: Path,
        tell: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._inbox, self._ledger, self._arriving = inbox, ledger, arriving
        self._results, self._tell, self._clock = results, tell, clock

    def finish(self) -> None:
        """Go on with what a kill interrupted."""
        for record in self._ledger.studies():
            if record.emptied:
                self._remove_results(StudyName.parse(record.study))

    def step(self, routes: Mapping[str, Route]) -> None:
        """Remove what is due. Raises OSError."""
        now = self._clock()
        for record in self._ledger.present():
            study = StudyName.parse(record.study)
            route = routes.get(study.route)
            if route is None or now < _due(record, route):
                continue
            if not self._arriving.is_busy(study):
                self._remove(study, record)

    def _remove(self, study: StudyName, record: StudyRecord) -> None:
        objects = self._inbox.objects(study)
        if objects and digest_of(objects) != record.objects:
            return  # something came meanwhile
        if self._inbox.remove(study, objects):
            self._ledger.change(record.study, lambda now: replace(now, emptied=self._clock()))
            self._remove_results(study)
            self._tell(Emptied(record.study))

    def _remove_results(self, study: StudyName) -> None:
        output = output_of(self._results, study.route, study.day)
        if not output.is_dir():
            return
        shutil.rmtree(output / study.name, ignore_errors=True)
        yesterday = f"{datetime.now() - timedelta(days=1):%Y%m%d}"
        with suppress(OSError):
            record = found_record(output)
            if study.day < yesterday and set(output.iterdir()) <= {record}:
                shutil.rmtree(output)
                if record:
                    shutil.rmtree(record, ignore_errors=True)


def _due(record: StudyRecord, route: Route) -> float:
    """When a study may go, in seconds since 1970; never while something of it is under way."""
    states = {one.state for one in record.series}
    if record.held or states & {"queued", "sending"}:
        return float("inf")
    last = max([record.looked, *(max(one.done, one.sent) for one in record.series)])
    return last + (route.keep if states <= {"sent"} and not record.refused else route.keep_failed)
