"""Names of results in the format that was asked for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from .choice import OutputFormat
from .search import Skipped
from .volume import Study


def in_format(studies: Iterable[Study], wanted: OutputFormat) -> tuple[list[Study], list[Skipped]]:
    """The studies whose results can have the format, under the names it gives them; the others."""
    match wanted:
        case "same":
            return list(studies), []
        case "nifti":
            return [_as_nifti(study) for study in studies], []
        case "dicom":
            found = list(studies)
            others = [
                Skipped(study.files[0], "it is no DICOM series, which --format dicom derives from")
                for study in found
                if study.format != "dicom"
            ]
            return [study for study in found if study.format == "dicom"], others


def _as_nifti(study: Study) -> Study:
    if study.format == "nifti":
        return study
    name = study.name.name if study.format == "dicom" else PurePosixPath(study.name.name).stem
    return replace(study, name=study.name.with_name(f"{name}.nii.gz"))
