"""Scans held against a model's source: another contrast is no input, what is open is noted."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from support.model_cards import CARD

from cuda_cyclegan.io.volume import Blocker, Study
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.selection import contrast_checked


def series(modality: str) -> Study:
    return Study(PurePosixPath("a"), (Path("a/1"),), "dicom", notes=("old",), modality=modality)


def held(modality: str, source: str, *, any_modality: bool = False) -> Study:
    takes = TranslateOptions(any_modality=any_modality).takes
    return contrast_checked(series(modality), replace(CARD, source=source), takes)


@pytest.mark.parametrize(
    ("modality", "source"), [("MR", "T1"), ("CT", "cbct"), ("PT", "PET/CT"), ("MR", "T2 FLAIR")]
)
def test_a_scan_of_the_source_is_taken_without_a_word(modality: str, source: str) -> None:
    assert held(modality, source) == series(modality)


@pytest.mark.parametrize(
    ("modality", "source", "told"),
    [
        ("CT", "T1", "its modality is CT, and the model translates T1 (MR); "),
        ("MR", "CT", "its modality is MR, and the model translates CT; "),
        ("PT", "T1 MR", "its modality is PT, and the model translates T1 MR (MR); "),
        ("MR", "PET/CT", "its modality is MR, and the model translates PET/CT; "),
    ],
)
def test_a_scan_of_another_modality_is_refused_with_the_way_out(
    modality: str, source: str, told: str
) -> None:
    blocker = held(modality, source).blocker
    assert blocker
    assert blocker.kind == "unsupported"
    assert blocker.reason.startswith(told)
    assert "setting any-contrast" in blocker.reason


def test_what_is_taken_nevertheless_is_noted() -> None:
    study = held("CT", "T1", any_modality=True)
    assert study.blocker is None
    [old, note] = study.notes
    assert old == "old"
    assert note == (
        "its modality is CT, and the model translates T1 (MR); it is included as requested"
    )


@pytest.mark.parametrize(("modality", "source"), [("CT", "domain A"), ("OT", "T1"), ("", "T1")])
def test_what_cannot_be_reported_is_noted_and_not_refused(modality: str, source: str) -> None:
    study = held(modality, source)
    assert study.blocker is None
    assert study.notes[-1] == (
        f"its modality ({modality or 'not given'}) could not be checked against the model's "
        f"source ({source})"
    )


def test_another_blocker_stays() -> None:
    blocker = Blocker("unreadable", "cut")
    study = replace(series("CT"), blocker=blocker)
    assert contrast_checked(study, CARD) == study


FITS, OPEN = "", "nothing shows that the scan is T1 (MR); check that it fits"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sub-01_T1w.nii.gz", FITS),
        ("sub-01_t1_2mm.nii.gz", FITS),
        ("sub-01_mri.nrrd", OPEN),
        ("ct/sub-01.nii.gz", OPEN),
        ("PD_007.nii", OPEN),
        ("p01_T1_to_T2.nii", "its name states T2, and the model translates T1 (MR); check"),
    ],
)
def test_what_names_leave_open_is_noted(name: str, told: str) -> None:
    study = contrast_checked(Study(PurePosixPath(name), (Path(name),), "nifti"), CARD)
    assert study.blocker is None
    assert len(study.notes) == bool(told)
    assert "".join(study.notes).startswith(told)


@pytest.mark.parametrize(
    "name", ["sub-01_ct.nii.gz", "sub-01_T2w.nii.gz", "sub-01_space-T1w_T2w.nii.gz", "FLAIR.mha"]
)
def test_a_file_of_another_contrast_is_refused_with_the_way_out(name: str) -> None:
    file = Study(PurePosixPath(name), (Path(name),), "nifti")
    refused = contrast_checked(file, CARD)
    assert refused.blocker
    assert refused.blocker.reason.endswith(
        "and the model translates T1 (MR); use setting any-contrast to include it"
    )
    [note] = contrast_checked(file, CARD, TranslateOptions(any_contrast=True).takes).notes
    assert note.endswith("it is included as requested")


@pytest.mark.parametrize("name", ["sub-01_T1w.nii.gz", "sub-01_T2w.nii", "a_mr.mha"])
def test_a_model_of_mr_takes_every_weighting(name: str) -> None:
    study = Study(PurePosixPath(name), (Path(name),), "nifti")
    assert contrast_checked(study, replace(CARD, source="MR")) == study


def test_a_source_without_a_known_word_refuses_nothing() -> None:
    study = Study(PurePosixPath("a_ct.nii"), (Path("a_ct.nii"),), "nifti")
    [note] = contrast_checked(study, replace(CARD, source="domain A")).notes
    assert note == "nothing shows that the scan is domain A; check that it fits"


def test_channels_are_held_against_their_own_names() -> None:
    scans = [
        replace(Study(PurePosixPath(name), (Path(name),), "nifti"), channel=channel)
        for name, channel in (("a_0000.nii", "T1"), ("a_T2w.nii", "T2"), ("a_ct.nii", "FLAIR"))
    ]
    assert contrast_checked(replace(scans[0], scans=tuple(scans[:2])), CARD).notes == ()
    blocker = contrast_checked(replace(scans[0], scans=tuple(scans)), CARD).blocker
    assert blocker
    assert blocker.reason.startswith("FLAIR: its name states ct, and the model translates FLAIR")
