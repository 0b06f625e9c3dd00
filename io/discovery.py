"""Find the studies below files and folders, in a fixed order, and the place of each result; and
which of them are one scan under several names, as links give them.
"""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .choice import EVERYTHING, Choice, OutputFormat
from .contrast.fields import HeaderFields
from .dicom.header_scan import Headers, KnownHeaders, scan
from .dicom.recognition import Unreadable, content_of, has_dicom_suffix, naming
from .errors import ScanError, UnreadableScanError, UnsupportedScanError, unexpected
from .files.own_files import identity
from .files.regular import is_folder, open_regular
from .formats.format import Format
from .formats.registry import FORMATS, SUFFIXES, VOXEL_SUFFIXES, format_at, suffix_of
from .links import LinkRule
from .search import FileSearch, Skipped
from .volume import Blocker, Study
from .writing import result_files_for

if TYPE_CHECKING:
    from .dicom.series import Series

_DIRECTORY = "DICOMDIR"
START_BYTES = 4096
"""Bytes read to recognise a supposed DICOM file as something else."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """Result of a search, sorted by path.

    skipped: named files, files that look like scans, DICOM series without a volume to
    translate, and folders that did not open. ignored: how many other files the folders hold.
    series: every DICOM series, accepted or not, by label. studies: those to translate, or with a
    blocking error. root: the folder to which the names of studies are relative. named: the inputs.
    notes: remarks for the user on the whole search. elsewhere: number of studies that were found
    and belong to other shards.
    """

    studies: tuple[Study, ...]
    skipped: tuple[Skipped, ...]
    ignored: int = 0
    series: "tuple[Series, ...]" = ()
    root: Path = Path()
    named: frozenset[Path] = frozenset()
    notes: tuple[str, ...] = ()
    elsewhere: int = 0

    @property
    def holds_files_only(self) -> bool:
        """Whether scans were found, and none of DICOM."""
        return not self.series and (bool(self.studies) or any(skip.kind for skip in self.skipped))


def discover(
    inputs: Sequence[Path],
    output: Path | None,
    choice: Choice = EVERYTHING,
    known: KnownHeaders | None = None,
) -> Discovery:
    """Find all studies in `inputs`, files or folders, which are searched to any depth.

    Results are named relative to the one input folder, or to the folder that all inputs share.
    A DICOMDIR represents its folder. Links that `choice` allows are followed, but no
    real file is listed twice; others are skipped as `missed`. Unfinished files and the contents of
    the folder `output` are ignored. A study whose result cannot have the chosen format has that as
    its blocking error. known: DICOM headers read by earlier searches of the same inputs. Raises
    ScanError for an input that is missing, an output over its own source, and one with a zero byte
    in its name.
    """
    # Not resolve(): a link given by name gives its result that name.
    named = [without_directory(Path(os.path.abspath(path))) for path in inputs]  # noqa: PTH100
    for path in named:
        if not os.path.lexists(path):
            raise ScanError(f"{path} does not exist; check the path and that its disk is mounted.")
    if output and "\0" in str(output):
        raise ScanError(
            f"{output} contains a zero byte, which file names may not; choose another name."
        )
    rule = LinkRule.among(choice.links, [*named, *choice.datasets])
    results = Path(os.path.realpath(output)) if output else None
    search = FileSearch(results, rule, choice.take_maps, choice.globs)
    apart = [path for path in named if Path(os.path.realpath(path)) != search.output] or named
    for path in apart:
        search.add(path)
    folders = [path if is_folder(path) else path.parent for path in apart]
    root = Path(os.path.commonpath(folders))
    studies, skipped = _studies(sorted(search.files), root, rule)
    series = find_series(search, choice, known)
    studies = in_format([*studies, *dicom_studies(series, root, search.listed)], choice.format)
    studies.sort(key=lambda study: study.name)
    if search.output:
        _refuse_overwriting(studies, search.output)
    data_files = {file for study in studies for file in study.files}
    skipped += [row for row in search.skipped if row.path not in data_files]
    skipped += [
        Skipped(path, "it is the output folder; results are not translated again")
        for path in named
        if path not in apart
    ]
    return Discovery(
        tuple(studies),
        tuple(sorted(skipped, key=lambda row: row.path)),
        search.ignored,
        tuple(series),
        root,
        frozenset(named),
    )


def _studies(
    files: Sequence[Path], root: Path, rule: LinkRule
) -> tuple[list[Study], list[Skipped]]:
    studies: list[Study] = []
    skipped: list[Skipped] = []
    for path in files:
        found = format_at(path)
        assert found is not None
        try:
            missing, others = found.missing_file(path), found.other_files(path)
        except Exception as error:  # as in a batch, a failure affects only its study
            skipped.append(Skipped(path, unexpected(error), missed=True))
            continue
        if missing:
            skipped.append(Skipped(path, f"its voxels are missing: {missing.name}", missed=True))
            continue
        if any("\0" in str(other) for other in others):
            reason = "it refers to a file with a zero byte in its name, which cannot exist"
            skipped.append(Skipped(path, reason, missed=True))
            continue
        if outside := [other for other in others if not rule.admits(other, path)]:
            reason = f"its voxel file is outside the inputs and is not read: {outside[0]}"
            skipped.append(Skipped(path, reason, missed=True))
            continue
        name = PurePosixPath(path.relative_to(root).as_posix())
        studies.append(Study(name, (path, *others), found.name))
    return studies, skipped


def _refuse_overwriting(studies: Sequence[Study], output: Path) -> None:
    sources = {os.path.realpath(file) for study in studies for file in study.files}
    for study in studies:
        if study.blocker:
            continue
        if any(
            os.path.realpath(place) in sources
            for place in result_files_for(output / study.name, study)
        ):
            raise ScanError(
                f"The output folder {output} would overwrite the scan {study.files[0]}; choose "
                "another one."
            )


_NO_SERIES = Blocker(
    "unsupported",
    "it is not a DICOM series, which setting format=dicom needs; use setting format=same or nifti "
    "for it",
)


def in_format(studies: Iterable[Study], wanted: OutputFormat) -> list[Study]:
    """Return the studies under the names that the format gives their results, or with the blocking
    error that their results cannot have it.
    """
    if wanted == "same":
        return list(studies)
    found = next(each for each in FORMATS if each.writes == wanted)
    return [_in_format(study, found) for study in studies]


def _in_format(study: Study, wanted: Format) -> Study:
    """Return the study with a result in a format, keeping the source's name if it fits."""
    if study.format == wanted.name:
        return study
    if not wanted.result_suffixes:
        return replace(study, blocker=_NO_SERIES)
    own = "" if study.is_dicom else suffix_of(study.name)
    name = study.name.name[: len(study.name.name) - len(own)]
    return replace(study, name=study.name.with_name(f"{name}{wanted.result_suffixes[-1]}"))


