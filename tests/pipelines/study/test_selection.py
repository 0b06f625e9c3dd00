"""Scans held against a model's source: another contrast is no input, what is open is noted."""

import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from support.dicom_phantoms import Phantom
from support.model_cards import CARD

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import Discovery, discover
from cuda_cyclegan.io.volume import Blocker, Study
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.selection import (
    contrast_checked,
    studies_for,
    unchecked_contrasts,
)


def series(modality: str) -> Study:
    return Study(PurePosixPath("a"), (Path("a/1"),), "dicom", notes=("old",), modality=modality)


def held(modality: str, source: str, *, any_modality: bool = False) -> Study:
    takes = TranslateOptions(any_modality=any_modality).takes
    return contrast_checked(series(modality), replace(CARD, source=source), takes)


@pytest.mark.parametrize(
    ("modality", "source"), [("MR", "MR"), ("CT", "CT"), ("PT", "PET/CT"), ("PT", "PET")]
)
def test_a_scan_of_the_source_is_taken_without_a_word(modality: str, source: str) -> None:
    assert held(modality, source) == series(modality)


@pytest.mark.parametrize(
    ("modality", "source", "known"),
    [("MR", "T1", "T1 (MR)"), ("CT", "cbct", "cbct (CT)"), ("MR", "T2 FLAIR", "T2 FLAIR (MR)")],
)
def test_a_modality_alone_shows_no_contrast(modality: str, source: str, known: str) -> None:
    study = held(modality, source)
    assert study.blocker is None
    assert study.notes[1:] == (f"nothing shows that the scan is {known}; check that it fits",)


@pytest.mark.parametrize(
    ("modality", "source", "reported"),
    [
        ("CT", "T1", "its modality is CT, and the model translates T1 (MR); "),
        ("MR", "CT", "its modality is MR, and the model translates CT; "),
        ("PT", "T1 MR", "its modality is PT, and the model translates T1 MR (MR); "),
        ("MR", "PET/CT", "its modality is MR, and the model translates PET/CT; "),
    ],
)
def test_a_scan_of_another_modality_is_refused_with_the_way_out(
    modality: str, source: str, reported: str
) -> None:
    blocker = held(modality, source).blocker
    assert blocker
    assert blocker.kind == "unsupported"
    assert blocker.reason.startswith(reported)
    assert "setting any-contrast" in blocker.reason


def test_scan_taken_nevertheless_is_noted() -> None:
    study = held("CT", "T1", any_modality=True)
    assert study.blocker is None
    [old, note] = study.notes
    assert old == "old"
    assert note == (
        "its modality is CT, and the model translates T1 (MR); it is included as requested"
    )


@pytest.mark.parametrize(("modality", "source"), [("CT", "domain A"), ("OT", "T1"), ("", "T1")])
def test_unknown_fact_is_noted_and_not_refused(modality: str, source: str) -> None:
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
    ("name", "reported"),
    [
        ("sub-01_T1w.nii.gz", FITS),
        ("sub-01_t1_2mm.nii.gz", FITS),
        ("sub-01_mri.nrrd", OPEN),
        ("ct/sub-01.nii.gz", OPEN),
        ("PD_007.nii", OPEN),
        ("p01_T1_to_T2.nii", FITS),
        ("p01_T1_bias.nii", "its name states T1 or bias field (T1, bias), and the model"),
    ],
)
def test_facts_that_names_leave_open_are_noted(name: str, reported: str) -> None:
    study = contrast_checked(Study(PurePosixPath(name), (Path(name),), "nifti"), CARD)
    assert study.blocker is None
    assert len(study.notes) == bool(reported)
    assert "".join(study.notes).startswith(reported)


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
    assert blocker.reason.startswith(
        "FLAIR: its name states CT (ct), and the model translates FLAIR"
    )


def found_in(folder: Path, source: str = "T1", **options: bool) -> Discovery:
    """Search a folder for scans of a source."""
    takes = TranslateOptions(**options).takes  # pyright: ignore[reportArgumentType]
    return studies_for(discover([folder], None), replace(CARD, source=source), takes)


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(400))


