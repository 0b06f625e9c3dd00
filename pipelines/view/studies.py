"""Studies to look at, from a folder of results, a report, or scans and their results."""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from ...io.choice import Choice
from ...io.discovery import discover, find_scan
from ...io.errors import ScanError, UnreadableScanError
from ...io.formats.registry import format_at, scan_stem, suffix_of
from ...io.maps import MapKind, map_name
from ...io.volume import Study
from ..evaluation.pairs import ScanPair, Sources, find_pairs
from ..report.codec import StoredReport, read_report
from ..report.report import StudyReport
from ..report.suspicion import NO_ORIGIN, Origin
from ..results.kept_report import kept_report
from ..results.resume import preview_of

Role: TypeAlias = Literal["input", "result", "truth", "spread", "disagreement", "cycle"]
"""Place of an image in its study, in the order of a page."""

_MAPS: dict[MapKind, Role] = {
    "spread-sd": "spread",
    "disagreement": "disagreement",
    "cycle": "cycle",
}
_AS_MAPS = Choice(take_maps=True)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """Image of a study, searched for when it is looked at.

    path: of a file, of a DICOM series' folder or of one of its files. found: the scan, if a search
    found it already.
    """

    path: Path
    found: Study | None = None

    def study(self) -> Study:
        """Return the scan. Raises ScanError."""
        if self.found:
            return self.found
        if self.path.is_dir() or format_at(self.path) or not self.path.exists():
            return find_scan(self.path, _AS_MAPS)
        for series in discover([self.path.parent], None).studies:
            if self.path in series.files:
                return series
        raise UnreadableScanError(f"{self.path} matches no readable scan.")


@dataclass(frozen=True, slots=True)
class ViewedStudy:
    """Study with its images.

    name: its path below the folder of results. folder: that folder, in which its mark is stored.
    images: by role; a study that failed has no result. row: its row in the report, if there is one.
    preview: picture of its middle slices, if there is one. origin: model and settings, or the
    report; only results of one are compared.
    """

    name: str
    folder: Path
    images: Mapping[Role, ImageFile]
    row: StudyReport | None = None
    preview: Path | None = None
    origin: Origin = NO_ORIGIN


@dataclass(frozen=True, slots=True)
class Viewing:
    """Studies that are looked at together.

    title: name of the batch. studies: in the order of the list. stored: the report, if there is
    one. is_blind: whether a page shows neither names nor paths.
    """

    title: str
    studies: tuple[ViewedStudy, ...]
    stored: StoredReport | None = None
    is_blind: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of results, each once."""
        return tuple(dict.fromkeys(study.folder for study in self.studies))


def find_viewing(paths: tuple[Path, ...], truth: Path | None = None) -> Viewing:
    """Return the studies of one folder of results, result or report, or of scans and results.

    paths: one of the first three, or scans and then results, each a folder or a file. truth: folder
    or file of scans that the results should equal. Raises ScanError and ReportFileError.
    """
    *scans, results = paths
    if scans:
        viewing = _with_report(_of_pairs(results, scans[0]), results)
    elif results.suffix == ".json" and not results.is_dir():
        viewing = of_report(read_report(results))
    elif results.is_dir() and (kept := kept_report(results)):
        viewing = of_report(read_report(kept), results)
    else:
        viewing = _of_pairs(results, None)
    if not viewing.studies:
        raise ScanError(f"{results} contains no results; give a folder of results.")
    return _with_truth(viewing, truth) if truth else viewing


def blinded(viewing: Viewing, seed: int) -> Viewing:
    """Return the studies in a random order, without all that could influence a reader.

    The same seed gives the same studies the same order.
    """
    order = sorted(viewing.studies, key=lambda study: (str(study.folder), study.name))
    random.Random(seed).shuffle(order)
    bare = tuple(replace(study, row=None, preview=None) for study in order)
    return Viewing(f"Blind reading, random order {seed}", bare, is_blind=True)


def _of_pairs(results: Path, scans: Path | None) -> Viewing:
    """Return results with their scans; scans: None shows the results alone."""
    real = Path(os.path.realpath(results))
    folder = real if real.is_dir() else real.parent
    studies = (
        _paired(name, pair, pair.truth if scans else None, folder)
        for name, pair in _pairs_by_name(results, scans or results).items()
        if pair.result
    )
    return Viewing(real.name, tuple(studies))


def _with_report(viewing: Viewing, results: Path) -> Viewing:
    """Add the rows of a folder's kept report, and the studies without a result."""
    kept = kept_report(results) if results.is_dir() else None
    if kept is None:
        return viewing
    reported = of_report(read_report(kept), results)
    rows = {study.name: study for study in reported.studies}
    paired = {study.name: study for study in viewing.studies}
    studies = rows | {
        name: replace(study, row=rows[name].row if name in rows else None)
        for name, study in paired.items()
    }
    return replace(viewing, studies=tuple(studies.values()), stored=reported.stored)


