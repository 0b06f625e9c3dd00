"""The one scan of a file or folder that a user names."""

from os import PathLike
from pathlib import Path

from .choice import EVERYTHING, Choice
from .discovery import Discovery, discover
from .errors import UnreadableScanError, UnsupportedScanError
from .reading import read
from .volume import Study, Volume


def read_scan(path: str | PathLike[str]) -> Volume:
    """The one volume of a file or folder. Raises ScanError."""
    return read(find_scan(Path(path)))


def find_scan(path: Path, choice: Choice = EVERYTHING) -> Study:
    """The one scan of a file or folder. Raises ScanError."""
    return only_study(path, discover([path], None, choice))


def only_study(path: Path, found: Discovery) -> Study:
    """The one study that a search of `path` found. Raises ScanError."""
    if len(found.studies) == 1:
        return sound(found.studies[0], path)
    if found.studies:
        names = ", ".join(str(study.name) for study in found.studies[:3])
        raise UnsupportedScanError(
            f"{path} holds {len(found.studies)} scans ({names}, ...); name one of them."
        )
    reasons = "".join(f": {skip.path}: {skip.reason}" for skip in found.skipped[:1])
    raise UnreadableScanError(f"{path} holds no scan{reasons}; name a scan.")


def sound(study: Study, path: Path) -> Study:
    """A study without an obstacle; path: what errors call it by. Raises ScanError."""
    if study.obstacle is None:
        return study
    kind = UnsupportedScanError if study.obstacle.kind == "unsupported" else UnreadableScanError
    raise kind(f"{path} cannot be translated: {study.obstacle.reason}.")
