"""Studies to look at, from a folder of results, a report, or scans and their results."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from ..results.kept_report import kept_report
from ..results.resume import preview_of

Role: TypeAlias = Literal["input", "result", "truth", "spread", "cycle"]
"""Place of an image in its study, in the order of a page."""

_MAPS: dict[MapKind, Role] = {"spread-sd": "spread", "cycle": "cycle"}
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

    name: its path below the folder of results. images: by role; a study that failed has no result.
    row: its row in the report, if there is one. preview: picture of its middle slices, if there is
    one.
    """

    name: str
    images: Mapping[Role, ImageFile]
    row: StudyReport | None = None
    preview: Path | None = None


@dataclass(frozen=True, slots=True)
class Viewing:
    """Studies that are looked at together.

    title: name of the batch. folder: where the marks are stored. studies: in the order of names.
    stored: the report, if there is one.
    """

    title: str
    folder: Path
    studies: tuple[ViewedStudy, ...]
    stored: StoredReport | None = None


def find_viewing(paths: tuple[Path, ...], truth: Path | None = None) -> Viewing:
    """Return the studies of one folder of results, result or report, or of scans and results.

    paths: one of the first three, or scans and then results, each a folder or a file. truth: folder
    or file of scans that the results should equal. Raises ScanError and ReportFileError.
    """
    if len(paths) == 2:
        viewing = _of_pairs(*paths)
    elif paths[0].suffix == ".json" and not paths[0].is_dir():
        viewing = of_report(read_report(paths[0]))
    else:
        viewing = _of_results(paths[0])
    return _with_truth(viewing, truth) if truth else viewing


def _of_results(results: Path) -> Viewing:
    if results.is_dir() and (kept := kept_report(results)):
        return of_report(read_report(kept), results)
    pairs = find_pairs(Sources(results, results)).pairs
    return _viewing(results, (_paired(pair, None) for pair in pairs if pair.result))


def _of_pairs(scans: Path, results: Path) -> Viewing:
    pairs = find_pairs(Sources(results, scans)).pairs
    return _viewing(results, (_paired(pair, pair.truth) for pair in pairs if pair.result))


def _viewing(results: Path, studies: Iterator[ViewedStudy]) -> Viewing:
    real = Path(os.path.realpath(results))
    folder = real if real.is_dir() else real.parent
    found = tuple(studies)
    if not found:
        raise ScanError(f"{results} contains no results; give a folder of results.")
    return Viewing(real.name, folder, found)


def _paired(pair: ScanPair, scan: Study | None) -> ViewedStudy:
    assert pair.result
    images: dict[Role, ImageFile] = {}
    if scan:
        images["input"] = ImageFile(scan.files[0], scan)
    result = pair.result.files[0]
    images["result"] = ImageFile(result, pair.result)
    if pair.result.format == "dicom":
        result = result.parent
    for kind, role in _MAPS.items():
        if (place := _map_beside(result, kind)).exists():
            images[role] = ImageFile(place)
    preview = preview_of(result)
    return ViewedStudy(pair.name, images, preview=preview if preview.is_file() else None)


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

    def viewed(row: StudyReport) -> ViewedStudy:
        images: dict[Role, ImageFile] = {"input": ImageFile(row.source)}
        if row.is_done:
            images["result"] = ImageFile(moved(row.output))
        for path in map(moved, row.maps):
            for kind, role in _MAPS.items():
                if scan_stem(path).endswith(f".map-{kind}"):
                    images[role] = ImageFile(path)
        return ViewedStudy(row.name, images, row, moved(row.preview) if row.preview else None)

    studies = tuple(map(viewed, batch.studies))
    return Viewing(folder.resolve().name or batch.model.name, folder, studies, stored)


def _existing(output: Path, beside: Path) -> Path:
    """Return a report's output folder, relative to the working directory or else to the report."""
    return next((each for each in (output, beside / output) if each.is_dir()), beside)


def _with_truth(viewing: Viewing, truth: Path) -> Viewing:
    """Add the truth of each study, found by name or by DICOM's identifiers."""
    results = viewing.folder
    if len(viewing.studies) == 1 and truth.is_file():
        results = viewing.studies[0].images["result"].path
    pairs = {pair.name: pair.truth for pair in find_pairs(Sources(results, truth)).pairs}
    alone = tuple(pairs.values()) if len(viewing.studies) == 1 else ()

    def added(study: ViewedStudy) -> ViewedStudy:
        found = pairs.get(study.name) or (alone[0] if alone else None)
        if found is None:
            return study
        return replace(study, images={**study.images, "truth": ImageFile(found.files[0], found)})

    return replace(viewing, studies=tuple(map(added, viewing.studies)))
