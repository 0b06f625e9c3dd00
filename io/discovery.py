"""Find the studies below files and folders, in a fixed order, each real file once."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from .atomic import is_part
from .choice import Choice, OutputFormat
from .dicom_headers import scan
from .dicom_series import Series, assemble
from .errors import ScanError
from .nifti import header_beside, image_beside
from .text_header import read_text_header
from .volume import Format, Study

SUFFIXES: dict[str, Format] = {
    ".nii": "nifti",
    ".nii.gz": "nifti",
    ".hdr": "nifti",
    ".hdr.gz": "nifti",
    ".nrrd": "nrrd",
    ".nhdr": "nrrd",
    ".mha": "metaimage",
    ".mhd": "metaimage",
}
IMAGE_SUFFIXES = (".img", ".img.gz")
DICOM_DIRECTORY = "DICOMDIR"
OTHER_SCANS = (".mgz", ".mgh", ".mnc", ".gipl", ".gipl.gz", ".par", ".brik", ".brik.gz", ".nrrd.gz")


EVERYTHING = Choice()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not translated, and why, in words for the report."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found, both sorted by path.

    skipped: files asked for by name, files that look like scans, DICOM series that hold nothing to
    translate, and folders that did not open. ignored: how many other files the folders hold.
    series: every DICOM series, taken or not, by label.
    """

    studies: tuple[Study, ...]
    skipped: tuple[Skipped, ...]
    ignored: int = 0
    series: tuple[Series, ...] = ()


@dataclass
class _Search:
    """What a search has met so far; real places are (device, inode).

    unnamed: files whose names say no kind; those that begin as DICOM does are DICOM. named: which
    of them the user gave by name.
    """

    output: Path
    files: list[Path] = field(default_factory=list[Path])
    unnamed: list[Path] = field(default_factory=list[Path])
    named: set[Path] = field(default_factory=set[Path])
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    ignored: int = 0


def discover(inputs: Sequence[Path], output: Path, choice: Choice = EVERYTHING) -> Discovery:
    """Find all studies in `inputs`, files or folders, which are searched to any depth.

    A DICOMDIR stands for the folder it lies in. Results are named relative to the one input folder,
    or to the folder that all inputs share. Links are followed, but no real file is listed twice;
    `.part` files and the folder `output` are left out.

    Raises ScanError for an input that is missing and for an output over its own source.
    """
    # Not resolve(): a link given by name gives its result that name.
    named = [_without_directory(Path(os.path.abspath(path))) for path in inputs]  # noqa: PTH100
    for path in named:
        if not os.path.lexists(path):
            raise ScanError(f"{path} does not exist; check the path and that its disk is mounted.")
    search = _Search(Path(os.path.realpath(output)))
    for path in named:
        if path.is_dir():
            _search_folder(path, search)
        else:
            _meet_named(path, search)
    root = _shared_folder(named)
    found = sorted(search.files)
    studies = [study for path in found if (study := _study(path, root, search)) is not None]
    series = _dicom_series(search, choice)
    studies += [_dicom_study(each, root) for each in series if each.verdict != "skipped"]
    studies = _in_format(studies, choice.format, search)
    _refuse_overwriting(studies, search.output)
    skipped = sorted(search.skipped, key=lambda row: row.path)
    return Discovery(tuple(studies), tuple(skipped), search.ignored, tuple(series))


def _dicom_series(search: _Search, choice: Choice) -> list[Series]:
    """All DICOM series among the files that were met; the other files are accounted for."""
    headers = scan(sorted(search.unnamed))
    search.skipped += [Skipped(bad.file, bad.reason) for bad in headers.unreadable]
    for path in headers.others:
        if path in search.named:
            kinds = ", ".join(SUFFIXES)
            search.skipped.append(
                Skipped(path, f"it is of no known kind; known are DICOM, {kinds}")
            )
        elif _suffix(path) in IMAGE_SUFFIXES:
            search.skipped.append(Skipped(path, "the .hdr that describes it is missing"))
        else:
            search.ignored += 1
    series = assemble(headers.instances, choice)
    for each in series:
        if each.verdict == "skipped":
            images = f"{each.images} image{'s' if each.images > 1 else ''}"
            reason = f"{each.label} ({each.modality}, {images}): {each.reason}"
            search.skipped.append(Skipped(each.files[0].parent, reason))
    return series


def _dicom_study(series: Series, root: Path) -> Study:
    folder = Path(os.path.commonpath([file.parent for file in series.files]))
    name = PurePosixPath(folder.relative_to(root).as_posix()) / series.label
    return Study(name, series.files, "dicom", series)


def _in_format(studies: Sequence[Study], wanted: OutputFormat, search: _Search) -> list[Study]:
    """The studies whose results can have the format, under the names that it gives them."""
    if wanted == "nifti":
        taken = {study.name for study in studies if study.format == "nifti"}
        return [_as_nifti(study, taken) for study in studies]
    if wanted == "dicom":
        search.skipped += [
            Skipped(study.files[0], "it is no DICOM series, which --format dicom derives from")
            for study in studies
            if study.format != "dicom"
        ]
        return [study for study in studies if study.format == "dicom"]
    return list(studies)