def _pairs_by_name(results: Path, others: Path) -> dict[str, ScanPair]:
    """Return results with their scans or truth, by the names that reports have for the results.

    A DICOM result is a folder, unless this holds several series.
    """
    pairs = find_pairs(Sources(results, others)).pairs
    series = Counter(PurePosixPath(pair.name).parent for pair in pairs if pair.result)

    def named(pair: ScanPair) -> str:
        folder = PurePosixPath(pair.name).parent
        is_dicom = pair.result is not None and pair.result.is_dicom
        return str(folder) if is_dicom and folder.name and series[folder] == 1 else pair.name

    return {named(pair): pair for pair in pairs}


def _paired(name: str, pair: ScanPair, scan: Study | None, folder: Path) -> ViewedStudy:
    assert pair.result
    images: dict[Role, ImageFile] = {}
    if scan:
        images["input"] = ImageFile(scan.files[0], scan)
    result = pair.result.files[0]
    images["result"] = ImageFile(result, pair.result)
    if pair.result.is_dicom:
        result = result.parent
    for kind, role in _MAPS.items():
        if (place := _map_beside(result, kind)).exists():
            images[role] = ImageFile(place)
    preview = preview_of(result)
    return ViewedStudy(name, folder, images, preview=preview if preview.is_file() else None)


def _map_beside(result: Path, kind: MapKind) -> Path:
    suffix = suffix_of(result) if format_at(result) else ""
    return result.with_name(map_name(scan_stem(result), kind, suffix))


def of_report(stored: StoredReport, results: Path | None = None) -> Viewing:
    """Return the studies of a report. results: where its folder is now; None for where it was."""
    batch = stored.batch
    folder = results or _existing(batch.output, stored.file.parent)

    def moved(path: Path) -> Path:
        if path.is_relative_to(batch.output):
            return folder / path.relative_to(batch.output)
        return path if path.exists() else stored.file.parent / path

    origin = Origin(str(stored.file), batch.model.results)
    studies = tuple(study_of_row(row, folder, origin, moved) for row in batch.studies)
    return Viewing(folder.resolve().name or batch.model.name, studies, stored)


def study_of_row(
    row: StudyReport,
    folder: Path,
    origin: Origin,
    moved: Callable[[Path], Path] = lambda path: path,
) -> ViewedStudy:
    """Return the study of a row. moved: returns where a file of the results is now."""
    images: dict[Role, ImageFile] = {"input": ImageFile(row.source)}
    if row.is_done:
        images["result"] = ImageFile(moved(row.output))
    for path in map(moved, row.maps):
        for kind, role in _MAPS.items():
            if scan_stem(path).endswith(f".map-{kind}"):
                images[role] = ImageFile(path)
    preview = moved(row.preview) if row.preview else None
    return ViewedStudy(row.name, folder, images, row, preview, origin)


def _existing(output: Path, beside: Path) -> Path:
    """Return a report's output folder, relative to the working directory or else to the report."""
    return next((each for each in (output, beside / output) if each.is_dir()), beside)


def _with_truth(viewing: Viewing, truth: Path) -> Viewing:
    """Add the truth of each study, found by name or by DICOM's identifiers."""
    [results] = viewing.folders
    if len(viewing.studies) == 1 and truth.is_file():
        results = viewing.studies[0].images["result"].path
    pairs = {name: pair.truth for name, pair in _pairs_by_name(results, truth).items()}
    alone = tuple(pairs.values()) if len(viewing.studies) == 1 else ()

    def added(study: ViewedStudy) -> ViewedStudy:
        found = pairs.get(study.name) or (alone[0] if alone else None)
        if found is None:
            return study
        return replace(study, images={**study.images, "truth": ImageFile(found.files[0], found)})

    return replace(viewing, studies=tuple(map(added, viewing.studies)))
