"""A PACS takes a derived series and lists it in the study of its source."""

from pathlib import Path
from typing import Any

import pydicom as _pydicom
from support.dicom_pacs import orthanc
from support.dicom_phantoms import STORED, Phantom

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom


def test_orthanc_lists_the_result_in_the_same_study(tmp_path: Path) -> None:
    phantom = Phantom("MR", intercept=0.0)
    sources = phantom.write(tmp_path / "in")
    [study] = discover([tmp_path / "in"], None).studies
    derivation = Derivation("t1-to-ct", "T1", "CT", "0.1.0", "f" * 64, STORED)
    write(read(study), tmp_path / "out", derivation)
    results = sorted((tmp_path / "out").iterdir())
    made = pydicom.dcmread(results[0])
    with orthanc(tmp_path / "pacs") as pacs:
        pacs.store(sources)
        pacs.store(results)
        pacs.store(results)  # made again, it is the same
        assert pacs.series_by_study() == {
            phantom.study: {phantom.series: 12, made.SeriesInstanceUID: 12}
        }
        [patient] = pacs.ask("/patients?expand")
        assert patient["MainDicomTags"]["PatientID"] == "HOSP-4711"
