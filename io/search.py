"""Walk files and folders for scans: each real file once, and no results of this program."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from .files.parts import is_part
from .formats.nifti import header_beside
from .links import LinkRule, is_of_system, leads_into_system
from .volume import Format

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
OTHER_SCANS = (".mgz", ".mgh", ".mnc", ".gipl", ".gipl.gz", ".par", ".brik", ".brik.gz", ".nrrd.gz")
APPLE_DOUBLE = "._"  # macOS keeps a file's attributes in ._NAME on disks of other systems


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not translated, and why, in words for the report.

    missed: whether there may be scans behind it, so that what was asked for is not all done.
    reason: those words.
    """

    path: Path
    reason: str
    missed: bool = False


@dataclass
class FileSearch:
    """What has been met so far.

    output: the real path of the folder whose files are results, not scans, if there is one. rule:
    which links are followed. unnamed: files whose names say no kind, as those of DICOM often do.
    by_name: those of them that were asked for. ignored: how many files are no scans. files: those
    that may be scans. skipped: those that were asked for and are none.
    """

    output: Path | None
    rule: LinkRule
    files: list[Path] = field(default_factory=list[Path])
    unnamed: list[Path] = field(default_factory=list[Path])
    by_name: set[Path] = field(default_factory=set[Path])
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    ignored: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def meet(self, named: Path) -> None:
        """Take a file that was asked for by name, or all scans below a folder."""
        if leads_into_system(named):
            self._skip(named, "it leads into a folder of the system", missed=True)
            return
        if is_folder(named):
            self._walk(named)
            return
        header = header_beside(named) if suffix_of(named) in IMAGE_SUFFIXES else named
        if suffix_of(header) in SUFFIXES:
            self._meet_scan(header, self.files)
        else:
            self.by_name.add(named)
            self._meet_scan(named, self.unnamed)

    def _walk(self, root: Path) -> None:
        """Follow links last, so that what they lead to keeps its own name if it has one below."""
        guarded = not self._is_result(root)
        in_system = is_of_system(root)
        links = [root]
        while links:
            pending = [links.pop(0)]
            while pending:
                path = pending.pop()
                if guarded and self._is_result(path):
                    continue
                if is_of_system(path) and not in_system:
                    self._skip(path, "it is a folder of the system")
                    continue
                if not is_folder(path):
                    self._meet_in_folder(path)
                elif self._is_new(path):
                    folders, linked = self._list(path)
                    pending += reversed(folders)
                    links += [link for link in linked if self._is_followed(link, guarded)]

    def _list(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Take the files of `folder`; return its folders, and all that it links to."""
        try:
            paths = sorted(path for path in folder.iterdir() if not is_part(path.name))
        except OSError as error:
            self._skip(folder, f"the folder cannot be opened: {error.strerror}")
            return [], []
        folders: list[Path] = []
        linked: list[Path] = []
        for path in paths:
            mode = _mode(path, follow_symlinks=False)
            if stat.S_ISLNK(mode):
                linked.append(path)
            elif stat.S_ISDIR(mode):
                folders.append(path)
            else:
                self._meet_in_folder(path)
        return folders, linked

    def _is_followed(self, link: Path, guarded: bool) -> bool:
        """Whether to go on to where a link leads; that it leads nowhere is told there."""
        if guarded and self._is_result(link):
            return False
        refusal = self.rule.refusal(link) if is_there(link) else None
        if refusal:
            self._skip(link, refusal, missed=True)
        return refusal is None

    def _meet_in_folder(self, path: Path) -> None:
        suffix = suffix_of(path)
        if path.name.startswith(APPLE_DOUBLE):
            self.ignored += 1
        elif suffix in OTHER_SCANS:
            self._skip(path, f"{suffix} scans are not read; convert it to .nii.gz")
        elif suffix in SUFFIXES:
            self._meet_scan(path, self.files)
        elif suffix not in IMAGE_SUFFIXES or not is_there(header_beside(path)):
            self._meet_scan(path, self.unnamed)

    def _meet_scan(self, path: Path, kind: list[Path]) -> None:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            missing = "the link leads nowhere" if path.is_symlink() else "it is missing"
            self._skip(path, missing)
        except OSError as error:
            self._skip(path, f"it cannot be opened: {error.strerror}")
        else:
            if not stat.S_ISREG(mode):
                self._skip(path, "it is a pipe, socket or device, not a file")
            elif self._is_new(path):
                kind.append(path)

    def _is_new(self, path: Path) -> bool:
        try:
            place = path.stat()
        except OSError as error:
            self._skip(path, f"it cannot be opened: {error.strerror}")
            return False
        key = (place.st_dev, place.st_ino)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _is_result(self, path: Path) -> bool:
        return bool(self.output) and Path(os.path.realpath(path)).is_relative_to(self.output)

    def _skip(self, path: Path, reason: str, *, missed: bool = False) -> None:
        self.skipped.append(Skipped(path, reason, missed))


def suffix_of(path: Path) -> str:
    """The last suffix in small letters, with the one before it where the file is gzip."""
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() + last if last == ".gz" else last


def is_folder(path: Path) -> bool:
    """As Path.is_dir, and False where the way there is forbidden."""
    return stat.S_ISDIR(_mode(path))


def is_there(path: Path) -> bool:
    """As Path.exists, and False where the way there is forbidden."""
    return _mode(path) != 0


def _mode(path: Path, *, follow_symlinks: bool = True) -> int:
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except OSError:
        return 0
