"""JSON sidecars as BIDS and dcm2niix write them, and BIDS file names."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from .contrasts import DARK_FLUID, MEANINGS, Contrasts
from .files.own_files import NO_LINK
from .formats.registry import scan_stem
from .volume import Study

LARGEST_SIDECAR_BYTES = 1 << 20
DATASET_DESCRIPTION = "dataset_description.json"

_ENTITY = re.compile(r"([a-z]+)-([A-Za-z0-9+]+)")
_SUFFIX = re.compile(r"[A-Za-z0-9]+")

_OF_OTHER_THINGS = {"pd", "pt"}
"""Words that in a name may well be Parkinson's disease or a patient."""


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
    """Return the fields of the JSON files of a scan.

    These are the file of its name, and in a BIDS dataset those that apply to it by the inheritance
    principle, where a more specific file overrides the others.
    """
    name = BidsName.of_scan(scan)
    if name is None:
        return read_sidecar(sidecar_of(scan))
    fields: dict[str, Any] = {}
    for sidecar in _applicable(scan, name):
        fields |= read_sidecar(sidecar)
    return fields


def dataset_root(scan: Path) -> Path:
    """Return the folder of a scan's BIDS dataset.

    It has a dataset_description.json; otherwise it is the parent of the subject's folder, or else
    the scan's own.
    """
    for folder in scan.parents:
        if os.path.lexists(folder / DATASET_DESCRIPTION):
            return folder
    subjects = [folder for folder in scan.parents if folder.name.startswith("sub-")]
    return subjects[-1].parent if subjects else scan.parent


def _applicable(scan: Path, name: BidsName) -> Iterator[Path]:
    """Yield the least specific first: of a folder one, or all that a user left there."""
    root, own = dataset_root(scan), sidecar_of(scan)
    folders = [folder for folder in reversed(scan.parents) if folder.is_relative_to(root)]
    for folder in folders:
        if folder == own.parent and os.path.lexists(own):
            yield own  # a folder of many scans is not listed for each
            continue
        found: list[tuple[int, Path]] = []
        for sidecar in folder.glob("*.json"):
            other = BidsName.parse(sidecar.stem)
            if (
                other
                and other.suffix == name.suffix
                and other.entities.items() <= name.entities.items()
            ):
                found.append((len(other.entities), sidecar))
        yield from (sidecar for _, sidecar in sorted(found))


@dataclass(frozen=True, slots=True)
class ContrastHint:
    """A statement about a scan by something that is no part of it, and may be wrong.

    by: the source and its statement, in words. contrasts: all that it names. against: those by
    which it may be of another contrast than a model takes.
    """

    by: str
    contrasts: Contrasts
    against: Contrasts


def contrast_hints(study: Study) -> Iterator[ContrastHint]:
    """Yield contrast hints from a file's JSON sidecar, as of BIDS and dcm2niix, and its name."""
    file = study.files[0]
    sidecar = read_sidecar(sidecar_of(file))
    for key in ("Modality", "SeriesDescription"):
        text = sidecar.get(key)
        named = Contrasts.named_in(text if isinstance(text, str) else "")
        words = sorted(named.weightings or named.modalities)
        # The text itself may name a patient.
        yield ContrastHint(f"the JSON file next to it states {', '.join(words)}", named, named)
    yield _hint_of_name(scan_stem(file))


def _hint_of_name(stem: str) -> ContrastHint:
    """The last word that names a contrast speaks against a scan, as BIDS has it as a suffix; that
    another one fits speaks for it. What is joined by one hyphen, as in space-T2w, says neither.
    """
    parts = DARK_FLUID.sub("FLAIR", stem).split("_")
    if len(parts) > 1:
        parts = [part for part in parts if part.count("-") != 1]
    words = re.findall(r"[A-Za-z0-9]+", " ".join(parts))
    sure = [word for word in words if word.lower() in MEANINGS.keys() - _OF_OTHER_THINGS]
    last = sure[-1] if sure else ""
    return ContrastHint(
        f"its name states {last}", Contrasts.named_in(" ".join(words)), Contrasts.named_in(last)
    )
