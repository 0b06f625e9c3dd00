"""Masks, segmentations and the like, by their headers."""

from io import BufferedReader
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest

from cuda_cyclegan.io import labels
from cuda_cyclegan.io.dicom.header_scan import KnownHeaders
from cuda_cyclegan.io.files.regular import open_regular
from cuda_cyclegan.io.labels import FileLabels, read_labels

nibabel: Any = _nibabel


@pytest.mark.parametrize(
    ("intent", "kind"),
    [
        (1002, "segmentation labels"),
        (3, "statistical values"),
        (1006, "displacements"),
        (3006, "CIFTI values of surfaces"),
        (1001, None),
        (0, None),
    ],
)
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_intent_of_a_header_reports_it(
    tmp_path: Path, intent: int, kind: str | None, suffix: str, order: str
) -> None:
    voxels = np.random.default_rng(0).integers(0, 9, (4, 4, 4)).astype(np.int16)
    for kind_of_file in (nibabel.Nifti1Image, nibabel.Nifti1Pair, nibabel.Nifti2Image):
        header = kind_of_file.header_class(endianness=order)
        header.set_data_dtype(np.int16)
        image = kind_of_file(voxels, np.eye(4), header)
        image.header["intent_code"] = intent
        file = tmp_path / f"a{suffix}"
        if (suffix == ".hdr") != (kind_of_file is nibabel.Nifti1Pair):
            continue
        image.to_filename(file)
        assert read_labels(file).contents == kind


def test_segments_of_slicer_report_it(tmp_path: Path) -> None:
    head = b"NRRD0004\ntype: uchar\ndimension: 3\nsizes: 2 2 2\nencoding: raw\n"
    (tmp_path / "a.nrrd").write_bytes(head + b"Segment0_ID:=S1\n\n" + bytes(8))
    assert read_labels(tmp_path / "a.nrrd").contents == "segments"
    (tmp_path / "b.nrrd").write_bytes(head + b"\n" + bytes(8))
    assert read_labels(tmp_path / "b.nrrd").contents is None


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"\x1f\x8bnothing", bytes(400), b"NRRD"])
def test_unreadable_file_is_no_mask(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert read_labels(tmp_path / "a.nii.gz") == FileLabels()
    assert read_labels(tmp_path / "gone.nii") == FileLabels()


def test_a_file_that_did_not_change_is_looked_at_once(tmp_path: Path) -> None:
    file, looks, known = tmp_path / "a.nii", list[Path](), KnownHeaders()
    file.write_bytes(bytes(400))

    def look(path: Path) -> int:
        looks.append(path)
        return path.stat().st_size

    for _ in range(3):
        known.read(())
        assert known.once(file, look) == 400
    assert len(looks) == 1
    file.write_bytes(bytes(500))
    known.read(())
    assert known.once(file, look) == 500
    known.read(())
    known.read(())
    assert known.once(file, look) == 500
    assert len(looks) == 3


def test_one_search_opens_a_header_once_for_its_mark_and_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, known = list[Path](), KnownHeaders()
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4))
    image.header["intent_code"] = 1002
    image.to_filename(tmp_path / "a.nii")

    def counting(path: Path) -> BufferedReader:
        opened.append(path)
        return open_regular(path)

    monkeypatch.setattr(labels, "open_regular", counting)
    known.read(())
    assert labels.labels_of(tmp_path / "a.nii", known).mark is None
    assert labels.labels_of(tmp_path / "a.nii", known).contents is not None
    assert opened == [tmp_path / "a.nii"]
