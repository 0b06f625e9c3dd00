"""Pairing of results with truths and masks: by name, by DICOM's identifiers, or by a table."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from ...io.dicom.series import Series
from ...io.discovery import Discovery, discover, is_result
from ...io.errors import listed
from ...io.files.documents import read_document
from ...io.formats.registry import scan_stem
from ...io.search import Skipped
from ...io.volume import Study
from ..errors import PairsFileError
from ..results.earlier_results import with_mirrored_names
from ..shard import Shard

COLUMNS = ("result", "truth", "mask")
"""Columns of a table of pairs; that of the mask is optional."""


_SYNTHETIC = re.compile(r"_desc-synthetic[A-Za-z0-9]*")


@dataclass(frozen=True, slots=True)
class ScanPair:
    """Result with its truth and mask.

    name: name of the result, or of the truth if there is no result. result, truth, mask: the
    studies. missing: the partner that is missing, in words; None if both, and the mask and the
    segmentations if they are required, exist. segmentations: of the result and of the truth.
    """

    name: str
    result: Study | None = None
    truth: Study | None = None
    mask: Study | None = None
    missing: str | None = None
    segmentations: tuple[Study, Study] | None = None


@dataclass(frozen=True, slots=True)
class Paired:
    """Pairs found by a search.

    pairs: sorted by name. skipped: paths that may hide a scan, with the reasons. elsewhere: number
    of pairs of other shards.
    """

    pairs: tuple[ScanPair, ...]
    skipped: tuple[Skipped, ...]
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Sources:
    """Paths to search: each a folder, or a file for one study.

    results, truth: their paths. masks: path of masks; None compares whole volumes. table: CSV file
    of the pairs, by paths below these folders. shard: share of the pairs, None for all.
    segmentations: paths of those of the results and of the truth; None compares none.
    """

    results: Path
    truth: Path
    masks: Path | None = None
    table: Path | None = None
    shard: Shard | None = None
    segmentations: tuple[Path, Path] | None = None


def find_pairs(sources: Sources) -> Paired:
    """Search all folders and pair their studies; reads headers only.

    Raises ScanError for a missing folder, and PairsFileError for an invalid table.
    """
    results = with_mirrored_names(discover([sources.results], None))
    truth = discover([sources.truth], None)
    masks = discover([sources.masks], None) if sources.masks else None
    is_single = sources.results.is_file() and sources.truth.is_file() and not sources.table
    if sources.table:
        pairs = _by_table(sources.table, results, truth, masks)
    elif is_single:
        pairs = [_single(results, truth, masks)]
    else:
        pairs = _by_name(results.studies, truth.studies, masks)
    segmented = [discover([path], None) for path in sources.segmentations or ()]
    if segmented:
        pairs = [_segmented(pair, segmented, is_single=is_single) for pair in pairs]
    found = [each for each in (results, truth, masks, *segmented) if each]
    skipped = {skip.path: skip for each in found for skip in each.skipped if skip.missed}
    whole = Paired(tuple(sorted(pairs, key=lambda pair: pair.name)), tuple(skipped.values()))
    return _share(whole, sources.shard) if sources.shard else whole


def _share(whole: Paired, shard: Shard) -> Paired:
    """Return the pairs of a shard, and its share of the skipped paths."""
    own = tuple(pair for pair in whole.pairs if shard.takes(pair.name))
    skipped = tuple(skip for skip in whole.skipped if shard.takes(str(skip.path)))
    return Paired(own, skipped, len(whole.pairs) - len(own))


def _single(results: Discovery, truth: Discovery, masks: Discovery | None) -> ScanPair:
    """Pair one file with another, whatever their names."""
    first, second = _only(results.studies), _only(truth.studies)
    mask = _only(masks.studies) if masks else None
    pair = ScanPair(_name_of(first, second), first, second, mask)
    return _complete(pair, asks_for_mask=masks is not None)


def _only(studies: Sequence[Study]) -> Study | None:
    return studies[0] if len(studies) == 1 else None


def _by_name(
    results: Sequence[Study], truth: Sequence[Study], masks: Discovery | None
) -> Iterator[ScanPair]:
    truths = _Named(truth)
    left = dict.fromkeys(str(study.name) for study in truth if not is_result(study))
    taken = _Named(masks.studies) if masks else None
    for result in results:
        found = truths.like(result) or truths.of_same_frame(result)
        for each in found:
            left.pop(str(each.name), None)
        yield _put_together(result, found, taken)
    by_name = {str(study.name): study for study in truth}
    for name in left:
        yield ScanPair(name, truth=by_name[name], missing="no result matches it")


def _put_together(result: Study, found: Sequence[Study], masks: "_Named | None") -> ScanPair:
    pair = ScanPair(str(result.name), result)
    if len(found) > 1:
        return ScanPair(pair.name, result, missing=_too_many(found, "truths"))
    truth = _only(found)
    if masks is None or truth is None:
        return _complete(ScanPair(pair.name, result, truth), asks_for_mask=False)
    fitting = masks.like(result) or masks.like(truth)
    if len(fitting) > 1:
        return ScanPair(pair.name, result, truth, missing=_too_many(fitting, "masks"))
    return _complete(ScanPair(pair.name, result, truth, _only(fitting)), asks_for_mask=True)


def _too_many(found: Sequence[Study], kind: str) -> str:
    names = listed([str(study.name) for study in found])
    return f"{len(found)} {kind} fit it, {names}; name one with setting pairs"


def _complete(pair: ScanPair, *, asks_for_mask: bool) -> ScanPair:
    """Return the pair with the first partner that it lacks stated in `missing`."""
    lacks = [
        (pair.result, "no result matches it"),
        (pair.truth, "no ground truth matches it"),
        (pair.mask or not asks_for_mask, "no mask matches it"),
    ]
    missing = next((words for there, words in lacks if not there), None)
    return replace(pair, missing=missing)


def _segmented(pair: ScanPair, segmentations: Sequence[Discovery], *, is_single: bool) -> ScanPair:
    """Return a pair with the segmentations that have the names of result and truth.

    is_single: result and truth are two files, to which the only segmentations belong.
    """
    if pair.missing or not pair.result or not pair.truth:
        return pair
    own: list[Study] = []
    for kind, study, found in zip(
        ("result", "truth"), (pair.result, pair.truth), segmentations, strict=True
    ):
        fitting = found.studies if is_single else _Named(found.studies).like(study)
        if len(fitting) > 1:
            return replace(pair, missing=_too_many(fitting, f"segmentations of the {kind}"))
        if not fitting:
            return replace(pair, missing=f"no segmentation of the {kind} matches it")
        own += fitting
    return replace(pair, segmentations=(own[0], own[1]))


def _name_of(*studies: Study | None) -> str:
    return next((str(study.name) for study in studies if study), "")


_Frame: TypeAlias = tuple[str, str]
"""StudyInstanceUID and FrameOfReferenceUID."""


class _Named:
    """Studies of one folder by everything that can match them with another study."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self._names = {study.name: study for study in studies}
        self._stems: dict[PurePosixPath, list[Study]] = defaultdict(list)
        self._frames: dict[_Frame, list[Study]] = defaultdict(list)
        for study in studies:
            self._stems[_stem(study.name)].append(study)
            # The frame alone does not make a result the truth of another one.
            if (frame := _frame(study)) and not is_result(study):
                self._frames[frame].append(study)

    def like(self, study: Study) -> Sequence[Study]:
        """Return the study of the same name, or else those that differ only in the format's suffix.

        For a result with a name of its own, the name it would have if it mirrored its scan counts
        as well, or in a BIDS dataset the name without desc-synthetic.
        """
        names = (study.name, *study.mirrored, *_acquired(study.name))
        found = (self._of_name(name) for name in names)
        return next(filter(None, found), ())

    def _of_name(self, name: PurePosixPath) -> Sequence[Study]:
        same = self._names.get(name)
        return [same] if same else self._stems.get(_stem(name), ())

    def of_same_frame(self, study: Study) -> Sequence[Study]:
        """Return the DICOM series of the same study and frame of reference."""
        frame = _frame(study)
        return self._frames.get(frame, ()) if frame else ()


