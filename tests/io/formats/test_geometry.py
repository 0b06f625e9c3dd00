"""Units of length, and geometry that a header leaves to be believed; the judges are peers."""

import struct
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
from support.io_files import ramp, read_file, study_of

from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.reading import read_grid
from cuda_cyclegan.io.writing import write

AFFINE = np.array([[-1.0, 0, 0, 30], [0, 1.5, 0, -20], [0, 0, 2.0, 10], [0, 0, 0, 1]])
PLACES = "space directions: (1,0,0) (0,1,0) (0,0,2)\nspace origin: (1,2,3)\n"
PIXDIM, QFORM_CODE, SFORM_CODE, SROW_X = 76, 252, 254, 280  # where they stand in a NIfTI-1 header
MM_IN = {"meter": 1e3, "micron": 1e-3}


def sheared(degrees: float) -> Any:
    affine = np.eye(4)
    affine[:2, 1] = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    return affine


def save_nrrd(path: Path, lines: str) -> Path:
    head = "NRRD0005\ntype: int16\ndimension: 3\nsizes: 3 4 5\nendian: little\nencoding: raw\n"
    path.write_bytes(f"{head}{lines}\n".encode() + ramp().tobytes(order="F"))
    return path


def places_by_itk(path: Path) -> Any:
    """Return what ITK takes from a file: origin, spacing, direction in one row."""
    image = SimpleITK.ReadImage(str(path))
    return np.array([*image.GetOrigin(), *image.GetSpacing(), *image.GetDirection()])


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
@pytest.mark.parametrize("unit", ["meter", "mm", "micron", "unknown"])
def test_lengths_of_nifti_are_in_the_unit_of_its_header(
    tmp_path: Path, suffix: str, unit: str
) -> None:
    in_mm = MM_IN.get(unit, 1.0)
    kind: Any = nibabel.Nifti1Pair if suffix == ".hdr" else nibabel.Nifti1Image
    image = kind(ramp(), np.diag([1 / in_mm] * 3 + [1.0]) @ AFFINE)
    image.header.set_xyzt_units(unit, "sec")
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    image.to_filename(source)
    volume = read_file(source)
    np.testing.assert_allclose(volume.affine, AFFINE, rtol=1e-6)
    np.testing.assert_allclose(volume.spacing, (1, 1.5, 2), rtol=1e-6)
    name = {"meter": "m", "micron": "um"}.get(unit)
    expected = (f"its header gives lengths in {name}; they are converted to millimetres",)
    assert volume.notes == (expected if name else ())
    write(volume, target)
    was, now = nibabel.load(source), nibabel.load(target)
    assert np.array_equal(was.affine, now.affine)
    assert was.header.get_xyzt_units() == now.header.get_xyzt_units()
    np.testing.assert_array_equal(read_file(target).affine, volume.affine)


@pytest.mark.parametrize("code", [4, 7])
def test_a_unit_that_nifti_does_not_have_is_millimetres(tmp_path: Path, code: int) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), AFFINE)
    image.to_filename(tmp_path / "a.nii")
    stored = bytearray((tmp_path / "a.nii").read_bytes())
    stored[123] = code
    (tmp_path / "a.nii").write_bytes(stored)
    np.testing.assert_array_equal(read_file(tmp_path / "a.nii").affine, AFFINE)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (f'space: LPS\n{PLACES}space units: "UNIT" "UNIT" "UNIT"\n', True),
        ('spacings: 1 1 2\nunits: "UNIT" "UNIT" "UNIT"\n', False),
    ],
    ids=["space units", "units"],
)
@pytest.mark.parametrize(("unit", "in_mm"), [("m", 1e3), ("um", 1e-3), ("cm", 10.0), ("mm", 1.0)])
def test_lengths_of_nrrd_are_in_their_unit_and_results_in_millimetres(
    tmp_path: Path, lines: str, named: bool, unit: str, in_mm: float
) -> None:
    """ITK takes no notice of a unit, so what it takes from the result is the world as it is."""
    source = save_nrrd(tmp_path / "a.nrrd", lines.replace("UNIT", unit))
    volume = read_file(source)
    assert volume.spacing == pytest.approx((in_mm, in_mm, 2 * in_mm))
    converted = f"its header gives lengths in {unit}; they are converted to millimetres"
    assert (converted in volume.notes) == (unit != "mm")
    assert len(volume.notes) == (unit != "mm") + (not named)
    grid = read_grid(study_of(source))
    assert grid.notes == volume.notes
    np.testing.assert_array_equal(grid.affine, volume.affine)
    write(volume, tmp_path / "b.nrrd")
    lengths = np.array([in_mm] * 6 + [1.0] * 9)
    np.testing.assert_allclose(
        places_by_itk(tmp_path / "b.nrrd"), places_by_itk(source) * lengths, rtol=1e-9
    )
    assert b"units" not in (tmp_path / "b.nrrd").read_bytes().partition(b"\n\n")[0]


