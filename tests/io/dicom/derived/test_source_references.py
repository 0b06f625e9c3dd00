"""A result of several scans refers to all images that it is made of."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import pytest
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import conformance_errors
from support.dicom_phantoms import STORED, Phantom, oblique

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import as_one_study, read
from cuda_cyclegan.io.volume import Derivation, Volume
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
T1 = Phantom("MR", number=1, series="1.2.3.1", intercept=0.0)
T2 = replace(T1, number=2, series="1.2.3.2", seed=2)
TO_CT = Derivation("both-to-ct", "T1, T2", "CT", "0.1.0", "f" * 64, STORED)
TO_MR = replace(TO_CT, target="FLAIR")
SLICES = range(1, T1.slices + 1)

Edit = Callable[[Any, int], None]


def scans(folder: Path, phantoms: Sequence[Phantom], edit: Edit | None = None) -> list[Volume]:
    """Return scans of one patient, as they are read. edit: applied to the slices of all but the
    first.
    """
    made: list[Volume] = []
    for phantom in phantoms:
        place = folder / f"series-{phantom.number}"
        phantom.write(place, edit) if made and edit else phantom.write(place)
        [study] = discover([place], None).studies
        made.append(read(study))
    return made


def written(volumes: Sequence[Volume], folder: Path, derivation: Derivation = TO_CT) -> list[Any]:
    write(as_one_study(volumes)[0], folder, derivation)
    return [pydicom.dcmread(path) for path in sorted(folder.iterdir())]


def referred(data: Any) -> list[tuple[str, str]]:
    """Each image that a slice refers to, and whether it lies in the same place."""
    items = data.SourceImageSequence
    assert {item.PurposeOfReferenceCodeSequence[0].CodeValue for item in items} == {"121322"}
    return [(item.ReferencedSOPInstanceUID, item.SpatialLocationsPreserved) for item in items]


@pytest.mark.parametrize("turned", [False, True])
def test_scans_on_one_grid_are_referred_to_slice_by_slice(tmp_path: Path, turned: bool) -> None:
    phantoms = [oblique(each) if turned else each for each in (T1, T2)]
    made = written(scans(tmp_path, phantoms), tmp_path / "out")
    for at, data in zip(SLICES, made, strict=True):
        assert referred(data) == [(f"1.2.3.1.{at}", "YES"), (f"1.2.3.2.{at}", "YES")]


def test_a_slice_between_those_of_another_scan_refers_to_both(tmp_path: Path) -> None:
    """The other scan ends sooner."""
    x, y, z = T2.origin
    shifted = replace(T2, origin=(x, y, z + 0.5), slices=10)
    made = written(scans(tmp_path, [T1, shifted]), tmp_path / "out")
    first = [(f"1.2.3.1.{at}", "YES") for at in SLICES]
    assert referred(made[0]) == [first[0], ("1.2.3.2.1", "NO")]
    assert referred(made[3]) == [first[3], ("1.2.3.2.3", "NO"), ("1.2.3.2.4", "NO")]
    assert referred(made[10]) == [first[10], ("1.2.3.2.10", "NO")]
    assert referred(made[11]) == [first[11]]


def test_a_slice_across_another_scan_refers_to_all_slices_that_it_cuts(tmp_path: Path) -> None:
    """The other one is sagittal, every 2 mm; slices of the first are 11.5 mm wide."""
    sagittal = replace(
        T2, orientation=(0.0, 1.0, 0.0, 0.0, 0.0, 1.0), origin=(-30.0, -20.0, 10.0), columns=20
    )
    made = written(scans(tmp_path, [T1, sagittal]), tmp_path / "out")
    for data in made:
        _, *others = referred(data)
        assert others == [(f"1.2.3.2.{at}", "NO") for at in range(1, 8)]


def test_the_same_place_means_the_same_pixels(tmp_path: Path) -> None:
    finer = replace(T2, pixel=(0.5, 0.5))
    made = written(scans(tmp_path, [T1, finer]), tmp_path / "out")
    assert referred(made[0])[1] == ("1.2.3.2.1", "NO")


def test_burned_in_text_of_one_scan_is_possible_in_all_results(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.BurnedInAnnotation = "YES"
        data.ManufacturerModelName = "Scanner 2"

    made = written(scans(tmp_path, [T1, T2], edit), tmp_path / "out")
    for data in made:
        assert data.BurnedInAnnotation == "YES"
        equipment = [item.ManufacturerModelName for item in data.ContributingEquipmentSequence]
        assert equipment == ["Scanner 1", "Scanner 2", "both-to-ct"]


def test_scans_of_one_scanner_name_it_once(tmp_path: Path) -> None:
    [data, *_] = written(scans(tmp_path, [T1, T2]), tmp_path / "out")
    assert len(data.ContributingEquipmentSequence) == 2


@pytest.mark.parametrize("derivation", [TO_CT, TO_MR], ids=["CT", "MR"])
def test_a_judge_finds_nothing_wrong(tmp_path: Path, derivation: Derivation) -> None:
    written(scans(tmp_path, [T1, replace(T2, spacing=1.7)]), tmp_path / "out", derivation)
    for path in (tmp_path / "out").iterdir():
        assert conformance_errors(path) == set()


def test_an_enhanced_result_names_all_objects_as_evidence(tmp_path: Path) -> None:
    volumes: list[Volume] = []
    for phantom in (T1, T2):
        write_enhanced(phantom, tmp_path / phantom.series / "image.dcm")
        [study] = discover([tmp_path / phantom.series], None).studies
        volumes.append(read(study))
    [data] = written(volumes, tmp_path / "out", TO_MR)
    [study] = data.SourceImageEvidenceSequence
    reported = [
        (series.SeriesInstanceUID, [each.ReferencedSOPInstanceUID for each in objects])
        for series in study.ReferencedSeriesSequence
        if (objects := series.ReferencedSOPSequence)
    ]
    assert reported == [("1.2.3.1", ["1.2.3.1.1"]), ("1.2.3.2", ["1.2.3.2.1"])]
    for groups in data.PerFrameFunctionalGroupsSequence:
        first, second = groups.DerivationImageSequence[0].SourceImageSequence
        assert (first.ReferencedSOPInstanceUID, second.ReferencedSOPInstanceUID) == (
            "1.2.3.1.1",
            "1.2.3.2.1",
        )
        assert first.ReferencedFrameNumber == second.ReferencedFrameNumber
    assert conformance_errors(tmp_path / "out" / "0001.dcm") <= conformance_errors(
        tmp_path / "1.2.3.1" / "image.dcm"
    )


def test_a_first_scan_that_is_no_dicom_has_no_place_for_the_others(tmp_path: Path) -> None:
    [volume, other] = scans(tmp_path, [T1, T2])
    nifti = replace(volume, format="nifti", header=np.zeros(1))
    assert as_one_study([nifti, other]) == (nifti, other)
    assert as_one_study([volume]) == (volume,)