def source_of(study: Study) -> Hashable:
    """Return a key that is equal for studies of the same files on disk with equal results.

    A study with an inaccessible file equals no other.
    """
    try:
        states = [file.stat() for file in study.files]
    except OSError:
        return study.name
    places = tuple(map(identity, states))
    suffixes = suffix_of(study.files[0]), suffix_of(Path(study.name))
    return study.format, suffixes, places, tuple(map(_content, study.channels))


def images_sha256(scan: Study) -> str:
    """Hash by which a series is found again among others in its files; "" for other scans."""
    series = _series_of(scan)
    return series.images_sha256 if series else ""


def place_of(scan: Study) -> Path:
    """Return the path of a scan: its header, or the folder of a series with its label."""
    series = _series_of(scan)
    return series.folder / series.label if series else scan.files[0]


def is_result(scan: Study) -> bool:
    """Return whether this program wrote a DICOM series."""
    series = _series_of(scan)
    return series is not None and series.is_result


def header_fields(scan: Study) -> HeaderFields:
    """Return the elements of a DICOM series that state its contrast."""
    series = _series_of(scan)
    if series is None or not series.volumes:
        return HeaderFields("its header", modality=scan.modality)
    first = series.volumes[0][0]
    return HeaderFields(
        "its header",
        modality=scan.modality,
        image_type=(*first.contrast.flags, first.contrast.component),
        texts=(series.description, series.protocol),
        echo=first.contrast.echo,
        repetition=first.technique.repetition,
        inversion=first.technique.inversion,
        has_agent=bool(first.technique.agent),
    )


def is_chosen(scan: Study) -> bool:
    """Return whether setting series selected a DICOM series."""
    series = _series_of(scan)
    return series is not None and series.is_chosen


def _content(scan: Study) -> Hashable:
    """Key of what determines the results of a DICOM series; None for other scans."""
    series = _series_of(scan)
    return series and series.content


def _series_of(scan: Study) -> "Series | None":
    if scan.series is None:
        return None
    from .dicom.series import Series

    return scan.series if isinstance(scan.series, Series) else None


