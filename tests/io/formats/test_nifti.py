"""NIfTI and Analyze files, written and judged by nibabel."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.io_files import OBLIQUE, ramp, read_file, save_nifti
from support.tiers import WITH_FIXTURES, examples

from cuda_cyclegan.io.errors import UnreadableScanError, UnsupportedScanError
from cuda_cyclegan.io.formats.nifti_writing import GEOMETRY_FIELDS
from cuda_cyclegan.io.writing import write

SUFFIXES = (".nii", ".nii.gz", ".hdr", ".hdr.gz")
IMAGES = {
    (1, True): nibabel.Nifti1Image,
    (1, False): nibabel.Nifti1Pair,
    (2, True): nibabel.Nifti2Image,
    (2, False): nibabel.Nifti2Pair,
}
HEADERS = {
    (1, True): nibabel.Nifti1Header,
    (1, False): nibabel.nifti1.Nifti1PairHeader,
    (2, True): nibabel.Nifti2Header,
    (2, False): nibabel.nifti2.Nifti2PairHeader,
}
INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
FLOATS = ("f4", "f8")

finite = st.floats(-500, 500, allow_nan=False, width=32)
affines = (
    hnp.arrays(np.float64, (3, 4), elements=finite)
    .map(lambda rows: np.vstack([rows, [0, 0, 0, 1]]))
    .filter(lambda affine: np.linalg.cond(affine[:3, :3]) < 1e3)
)
orthogonal = st.builds(
    lambda seed, spacing, left, origin: _orthogonal(seed, spacing, left, origin),
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.floats(0.25, 8, width=32)] * 3),
    st.booleans(),
    st.tuples(finite, finite, finite),
)
shapes = st.tuples(*[st.integers(1, 7)] * 3)


def _orthogonal(seed: int, spacing: Any, left: bool, origin: Any) -> Any:
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    turn[:, 0] *= np.sign(np.linalg.det(turn)) * (-1 if left else 1)
    return np.vstack([np.column_stack([turn * spacing, origin]), [0, 0, 0, 1]])


def kind_of(suffix: str, version: int = 1) -> tuple[int, bool]:
    return version, suffix.startswith(".nii")


def save(path: Path, stored: Any, affine: Any, *, order: str = "<", version: int = 1) -> Any:
    """Write `stored` as it is, through nibabel; return the image as nibabel loads it."""
    suffix = "".join(path.suffixes)
    header = HEADERS[kind_of(suffix, version)](endianness=order)
    header.set_data_dtype(stored.dtype.newbyteorder(order))
    image: Any = IMAGES[kind_of(suffix, version)](stored, affine, header)
    image.to_filename(path)
    return nibabel.load(path)


def assert_same_file(source: Path, target: Path, *changed: str) -> None:
    """All header fields, extensions and stored voxels agree, but for the fields named `changed`."""
    was: Any = nibabel.load(source)
    now: Any = nibabel.load(target)
    assert type(now) is type(was)
    differing = {
        field
        for field in was.header
        if not np.array_equal(
            np.asarray(was.header[field]),
            np.asarray(now.header[field]),
            equal_nan=_is_float(was, field),
        )
    }
    assert differing <= {"magic", "vox_offset", *changed}
    assert np.array_equal(now.affine, was.affine)
    assert now.dataobj.slope == was.dataobj.slope
    assert now.dataobj.inter == was.dataobj.inter
    assert np.array_equal(now.dataobj.get_unscaled(), was.dataobj.get_unscaled(), equal_nan=True)


def _is_float(image: Any, field: str) -> bool:
    return np.asarray(image.header[field]).dtype.kind == "f"


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reads_what_nibabel_wrote(tmp_path: Path, suffix: str, dtype: str, order: str) -> None:
    path = tmp_path / f"a{suffix}"
    theirs = save(path, ramp(dtype=dtype), OBLIQUE, order=order)
    ours = read_file(path)
    assert theirs.header.endianness == order
    assert ours.voxels.dtype == np.dtype(dtype)
    assert ours.voxels.dtype.isnative
    assert np.array_equal(ours.voxels, theirs.dataobj.get_unscaled())
    assert np.array_equal(ours.affine, theirs.affine)
    assert np.allclose(ours.spacing, theirs.header.get_zooms()[:3])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_volume_reads_as_the_source(
    tmp_path: Path, suffix: str, order: str, version: int
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}"
    save(source, ramp(), OBLIQUE, order=order, version=version)
    write(read_file(source), target)
    assert_same_file(source, target)
    assert sorted(path.name for path in target.parent.iterdir()) == sorted(
        path.name for path in tmp_path.iterdir() if path.is_file()
    )


@settings(
    max_examples=examples(40),
    suppress_health_check=WITH_FIXTURES,
)
@given(affine=affines, shape=shapes, suffix=st.sampled_from(SUFFIXES), qform=st.booleans())
def test_any_sform_survives(
    tmp_path: Path, affine: Any, shape: tuple[int, ...], suffix: str, qform: bool
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    image: Any = IMAGES[kind_of(suffix)](ramp(shape), affine)
    image.header["qform_code"] = 1 if qform else 0
    image.to_filename(source)
    ours = read_file(source)
    write(ours, target)
    assert np.array_equal(ours.affine, nibabel.load(source).affine)
    assert_same_file(source, target)


@settings(
    max_examples=examples(40),
    suppress_health_check=WITH_FIXTURES,
)
@given(affine=orthogonal, shape=shapes, codes=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_qform_and_sform_keep_their_codes_and_itk_sees_the_same_grid(
    tmp_path: Path, affine: Any, shape: tuple[int, ...], codes: tuple[int, int]
) -> None:
    source, target = tmp_path / "a.nii", tmp_path / "b.nii"
    image: Any = nibabel.Nifti1Image(ramp(shape), None)
    image.set_qform(affine, codes[0])
    image.set_sform(affine, codes[1])
    image.to_filename(source)
    ours = read_file(source)
    write(ours, target)
    written: Any = nibabel.load(target)
    assert (int(written.header["qform_code"]), int(written.header["sform_code"])) == codes
    assert np.array_equal(ours.affine, nibabel.load(source).affine)
    was, now = SimpleITK.ReadImage(str(source)), SimpleITK.ReadImage(str(target))
    assert now.GetOrigin() == was.GetOrigin()
    assert now.GetSpacing() == was.GetSpacing()
    assert now.GetDirection() == was.GetDirection()
    assert np.array_equal(SimpleITK.GetArrayFromImage(now).T, ours.voxels)


def test_sform_and_qform_that_disagree_are_both_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"
    image: Any = nibabel.Nifti1Image(ramp(), None)
    image.set_qform(np.diag([-2.0, 2.0, 2.5, 1]), 1)
    image.set_sform(OBLIQUE, 4)
    image.to_filename(source)
    write(read_file(source), target)
    was, now = nibabel.load(source).header, nibabel.load(target).header
    assert np.array_equal(was.get_qform(), now.get_qform())
    assert np.array_equal(was.get_sform(), now.get_sform())
    assert not np.allclose(now.get_qform(), now.get_sform(), atol=1)
    assert all(np.array_equal(was[field], now[field]) for field in GEOMETRY_FIELDS)


@pytest.mark.parametrize(
    ("slope", "intercept", "meant"),
    [
        (2.5, -1024.0, (2.5, -1024.0)),
        (1.0, 0.0, (1.0, 0.0)),
        (0.0, 7.0, (1.0, 0.0)),
        (np.nan, np.nan, (1.0, 0.0)),
        (-0.5, 3.0, (-0.5, 3.0)),
    ],
)
def test_slope_and_intercept(
    tmp_path: Path, slope: float, intercept: float, meant: tuple[float, float]
) -> None:
    source, target = tmp_path / "a.nii", tmp_path / "b.nii"
    save_nifti(source)
    header: Any = nibabel.load(source).header
    header["scl_slope"], header["scl_inter"], header["vox_offset"] = slope, intercept, 352
    source.write_bytes(header.binaryblock + bytes(4) + ramp().tobytes(order="F"))
    ours = read_file(source)
    assert (ours.slope, ours.intercept) == meant
    assert np.allclose(ours.values(), nibabel.load(source).get_fdata())
    write(ours, target)
    assert_same_file(source, target)


def test_an_infinite_slope_is_refused(tmp_path: Path) -> None:
    source = save_nifti(tmp_path / "a.nii")
    header: Any = nibabel.load(source).header
    header["scl_slope"], header["scl_inter"], header["vox_offset"] = np.inf, 0, 352
    source.write_bytes(header.binaryblock + bytes(4) + ramp().tobytes(order="F"))
    with pytest.raises(UnreadableScanError, match="its scl_slope is infinite"):
        read_file(source)


@pytest.mark.parametrize(
    ("intent", "kind"),
    [
        ("label", "segmentation labels"),
        ("t test", "statistical values"),
        ("log10 p value", "statistical values"),
        ("vector", "vectors"),
        ("displacement vector", "displacements"),
        ("estimate", None),
        ("none", None),
    ],
)
def test_voxels_that_are_no_scan_have_a_note(tmp_path: Path, intent: str, kind: str | None) -> None:
    image: Any = nibabel.Nifti1Image(ramp(), np.eye(4))
    image.header.set_intent(intent, allow_unknown=True)
    image.to_filename(tmp_path / "a.nii")
    note = f"its header declares its voxels as {kind}"
    assert read_file(tmp_path / "a.nii").notes == ((note,) if kind else ())


@pytest.mark.parametrize("keeps_unit", [True, False])
def test_range_and_intent_stay_where_they_still_hold(tmp_path: Path, keeps_unit: bool) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"
    image: Any = nibabel.Nifti1Image(ramp(), OBLIQUE)
    image.header["cal_min"], image.header["cal_max"] = -160, 240
    image.header.set_intent("z score")
    image.to_filename(source)
    write(read_file(source).with_voxels(ramp(), keeps_unit=keeps_unit), target)
    made: Any = nibabel.load(target).header
    assert made.get_intent()[0] == ("z score" if keeps_unit else "none")
    found = float(made["cal_min"]), float(made["cal_max"])
    assert found == ((-160, 240) if keeps_unit else (0, 0))


def test_other_voxels_in_the_same_grid_change_only_what_they_must(tmp_path: Path) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"
    save_nifti(source)
    voxels = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 4, 5)
    write(read_file(source).with_voxels(voxels, 0.25, 3.0), target)
    was, now = nibabel.load(source), nibabel.load(target)
    assert np.array_equal(now.dataobj.get_unscaled(), voxels)
    assert np.allclose(now.get_fdata(), voxels * 0.25 + 3)
    assert np.array_equal(now.affine, was.affine)
    assert all(np.array_equal(was.header[field], now.header[field]) for field in GEOMETRY_FIELDS)


@pytest.mark.parametrize("order", "<>")
def test_descriptions_and_extensions_are_kept(tmp_path: Path, order: str) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"
    header: Any = nibabel.Nifti1Header(endianness=order)
    header.set_data_dtype(np.dtype("i2").newbyteorder(order))
    image: Any = nibabel.Nifti1Image(ramp(), OBLIQUE, header)
    header = image.header
    header["descrip"], header["aux_file"] = "Grünwald 3T".encode(), b"x.txt"
    header["slice_duration"], header["toffset"] = 0.75, 12.5
    header.set_xyzt_units("mm", "msec")
    header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"kept as it is"))
    image.to_filename(source)
    write(read_file(source), target)
    assert_same_file(source, target)
    found: Any = nibabel.load(target).header
    assert bytes(found["descrip"]).rstrip(b"\0") == "Grünwald 3T".encode()
    assert found.get_xyzt_units() == ("mm", "msec")
    assert [extension.get_content() for extension in found.extensions] == [b"kept as it is"]


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
def test_four_axes_need_a_choice(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    stored = ramp((3, 4, 5, 6))
    save(source, stored, OBLIQUE)
    with pytest.raises(
        UnsupportedScanError,
        match=r"6 volumes .*setting volume=N, or translate all with setting volume=all",
    ):
        read_file(source)
    with pytest.raises(UnsupportedScanError, match="no volume 6; choose one of 0 to 5"):
        read_file(source, 6)
    for index in range(6):
        assert np.array_equal(read_file(source, index).voxels, stored[..., index])
    write(read_file(source, 4), target)
    written: Any = nibabel.load(target)
    assert written.shape == (3, 4, 5)
    assert np.array_equal(written.dataobj.get_unscaled(), stored[..., 4])
    assert np.array_equal(written.affine, nibabel.load(source).affine)


def test_one_frame_is_a_volume_and_keeps_its_axes(tmp_path: Path) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"
    save_nifti(source, ramp((3, 4, 5, 1)))
    ours = read_file(source, 3)
    assert ours.shape == (3, 4, 5)
    write(ours, target)
    assert_same_file(source, target)


def test_vector_components_are_volumes_and_lose_their_intent(tmp_path: Path) -> None:
    source, target = tmp_path / "a.nii", tmp_path / "b.nii"
    image: Any = nibabel.Nifti1Image(ramp((3, 4, 5, 1, 3)), OBLIQUE)
    image.header.set_intent("vector")
    image.to_filename(source)
    ours = read_file(source, 2)
    assert np.array_equal(ours.voxels, ramp((3, 4, 5, 1, 3))[..., 0, 2])
    write(ours, target)
    assert nibabel.load(target).header.get_intent()[0] == "none"


def test_analyze_is_read_and_written_in_its_own_format(tmp_path: Path) -> None:
    source, target = tmp_path / "a.hdr", tmp_path / "b.hdr"
    image: Any = nibabel.Spm2AnalyzeImage(ramp(), np.diag([-2.0, 2, 3, 1]))
    image.header["descrip"] = b"old scanner"
    image.to_filename(source)
    (tmp_path / "a.mat").unlink()
    ours = read_file(source)
    theirs: Any = nibabel.Spm2AnalyzeImage.from_filename(source)
    assert np.array_equal(ours.voxels, theirs.dataobj.get_unscaled())
    assert np.array_equal(ours.affine, theirs.affine)
    write(ours, target)
    written: Any = nibabel.Spm2AnalyzeImage.from_filename(target)
    assert bytes(written.header["descrip"]).rstrip(b"\0") == b"old scanner"
    assert np.array_equal(written.dataobj.get_unscaled(), ramp())
    assert np.array_equal(written.affine, theirs.affine)


def test_same_volume_gives_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    voxels = rng.normal(100, 20, (64, 96, 128)).astype(np.int16)
    volume = read_file(save_nifti(tmp_path / "a.nii.gz", voxels))
    targets = [tmp_path / "one.nii.gz", tmp_path / "other.nii.gz"]
    write(volume, targets[0])
    write(volume.with_voxels(np.ascontiguousarray(volume.voxels)), targets[1])
    assert targets[0].read_bytes() == targets[1].read_bytes()


def test_voxels_in_both_memory_orders_and_of_many_blocks(tmp_path: Path) -> None:
    voxels = np.random.default_rng(0).integers(-900, 900, (160, 150, 70)).astype(np.int16)
    volume = read_file(save_nifti(tmp_path / "a.nii.gz", voxels))
    for number, order in enumerate("CF"):
        target = tmp_path / f"{number}.nii.gz"
        write(volume.with_voxels(np.asarray(voxels, order=order)), target)
        assert np.array_equal(nibabel.load(target).dataobj.get_unscaled(), voxels)
        assert np.array_equal(read_file(target).voxels, voxels)


def with_long_quaternion(path: Path, excess: float, sform: bool = False, version: int = 1) -> None:
    """A file whose quaternion has a square that exceeds 1 by so much."""
    image: Any = IMAGES[version, True](ramp(), None)
    image.set_qform(np.diag([-2.0, -3.0, 4.0, 1.0]), 1)  # about the third axis by 180 degrees
    if sform:
        image.set_sform(np.diag([-2.0, -3.0, 4.0, 1.0]), 1)
    image.to_filename(path)
    header = nibabel.load(path).header
    turn = (0.0, 0.0, 1.0) if sform else (0.6, 0.0, 0.8)
    for name, part in zip("bcd", turn, strict=True):
        header[f"quatern_{name}"] = part * np.sqrt(1 + excess)
    header["vox_offset"] = 352 if version == 1 else 544  # nibabel forgets it
    with path.open("r+b") as file:
        file.write(header.binaryblock)


@pytest.mark.parametrize("excess", [5e-7, 9.6e-7])
@pytest.mark.parametrize("version", [1, 2])
def test_a_quaternion_that_rounding_made_too_long_is_brought_to_length_1(
    tmp_path: Path, excess: float, version: int
) -> None:
    source, target = tmp_path / "a.nii", tmp_path / "b.nii"
    with_long_quaternion(source, excess, version=version)
    with pytest.raises(ValueError, match="w2 should be positive"):
        nibabel.load(source)
    volume = read_file(source)
    [note] = volume.notes
    assert note.startswith("the quaternion of its qform is slightly longer than 1 from rounding")
    if version == 1:  # ITK reads no other
        itk = SimpleITK.ReadImage(str(source))
        turned = np.array(itk.GetDirection()).reshape(3, 3) * itk.GetSpacing()
        lps = np.diag([-1.0, -1.0, 1.0])
        np.testing.assert_allclose(volume.affine[:3, :3], lps @ turned, atol=1e-5)
    write(volume, target)
    written: Any = nibabel.load(target)
    np.testing.assert_allclose(written.affine, volume.affine, atol=1e-6)


def test_a_qform_beside_an_sform_is_mended_too(tmp_path: Path) -> None:
    with_long_quaternion(tmp_path / "a.nii", 9e-7, sform=True)
    [note] = read_file(tmp_path / "a.nii").notes
    assert "normalised" in note


@pytest.mark.parametrize("excess", [-1e-7, 0.0, 1e-7])
def test_a_quaternion_within_the_digits_of_a_header_has_no_note(
    tmp_path: Path, excess: float
) -> None:
    with_long_quaternion(tmp_path / "a.nii", excess)
    assert read_file(tmp_path / "a.nii").notes == ()


def test_a_quaternion_that_is_no_rotation_is_refused(tmp_path: Path) -> None:
    with_long_quaternion(tmp_path / "a.nii", 3e-6)
    with pytest.raises(UnreadableScanError, match="damaged header"):
        read_file(tmp_path / "a.nii")


@pytest.mark.parametrize(
    ("edge", "reported"), [(1e-200, "(axes LPS and LP?)"), (1e200, "its qform is damaged")]
)
def test_a_qform_whose_voxels_have_no_sound_edge_is_skipped(
    tmp_path: Path, edge: float, reported: str
) -> None:
    path = tmp_path / "a.nii"
    with_long_quaternion(path, 0, sform=True, version=2)
    content = bytearray(path.read_bytes())
    content[128:136] = np.float64(edge).tobytes()  # pixdim along the third axis
    path.write_bytes(content)
    [note] = read_file(path).notes
    assert reported in note
