"""NRRD and MetaImage files, written and judged by SimpleITK."""

import gzip
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.each_pair import each_pair
from support.io_files import ramp, read_file, study_of
from support.tiers import WITH_FIXTURES, examples

from cuda_cyclegan.io.errors import UnsupportedScanError, WriteError
from cuda_cyclegan.io.reading import read_grid
from cuda_cyclegan.io.volume import SyntheticMark
from cuda_cyclegan.io.writing import write

SUFFIXES = (".nrrd", ".nhdr", ".mha", ".mhd")
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
SPACING = (0.75, 1.25, 2.5)
ORIGIN = (-90.5, 126.25, 72.125)
STRAIGHT = np.eye(3)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])

NRRD = """NRRD0004
type: int16
dimension: 3
space: {space}
sizes: 3 4 5
space directions: (0.75,0,0) (0,1.25,0) (0,0,2.5)
kinds: domain domain domain
endian: {endian}
encoding: {encoding}
space origin: (1,2,3)
{more}
"""
METAIMAGE = """ObjectType = Image
NDims = 3
BinaryData = True
BinaryDataByteOrderMSB = {msb}
CompressedData = False
TransformMatrix = 1 0 0 0 1 0 0 0 1
Offset = 1 2 3
ElementSpacing = 0.75 1.25 2.5
HeaderSize = {skipped}
DimSize = 3 4 5
ElementType = MET_SHORT
ElementDataFile = {data_file}
"""

turns = st.integers(0, 2**32 - 1).map(
    lambda seed: np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
)
lengths = st.tuples(*[st.floats(0.0625, 16, width=32)] * 3)
places = st.tuples(*[st.floats(-1000, 1000)] * 3)
shapes = st.tuples(*[st.integers(1, 6)] * 3)


def image_of(voxels: Any, direction: Any = STRAIGHT) -> Any:
    """An image whose voxels [i, j, k, ...] are `voxels`."""
    image: Any = SimpleITK.GetImageFromArray(voxels.T)
    axes = voxels.ndim
    image.SetSpacing([*SPACING, *[1.0] * (axes - 3)])
    image.SetOrigin([*ORIGIN, *[0.0] * (axes - 3)])
    square = np.eye(axes)
    square[:3, :3] = direction
    image.SetDirection(square.ravel().tolist())
    return image


def affine_of(image: Any) -> Any:
    """Return the affine from ITK's own mapping of four corners, independent of the reader."""
    origin = np.array(image.TransformIndexToPhysicalPoint((0, 0, 0)))
    columns = [
        np.array(image.TransformContinuousIndexToPhysicalPoint(step)) - origin
        for step in np.eye(3).tolist()
    ]
    affine = np.vstack([np.column_stack([*columns, origin]), [0, 0, 0, 1]])
    return LPS_TO_RAS @ affine


def assert_same_image(source: Path, target: Path) -> None:
    was, now = SimpleITK.ReadImage(str(source)), SimpleITK.ReadImage(str(target))
    assert now.GetPixelID() == was.GetPixelID()
    assert now.GetSize() == was.GetSize()
    assert np.array_equal(SimpleITK.GetArrayFromImage(now), SimpleITK.GetArrayFromImage(was))
    assert np.allclose(affine_of(now), affine_of(was), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("suffix", "dtype", "packed"), each_pair(SUFFIXES, TYPES, [False, True]))
def test_reads_and_writes_what_simpleitk_wrote(
    tmp_path: Path, suffix: str, dtype: str, packed: bool
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}"
    image = image_of(ramp(dtype=dtype))
    SimpleITK.WriteImage(image, str(source), packed)
    ours = read_file(source)
    assert ours.voxels.dtype == np.dtype(dtype)
    assert np.array_equal(ours.voxels, ramp(dtype=dtype))
    assert np.allclose(ours.affine, affine_of(image))
    assert np.allclose(ours.spacing, SPACING)
    write(ours, target)
    assert_same_image(source, target)
    written = {path.name for path in target.parent.iterdir()}
    assert written == {path.name for path in tmp_path.iterdir() if path.is_file()}


@settings(
    max_examples=examples(40),
    suppress_health_check=WITH_FIXTURES,
)
@given(turn=turns, spacing=lengths, origin=places, shape=shapes, suffix=st.sampled_from(SUFFIXES))
def test_any_grid_survives(
    tmp_path: Path, turn: Any, spacing: Any, origin: Any, shape: tuple[int, ...], suffix: str
) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    image = image_of(ramp(shape), turn)
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    SimpleITK.WriteImage(image, str(source))
    ours = read_file(source)
    assert np.allclose(
        ours.affine, affine_of(SimpleITK.ReadImage(str(source))), rtol=1e-9, atol=1e-9
    )
    assert np.allclose(ours.affine, affine_of(image), rtol=1e-9, atol=1e-9)
    write(ours, target)
    assert_same_image(source, target)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("encoding", ["raw", "gzip", "gz", "ascii", "text", "txt", "hex"])