def _as_nifti(study: Study, taken: set[PurePosixPath]) -> Study:
    if study.format == "nifti":
        return study
    stem = study.name.name if study.format == "dicom" else study.name.stem
    name = study.name.with_name(f"{stem}.nii.gz")
    if name in taken:
        name = study.name.with_name(f"{study.name.name}.nii.gz")
    taken.add(name)
    return replace(study, name=name)


def _without_directory(path: Path) -> Path:
    return path.parent if path.name.upper() == DICOM_DIRECTORY else path


def _shared_folder(named: Sequence[Path]) -> Path:
    folders = [path if path.is_dir() else path.parent for path in named]
    if len(set(folders)) == 1:
        return folders[0]
    return Path(os.path.commonpath(folders))


def _search_folder(root: Path, search: _Search) -> None:
    """Walk what lies below first and follow links last, so that a real place keeps its own name."""
    links = [root]
    while links:
        pending = [links.pop(0)]
        while pending:
            folder = pending.pop()
            if _is_new_folder(folder, root, search):
                below, linked = _list(folder, search)
                pending += reversed(below)
                links += linked


def _is_new_folder(folder: Path, root: Path, search: _Search) -> bool:
    if folder != root and Path(os.path.realpath(folder)) == search.output:
        return False
    return _is_new(folder, search)


def _list(folder: Path, search: _Search) -> tuple[list[Path], list[Path]]:
    """Meet the files of `folder`; return its own folders, and the folders it links to."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError as error:
        search.skipped.append(Skipped(folder, f"the folder cannot be opened: {error.strerror}"))
        return [], []
    below: list[Path] = []
    linked: list[Path] = []
    for entry in entries:
        path = folder / entry.name
        if is_part(entry.name):
            continue
        if path.is_dir():
            (linked if entry.is_symlink() else below).append(path)
        else:
            _meet_in_folder(path, search)
    return below, linked


def _meet_in_folder(path: Path, search: _Search) -> None:
    suffix = _suffix(path)
    if suffix in OTHER_SCANS:
        search.skipped.append(Skipped(path, f"{suffix} scans are not read; convert it to .nii.gz"))
    elif suffix in SUFFIXES:
        _meet_scan(path, search)
    elif suffix not in IMAGE_SUFFIXES or not _header_beside(path):
        _meet_unnamed(path, search)


def _meet_named(path: Path, search: _Search) -> None:
    header = _header_beside(path) if _suffix(path) in IMAGE_SUFFIXES else path
    if header is not None and _suffix(header) in SUFFIXES:
        _meet_scan(header, search)
    else:
        search.named.add(path)
        _meet_unnamed(path, search)


def _meet_unnamed(path: Path, search: _Search) -> None:
    if path.is_file():
        if _is_new(path, search):
            search.unnamed.append(path)
    elif path in search.named:
        search.skipped.append(Skipped(path, "it is no file, or a link that leads nowhere"))
    else:
        search.ignored += 1


def _meet_scan(path: Path, search: _Search) -> None:
    if not path.exists():
        search.skipped.append(Skipped(path, "the link leads nowhere"))
    elif _is_new(path, search):
        search.files.append(path)


def _is_new(path: Path, search: _Search) -> bool:
    try:
        place = path.stat()
    except OSError as error:
        search.skipped.append(Skipped(path, f"it cannot be opened: {error.strerror}"))
        return False
    key = (place.st_dev, place.st_ino)
    if key in search.seen:
        return False
    search.seen.add(key)
    return True


def _suffix(path: Path) -> str:
    """The last suffix in small letters, with the one before it where the file is gzip."""
    return "".join(suffix.lower() for suffix in path.suffixes[-2:] if _counts(suffix, path))


def _counts(suffix: str, path: Path) -> bool:
    return suffix == path.suffix or path.suffix.lower() == ".gz"


def _header_beside(image: Path) -> Path | None:
    header = header_beside(image)
    return header if header.exists() else None


def _study(path: Path, root: Path, search: _Search) -> Study | None:
    suffix = _suffix(path)
    files = [path]
    if suffix in (".hdr", ".hdr.gz"):
        files = [path, image_beside(path)]
        if not files[1].exists():
            search.skipped.append(Skipped(path, f"its voxels are missing: {files[1].name}"))
            return None
    elif suffix in (".nhdr", ".mhd", ".mha", ".nrrd"):
        files = [path, *_data_files(path)]
    return Study(PurePosixPath(path.relative_to(root).as_posix()), tuple(files), SUFFIXES[suffix])


def _data_files(path: Path) -> list[Path]:
    """The voxel file that a text header names; a header that cannot be read fails when it is."""
    try:
        data_file = read_text_header(path).data_file
    except (ScanError, OSError):
        return []
    return [] if data_file is None else [data_file]


def _refuse_overwriting(studies: Sequence[Study], output: Path) -> None:
    sources = {os.path.realpath(file) for study in studies for file in study.files}
    for study in studies:
        if os.path.realpath(output / study.name) in sources:
            raise ScanError(
                f"{output} as output folder would overwrite the scan {study.files[0]}; "
                "choose another output folder."
            )
