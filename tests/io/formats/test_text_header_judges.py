"""NRRD and MetaImage files against ITK's and pynrrd's readers: bit for bit what both can read."""

import bz2
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nrrd as _nrrd
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_files import read_file
from support.tiers import examples

from cuda_cyclegan.io.writing import write

nrrd: Any = _nrrd
sitk: Any = _SimpleITK
SHAPE = (3, 4, 5)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
NRRD_TYPES = {
    "signed char": "i1",
    "uint8": "u1",
    "short": "i2",
    "ushort": "u2",
    "int32": "i4",
    "unsigned int": "u4",
    "long long": "i8",
    "ulonglong": "u8",
    "float": "f4",
    "double": "f8",
}
METAIMAGE_TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "gzip": gzip.compress,
    "gz": gzip.compress,
    "bzip2": bz2.compress,
    "bz2": bz2.compress,
    "hex": lambda plain: plain.hex(" ", 16).encode(),
}
METAIMAGE_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "zlib": zlib.compress,
    "gzip": gzip.compress,
}
PYNRRD_WRITES = ("raw", "gzip", "bzip2", "ascii")
NOT_BY_ITK = ("bzip2", "bz2")
NOT_BY_PYNRRD = ("hex",)
NRRD = """NRRD0004
type: {type}
dimension: 3
space: left-posterior-superior
sizes: 3 4 5
space directions: (0.75,0.1,0) (0,1.25,0) (0,0.2,2.5)
kinds: domain domain domain
endian: {endian}
encoding: {encoding}
space origin: (1,-2,3.5)
"""
METAIMAGE = """ObjectType = Image
NDims = 3
BinaryData = {binary}
BinaryDataByteOrderMSB = {msb}
CompressedData = {packed}
CompressedDataSize = {size}
TransformMatrix = 0.6 0.8 0 -0.8 0.6 0 0 0 1
Offset = 1 -2 3.5
ElementSpacing = 0.75 1.25 2.5
DimSize = 3 4 5
ElementType = {type}
ElementDataFile = {data_file}
"""


def voxels_of(code: str) -> Any:
    """Voxels with every byte pattern that a type may have, NaN and infinity among them."""
    if code[0] == "f":
        values = np.random.default_rng(0).normal(size=SHAPE).astype(code) * 1000
        values[0, 0, :3] = np.nan, np.inf, -np.inf
        return values
    limits = np.iinfo(code)
    values = np.random.default_rng(0).integers(
        limits.min, limits.max, SHAPE, dtype=code, endpoint=True
    )
    values[0, 0, :2] = limits.min, limits.max
    return values


def as_text(voxels: Any) -> bytes:
    return " ".join(map(repr, voxels.ravel(order="F").tolist())).encode() + b"\n"


def affine_of(image: Any) -> Any:
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    return LPS_TO_RAS @ affine


def assert_as_itk(path: Path, stored: Any) -> None:
    image = sitk.ReadImage(str(path))
    ours = read_file(path)
    by_itk = sitk.GetArrayFromImage(image).T
    assert ours.voxels.dtype == by_itk.dtype == stored.dtype
    assert ours.voxels.tobytes(order="F") == by_itk.tobytes(order="F") == stored.tobytes(order="F")
    np.testing.assert_allclose(ours.affine, affine_of(image), rtol=1e-14, atol=1e-14)


def assert_as_pynrrd(path: Path, stored: Any) -> None:
    by_pynrrd, _ = nrrd.read(str(path))
    by_pynrrd = by_pynrrd.astype(by_pynrrd.dtype.newbyteorder("="))
    assert read_file(path).voxels.tobytes(order="F") == by_pynrrd.tobytes(order="F")
    assert by_pynrrd.tobytes(order="F") == stored.tobytes(order="F")


def assert_written_alike(source: Path, target: Path, stored: Any) -> None:
    """The result is read as its source by ITK and pynrrd, and by this program."""
    volume = read_file(source)
    write(volume, target)
    assert_as_itk(target, stored)
    if target.suffix in (".nrrd", ".nhdr"):
        assert_as_pynrrd(target, stored)
    np.testing.assert_allclose(read_file(target).affine, volume.affine, rtol=1e-14, atol=1e-14)