def test_every_nrrd_encoding(tmp_path: Path, encoding: str, endian: str) -> None:
    path = tmp_path / "a.nrrd"
    plain = ramp(dtype="<i2" if endian == "little" else ">i2").tobytes(order="F")
    stored = {"raw": plain, "hex": plain.hex().encode()}.get(encoding, gzip.compress(plain))
    if encoding in ("ascii", "text", "txt"):
        stored = " ".join(str(voxel) for voxel in ramp().ravel(order="F")).encode()
    head = NRRD.format(space="LPS", endian=endian, encoding=encoding, more="")
    path.write_bytes(head.encode() + stored)
    assert np.array_equal(read_file(path).voxels, ramp())
    write(read_file(path), tmp_path / "b.nrrd")
    assert_same_image(path, tmp_path / "b.nrrd")


@pytest.mark.parametrize(
    ("space", "affine"),
    [
        (
            "left-posterior-superior",
            np.array([[-0.75, 0, 0, -1], [0, -1.25, 0, -2], [0, 0, 2.5, 3]]),
        ),
        ("RAS", np.array([[0.75, 0, 0, 1], [0, 1.25, 0, 2], [0, 0, 2.5, 3]])),
        ("LAS", np.array([[-0.75, 0, 0, -1], [0, 1.25, 0, 2], [0, 0, 2.5, 3]])),
    ],
)
def test_nrrd_spaces_end_in_ras(tmp_path: Path, space: str, affine: Any) -> None:
    path = tmp_path / "a.nrrd"
    head = NRRD.format(space=space, endian="little", encoding="raw", more="")
    path.write_bytes(head.encode() + ramp().tobytes(order="F"))
    assert np.allclose(read_file(path).affine[:3], affine)


@pytest.mark.parametrize(
    ("space", "signs"),
    [
        ("left-posterior-superior-time", (-1, -1, 1)),
        ("right-anterior-superior-time", (1, 1, 1)),
        ("RAST", (1, 1, 1)),
        ("left-anterior-superior-time", (-1, 1, 1)),
        ("LAST", (-1, 1, 1)),
        ("LPST", (-1, -1, 1)),
    ],
)
def test_nrrd_spaces_with_time_end_in_ras(
    tmp_path: Path, space: str, signs: tuple[int, int, int]
) -> None:
    source, target = tmp_path / "a.nrrd", tmp_path / "b.nrrd"
    stored = ramp((3, 4, 5, 2))
    source.write_bytes(_with_time(space).encode() + stored.tobytes(order="F"))
    volume = read_file(source, 1)
    affine = np.diag([*signs, 1]) @ [[0, 0.5, 0, 1], [2, 0, 0, 2], [0, 0, 3, 3], [0, 0, 0, 1]]
    np.testing.assert_array_equal(volume.affine, affine)
    np.testing.assert_array_equal(read_grid(study_of(source)).affine, affine)
    assert volume.notes == ()
    write(volume, target)
    written = SimpleITK.ReadImage(str(target))
    np.testing.assert_allclose(affine_of(written), affine)
    assert np.array_equal(SimpleITK.GetArrayFromImage(written).T, stored[..., 1])


def _with_time(space: str) -> str:
    return (
        f"NRRD0005\ntype: int16\ndimension: 4\nspace: {space}\nsizes: 3 4 5 2\nendian: little\n"
        "space directions: (0,2,0,0) (0.5,0,0,0) (0,0,3,0) (0,0,0,1.5)\n"
        "kinds: space space space time\nencoding: raw\nspace origin: (1,2,3,9)\n\n"
    )


@pytest.mark.parametrize(
    ("kinds", "time"), [("time domain domain domain", 0), ("space time space space", 1)]
)
def test_time_before_an_axis_of_space_is_no_axis_of_space(
    tmp_path: Path, kinds: str, time: int
) -> None:
    sizes = [3, 4, 5]
    sizes.insert(time, 2)
    head = (
        f"NRRD0005\ntype: int16\ndimension: 4\nsizes: {' '.join(map(str, sizes))}\n"
        f"kinds: {kinds}\nendian: little\nencoding: raw\n\n"
    )
    stored = ramp(tuple(sizes))
    path = tmp_path / "a.nrrd"
    path.write_bytes(head.encode() + stored.tobytes(order="F"))
    assert read_grid(study_of(path)).extents == (3, 4, 5, 2)
    for moment in range(2):
        assert np.array_equal(read_file(path, moment).voxels, stored.take(moment, axis=time))