def _stem(name: PurePosixPath) -> PurePosixPath:
    return name.with_name(scan_stem(name))


def _acquired(name: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the BIDS name of an acquired scan of the contrast that a result has."""
    acquired = _SYNTHETIC.sub("", name.name)
    if acquired != name.name:
        yield name.with_name(acquired)


def _frame(study: Study) -> _Frame | None:
    if not isinstance(study.series, Series) or not study.series.volumes:
        return None
    reference = study.series.volumes[0][0].reference
    return (study.series.study, reference) if reference else None


def _by_table(
    table: Path, results: Discovery, truth: Discovery, masks: Discovery | None
) -> Iterator[ScanPair]:
    places = [_Placed(each.studies) if each else None for each in (results, truth, masks)]
    named: set[str] = set()
    for line in _lines(table):
        cells = [line.get(column, "") for column in COLUMNS]
        first, second, third = (
            place.at(cell) if place and cell else None
            for place, cell in zip(places, cells, strict=True)
        )
        pair = ScanPair(_name_of(first) or cells[0] or cells[1], first, second, third)
        if pair.name in named:
            raise PairsFileError(f"{table} names {pair.name} twice; a result has one truth.")
        named.add(pair.name)
        absent = [
            f"{cell} is no {column} that was found"
            for column, cell, study in zip(COLUMNS, cells, (first, second, third), strict=True)
            if cell and not study
        ]
        if absent:
            yield replace(pair, missing="; ".join(absent))
        else:
            yield _complete(pair, asks_for_mask=masks is not None)


class _Placed:
    """Studies by their names, and DICOM series also by a folder that contains no other series."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self._places: dict[str, list[Study]] = defaultdict(list)
        for study in studies:
            self._places[str(study.name)].append(study)
            if isinstance(study.series, Series):
                self._places[str(study.name.parent)].append(study)
                self._places[str(study.series.folder)].append(study)
            else:
                self._places[str(study.files[0])].append(study)

    def at(self, cell: str) -> Study | None:
        """Return the study that a table cell names by a path below the folder or a whole path."""
        return _only(self._places.get(str(PurePosixPath(cell)), ()))


def _lines(table: Path) -> Iterator[Mapping[str, str]]:
    try:
        with io.StringIO(read_document(table).decode("utf-8-sig"), newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or ()
            if not {"result", "truth"} <= set(columns) <= set(COLUMNS):
                raise PairsFileError(
                    f"{table} must begin with a line of its columns, result,truth or "
                    "result,truth,mask."
                )
            for line in reader:
                if None in line or None in line.values():
                    raise PairsFileError(
                        f"Line {reader.line_num} of {table} has not {len(columns)} values; put "
                        "names that contain a comma in double quotes."
                    )
                yield line
    except (csv.Error, UnicodeDecodeError) as error:
        raise PairsFileError(f"{table} is not a CSV file in UTF-8 ({error}).") from error