def alternating(encoding: int, number: int) -> tuple[bool, bool]:
    """Return whether a type in an encoding is big-endian, and whether it has a file of its own.

    Any two of type, encoding, byte order and file meet.
    """
    return (encoding + number) % 2 == 1, (encoding + number // 2) // 2 % 2 == 1


@pytest.mark.parametrize("encoding", PACKED)
def test_types_of_nrrd_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    for number, (name, code) in enumerate(NRRD_TYPES.items()):
        is_big, is_apart = alternating(list(PACKED).index(encoding), number)
        endian, suffix = ("little", "big")[is_big], (".nrrd", ".nhdr")[is_apart]
        voxels = voxels_of(code)
        plain = voxels.astype(voxels.dtype.newbyteorder("<" if endian == "little" else ">"))
        packed = PACKED[encoding](plain.tobytes(order="F"))
        head = NRRD.format(type=name, endian=endian, encoding=encoding)
        source = tmp_path / f"a{suffix}"
        if suffix == ".nhdr":
            (tmp_path / "a.dat").write_bytes(packed)
            source.write_text(f"{head}data file: a.dat\n")
        else:
            source.write_bytes(f"{head}\n".encode() + packed)
        if encoding not in NOT_BY_ITK:
            assert_as_itk(source, voxels)
        if encoding not in NOT_BY_PYNRRD:
            assert_as_pynrrd(source, voxels)
        assert_written_alike(source, tmp_path / f"b{suffix}", voxels)


@pytest.mark.parametrize("encoding", ["ascii", "text", "txt"])
def test_types_of_nrrd_in_digits(tmp_path: Path, encoding: str) -> None:
    for name, code in NRRD_TYPES.items():
        voxels = np.nan_to_num(voxels_of(code), nan=1.0, posinf=np.inf, neginf=-np.inf)
        head = NRRD.format(type=name, endian="little", encoding=encoding)
        source = tmp_path / "a.nrrd"
        source.write_bytes(f"{head}\n".encode() + as_text(voxels))
        assert_as_itk(source, voxels)
        if code[0] == "f":  # of which pynrrd reads whole numbers through floats
            assert_as_pynrrd(source, voxels)
        assert_written_alike(source, tmp_path / "b.nrrd", voxels)


@pytest.mark.parametrize("packing", METAIMAGE_PACKED)
def test_types_of_metaimage(tmp_path: Path, packing: str) -> None:
    pack = METAIMAGE_PACKED[packing]
    for number, (name, code) in enumerate(METAIMAGE_TYPES.items()):
        msb, is_apart = alternating(list(METAIMAGE_PACKED).index(packing), number)
        suffix = (".mha", ".mhd")[is_apart]
        voxels = voxels_of(code)
        stored = pack(voxels.astype(voxels.dtype.newbyteorder("<>"[msb])).tobytes(order="F"))
        head = METAIMAGE.format(
            binary=True,
            msb=msb,
            packed=bool(packing),
            size=len(stored),
            type=name,
            data_file="a.dat" if suffix == ".mhd" else "LOCAL",
        )
        source = tmp_path / f"a{suffix}"
        source.write_bytes(head.encode() + (b"" if suffix == ".mhd" else stored))
        (tmp_path / "a.dat").write_bytes(stored)
        assert_as_itk(source, voxels)
        assert_written_alike(source, tmp_path / f"b{suffix}", voxels)


def test_metaimage_in_digits(tmp_path: Path) -> None:
    for name, code in METAIMAGE_TYPES.items():
        if code in ("i8", "u8", "i1", "u1"):  # which MetaIO reads through doubles, or as letters
            continue
        voxels = np.nan_to_num(voxels_of(code), nan=1.0, posinf=2.0, neginf=3.0)
        head = METAIMAGE.format(
            binary=False, msb=False, packed=False, size=0, type=name, data_file="LOCAL"
        )
        (tmp_path / "a.mha").write_bytes(head.encode() + as_text(voxels))
        assert_as_itk(tmp_path / "a.mha", voxels)


@pytest.mark.parametrize("encoding", PYNRRD_WRITES)
def test_files_that_pynrrd_writes(tmp_path: Path, encoding: str) -> None:
    head = {
        "space": "right-anterior-superior",
        "space directions": np.array([[0.75, 0.1, 0], [0, 1.25, 0], [0, 0.2, 2.5]]),
        "space origin": np.array([1.0, -2.0, 3.5]),
        "kinds": ["domain"] * 3,
        "encoding": encoding,
        "endian": "little",
        "space units": ["mm", "mm", "mm"],
        "Institution": "Klinikum",
    }
    for number, code in enumerate(NRRD_TYPES.values()):
        voxels = voxels_of(code)
        suffix = (".nrrd", ".nhdr")[(PYNRRD_WRITES.index(encoding) + number) % 2]
        if encoding == "ascii":
            if code in ("i8", "u8"):  # which pynrrd itself does not read again
                continue
            voxels = np.nan_to_num(voxels, nan=1.0, posinf=2.0, neginf=3.0)
        path = tmp_path / f"a{suffix}"
        nrrd.write(str(path), voxels, head)
        assert_as_pynrrd(path, nrrd.read(str(path))[0])
        if encoding != "bzip2":
            assert_as_itk(path, nrrd.read(str(path))[0])
        assert_written_alike(path, tmp_path / f"b{suffix}", nrrd.read(str(path))[0])
        assert nrrd.read_header(str(tmp_path / f"b{suffix}"))["Institution"] == head["Institution"]


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ("3-color domain domain domain", (3, 3, 4, 5)),
        ("domain domain domain vector", (3, 4, 5, 3)),
        ("domain domain list domain", (3, 4, 3, 5)),
        ("domain list domain domain", (3, 3, 4, 5)),
        ("stub domain domain domain", (1, 3, 4, 5)),
        ("??? ??? ??? ???", (3, 4, 5, 2)),
        ("list space space space time", (2, 3, 4, 5, 3)),
        ("domain domain domain domain list", (3, 4, 5, 2, 3)),
        ("domain domain domain list domain", (3, 4, 5, 3, 2)),
    ],
)
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_components_and_frames_are_volumes_as_in_itk(
    tmp_path: Path, kinds: str, sizes: tuple[int, ...], encoding: str
) -> None:
    stored = np.arange(np.prod(sizes), dtype="<i2").tobytes()
    head = (
        f"NRRD0005\ntype: short\ndimension: {len(sizes)}\nsizes: {' '.join(map(str, sizes))}\n"
        f"kinds: {kinds}\nendian: little\nencoding: {encoding}\n\n"
    )
    path = tmp_path / "a.nrrd"
    path.write_bytes(head.encode() + PACKED[encoding](stored))
    image = sitk.ReadImage(str(path))
    by_itk = sitk.GetArrayFromImage(image)
    if image.GetNumberOfComponentsPerPixel() == 1:
        by_itk = by_itk[..., None]
    volumes = np.moveaxis(by_itk, -1, 0).T.reshape((3, 4, 5, -1, by_itk.shape[-1]), order="F")
    volumes = np.moveaxis(volumes, 4, 3).reshape((3, 4, 5, -1), order="F")
    for volume in range(volumes.shape[3]):
        assert np.array_equal(read_file(path, volume).voxels, volumes[..., volume])


