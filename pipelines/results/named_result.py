"""A result whose file the user named, in place of one named after its scan."""

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ...io.discovery import Discovery
from ...io.maps import is_map_name
from ...io.search import SUFFIXES, suffix_of
from ...io.volume import Study
from ..errors import SettingsError

_OF_ANY = (".nii", ".nii.gz", ".nrrd", ".mha")
"""Suffixes of what scans of each format can be written as; those of header and voxels apart cannot
be one file of NIfTI."""


def is_result_file(output: Path) -> bool:
    """Whether an output names a file of scans, and not a folder."""
    return suffix_of(output) in SUFFIXES and not output.is_dir()


def named_result(found: Discovery, target: Path) -> Discovery:
    """The one study that was found, under the name of its result.

    Raises SettingsError for several studies, for a suffix that cannot hold this one, and for the
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
    fitting = [suffix for suffix in _OF_ANY if not (is_pair and SUFFIXES[suffix] == "nifti")]
    if own in SUFFIXES and own not in fitting:
        fitting.append(own)
    if suffix_of(target) in fitting:
        return
    raise SettingsError(
        f"{target} cannot hold the result of {study.files[0].name}; its name must end in "
        f"{', '.join(fitting[:-1])} or {fitting[-1]}."
    )