@pytest.mark.parametrize(("unit", "in_mm"), [("?", 1.0), ("mm", 1.0), ("cm", 10.0), ("um", 0.001)])
def test_lengths_of_metaimage_are_in_the_unit_of_its_header(
    tmp_path: Path, unit: str, in_mm: float
) -> None:
    source, target = tmp_path / "a.mha", tmp_path / "b.mha"
    head = METAIMAGE.format(msb=False, skipped=0, data_file="LOCAL")
    head = head.replace("DimSize", f"DistanceUnits = {unit}\nDimSize")
    source.write_bytes(head.encode() + ramp().tobytes(order="F"))
    volume = read_file(source)
    np.testing.assert_allclose(volume.spacing, np.array([0.75, 1.25, 2.5]) * in_mm)
    np.testing.assert_allclose(volume.affine[:3, 3], np.array([-1, -2, 3]) * in_mm)
    reported = (f"its header gives lengths in {unit}; they are converted to millimetres",)
    assert volume.notes == (() if in_mm == 1 else reported)
    write(volume, target)
    np.testing.assert_allclose(affine_of(SimpleITK.ReadImage(str(target))), volume.affine)
    assert b"DistanceUnits = um" not in target.read_bytes()
    np.testing.assert_allclose(read_file(target).affine, volume.affine)


def test_gzip_of_several_members(tmp_path: Path) -> None:
    path = tmp_path / "a.nrrd"
    plain = ramp().tobytes(order="F")
    head = NRRD.format(space="LPS", endian="little", encoding="gzip", more="")
    path.write_bytes(head.encode() + gzip.compress(plain[:50]) + gzip.compress(plain[50:]))
    assert np.array_equal(read_file(path).voxels, ramp())


@pytest.mark.parametrize("skipped", [0, 7, -1])
@pytest.mark.parametrize("msb", [False, True])
def test_metaimage_with_voxels_elsewhere(tmp_path: Path, msb: bool, skipped: int) -> None:
    path = tmp_path / "a.mhd"
    (tmp_path / "voxels here").mkdir()
    stored = ramp(dtype=">i2" if msb else "<i2").tobytes(order="F")
    (tmp_path / "voxels here" / "x.img").write_bytes(b"preface"[: 7 if skipped else 0] + stored)
    path.write_text(METAIMAGE.format(msb=msb, skipped=skipped, data_file="voxels here/x.img"))
    assert np.array_equal(read_file(path).voxels, ramp())


def test_packed_metaimage_voxels_elsewhere_need_no_size(tmp_path: Path) -> None:
    path = tmp_path / "a.mhd"
    (tmp_path / "a.zraw").write_bytes(zlib.compress(ramp().tobytes(order="F")))
    head = METAIMAGE.format(msb=False, skipped=0, data_file="a.zraw")
    path.write_text(head.replace("CompressedData = False", "CompressedData = True"))
    assert np.array_equal(read_file(path).voxels, ramp())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["A B.NRRD", "A.NHDR", "Ä b.MHA", "A.MHD", "a\nb.mha", "名.nrrd"])
