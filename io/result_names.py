"""Names of results in the format that was asked for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from .choice import OutputFormat
from .volume import Obstacle, Study

_NO_SERIES = Obstacle(
    "unsupported",
    "it is no DICOM series, which --format dicom derives from; use --format same or nifti for it",
)


def in_format(studies: Iterable[Study], wanted: OutputFormat) -> list[Study]:
    """The studies under the names that the format gives their results, or with the obstacle that
    their results cannot have it.
    """
    match wanted:
        case "same":
            return list(studies)
        case "nifti":
            return [_as_nifti(study) for study in studies]
        case "dicom":
            return [_as_dicom(study) for study in studies]


def _as_nifti(study: Study) -> Study:
    if study.format == "nifti":
        return study
    name = study.name.name if study.format == "dicom" else PurePosixPath(study.name.name).stem
    return replace(study, name=study.name.with_name(f"{name}.nii.gz"))


def _as_dicom(study: Study) -> Study:
    return study if study.format == "dicom" else replace(study, obstacle=_NO_SERIES)
