"""Scans held against a model's source: refused is what is certain, the rest is noted."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from support.model_cards import CARD

from cuda_cyclegan.io.volume import Obstacle, Study
from cuda_cyclegan.pipelines.study.modality import modality_checked


def series(modality: str) -> Study:
    return Study(PurePosixPath("a"), (Path("a/1"),), "dicom", notes=("old",), modality=modality)


def held(modality: str, source: str, *, any_modality: bool = False) -> Study:
    return modality_checked(
        series(modality), replace(CARD, source=source), any_modality=any_modality
    )


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
    obstacle = held(modality, source).obstacle
    assert obstacle
    assert obstacle.kind == "unsupported"
    assert obstacle.reason.startswith(told)
    assert "setting any-modality" in obstacle.reason


def test_what_is_taken_all_the_same_is_noted() -> None:
    study = held("CT", "T1", any_modality=True)
    assert study.obstacle is None
    [old, note] = study.notes
    assert old == "old"
    assert note.startswith("its modality is CT, and the model translates T1 (MR); it is taken")


@pytest.mark.parametrize(("modality", "source"), [("CT", "domain A"), ("OT", "T1"), ("", "T1")])
def test_what_cannot_be_told_is_noted_and_not_refused(modality: str, source: str) -> None:
    study = held(modality, source)
    assert study.obstacle is None
    assert study.notes[-1] == (
        f"its modality ({modality or 'not given'}) could not be checked against the model's "
        f"source ({source})"
    )


def test_another_obstacle_stays() -> None:
    obstacle = Obstacle("unreadable", "cut")
    study = replace(series("CT"), obstacle=obstacle)
    assert modality_checked(study, CARD) == study


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("sub-01_ct.nii.gz", 1),
        ("sub-01_T2w.nii.gz", 1),
        ("sub-01_T1w.nii.gz", 0),
        ("ct/sub-01.nii.gz", 0),
        ("sub-01_mri.nrrd", 0),
    ],
)
def test_the_name_of_a_file_is_a_hint_and_never_refused(name: str, notes: int) -> None:
    study = modality_checked(Study(PurePosixPath(name), (Path(name),), "nifti"), CARD)
    assert study.obstacle is None
    assert len(study.notes) == notes