def test_names_are_kept(tmp_path: Path, name: str, packed: bool) -> None:
    plain, source, target = tmp_path / "x", tmp_path / name, tmp_path / "out" / name
    lower = plain.with_suffix(source.suffix.lower())
    SimpleITK.WriteImage(image_of(ramp()), str(lower), packed)
    lower.rename(source)
    write(read_file(source), target)
    assert np.array_equal(read_file(target).voxels, ramp())
    assert target.name in {path.name for path in target.parent.iterdir()}
    assert len(list(target.parent.iterdir())) == len(list(tmp_path.iterdir())) - 1


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_metadata_is_kept(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    image = image_of(ramp())
    image.SetMetaData("Scanner", "3T, München")
    SimpleITK.WriteImage(image, str(source))
    write(read_file(source), target)
    found = SimpleITK.ReadImage(str(target))
    assert found.GetMetaData("Scanner") == "3T, München"
    was = set(SimpleITK.ReadImage(str(source)).GetMetaDataKeys())
    assert set(found.GetMetaDataKeys()) == was


MARK = SyntheticMark("t1-to-t2", "T1", "T2", "0.2.0", "0123456789ab")
ITK_KEYS = ("ITK_ExperimentDate", "ITK_VoxelUnits", "ITK_FileNotes", "ITK_original_direction")
METAIO_KEYS = ("Name", "ID", "ParentID", "Comment", "Modality", "ElementMin", "Color", "SequenceID")


@settings(max_examples=examples(200), suppress_health_check=WITH_FIXTURES)
@given(
    st.sampled_from([".nrrd", ".mha", ".mhd"]),
    st.lists(st.sampled_from([*ITK_KEYS, *METAIO_KEYS, "zone", "b c"]), unique=True),
    st.booleans(),
)
@example(".mha", ["ITK_ExperimentDate"], True)
def test_every_key_that_itk_reads_is_in_the_result(
    tmp_path: Path, suffix: str, keys: list[str], is_marked: bool
) -> None:
    """Keys of the acquisition are exceptions; the order is free; what cannot be kept is not a
    failure.
    """
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    image = image_of(ramp())
    for key in keys:
        image.SetMetaData(key, "mm" if key == "ITK_VoxelUnits" else "20200131")
    SimpleITK.WriteImage(image, str(source))
    volume = read_file(source)
    write(replace(volume, mark=MARK) if is_marked else volume, target)
    was, found = (SimpleITK.ReadImage(str(path)) for path in (source, target))
    replaced = {"Modality", *(["ITK_FileNotes"] if is_marked else [])}
    for key in set(was.GetMetaDataKeys()) - replaced:
        assert found.GetMetaData(key) == was.GetMetaData(key)


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_acquisition_that_dicom_stated_is_not_stated_of_a_result(
    tmp_path: Path, suffix: str
) -> None:
    """A synthetic CT would be called MR, and have the identifier of another image."""
    image = image_of(ramp())
    kept = {"0010|0010": "Doe^Jane", "0020|000d": "1.2.3", "0008|0020": "20200102", "made": "here"}
    dropped = {"0008|0060": "MR", "0008|0018": "1.2.3.4", "0020|000e": "1.2.3.5", "0018|0081": "3"}
    dropped |= {"DICOM_0008_0060_Modality": "MR", "modality": "DWMRI"}
    for key, value in {**kept, **dropped}.items():
        image.SetMetaData(key, value)
    SimpleITK.WriteImage(image, str(tmp_path / f"a{suffix}"))
    write(read_file(tmp_path / f"a{suffix}"), tmp_path / f"b{suffix}")
    found = SimpleITK.ReadImage(str(tmp_path / f"b{suffix}"))
    keys = set(found.GetMetaDataKeys())
    assert {key: found.GetMetaData(key) for key in kept} == kept
    assert not keys & dropped.keys()


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_four_axes_need_a_choice(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    stored = ramp((3, 4, 5, 6))
    frames = [image_of(stored[..., frame]) for frame in range(6)]
    SimpleITK.WriteImage(SimpleITK.JoinSeries(frames), str(source))
    with pytest.raises(UnsupportedScanError, match="contains 6 volumes"):
        read_file(source)
    with pytest.raises(UnsupportedScanError, match="no volume 6; choose one of 0 to 5"):
        read_file(source, 6)
    for index in range(6):
        assert np.array_equal(read_file(source, index).voxels, stored[..., index])
    write(read_file(source, 4), target)
    written = SimpleITK.ReadImage(str(target))
    assert written.GetSize() == (3, 4, 5)
    assert np.array_equal(SimpleITK.GetArrayFromImage(written).T, stored[..., 4])
    assert np.allclose(affine_of(written), affine_of(frames[4]))


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_one_frame_is_a_volume(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"a{suffix}"
    SimpleITK.WriteImage(SimpleITK.JoinSeries([image_of(ramp())]), str(source))
    assert np.array_equal(read_file(source, 3).voxels, ramp())


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_components_are_volumes(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"a{suffix}"
    SimpleITK.WriteImage(
        SimpleITK.Compose(*[image_of(ramp(dtype="u1") + c) for c in range(3)]), str(source)
    )
    with pytest.raises(UnsupportedScanError, match="contains 3 volumes"):
        read_file(source)
    assert np.array_equal(read_file(source, 2).voxels, ramp(dtype="u1") + 2)


def test_a_scale_that_the_format_cannot_store_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "a.nrrd", tmp_path / "b.nrrd"
    SimpleITK.WriteImage(image_of(ramp()), str(source))
    with pytest.raises(WriteError, match="without a scale"):
        write(read_file(source).with_voxels(ramp(), 2.0), target)
    assert not target.exists()
