"""Records of results that are sent: their files, their state, and requests for storage commitment.

If a route has `commitment`, a result counts as sent only by the report of its destination. Without
a report, storage commitment is requested again until `retry` is over.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.errors import RefusedError
from ...io.dicom_network.sending import Transmission
from ...io.dicom_network.sent_objects import identity_of
from ...io.dicom_network.storage_commitment import Commitment, CommitmentReport, Referenced
from ...io.errors import UnreadableScanError, listed
from .audit import party_of, result_facts_of
from .audit_messages import begin_transfer, transferred
from .context import NodeContext
from .events import CommitmentRequested, NotCommitted, ReportRefused, Sent, Trouble
from .inbox import SUFFIX
from .records import Attempt, SeriesRecord, StudyName, StudyRecord, output_of
from .rejections import rejection_notes
from .routes import Route

_AWAITED = "its destination stored all objects, but has not reported storage commitment"
"""Reason of a result in the meantime, after the warnings of its destination."""
_UNKNOWN = Refusal(DimseStatus.INVALID_ARGUMENT, "its transaction is not known")
_NO_RESULT = Refusal(DimseStatus.INVALID_ARGUMENT, "the result of its transaction was removed")
_NO_RECORD = Refusal(DimseStatus.FAILED, "the report could not be written to disk")


@dataclass(frozen=True, slots=True)
class Result:
    """Result to be sent.

    study, series: its source. route: its route. folder: of all results of the study. folders: its
    files, one folder per channel.
    """

    study: StudyName
    series: SeriesRecord
    route: Route
    folder: Path
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, results: Path, study: StudyName, series: SeriesRecord, route: Route) -> "Result":
        """Return the result of a series. results: folder of all results."""
        output = output_of(results, study.route, study.day) / study.name
        folders = tuple(output / place for place in series.places)
        return cls(study, series, route, output, folders)

    @property
    def name(self) -> str:
        """Study, round and label."""
        return f"{self.study}/{self.series.place}"

    def files(self) -> Iterator[Path]:
        """Yield its files in order. Raises RefusedError."""
        for folder in self.folders:
            files = sorted(folder.glob(f"*{SUFFIX}"))
            if not files:
                raise RefusedError("the result is no longer on disk")
            yield from files


def refusals_of(reasons: dict[str, str], count: int) -> str:
    """Describe objects that are not stored. reasons: by file name. count: objects of the result."""
    reason = next(iter(reasons.values()))
    return f"{len(reasons)} of {count} objects ({listed([*reasons])}): {reason}"


class SendingRecords:
    """State of results in the store; all methods are thread-safe.

    on_sent: called with each job whose result was sent, and from when to when.
    """

    def __init__(
        self, node: NodeContext, on_sent: Callable[[str, tuple[float, float]], None]
    ) -> None:
        self._node, self._store, self._on_sent = node, node.store, on_sent

    def change(
        self, result: Result, *, notes: Sequence[SeriesRecord] = (), **fields: object
    ) -> None:
        """Store other fields of a result's record, unless it is replaced by now. Raises OSError.

        notes: rejection notes that follow it.
        """

        def changed(record: StudyRecord) -> StudyRecord:
            now = next((s for s in record.series if s.place == result.series.place), None)
            found = record.with_series(replace(now, **fields)) if now else record
            return replace(found, series=(*found.series, *notes))

        self._store.change(str(result.study), changed)

    def finish(self, result: Result, count: int, began: float, seconds: float, remark: str) -> None:
        """Record that a destination has a result. Raises OSError.

        count: number of its objects. began, seconds: start and duration of sending. remark:
        warnings of the destination.
        """
        self._put_sent(result, reason=remark, begun=began)
        self.audit(result)
        self._store.forget_confirmations(result.name)
        if not result.series.rejects:
            self._on_sent(result.series.job, (began, began + seconds))
        destination = str(result.route.destination)
        self._node.emit(Sent(result.name, destination, count, seconds, remark))

    def _put_sent(self, result: Result, **fields: object) -> None:
        """Store that a result is sent, and with it the rejection notes that are to follow.

        The notes are on disk before, so that after a kill there are both or neither.
        """
        destination, now = str(result.route.destination), self._node.clock()
        with self._store.alone():
            sent = replace(result.series, destination=destination)
            notes = self._rejection_notes(result, sent, now) if self._rejects(result) else ()
            self.change(
                result, notes=notes, state="sent", sent=now, destination=destination, **fields
            )

    @staticmethod
    def _rejects(result: Result) -> bool:
        return result.route.rejects_superseded and not result.series.rejects

    def _rejection_notes(
        self, result: Result, sent: SeriesRecord, now: float
    ) -> Sequence[SeriesRecord]:
        record = self._store.study(str(result.study))
        if record is None:
            return ()
        try:
            return tuple(rejection_notes(record, sent, result.folder, now))
        except UnreadableScanError as error:
            self._node.emit(
                Trouble(f"{result.name}: no rejection note on an earlier result: {error}")
            )
            return ()

    def audit(self, result: Result, failure: str = "", *, begins: bool = False) -> None:
        """Record in the audit trail that a result is about to be sent, was sent, or failed."""
        trail, route = self._node.audit, result.route
        if not trail.is_kept:
            return
        facts, to = result_facts_of(result.folders), party_of(route.destination)
        trail.record(
            begin_transfer(route.title, to, facts)
            if begins
            else transferred(route.title, to, facts, is_sending=True, failure=failure)
        )

    def awaited(self) -> Callable[[Result], bool]:
        """Return whether the report on a result is awaited. Raises OSError."""
        requests, now = self._store.request_moments(), self._node.clock()

        def is_awaited(result: Result) -> bool:
            patience = result.route.commitment or 0.0
            return any(
                moment <= now < moment + patience for moment in requests.get(result.name, ())
            )

        return is_awaited

    def request(self, link: Transmission, result: Result, began: float, remark: str) -> None:
        """Request storage commitment of a result whose objects are all confirmed.

        The request is on disk before it is sent, so that its report counts whenever it comes.
        Raises NetworkError, RefusedError for this result alone, or OSError.
        """
        objects = tuple(Referenced(*identity_of(file)) for file in result.files())
        asked = Commitment(f"2.25.{uuid.uuid4().int}", objects)
        earlier = len(self._store.request_moments().get(result.name, ()))
        began = result.series.begun or began
        remark = remark or _remark_in(result.series.reason)
        reason = "; ".join(filter(None, (remark, _AWAITED)))
        self._store.put_request(asked.transaction, str(result.study), result.series.place)
        self.change(result, begun=began, reason=reason)
        try:
            link.request(asked)
        except RefusedError:
            self._store.forget_request(asked.transaction)
            raise
        self._store.accept_request(asked.transaction, self._node.clock())
        destination = str(result.route.destination)
        self._node.emit(CommitmentRequested(result.name, destination, len(objects), earlier))

    def judge(self, title: str, peer: str, report: CommitmentReport) -> Refusal | None:
        """Record a report of storage commitment, or return why it is refused.

        The result is sent if the report names each of its objects as safe. All others are sent
        again. title: route whose destination it is from. peer: that, in words.
        """
        route = self._node.routes.get(title)
        if route is None:
            return self._refused(title, peer)
        try:
            with self._store.alone():
                return self._judge(route, peer, report)
        except OSError:
            return _NO_RECORD

    def _judge(self, route: Route, peer: str, report: CommitmentReport) -> Refusal | None:
        result = self._requested(route, report.transaction)
        if result is None:
            return self._refused(route.title, peer)
        if result.series.state == "sent":
            return None  # a repeated report
        try:
            files = {identity_of(file)[1]: file.name for file in result.files()}
        except RefusedError:
            return self._refused(route.title, peer, _NO_RESULT)
        if strange := len((report.safe | report.failed.keys()) - files.keys()):
            reason = f"{strange} of its objects were not asked for, and count for nothing"
            self._node.emit(ReportRefused(route.title, peer, reason))
        lacking = {
            instance: _failure(report.failed.get(instance))
            for instance in files
            if instance not in report.safe
        }
        if lacking:
            self._send_again(result, files, lacking)
            return None
        began = result.series.begun
        seconds = max(self._node.clock() - began, 0.0)
        self.finish(result, len(files), began, seconds, _remark_in(result.series.reason))
        return None

    def _refused(self, route: str, peer: str, why: Refusal = _UNKNOWN) -> Refusal:
        """Emit that a report counts for nothing; return the refusal."""
        self._node.emit(ReportRefused(route, peer, why.reason))
        return why

    def _requested(self, route: Route, transaction: str) -> Result | None:
        """Return the result of a request, if its route has it and it is still here."""
        study, place = self._store.requested(transaction) or ("", "")
        record = self._store.study(study) if study else None
        name = StudyName.parse(study)
        if record is None or record.emptied or name.route != route.title:
            return None
        series = next((one for one in record.series if one.place == place), None)
        return Result.of(self._node.results, name, series, route) if series else None

    def _send_again(self, result: Result, files: dict[str, str], lacking: dict[str, str]) -> None:
        """Have objects sent again. files: file names by UID. lacking: reasons by UID."""
        tries = self._store.attempts(result.name)
        again = {one: Attempt(tries.get(one, Attempt()).tries, is_open=True) for one in lacking}
        self._store.send_again(result.name, again)
        self._store.forget_requests(str(result.study), result.series.place)
        reasons = {files[instance]: reason for instance, reason in lacking.items()}
        reason = refusals_of(reasons, len(files))
        self.change(result, reason=reason)
        self._node.emit(NotCommitted(result.name, reason))


def _failure(reason: int | None) -> str:
    if reason is None:
        return "its report of storage commitment lacks them"
    return f"it reported them as not committed, with FailureReason {reason:04X}"


def _remark_in(reason: str) -> str:
    """Return the warnings in the reason of a result that awaits its report."""
    return reason.removesuffix(_AWAITED).removesuffix("; ") if reason.endswith(_AWAITED) else ""