def test_an_unknown_unit_is_reported(tmp_path: Path) -> None:
    source = save_nrrd(tmp_path / "a.nrrd", f'space: LPS\n{PLACES}space units: "px" "px" "px"\n')
    volume = read_file(source)
    assert volume.spacing == (1, 1, 2)
    assert "in an unknown unit" in volume.notes[0]


@pytest.mark.parametrize(
    ("space", "known"),
    [
        ("space: LPS", True),
        ("space: right-anterior-superior", True),
        ("space: LAS", True),
        ("space dimension: 3", False),
        ("space: scanner-xyz", False),
        ("space: 3D-right-handed", False),
    ],
)
def test_a_nrrd_says_which_side_is_left_or_has_a_note(
    tmp_path: Path, space: str, known: bool
) -> None:
    volume = read_file(save_nrrd(tmp_path / "a.nrrd", f"{space}\n{PLACES}"))
    reported = [note for note in volume.notes if note.endswith("assumed to point to L, P and S")]
    assert len(volume.notes) == len(reported) == (not known)


@pytest.mark.parametrize(
    ("matrix", "notes"), [("TransformMatrix = 1 0 0 0 1 0 0 0 1\n", 0), ("", 1)]
)
def test_a_metaimage_without_directions_has_a_note(tmp_path: Path, matrix: str, notes: int) -> None:
    head = f"ObjectType = Image\nNDims = 3\nDimSize = 3 4 5\n{matrix}ElementType = MET_SHORT\n"
    path = tmp_path / "a.mha"
    path.write_bytes(f"{head}ElementDataFile = LOCAL\n".encode() + ramp().tobytes(order="F"))
    assert len(read_file(path).notes) == notes


@pytest.mark.parametrize(
    ("degrees", "reported"), [(0.0, False), (0.9, False), (1.1, True), (20, True)]
)
@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd"])
def test_shear_beyond_a_degree_has_a_note_and_stays(
    tmp_path: Path, suffix: str, degrees: float, reported: bool
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    affine = sheared(degrees)
    if suffix == ".nrrd":
        axes = " ".join(
            f"({','.join(map(repr, map(float, column)))})" for column in affine[:3, :3].T
        )
        save_nrrd(source, f"space: RAS\nspace directions: {axes}\nspace origin: (0,0,0)\n")
    else:
        image: Any = nibabel.Nifti1Image(ramp(), None)
        image.set_sform(affine, 1)
        image.to_filename(source)
    volume = read_file(source)
    np.testing.assert_allclose(volume.affine, affine, atol=1e-6)
    shear = [note for note in volume.notes if f"{degrees:.1f} degrees off right angles" in note]
    assert bool(shear) == reported
    write(volume, target)
    np.testing.assert_allclose(read_file(target).affine, affine, atol=1e-6)


@pytest.mark.parametrize(("sform", "qform"), [(1, 0), (0, 1), (2, 3), (0, 0)])
def test_a_nifti_without_sform_and_qform_has_a_note(tmp_path: Path, sform: int, qform: int) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), AFFINE)
    image.to_filename(tmp_path / "a.nii")
    stored = bytearray((tmp_path / "a.nii").read_bytes())
    stored[QFORM_CODE], stored[SFORM_CODE] = qform, sform
    (tmp_path / "a.nii").write_bytes(stored)
    loaded: Any = nibabel.load(tmp_path / "a.nii")
    volume = read_file(tmp_path / "a.nii")
    np.testing.assert_array_equal(volume.affine, loaded.affine)
    expected = (
        "its header has neither sform nor qform; its axes are assumed to point to L, A and S",
    )
    assert volume.notes == (() if sform or qform else expected)