@pytest.mark.parametrize("sizes", [(3, 4, 5), (3, 4, 5, 2)])
def test_channels_of_metaimage_are_volumes_as_in_itk(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    axes, channels = len(sizes), 3
    stored = np.arange(channels * np.prod(sizes), dtype="<i2")
    head = (
        f"ObjectType = Image\nNDims = {axes}\nDimSize = {' '.join(map(str, sizes))}\n"
        f"ElementNumberOfChannels = {channels}\nElementType = MET_SHORT_ARRAY\n"
        "ElementDataFile = LOCAL\n"
    )
    (tmp_path / "a.mha").write_bytes(head.encode() + stored.tobytes())
    by_itk = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.mha"))).T
    volumes = np.moveaxis(by_itk, 0, 3).reshape((3, 4, 5, -1), order="F")
    for volume in range(volumes.shape[3]):
        assert np.array_equal(read_file(tmp_path / "a.mha", volume).voxels, volumes[..., volume])


SKIPS = {
    "byte": ("byte skip: 7\n", b"preface", 0),
    "line": ("line skip: 2\n", b"two\nlines\n", 0),
    "both": ("line skip: 1\nbyte skip: 3\n", b"line\nabc", 0),
    "end": ("byte skip: -1\n", b"some preface", 0),
    "before the end": ("byte skip: -4\n", b"some preface", 3),
}


@pytest.mark.parametrize("suffix", [".nrrd", ".nhdr"])
@pytest.mark.parametrize("skips", SKIPS)
def test_skips_of_nrrd(tmp_path: Path, suffix: str, skips: str) -> None:
    fields, before, behind = SKIPS[skips]
    voxels = voxels_of("i2")
    stored = before + voxels.tobytes(order="F") + b"x" * behind
    head = NRRD.format(type="short", endian="little", encoding="raw") + fields
    path = tmp_path / f"a{suffix}"
    if suffix == ".nhdr":
        (tmp_path / "a.dat").write_bytes(stored)
        path.write_text(f"{head}data file: a.dat\n")
    else:
        path.write_bytes(f"{head}\n".encode() + stored)
    assert_as_itk(path, voxels)
    if skips in ("byte", "line", "both", "end"):
        assert_as_pynrrd(path, voxels)


@pytest.mark.parametrize("skips", SKIPS)
def test_bytes_that_are_skipped_in_packed_voxels(tmp_path: Path, skips: str) -> None:
    """Lines of the file, and then bytes of what is unpacked."""
    fields, before, behind = SKIPS[skips]
    voxels = voxels_of("i2")
    lines = before[: before.rfind(b"\n") + 1] if "line" in fields else b""
    plain = before.removeprefix(lines) + voxels.tobytes(order="F") + b"x" * behind
    head = NRRD.format(type="short", endian="little", encoding="gzip")
    path = tmp_path / "a.nrrd"
    path.write_bytes(f"{head}{fields}\n".encode() + lines + gzip.compress(plain))
    assert_as_itk(path, voxels)


@pytest.mark.parametrize("encoding", ["raw", "gzip", "ascii"])
@pytest.mark.parametrize(
    ("files", "share"),
    [
        ("LIST", 1),
        ("LIST 2", 1),
        ("LIST 1", 4),
        ("LIST 3", -1),
        ("s%03d.dat 1 5 1", 1),
        ("s%d.dat 9 5 -1", 1),
    ],
)
def test_lists_of_data_files_of_nrrd(tmp_path: Path, files: str, share: int, encoding: str) -> None:
    voxels = voxels_of("i2")
    count = 5 * share if share > 0 else 5
    stored = voxels.ravel(order="F").reshape((-1, count), order="F")
    if "%" in files:
        pattern, first, last, step = files.split()
        numbers = range(int(first), int(last) + int(step), int(step))
        names = [pattern % number for number in numbers]
        listed = files
    else:
        (tmp_path / "below").mkdir(exist_ok=True)
        names = [f"below/slice {at}.dat" for at in range(count)]
        listed = "\n".join([files, *names])
    for name, part in zip(names, stored.T, strict=True):
        plain = as_text(part) if encoding == "ascii" else PACKED[encoding](part.tobytes())
        (tmp_path / name).write_bytes(plain)
    head = NRRD.format(type="short", endian="little", encoding=encoding)
    path = tmp_path / "a.nhdr"
    path.write_text(f"{head}data file: {listed}\n")
    assert_as_itk(path, voxels)


@pytest.mark.parametrize("header_size", [0, 7, -1])
@pytest.mark.parametrize("files", ["LIST", "LIST 2", "s%03d.dat 1 5 1"])
def test_lists_of_data_files_of_metaimage(tmp_path: Path, files: str, header_size: int) -> None:
    voxels = voxels_of("i2")
    names = [f"s{at:03d}.dat" for at in range(1, 6)]
    for name, part in zip(
        names, voxels.ravel(order="F").reshape((-1, 5), order="F").T, strict=True
    ):
        (tmp_path / name).write_bytes(b"preface"[: 7 * bool(header_size)] + part.tobytes())
    listed = files if "%" in files else "\n".join([files, *names])
    head = METAIMAGE.format(
        binary=True, msb=False, packed=False, size=0, type="MET_SHORT", data_file=listed
    )
    path = tmp_path / "a.mhd"
    path.write_text(head.replace("DimSize", f"HeaderSize = {header_size}\nDimSize"))
    assert_as_itk(path, voxels)


lengths = st.floats(0.01, 50, width=32)
places = st.floats(-1000, 1000, width=32)


@settings(max_examples=examples(200), deadline=None)
@given(
    space=st.sampled_from(["LPS", "RAS", "LAS", "scanner-xyz", "3D-right-handed", ""]),
    vectors=st.lists(st.tuples(places, places, places), min_size=3, max_size=3),
    origin=st.tuples(places, places, places),
)
def test_geometry_of_nrrd_is_that_of_itk(
    tmp_path_factory: pytest.TempPathFactory, space: str, vectors: Any, origin: Any
) -> None:
    if np.linalg.cond(vectors) > 1e6:
        return
    words = [f"({','.join(map(repr, vector))})" for vector in (*vectors, origin)]
    named = f"space: {space}" if space else "space dimension: 3"
    path = tmp_path_factory.getbasetemp() / "geometry.nrrd"
    head = (
        f"NRRD0005\ntype: uint8\ndimension: 3\n{named}\nsizes: 3 4 5\nencoding: raw\n"
        f"space directions: {' '.join(words[:3])}\nspace origin: {words[3]}\n\n"
    )
    path.write_bytes(head.encode() + bytes(range(60)))
    image = sitk.ReadImage(str(path))
    np.testing.assert_allclose(read_file(path).affine, affine_of(image), rtol=1e-12, atol=1e-9)


AXIS_FIELDS = {
    "spacings": "spacings: 1 2 3",
    "mins": "spacings: 1 2 3\naxis mins: 10 20 30",
    "maxs": "axis mins: 10 20 30\naxis maxs: 13 28 45",
    "nodes": "spacings: 1 2 3\naxis mins: 10 20 30\ncenterings: node cell node",
    "origin without directions": "space: RAS\nspace origin: (1,2,3)",
    "nothing": "content: x",
}


@pytest.mark.parametrize("fields", AXIS_FIELDS)
def test_geometry_by_axes_is_that_of_itk(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "a.nrrd"
    head = (
        f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 3 4 5\nencoding: raw\n{AXIS_FIELDS[fields]}"
    )
    path.write_bytes(f"{head}\n\n".encode() + bytes(range(60)))
    np.testing.assert_array_equal(read_file(path).affine, affine_of(sitk.ReadImage(str(path))))


METAIMAGE_FIELDS = {
    "names of one field": "Position = 7 8 9\nOrigin = 4 5 6\nOffset = 1 2 3",
    "offset and position": "Offset = 1 2 3\nPosition = 7 8 9",
    "position and origin": "Position = 7 8 9\nOrigin = 4 5 6",
    "matrices": "Rotation = 0 1 0 1 0 0 0 0 1\nTransformMatrix = 1 0 0 0 1 0 0 0 1",
    "orientation": "Orientation = 0 1 0 1 0 0 0 0 1\nRotation = 1 0 0 0 0 1 0 1 0",
    "size": "ElementSize = 3 4 5",
    "size and spacing": "ElementSpacing = 1 2 3\nElementSize = 3 4 5",
    "nothing": "Foo = 1",
}


@pytest.mark.parametrize("fields", METAIMAGE_FIELDS)
def test_geometry_of_metaimage_is_that_of_itk(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "a.mha"
    head = f"ObjectType = Image\nNDims = 3\nDimSize = 3 4 5\n{METAIMAGE_FIELDS[fields]}\n"
    path.write_bytes(
        f"{head}ElementType = MET_UCHAR\nElementDataFile = LOCAL\n".encode() + bytes(range(60))
    )
    np.testing.assert_array_equal(read_file(path).affine, affine_of(sitk.ReadImage(str(path))))
