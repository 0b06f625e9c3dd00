"""Import of the files that had the node's records before node.db: read once, then kept aside.

They were ledger.jsonl with a study or a confirmed object per line, where the last line counts; a
file per pending report in reports/; and files beside a study's objects that noted its gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...engine.decoding import FieldError, decode_known, parse
from ...io.dicom_network.storage_commitment import Commitment
from ...io.files.atomic import whole_file
from ...io.files.regular import read_regular
from .records import PendingReport, Records, StudyRecord

LEDGER, REPORTS = "ledger.jsonl", "reports"
ASIDE = "imported"
"""Folder in the node's own that keeps the imported files."""
_MOVED = b'{"version": 2, "moved_to": "node.db"}\n'
"""New content of ledger.jsonl, with which earlier versions refuse to work."""
_REFUSED, _OPEN, _RELEASED = ".refused", "transfer.open", "released"


@dataclass(frozen=True, slots=True)
class _Confirmation:
    series: str
    instance: str


@dataclass(frozen=True, slots=True)
class _Line:
    version: int
    study: StudyRecord | None = None
    confirmed: _Confirmation | None = None


@dataclass(frozen=True, slots=True)
class _Requester:
    route: str
    title: str
    moment: float


@dataclass(frozen=True, slots=True)
class _Report:
    asker: _Requester
    commitment: Commitment


def has_jsonl(folder: Path) -> bool:
    """Whether a folder has records to import."""
    ledger = folder / LEDGER
    return ledger.exists() and read_regular(ledger) != _MOVED


def read_jsonl(folder: Path) -> tuple[Records, list[str]]:
    """Return the records in a folder, and what is damaged. Raises OSError."""
    if not has_jsonl(folder):
        return Records(), []
    studies, confirmed, problems = _ledger(folder)
    reports: list[PendingReport] = []
    for path in sorted((folder / REPORTS).glob("*.json")):
        try:
            found = decode_known(_Report, parse(read_regular(path)))
        except FieldError:
            problems.append(f"{path.name} is damaged; a report of storage commitment is lost")
        else:
            asker = found.asker
            reports.append(PendingReport(asker.route, asker.title, asker.moment, found.commitment))
    marks = {study: list(_marks(folder, study)) for study in _inbox(folder)}
    return Records(
        studies=studies,
        confirmed=confirmed,
        reports=reports,
        refused=[
            (study, mark.removesuffix(_REFUSED))
            for study, names in marks.items()
            for mark in names
            if mark.endswith(_REFUSED)
        ],
        open=[study for study, names in marks.items() if _OPEN in names],
        released=[study for study, names in marks.items() if _RELEASED in names],
    ), problems


def set_aside(folder: Path) -> None:
    """Move imported files out of the way, and keep earlier versions from the folder.

    The ledger moves last, so that this is repeated after a kill. Raises OSError or WriteError.
    """
    if not has_jsonl(folder):
        return
    aside = folder / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    for study in _inbox(folder):
        for mark in _marks(folder, study):
            (folder / "inbox" / study / mark).unlink()
    for name in (REPORTS, "ledger-damaged.jsonl", LEDGER):
        if (folder / name).exists():
            (folder / name).replace(aside / name)
    with whole_file(folder / LEDGER) as part:
        part.write_bytes(_MOVED)
        part.chmod(0o600)


def _ledger(folder: Path) -> tuple[list[StudyRecord], list[tuple[str, str]], list[str]]:
    """Return studies, confirmed objects by series, and what is damaged."""
    lines = read_regular(folder / LEDGER).split(b"\n")
    entries = [_entry(line) for line in lines]
    was_cut_off = entries[-1] is None and lines[-1][:1] in (b"", b"{")  # by a kill
    studies = {entry.study.study: entry.study for entry in entries if entry and entry.study}
    unsent = {
        f"{record.study}/{one.place}"
        for record in studies.values()
        for one in record.series
        if one.state != "sent"
    }
    confirmed = [
        (entry.confirmed.series, entry.confirmed.instance)
        for entry in entries
        if entry and entry.confirmed and entry.confirmed.series in unsent
    ]
    damaged = entries.count(None) - was_cut_off
    problem = (
        f"{folder / LEDGER} was damaged: {damaged} of its lines could not be imported. Studies may "
        "be translated and sent again, with the same identifiers; check the disk. The file as it "
        f"was is kept in {folder / ASIDE}."
    )
    return list(studies.values()), confirmed, [problem] if damaged else []


def _entry(line: bytes) -> _Line | None:
    """Return the content of a line, or None if it is damaged."""
    try:
        return decode_known(_Line, parse(line))
    except FieldError:
        return None


def _inbox(folder: Path) -> Iterator[str]:
    """Yield the names of the studies in the inbox."""
    for path in sorted((folder / "inbox").glob("*/*")):
        if path.is_dir():
            yield f"{path.parent.name}/{path.name}"


def _marks(folder: Path, study: str) -> Iterator[str]:
    """Yield the names of the files that note a study's gap."""
    for path in (folder / "inbox" / study).iterdir():
        if path.name.endswith(_REFUSED) or path.name in (_OPEN, _RELEASED):
            yield path.name