def find_series(search: FileSearch, choice: Choice, known: KnownHeaders | None) -> "list[Series]":
    """Find all DICOM series among files of unknown type; the rest are skipped or ignored."""
    headers = scan(sorted(search.unnamed), known)
    namings = _namings(headers) if headers.others or search.unopened else frozenset[str]()
    unreadable = [each for each in headers.unreadable if each.may_be_slice]
    search.ignored += len(headers.directories)
    search.skipped += [
        Skipped(each.file, each.reason) for each in headers.unreadable if not each.may_be_slice
    ]
    for path in headers.others:
        if naming(path) in namings:
            unreadable.append(Unreadable(path, _content_of(path)))
        elif path in search.by_name:
            kinds = ", ".join(SUFFIXES)
            reason = f"its format is not supported; supported are DICOM, {kinds}"
            search.skipped.append(Skipped(path, reason))
        elif other := VOXEL_SUFFIXES.get(suffix_of(path)):
            reason = f"the {other.header_suffix} that describes it is missing"
            search.skipped.append(Skipped(path, reason, missed=True))
        else:
            search.ignored += 1
    for skip in search.unopened:
        looks_so = has_dicom_suffix(skip.path) or naming(skip.path) in namings
        if skip.missed or looks_so:
            unreadable.append(Unreadable(skip.path, skip.reason, is_dicom=looks_so))
        else:
            search.skipped.append(skip)
    closed = [Unreadable(skip.path, skip.reason) for skip in search.closed]
    search.skipped += [Skipped(bad.file, bad.reason, missed=True) for bad in unreadable]
    search.skipped += search.closed
    if not headers.instances:
        return []
    from .dicom.series import assemble
    from .dicom.series_files import asked_for, members_of, note_absent

    instances = asked_for(headers.instances, choice)
    members = members_of(instances, unreadable, closed)
    note_absent(members, headers.directories)
    series = assemble(members, choice)
    search.skipped += [_skipped(each) for each in series if each.verdict == "skipped"]
    return series


def _listed(series: "Series", listed: Mapping[Path, int]) -> tuple[tuple[Path, int], ...]:
    folders = dict.fromkeys(file.parent for file in series.files)
    return tuple((each, listed[each]) for each in folders if each in listed)


def _namings(headers: Headers) -> frozenset[str]:
    return frozenset(naming(instance.file) for instance in headers.instances)


def _content_of(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return content_of(file.read(START_BYTES))
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"


def dicom_studies(
    series: "Iterable[Series]", root: Path, listed: Mapping[Path, int]
) -> list[Study]:
    """Return a study for each series that is or should be a volume; faults show on reading.

    Its result is a folder next to the common folder of the series' files. listed: as of FileSearch.
    """
    return [
        Study(
            PurePosixPath(each.folder.relative_to(root).as_posix()) / each.label,
            each.files,
            "dicom",
            each,
            each.notes,
            Blocker("unreadable", each.explanation) if each.is_incomplete else None,
            each.text,
            each.modality,
            listed=_listed(each, listed),
            incomplete=each.incomplete,
            uneven=each.uneven or "",
        )
        for each in series
        if each.verdict != "skipped"
    ]


def without_directory(path: Path) -> Path:
    """Return the folder that a DICOMDIR indexes, as its files are searched for themselves."""
    return path.parent if path.name.upper() == _DIRECTORY and path.is_file() else path


def _skipped(series: "Series") -> Skipped:
    images = f"{series.images} image{'s' if series.images > 1 else ''}"
    kind = ", ".join(filter(None, (series.modality, images, series.kind)))
    return Skipped(series.files[0], f"{series.label} ({kind}): {series.explanation}")


def find_scan(path: Path, choice: Choice = EVERYTHING) -> Study:
    """Return the one scan of a file or folder. Raises ScanError."""
    return only_study(path, discover([path], None, choice))


def only_study(path: Path, found: Discovery) -> Study:
    """Return the one study that a search of `path` found. Raises ScanError."""
    if len(found.studies) == 1:
        return sound(found.studies[0], path)
    if found.studies:
        count = len(found.studies)
        names = ", ".join([*(str(study.name) for study in found.studies[:3]), "..."][:count])
        raise UnsupportedScanError(f"{path} contains {count} scans ({names}); give one of them.")
    reasons = "".join(f": {skip.path}: {skip.reason}" for skip in found.skipped[:1])
    raise UnreadableScanError(f"{path} contains no scan{reasons}; give the path of a scan.")


def sound(study: Study, path: Path) -> Study:
    """Return a study without a blocking error; path: name in errors. Raises ScanError."""
    if study.blocker is None:
        return study
    kind = UnsupportedScanError if study.blocker.kind == "unsupported" else UnreadableScanError
    raise kind(f"{path} cannot be translated: {study.blocker.reason}.")