@pytest.mark.parametrize(
    ("qform", "reported"),
    [
        (AFFINE, None),
        (AFFINE + 0.3 * np.eye(4, 4, 3), None),
        (np.diag([-1.0, 1.0, 1.0, 1.0]) @ AFFINE, "60.0 mm apart (axes LAS and RAS); "),
        (AFFINE @ np.diag([1.0, 1.0, 2.5, 1.0]), "12.0 mm apart (axes LAS and LAS); "),
    ],
)
def test_a_qform_that_disagrees_with_the_sform_has_a_note(
    tmp_path: Path, qform: Any, reported: str | None
) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), None)
    image.set_sform(AFFINE, 1)
    image.set_qform(qform, 1, update_affine=False)
    image.to_filename(tmp_path / "a.nii")
    volume = read_file(tmp_path / "a.nii")
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-6)
    expected = [f"its sform and qform place voxels up to {reported}"] if reported else []
    assert [note[: len(expected[0])] for note in volume.notes] == expected


@pytest.mark.parametrize("factor", [1.0, 1.001, 1.5, np.nan])
def test_voxel_sizes_that_are_not_those_of_the_sform_have_a_note(
    tmp_path: Path, factor: float
) -> None:
    """Without a qform, programs such as FSL take sizes from pixdim, and places from the sform."""
    image: Any = nibabel.Nifti1Image(ramp(), None)
    image.set_sform(AFFINE, 1)
    image.header["pixdim"][1:4] = np.linalg.norm(AFFINE[:3, :3], axis=0) * (factor, 1, 1)
    image.to_filename(tmp_path / "a.nii")
    volume = read_file(tmp_path / "a.nii")
    np.testing.assert_array_equal(volume.affine, np.float32(AFFINE))
    by_pixdim = {1.5: "1.5x1.5x2", np.nan: "nanx1.5x2"}.get(factor)
    expected = (
        f"its pixdim gives voxels of {by_pixdim} mm, and its sform of 1x1.5x2 mm; the sform is "
        "used, but other programs may use pixdim"
    )
    assert volume.notes == ((expected,) if by_pixdim else ())


def test_a_qform_that_is_damaged_beside_an_sform_has_a_note(tmp_path: Path) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), None)
    image.set_sform(AFFINE, 1)
    image.header["qform_code"] = 1
    image.header["quatern_b"] = image.header["quatern_c"] = 0.9
    image.to_filename(tmp_path / "a.nii")
    assert read_file(tmp_path / "a.nii").notes == ("its qform is damaged; the sform is used",)


@pytest.mark.parametrize("edge", [0.0, -2.0, np.nan])
def test_edges_of_voxels_that_mean_nothing_are_refused(tmp_path: Path, edge: float) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), None)
    image.set_qform(AFFINE, 1)
    image.to_filename(tmp_path / "a.nii")
    stored = bytearray((tmp_path / "a.nii").read_bytes())
    struct.pack_into("<f", stored, PIXDIM + 3 * 4, edge)
    (tmp_path / "a.nii").write_bytes(stored)
    with pytest.raises(UnreadableScanError, match=f"its header gives {edge:g} mm along k"):
        read_file(tmp_path / "a.nii")
    struct.pack_into("<h", stored, SFORM_CODE, 1)
    struct.pack_into("<12f", stored, SROW_X, *AFFINE[:3].ravel())
    (tmp_path / "a.nii").write_bytes(stored)
    np.testing.assert_allclose(read_file(tmp_path / "a.nii").affine, AFFINE)


def test_analyze_without_an_edge_is_refused_and_keeps_its_signs(tmp_path: Path) -> None:
    image: Any = nibabel.AnalyzeImage(ramp(), np.diag([-1.0, 1, 1, 1]))
    image.to_filename(tmp_path / "a.hdr")
    stored = bytearray((tmp_path / "a.hdr").read_bytes())
    for edge in (-1.0, 0.0):
        struct.pack_into("<f", stored, PIXDIM + 4, edge)
        (tmp_path / "a.hdr").write_bytes(stored)
        if edge:
            assert read_file(tmp_path / "a.hdr").spacing == (1, 1, 1)
        else:
            with pytest.raises(UnreadableScanError, match="its header gives 0 mm along i"):
                read_file(tmp_path / "a.hdr")


def test_analyze_has_a_note(tmp_path: Path) -> None:
    image: Any = nibabel.AnalyzeImage(ramp(), np.diag([-1.0, 1, 1, 1]))
    image.to_filename(tmp_path / "a.hdr")
    volume = read_file(tmp_path / "a.hdr")
    assert volume.notes == (
        "Analyze files do not record which side is left; its axes are assumed to point to L, A "
        "and S",
    )
