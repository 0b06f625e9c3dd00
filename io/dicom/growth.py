"""Images that come to a series after its folders were searched."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..volume import Study
from .discovery import scan
from .series import Series


def came_since(study: Study) -> tuple[Path, ...]:
    """Images of a study's series in its folders that were not there when these were searched.

    Headers are read of what is new alone. Raises OSError.
    """
    known = {*study.files}
    new = [
        path
        for folder, listed in study.listed
        if folder.stat().st_mtime_ns != listed
        for path in _changed_since(folder, listed)
        if path not in known
    ]
    series = {each.series.uid for each in study.channels if isinstance(each.series, Series)}
    return tuple(each.file for each in scan(sorted(new)).instances if each.series in series)


def _changed_since(folder: Path, moment: int) -> Iterator[Path]:
    """Files by the times that their own file system gives them, not by this machine's clock."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file() and entry.stat().st_ctime_ns >= moment:
                yield folder / entry.name