def test_a_phase_in_the_sidecar_skips_a_file_named_t1w(tmp_path: Path) -> None:
    files(tmp_path, "sub-01_T1w.nii", "sub-02_T1w.nii")
    (tmp_path / "sub-01_T1w.json").write_text(
        '{"Modality": "MR", "ImageType": ["ORIGINAL", "PRIMARY", "P", "PHASE"]}'
    )
    found = found_in(tmp_path)
    assert [str(study.name) for study in found.studies] == ["sub-02_T1w.nii"]
    [skip] = found.skipped
    assert skip.kind == "contrast"
    assert skip.reason.startswith("its JSON sidecar states phase (ImageType), and the model")


def test_a_sidecar_above_a_scan_applies_to_it(tmp_path: Path) -> None:
    files(tmp_path, "sub-01/anat/sub-01_T1w.nii", "sub-01/anat/sub-01_T2w.nii")
    (tmp_path / "dataset_description.json").write_text("{}")
    (tmp_path / "T1w.json").write_text('{"ContrastBolusIngredient": "GADOLINIUM"}')
    [study] = found_in(tmp_path).studies
    [note] = study.notes
    assert note == (
        "its JSON sidecar names a contrast agent, and the model translates T1 (MR); check that it "
        "fits"
    )


def test_a_dataset_of_this_program_makes_a_note_and_its_sidecar_a_mark(tmp_path: Path) -> None:
    made = '{"GeneratedBy": [{"Name": "cuda-cyclegan"}]}'
    files(tmp_path, "sub-01_T1w.nii", "sub-02_T1w.nii")
    (tmp_path / "dataset_description.json").write_text(made)
    (tmp_path / "sub-02_T1w.json").write_text(made)
    found = found_in(tmp_path)
    [study] = found.studies
    assert study.notes == (
        "its dataset states that cuda-cyclegan generated it; check that it fits",
    )
    [skip] = found.skipped
    assert (skip.path.name, skip.kind) == ("sub-02_T1w.nii", "synthetic")
    assert "allow-synthetic" in skip.reason
    assert len(found_in(tmp_path, allow_synthetic=True).studies) == 2


def test_facts_that_were_read_are_kept_with_the_study(tmp_path: Path) -> None:
    files(tmp_path, "sub-01_T1w.nii", "plain.nii")
    read = {str(study.name): study.read_as for study in found_in(tmp_path).studies}
    assert read == {"sub-01_T1w.nii": "T1w: BIDS suffix", "plain.nii": ""}


def test_a_series_that_was_chosen_needs_no_fitting_description(tmp_path: Path) -> None:
    def described(data: Any, _: int) -> None:
        data.SeriesDescription = "t2_tse_tra"

    Phantom("MR").write(tmp_path, described)
    card = replace(CARD, source="T1")
    refused = studies_for(discover([tmp_path], None), card, ())
    assert [row.kind for row in refused.skipped] == ["contrast"]
    chosen = discover([tmp_path], None, Choice(series=re.compile("tse")))
    [study] = studies_for(chosen, card, ()).studies
    assert any(note.startswith("its header states T2 (description)") for note in study.notes)
    other = studies_for(chosen, replace(CARD, source="CT"), ())
    assert [row.kind for row in other.skipped] == ["modality"]
    [found] = discover([tmp_path], None).studies
    assert contrast_checked(found, card).blocker
    assert contrast_checked(found, card, is_confirmed=True).blocker is None
    [study] = studies_for(chosen, replace(CARD, source="T2"), ()).studies
    assert study.read_as == "MR: Modality; T2: description"


def test_contrasts_without_a_known_word_are_listed() -> None:
    assert unchecked_contrasts(replace(CARD, source="domain A")) == ("domain A",)
    assert unchecked_contrasts(replace(CARD, source="T1")) == ()
