"""Result with a file name from the user instead of one after its scan."""

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ...io.discovery import Discovery
from ...io.formats.registry import RESULT_SUFFIXES, SUFFIXES, suffix_of
from ...io.maps import is_map_name
from ...io.volume import Study
from ..errors import SettingsError


def is_result_file(output: Path) -> bool:
    """Return whether an output names a scan file, and not a folder."""
    return suffix_of(output) in SUFFIXES and not output.is_dir()


def named_result(found: Discovery, target: Path) -> Discovery:
    """Return the only study that was found, under the name of its result.

    Raises SettingsError for several studies, for a suffix that does not fit the study, and for the
    name of a map.
    """
    if not found.studies:
        return found
    if len(found.studies) > 1:
        raise SettingsError(
            f"{target} is the name of one file, and there are {len(found.studies)} studies; name a "
            "folder with setting output, or a single scan."
        )
    study = next(iter(found.studies))
    if study.other_results:
        raise SettingsError(
            f"{target} is the name of one file, and the model makes {len(study.results)} of a "
            "study; name a folder with setting output."
        )
    _check_suffix(study, target)
    if any(os.path.realpath(file) == os.path.realpath(target) for file in study.files):
        raise SettingsError(f"{target} is the scan itself; choose another setting output.")
    return replace(found, studies=(replace(study, name=PurePosixPath(target.name)),))


def _check_suffix(study: Study, target: Path) -> None:
    if is_map_name(target.name):
        raise SettingsError(
            f"{target} has the name of a map beside a result; choose another setting output."
        )
    own = suffix_of(study.files[0])
    is_pair = own.startswith(".hdr")
    # A scan with separate header and voxel files cannot become one file of its own format.
    fitting = [each for each in RESULT_SUFFIXES if not (is_pair and SUFFIXES[each] == study.format)]
    if own in SUFFIXES and own not in fitting:
        fitting.append(own)
    if suffix_of(target) in fitting:
        return
    raise SettingsError(
        f"{target} cannot hold the result of {study.files[0].name}; its name must end in "
        f"{', '.join(fitting[:-1])} or {fitting[-1]}."
    )
