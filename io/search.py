"""Search files and folders for scans: every name of every file, but no results of this program."""

import os
import stat
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from .choice import ALL_PATHS, EXCLUDED, PathGlobs, SkipKind
from .files.own_files import identity, is_record
from .files.parts import is_part
from .files.regular import NOT_REGULAR, is_folder, is_there, mode_of
from .formats.registry import VOXEL_SUFFIXES, format_at, header_of, suffix_of
from .links import LinkRule, is_of_system, leads_into_system
from .maps import IS_MAP, is_map_name

OTHER_SCANS = (
    *(".mgz", ".mgh", ".mnc.gz", ".gipl", ".gipl.gz", ".par", ".nrrd.gz"),
    *(".mif", ".mif.gz", ".mih"),
)
PACKED = (".zip", ".7z", ".rar", ".tar", ".tar.gz", ".tgz", ".bz2", ".xz", ".zst")
"""Suffixes of archives, which may hold scans: a PACS exports such."""
_APPLE_DOUBLE = "._"  # macOS keeps a file's attributes in ._NAME on disks of other systems
_SYSTEM_FILES = (".ds_store", "thumbs.db", "desktop.ini")
_HOUSEKEEPING = (
    *(".git", ".appledouble", "@eadir", "lost+found", "system volume information"),
    *("$recycle.bin", ".trashes", ".fseventsd", ".spotlight-v100", ".documentrevisions-v100"),
)
"""Folders, in small letters, of file systems, file servers and archives, not of people."""
MOST_REPEATED = 100_000
"""Limit of names below links to folders that also have other names; crossing links could make any
number.
"""

