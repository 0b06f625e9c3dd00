"""Measures of results that another program stored, taken when they are looked at."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ...io.errors import ScanError
from ...io.reading import read
from ...io.volume import Volume
from ..errors import PipelineError
from ..report.report import StudyReport
from ..study.figures import Measures
from ..study.grids import grid_difference
from ..study.measures import measure, sign_of, values_of
from .studies import ImageFile, ViewedStudy, Viewing


def measured(viewing: Viewing, on_progress: Callable[[int, int], None]) -> Viewing:
    """Return studies with the measures of results that have none in a report.

    on_progress: called with the numbers of finished and all such results. Nothing is stored.
    """
    count, done, studies = sum(map(_is_due, viewing.studies)), 0, list[ViewedStudy]()
    for study in viewing.studies:
        if _is_due(study):
            on_progress(done, count)
            study = replace(study, row=_row(study))
            done += 1
        studies.append(study)
    return replace(viewing, studies=tuple(studies))


def _is_due(study: ViewedStudy) -> bool:
    return study.row is None and {"input", "result"} <= study.images.keys()


def _row(study: ViewedStudy) -> StudyReport:
    """Return the row of a study, without measures if its images cannot be compared."""
    scan, result = study.images["input"], study.images["result"]
    row = StudyReport(study.name, scan.path, result.path, "translated")
    try:
        volumes = _volume(scan), _volume(result)
    except (ScanError, PipelineError, OSError) as error:
        return replace(row, notes=(f"it has no measures: {error}",))
    if difference := grid_difference(*volumes):
        why = f"it has no measures, as the grids of scan and result differ: {difference}"
        return replace(row, notes=(why,))
    lacking = volumes[1].voxels.size - int(np.isfinite(volumes[1].voxels).sum())
    notes = (f"{lacking} voxels of its result are NaN or infinite",) if lacking else ()
    return replace(row, measures=_measures(*volumes), notes=notes)


def _volume(image: ImageFile) -> Volume:
    study = image.study()
    return read(study, None if study.is_dicom else 0)


def _measures(scan: Volume, result: Volume) -> Measures | None:
    unit, signs = partial(values_of, result), (sign_of(scan), sign_of(result))
    found = measure(scan.voxels, result.voxels, scan.spacing, unit, signs)
    return found and replace(found, spacing=scan.spacing)
