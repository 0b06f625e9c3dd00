"""JSON sidecars as BIDS and dcm2niix write them, and BIDS file names."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

from .files.own_files import NO_LINK
from .formats.registry import scan_stem

LARGEST_SIDECAR_BYTES = 1 << 20
DATASET_DESCRIPTION = "dataset_description.json"

_ENTITY = re.compile(r"([a-z]+)-([A-Za-z0-9+]+)")
_SUFFIX = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class BidsName:
    """A file name as BIDS has it, such as sub-01_ses-2_T1w, without its extension.

    entities: labels by key, in the name's order. suffix: the word after the last underscore.
    """

    entities: Mapping[str, str]
    suffix: str

    @classmethod
    def parse(cls, stem: str) -> Self | None:
        """Return the parts of a name; None for a name of another form."""
        *entities, suffix = stem.split("_")
        found = [_ENTITY.fullmatch(entity) for entity in entities]
        labels: dict[str, str] = {match[1]: match[2] for match in found if match}
        if len(labels) < len(entities) or not _SUFFIX.fullmatch(suffix):
            return None
        return cls(labels, suffix)

    @classmethod
    def of_scan(cls, file: Path) -> Self | None:
        """Return the parts of a scan's name; None unless it names its subject."""
        name = cls.parse(scan_stem(file))
        return name if name and "sub" in name.entities else None


def sidecar_of(scan: Path) -> Path:
    """Return the path of the JSON file of a scan or of a result."""
    return scan.with_name(f"{scan_stem(scan)}.json")


def read_sidecar(sidecar: Path) -> dict[str, Any]:
    """Return the fields of a JSON file; none of one that is missing, is a link, or is damaged."""
    try:
        status = sidecar.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_SIDECAR_BYTES:
            return {}
        with os.fdopen(os.open(sidecar, os.O_RDONLY | NO_LINK), "rb") as file:
            fields: Any = json.loads(file.read(LARGEST_SIDECAR_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def fields_of(scan: Path) -> dict[str, Any]:
    """Return the fields of the JSON files of a scan, as `SidecarReader` does."""
    return SidecarReader().fields_of(scan)


def dataset_root(scan: Path) -> Path:
    """Return the folder of a scan's BIDS dataset.

    It has a dataset_description.json; otherwise it is the parent of the subject's folder, or else
    the scan's own.
    """
    for folder in scan.parents:
        if os.path.lexists(f"{folder}{os.sep}{DATASET_DESCRIPTION}"):
            return folder
    subjects = [folder for folder in scan.parents if folder.name.startswith("sub-")]
    return subjects[-1].parent if subjects else scan.parent


class SidecarReader:
    """Reader of the JSON files of many scans; each folder is listed once, and each file that
    several scans share is read once.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}
        self._shared: dict[Path, dict[str, Any]] = {}
        self._datasets: dict[Path, dict[str, Any]] = {}

    def fields_of(self, scan: Path) -> dict[str, Any]:
        """Return the fields of the JSON files of a scan.

        These are the file of its name, and in a BIDS dataset those that apply to it by the
        inheritance principle, where a more specific file overrides the others.
        """
        stem = scan_stem(scan)
        folder = self._folder(scan.parent)
        has_own = f"{stem}.json" in folder.names
        fields: dict[str, Any] = {}
        name = BidsName.parse(stem) if "sub-" in stem else None
        if name and "sub" in name.entities:
            for sidecar in folder.inherited(name, above_only=has_own):
                fields |= self._fields_of(sidecar)
        return fields | read_sidecar(scan.with_name(f"{stem}.json")) if has_own else fields

    def of_dataset(self, scan: Path) -> dict[str, Any]:
        """Return the description of a scan's dataset, or nothing if it has none."""
        root = self._folder(scan.parent).root
        if root not in self._datasets:
            self._datasets[root] = read_sidecar(root / DATASET_DESCRIPTION)
        return self._datasets[root]

    def _fields_of(self, sidecar: Path) -> dict[str, Any]:
        if sidecar not in self._shared:
            self._shared[sidecar] = read_sidecar(sidecar)
        return self._shared[sidecar]

    def _folder(self, folder: Path) -> "_Folder":
        """Return the JSON files of a folder, and of those above it down from its dataset's."""
        if (known := self._folders.get(folder)) is not None:
            return known
        root = dataset_root(folder / "_")  # of a scan in the folder
        try:
            listed = os.listdir(folder)  # noqa: PTH208 - paths of all files would take long
            names = frozenset(each for each in listed if each.endswith(".json"))
        except OSError:
            names = frozenset[str]()
        above = self._folder(folder.parent) if folder != root else None
        known = self._folders[folder] = _Folder(folder, root, names, above)
        return known


class _Folder:
    """Folder of a dataset. root: folder of the dataset. names: of its JSON files. above: the folder
    above it, None for the root.
    """

    def __init__(
        self, folder: Path, root: Path, names: frozenset[str], above: "_Folder | None"
    ) -> None:
        self.root, self.names, self._folder, self._above = root, names, folder, above

    @cached_property
    def _own(self) -> Mapping[str, Sequence[tuple[BidsName, Path]]]:
        """JSON files with BIDS names by suffix, the least specific first."""
        found: dict[str, list[tuple[BidsName, Path]]] = {}
        for each in sorted(self.names):
            if name := BidsName.parse(each.removesuffix(".json")):
                found.setdefault(name.suffix, []).append((name, self._folder / each))
        for named in found.values():
            named.sort(key=lambda row: len(row[0].entities))
        return found

    def inherited(self, name: BidsName, *, above_only: bool = False) -> Iterator[Path]:
        """Yield the JSON files that apply to a scan, the least specific first.

        above_only: whether those of this folder are omitted, as the scan has one of its own there;
        a folder of many scans is not compared for each.
        """
        if self._above:
            yield from self._above.inherited(name)
        if not above_only:
            for other, sidecar in self._own.get(name.suffix, ()):
                if other.entities.items() <= name.entities.items():
                    yield sidecar