_Place: TypeAlias = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not translated, and why, in words for the report.

    missed: whether it may contain unread scans. reason: those words. kind: rule by which it is
    skipped, if it is a scan.
    """

    path: Path
    reason: str
    missed: bool = False
    kind: SkipKind = ""


@dataclass
class FileSearch:
    """Search with the files found so far.

    output: the real path of the folder whose files are results, not scans, if there is one. rule:
    which links are followed. takes_maps: whether maps next to results count as scans. globs: which
    folders below a named one are searched. unnamed: files whose names show no format, as is common
    for DICOM. by_name: those of them that the user named. unopened: those that cannot be opened.
    closed: folders that cannot. ignored: number of files that are not scans. files: those that may
    be scans. skipped: named files that are not scans. listed: the folders that were searched, each
    with the time of its last change before that, in nanoseconds since 1970.
    """

    output: Path | None
    rule: LinkRule
    takes_maps: bool = False
    globs: PathGlobs = ALL_PATHS
    files: list[Path] = field(default_factory=list[Path])
    unnamed: list[Path] = field(default_factory=list[Path])
    by_name: set[Path] = field(default_factory=set[Path])
    unopened: list[Skipped] = field(default_factory=list[Skipped])
    closed: list[Skipped] = field(default_factory=list[Skipped])
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    ignored: int = 0
    listed: dict[Path, int] = field(default_factory=dict[Path, int])
    _added: set[Path] = field(default_factory=set[Path])
    _folders: set[_Place] = field(default_factory=set[_Place])
    _repeated: int = 0

    def add(self, named: Path) -> None:
        """Add a named file, or all scans below a folder."""
        if leads_into_system(named):
            self._skip(named, "it leads into a system folder", missed=True)
            return
        if self._is_map(named):
            self._skip(named, IS_MAP)
            return
        if is_folder(named):
            self._walk(named)
            return
        header = header_of(named)
        if format_at(header):
            self._add_scan(header, self.files)
        else:
            self.by_name.add(named)
            self._add_scan(named, self.unnamed)

    def _walk(self, root: Path) -> None:
        """Search a folder, links last, so that a folder is found by its own name before a link's.

        Each folder is kept with its parents, which reveal circular links.
        """
        guarded = not self._is_result(root)
        in_system = is_of_system(root)
        links: deque[_Branch] = deque([(root, frozenset())])
        while links:
            pending = [links.popleft()]
            while pending:
                path, parents = pending.pop()
                if guarded and self._is_output(path):
                    continue
                if is_of_system(path) and not in_system:
                    self._skip(path, "it is a system folder")
                    continue
                place = self._folder_at(path)
                if place and self.globs.exclude and self.globs.excludes(path.relative_to(root)):
                    self.skipped.append(Skipped(path, EXCLUDED, kind="excluded"))
                    continue
                if place is None:
                    self._add_from_folder(path)
                elif place not in parents:
                    inner = parents | {place}
                    folders, linked = self._list(path, repeated=place in self._folders)
                    self._folders.add(place)
                    pending += [(folder, inner) for folder in reversed(folders)]
                    links += [(link, inner) for link in linked if self._is_followed(link, guarded)]

    def _folder_at(self, path: Path) -> _Place | None:
        """Return device and inode of a folder; None if it is no folder, or cannot be accessed."""
        try:
            status = path.stat()
        except OSError:
            return None
        return identity(status) if stat.S_ISDIR(status.st_mode) else None

    def _list(self, folder: Path, *, repeated: bool) -> tuple[list[Path], list[Path]]:
        """Add the files of `folder`; return its folders, and all that it links to."""
        if folder in self._added or self._repeated > MOST_REPEATED:
            return [], []
        self._added.add(folder)
        try:
            self.listed[folder] = folder.stat().st_mtime_ns
            paths = sorted(path for path in folder.iterdir() if not _is_own(path.name))
        except OSError as error:
            reason = f"the folder cannot be opened: {error.strerror}"
            self.closed.append(Skipped(folder, reason, missed=True))
            return [], []
        self._repeated += len(paths) * repeated
        if self._repeated > MOST_REPEATED:
            self._skip(folder, _TOO_MANY_NAMES, missed=True)
            return [], []
        folders: list[Path] = []
        linked: list[Path] = []
        for path in paths:
            mode = mode_of(path, follow_symlinks=False)
            if self._is_map(path):
                self._skip(path, IS_MAP)
            elif stat.S_ISLNK(mode):
                linked.append(path)
            elif not stat.S_ISDIR(mode):
                self._add_from_folder(path)
            elif path.name.lower() not in _HOUSEKEEPING:
                folders.append(path)
        return folders, linked

    def _is_followed(self, link: Path, guarded: bool) -> bool:
        """Return whether to follow a link; a broken one is reported at its target."""
        if guarded and self._is_result(link):
            return False
        refusal = self.rule.refusal(link) if is_there(link) else None
        if refusal:
            self._skip(link, refusal, missed=True)
        return refusal is None

    def _add_from_folder(self, path: Path) -> None:
        suffix = suffix_of(path)
        if path.name.startswith(_APPLE_DOUBLE) or path.name.lower() in _SYSTEM_FILES:
            self.ignored += 1
        elif format_at(path):
            self._add_scan(path, self.files)
        elif suffix in OTHER_SCANS:
            self._skip(path, f"{suffix} scans are not supported; convert it to .nii.gz")
        elif suffix in PACKED:
            self._skip(path, f"{suffix} files are not opened; unpack it if it contains scans")
        elif suffix not in VOXEL_SUFFIXES or not is_there(header_of(path)):
            self._add_scan(path, self.unnamed)

    def _add_scan(self, path: Path, kind: list[Path]) -> None:
        if path in self._added:
            return
        self._added.add(path)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            missing = _missing(path)
            self._skip_unopened(path, kind, missing, missed=False)
        except OSError as error:
            self._skip_unopened(path, kind, f"it cannot be opened: {error.strerror}", missed=True)
        else:
            if stat.S_ISREG(mode):
                kind.append(path)
            elif kind is self.files:
                self._skip(path, NOT_REGULAR)
            else:
                self._skip_unopened(path, kind, NOT_REGULAR, missed=False)

    def _skip_unopened(self, path: Path, kind: list[Path], reason: str, *, missed: bool) -> None:
        """Record an unopened path; missed: whether it may be a scan if its name shows no format."""
        if kind is self.files:
            self._skip(path, reason, missed=True)
        else:
            self.unopened.append(Skipped(path, reason, missed))

    def _is_result(self, path: Path) -> bool:
        return bool(self.output) and Path(os.path.realpath(path)).is_relative_to(self.output)

    def _is_output(self, folder: Path) -> bool:
        """Return whether a folder in one that holds no results is the output folder itself.

        The real path of each folder of a deep chain would take long.
        """
        return bool(self.output) and folder.name == self.output.name and self._is_result(folder)

    def _is_map(self, path: Path) -> bool:
        return not self.takes_maps and is_map_name(path.name)

    def _skip(self, path: Path, reason: str, *, missed: bool = False) -> None:
        self.skipped.append(Skipped(path, reason, missed))


def _missing(path: Path) -> str:
    """Return why a file is not there, in words."""
    try:
        target = path.readlink().as_posix()
    except OSError:
        return "it is missing"
    if _ANNEX in target:
        return "git-annex has not fetched its content; run git annex get or datalad get"
    return "the link leads nowhere"


_ANNEX = ".git/annex/objects/"
"""Folder of a repository to whose files git-annex links."""


def _is_own(name: str) -> bool:
    """Return whether this program keeps something there that is neither a scan nor a result."""
    return is_part(name) or is_record(name)


_Branch: TypeAlias = tuple[Path, frozenset[_Place]]
_TOO_MANY_NAMES = (
    f"links repeat more than {MOST_REPEATED} files below this folder; give the wanted folders as "
    "inputs"
)
