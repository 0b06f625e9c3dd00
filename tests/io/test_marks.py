"""The mark of results: its text, what carries it, and what is recognised of it."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_files import OBLIQUE, ramp, read_file, save_nifti
from support.result_marks import read_mark
from support.tiers import examples

from cuda_cyclegan.io.formats.marks import (
    LONGEST_LINE,
    UNREADABLE_MARK,
    json_of,
    line_of,
    mark_in_text,
)
from cuda_cyclegan.io.volume import SyntheticMark
from cuda_cyclegan.io.writing import write

MARK = SyntheticMark("t1-to-t2", "T1", "T2", "0.1.0", "0123456789ab")
LONG = SyntheticMark(
    "Médian « réseau »; \\ 模型 " * 30, "T1 " * 40, "FLAIR; fat-saturated " * 20, "0.1.0", "f" * 12
)

NIFTI = (".nii", ".nii.gz", ".hdr", ".hdr.gz")
IMAGES: dict[tuple[int, bool], Any] = {
    (1, True): nibabel.Nifti1Image,
    (1, False): nibabel.Nifti1Pair,
    (2, True): nibabel.Nifti2Image,
    (2, False): nibabel.Nifti2Pair,
}

names = st.text(max_size=1000)
marks = st.builds(
    SyntheticMark,
    model=names,
    source=names,
    target=names,
    program=st.sampled_from(["0.1.0", "1.22.333", "0.1.0.dev12+g0123456789"]),
    model_sha256=st.text("0123456789abcdef", min_size=12, max_size=12),
    shows=st.sampled_from([None, "spread-mean", "spread-sd", "cycle"]),
)


def marked(path: Path, target: Path, mark: SyntheticMark = MARK) -> Path:
    write(replace(read_file(path), mark=mark), target)
    return target


def test_a_line_says_what_the_image_is() -> None:
    assert line_of(MARK) == (
        "synthetic;cuda-cyclegan 0.1.0;T1->T2;not for diagnosis;0123456789ab t1-to-t2"
    )
    assert line_of(replace(MARK, shows="spread-mean")) == (
        "synthetic;cuda-cyclegan 0.1.0;spread-mean T1->T2;not for diagnosis;0123456789ab"
    )
    assert line_of(replace(MARK, source="T1 with contrast", target="T2", model="a" * 90)) == (
        "synthetic;cuda-cyclegan 0.1.0;T1 with contra->T2;not for diagnosis;0123456789ab"
    )


@settings(max_examples=examples(500), deadline=None)
@given(mark=marks)
def test_a_line_fits_and_is_recognised_whatever_the_names(mark: SyntheticMark) -> None:
    line = line_of(mark)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= LONGEST_LINE
    assert line.startswith("synthetic;cuda-cyclegan ")
    assert ";not for diagnosis;" in line
    found = mark_in_text(f"before {line}")
    assert found is not None
    assert (found.model_sha256, found.shows) == (mark.model_sha256, mark.shows)


@settings(max_examples=examples(500), deadline=None)
@given(mark=marks)
def test_json_holds_whole_names(mark: SyntheticMark) -> None:
    text = json_of(mark)
    assert text.isascii()
    assert "\n" not in text
    assert mark_in_text(text) == mark


@settings(max_examples=examples(300), deadline=None)
@given(mark=marks, kept=st.integers(23, 2000), as_json=st.booleans())
def test_a_cut_text_is_still_recognised(mark: SyntheticMark, kept: int, as_json: bool) -> None:
    text = json_of(mark)[: kept + 26] if as_json else line_of(mark)[: max(kept, 24)]
    assert mark_in_text(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "synthetic;cuda-cyclegan 9.0;another order of things",
        '{"synthetic": true, "program": "cuda-cyclegan 9.0", "source": 7}',
    ],
)
def test_another_version_is_recognised(text: str) -> None:
    found = mark_in_text(text)
    assert found is not None
    assert found.source == found.target == found.model == ""


@pytest.mark.parametrize("text", ["", "FSL6.0", "synthetic", "synthetic MRI (SyMRI)", '{"a": 1}'])
def test_other_words_are_no_mark(text: str) -> None:
    assert mark_in_text(text) is None


@pytest.mark.parametrize("mark", [MARK, LONG, replace(MARK, shows="spread-sd")])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("suffix", NIFTI)
def test_a_nifti_result_carries_the_whole_mark(
    tmp_path: Path, suffix: str, version: int, mark: SyntheticMark
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}"
    image = IMAGES[version, suffix.startswith(".nii")](ramp(), OBLIQUE)
    image.header["aux_file"] = b"kept"
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension(6, b"another program's"))
    image.to_filename(source)
    was: Any = nibabel.load(source)

    assert read_mark(source) is None
    marked(source, target, mark)
    assert read_mark(target) == mark

    now: Any = nibabel.load(target)
    assert now.header["descrip"].tobytes().rstrip(b"\0").decode() == line_of(mark)
    changed = {"descrip", "vox_offset"}
    for field in set(was.header) - changed:
        assert was.header[field].tobytes() == now.header[field].tobytes(), field
    assert np.array_equal(was.dataobj.get_unscaled(), now.dataobj.get_unscaled())
    assert [each.get_code() for each in now.header.extensions] == [6, 6]
    assert bytes(now.header.extensions[1].get_content()).rstrip(b"\0") == b"another program's"
    again = read_file(target)
    assert np.array_equal(again.voxels, read_file(source).voxels)
    assert np.array_equal(again.affine, read_file(source).affine)


def test_a_new_mark_replaces_an_earlier_one(tmp_path: Path) -> None:
    first = marked(save_nifti(tmp_path / "a.nii.gz"), tmp_path / "b.nii.gz", LONG)
    back = replace(MARK, model="t2-to-t1", source="T2", target="T1")
    second = marked(first, tmp_path / "c.nii.gz", back)
    assert read_mark(second) == back
    assert len(nibabel.load(second).header.extensions) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", [".hdr", ".hdr.gz"])
@pytest.mark.parametrize("kind", [nibabel.AnalyzeImage, nibabel.Spm2AnalyzeImage])
def test_analyze_has_space_for_the_line(tmp_path: Path, kind: Any, suffix: str) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}"
    image = kind(ramp(), np.diag([2.0, 2.0, 2.0, 1.0]))
    nibabel.save(image, source)
    marked(source, target)
    assert read_mark(source) is None
    assert read_mark(target) == MARK
    assert np.array_equal(read_file(target).voxels, read_file(source).voxels)


def test_the_line_alone_is_enough(tmp_path: Path) -> None:
    path = marked(save_nifti(tmp_path / "a.nii"), tmp_path / "b.nii")
    image: Any = nibabel.load(path)
    image.header.extensions.clear()
    nibabel.save(image, tmp_path / "c.nii")
    assert read_mark(tmp_path / "c.nii") == MARK


@pytest.mark.parametrize("order", "<>")
def test_either_byte_order(tmp_path: Path, order: str) -> None:
    header = nibabel.Nifti1Header(endianness=order)
    header.set_data_dtype(np.int16)
    header["descrip"] = line_of(MARK).encode()
    image: Any = nibabel.Nifti1Image(ramp(), OBLIQUE, header)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension(6, json_of(LONG).encode()))
    image.to_filename(tmp_path / "a.nii")
    assert nibabel.load(tmp_path / "a.nii").header.endianness == order  # type: ignore[attr-defined]
    assert read_mark(tmp_path / "a.nii") == LONG


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), packed=st.booleans())
def test_damaged_files_are_no_accident(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    version = data.draw(st.sampled_from([1, 2]))
    whole = folder / f"whole{version}.nii"
    if not whole.exists():
        IMAGES[version, True](ramp(), OBLIQUE).to_filename(folder / f"{version}.nii")
        marked(folder / f"{version}.nii", whole)
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    path = folder / "b"
    path.write_bytes(gzip.compress(cut, 1)[: data.draw(st.integers(0, 900))] if packed else cut)
    read_mark(path)


def test_unreadable_file_has_no_mark(tmp_path: Path) -> None:
    (tmp_path / "empty.nii").touch()
    for name in ("missing.nii", "empty.nii", "."):
        assert read_mark(tmp_path / name) is None
    assert read_mark(Path("/dev/null")) is None
    assert UNREADABLE_MARK.model_sha256 == ""
