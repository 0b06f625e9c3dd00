"""What words say of a contrast, and what stands beside a file about it."""

import json
import re
from pathlib import Path, PurePosixPath

import pytest

from cuda_cyclegan.io.contrasts import _MEANINGS, Contrasts, told_beside  # pyright: ignore[reportPrivateUsage]
from cuda_cyclegan.io.sidecars import LARGEST_SIDECAR_BYTES
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
    ],
)
def test_a_contradiction_needs_two_sides_that_say_something(
    one: str, other: str, contradict: bool
) -> None:
    first, second = Contrasts.named_in(one), Contrasts.named_in(other)
    assert first.contradicts(second) is contradict
    assert second.contradicts(first) is contradict


def modalities(file: Path) -> list[set[str]]:
    study = Study(PurePosixPath(file.name), (file,), "nifti")
    return [set(contrasts.modalities) for _, contrasts in told_beside(study)]


def test_a_sidecar_and_the_last_word_of_a_name_tell(tmp_path: Path) -> None:
    file = tmp_path / "sub-01_ct_T1w.nii.gz"
    assert modalities(file) == [set(), {"MR"}]
    (tmp_path / "sub-01_ct_T1w.json").write_text('{"Modality": "CT", "EchoTime": 0.01}')
    assert modalities(file) == [{"CT"}, {"MR"}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"Modality": 7}',
        '{"Modality": "CT and more"}',
        "[" * 10**5,
        json.dumps({"Modality": "CT", "x": "y" * LARGEST_SIDECAR_BYTES}),
    ],
    ids=["empty", "list", "number", "words", "deep", "large"],
)
def test_a_sidecar_that_cannot_be_understood_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert modalities(tmp_path / "a.nii") == [set(), set()]


def test_a_sidecar_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"Modality": "CT"}')
    (tmp_path / "a.json").symlink_to("other.json")
    assert modalities(tmp_path / "a.nii") == [set(), set()]


def test_the_page_on_dicom_tells_every_word() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dicom.md").read_text()
    rows = re.findall(r"^\| ([A-Za-z, 0-9]+) \| (CT|MR|PT) \|$", page, re.MULTILINE)
    told = {word.lower(): modality for words, modality in rows for word in words.split(", ")}
    assert told == {word: modality for word, (modality, _) in _MEANINGS.items()}
