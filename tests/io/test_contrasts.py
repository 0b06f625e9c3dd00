"""What words say of a contrast, and what stands beside a file about it."""

import json
import re
from pathlib import Path, PurePosixPath

import pytest

from cuda_cyclegan.io.contrasts import MEANINGS, Contrasts
from cuda_cyclegan.io.sidecars import LARGEST_SIDECAR_BYTES, contrast_hints
from cuda_cyclegan.io.volume import Study


@pytest.mark.parametrize(
    ("text", "modalities"),
    [
        ("T1", {"MR"}),
        ("T1w MRI", {"MR"}),
        ("sCT", {"CT"}),
        ("low-dose CT (LDCT)", {"CT"}),
        ("FDG-PET", {"PT"}),
        ("PET/CT", {"CT", "PT"}),
        ("domain A", set()),
        ("Rector T100", set()),
        ("", set()),
    ],
)
def test_words_name_modalities(text: str, modalities: set[str]) -> None:
    found = Contrasts.named_in(text)
    assert found.modalities == modalities
    assert found.modality == (next(iter(modalities)) if len(modalities) == 1 else None)


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ("T1", "CT", True),
        ("CT", "PT", True),
        ("T1", "T2w", True),
        ("T1", "MR", False),
        ("T2 FLAIR", "FLAIR", False),
        ("PET/CT", "CT", False),
        ("domain A", "CT", False),
        ("T1", "OT", False),
        ("T2", "FLAIR", True),
        ("FLAIR", "t2_tirm_tra_dark-fluid", False),
        ("FLAIR", "t2_spc_da-fl_sag", False),
        ("T2", "T2starw", True),
    ],
)
def test_a_contradiction_needs_two_sides_that_say_something(
    one: str, other: str, contradict: bool
) -> None:
    first, second = Contrasts.named_in(one), Contrasts.named_in(other)
    assert first.contradicts(second) is contradict
    assert second.contradicts(first) is contradict


@pytest.mark.parametrize(
    ("one", "other", "is_met"),
    [
        ("T1", "T1w", True),
        ("T1", "MR", False),
        ("MR", "T1w", True),
        ("PET/CT", "CT", True),
        ("T1", "CT", False),
        ("domain A", "T1", False),
        ("T1", "", False),
    ],
)
def test_words_are_met_by_others_that_leave_nothing_open(
    one: str, other: str, is_met: bool
) -> None:
    assert Contrasts.named_in(one).is_met_by(Contrasts.named_in(other)) is is_met


def modalities(file: Path) -> list[set[str]]:
    study = Study(PurePosixPath(file.name), (file,), "nifti")
    return [set(told.contrasts.modalities) for told in contrast_hints(study)]


@pytest.mark.parametrize(
    ("name", "against", "named"),
    [
        ("sub-01_T2w.nii.gz", "T2", {"T2"}),
        ("sub-01_T2w_brain.nii.gz", "T2", {"T2"}),
        ("sub-01_space-T2w_T1w.nii.gz", "T1", {"T1"}),
        ("P01_T1_to_T2.nii.gz", "T2", {"T1", "T2"}),
        ("BraTS-GLI-00000-000-t2f.nii.gz", "FLAIR", {"FLAIR"}),
        ("BraTS20_001_t1ce.nii.gz", "T1", {"T1"}),
        ("icbm152_2009_t1_2mm.nii.gz", "T1", {"T1"}),
        ("flair.nii", "FLAIR", {"FLAIR"}),
        ("p01_t2_dark-fluid.nii", "FLAIR", {"T2", "FLAIR"}),
        ("cohort_PD.nii", "", {"PD"}),
        ("PT_007.nii", "", {"PET"}),
        ("T1000_scan.nii", "", set()),
        ("spect.nii", "", set()),
        ("adctool_x.nii", "", set()),
    ],
)
def test_the_last_known_word_of_a_name_speaks_against_and_all_for_a_scan(
    name: str, against: str, named: set[str]
) -> None:
    *_, told = contrast_hints(Study(PurePosixPath(name), (Path(name),), "nifti"))
    assert set(told.against.weightings) == ({against} if against else set())
    assert set(told.contrasts.weightings) == named


def test_a_description_shows_its_contrast_and_is_not_repeated(tmp_path: Path) -> None:
    text = '{"Modality": "MR", "SeriesDescription": "Doe Jane t2_tse FLAIR"}'
    (tmp_path / "a.json").write_text(text)
    _, told, _ = contrast_hints(Study(PurePosixPath("a.nii"), (tmp_path / "a.nii",), "nifti"))
    assert told.by == "the JSON file next to it states FLAIR, T2"


def test_a_sidecar_and_the_last_word_of_a_name_show(tmp_path: Path) -> None:
    file = tmp_path / "sub-01_ct_T1w.nii.gz"
    assert modalities(file) == [set(), set(), {"CT", "MR"}]
    (tmp_path / "sub-01_ct_T1w.json").write_text('{"Modality": "CT", "EchoTime": 0.01}')
    assert modalities(file) == [{"CT"}, set(), {"CT", "MR"}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"Modality": 7}',
        '{"SeriesDescription": ["CT"]}',
        "[" * 10**5,
        json.dumps({"Modality": "CT", "x": "y" * LARGEST_SIDECAR_BYTES}),
    ],
    ids=["empty", "list", "number", "several", "deep", "large"],
)
def test_a_sidecar_that_cannot_be_understood_shows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert modalities(tmp_path / "a.nii") == [set(), set(), set()]


def test_a_sidecar_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"Modality": "CT"}')
    (tmp_path / "a.json").symlink_to("other.json")
    assert modalities(tmp_path / "a.nii") == [set(), set(), set()]


def test_the_page_on_dicom_shows_every_word() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dicom.md").read_text()
    rows = re.findall(r"^\| ([A-Za-z, 0-9]+) \| (CT|MR|PT) \|$", page, re.MULTILINE)
    told = {word.lower(): modality for words, modality in rows for word in words.split(", ")}
    assert told == {word: modality for word, (modality, _) in MEANINGS.items()}
