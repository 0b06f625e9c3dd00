"""Bad scans: each fails alone, with one typed sentence, in bounded memory and time."""

import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.io_files import OBLIQUE, ramp, read_file, save_nifti, study_of
from support.io_users import open_folder, ordinary_user
from support.tiers import WITH_FIXTURES, examples
from support.waiting import ENOUGH

from cuda_cyclegan.io.errors import (
    ScanError,
    SeveralVolumesError,
    UnreadableScanError,
    UnsupportedScanError,
)
from cuda_cyclegan.io.reading import read

in_one_folder = settings(
    max_examples=examples(200),
    suppress_health_check=WITH_FIXTURES,
)
PLAIN = ramp().tobytes(order="F")
NRRD = """NRRD0004
type: int16
dimension: 3
space: LPS
sizes: 3 4 5
space directions: (1,0,0) (0,1,0) (0,0,1)
kinds: domain domain domain
endian: little
encoding: raw
space origin: (1,2,3)

"""
METAIMAGE = """ObjectType = Image
NDims = 3
BinaryData = True
BinaryDataByteOrderMSB = False
CompressedData = False
CompressedDataSize = 0
TransformMatrix = 1 0 0 0 1 0 0 0 1
Offset = 1 2 3
ElementSpacing = 1 1 1
DimSize = 3 4 5
ElementType = MET_SHORT
ElementDataFile = LOCAL
"""
BOMB_BYTES = 1 << 30
MEMORY_PROBE = """
import json, resource, sys
from pathlib import Path, PurePosixPath
from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

said, before = [], peak()
for path, kind in json.loads(sys.argv[1]):
    try:
        read(Study(PurePosixPath(path), (Path(path),), kind))
    except ScanError as error:
        said.append(str(error))
print(json.dumps([said, peak() - before]))
"""


def refusal(path: Path, kind: type[ScanError] = UnreadableScanError) -> str:
    """Return the reader's message about `path`, checked to be one sentence of that class."""
    started = time.process_time()
    with pytest.raises(ScanError) as caught:
        read_file(path)
    message = str(caught.value)
    assert time.process_time() - started < 5
    assert type(caught.value) is kind, message
    assert str(path.parent) in message or "/dev/zero" in message
    assert message.endswith(".")
    assert "\n" not in message
    return message


def nifti_bytes(change: Callable[[Any], None], version: int = 1, voxels: bytes = PLAIN) -> bytes:
    """A single NIfTI file, its header changed after all of nibabel's checks."""
    header: Any = nibabel.Nifti1Header() if version == 1 else nibabel.Nifti2Header()
    header.set_data_shape((3, 4, 5))
    header.set_data_dtype(np.int16)
    header.set_sform(OBLIQUE, 1)
    header["vox_offset"] = header.single_vox_offset
    change(header)
    return header.binaryblock + bytes(4) + voxels


def setting(**fields: Any) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        for field, value in fields.items():
            header[field] = value

    return change


def dims(*extents: int) -> list[int]:
    return [len(extents), *extents, *[1] * (7 - len(extents))]


def test_the_file_that_the_cases_start_from_is_sound(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_bytes(nifti_bytes(setting()))
    (tmp_path / "a.nrrd").write_bytes(NRRD.encode() + PLAIN)
    (tmp_path / "a.mha").write_bytes(METAIMAGE.encode() + PLAIN)
    for path in tmp_path.iterdir():
        assert np.array_equal(read_file(path).voxels, ramp())


@pytest.mark.parametrize(
    "name", ["a.nii", "a.nii.gz", "a.hdr", "a.nrrd", "a.nhdr", "a.mha", "a.mhd"]
)
def test_missing_empty_and_garbage(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.with_suffix(".img").write_bytes(PLAIN)
    assert "is missing" in refusal(path)
    path.touch()
    assert "is empty" in refusal(path)
    path.write_bytes(b"x")
    refusal(path)
    path.write_bytes(np.random.default_rng(0).bytes(100_000))
    refusal(path)
    path.unlink()
    path.mkdir()
    assert "is a folder, not a scan file" in refusal(path)
    path.rmdir()
    os.mkfifo(path)
    assert "is not a regular file" in refusal(path)


def test_forbidden() -> None:
    with open_folder() as folder:
        path = save_nifti(folder / "a.nii")
        path.chmod(0)
        with ordinary_user():
            assert "cannot be read: permission denied; get read permission" in refusal(path)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (setting(dim=dims(3, 4)), UnsupportedScanError, "2D image of 3 x 4"),
        (setting(dim=dims(0, 4, 5)), UnreadableScanError, "no voxels"),
        (setting(dim=dims(-3, 4, 5)), UnreadableScanError, "no voxels"),
        (setting(dim=dims(3, 4, 5, 0)), UnreadableScanError, "no voxels"),
        (setting(dim=[0] * 8), UnreadableScanError, ""),
        (setting(dim=[9] * 8), UnreadableScanError, ""),
        (setting(dim=dims(*[32767] * 7)), SeveralVolumesError, "contains"),
        (setting(dim=dims(*[32767] * 3)), UnreadableScanError, "the file has 472"),
        (setting(datatype=128, bitpix=24), UnsupportedScanError, "stores RGB voxels"),
        (setting(datatype=2304, bitpix=32), UnsupportedScanError, "stores RGBA voxels"),
        (setting(datatype=32, bitpix=64), UnsupportedScanError, "stores complex64 voxels"),
        (setting(datatype=1792, bitpix=128), UnsupportedScanError, "stores complex128 voxels"),
        (setting(datatype=1536, bitpix=128), UnsupportedScanError, "stores float128 voxels"),
        (setting(datatype=1, bitpix=1), UnsupportedScanError, "stores binary voxels"),
        (setting(datatype=77), UnsupportedScanError, "stores unknown voxels"),
        (setting(vox_offset=0), UnreadableScanError, "start at byte 0"),
        (setting(vox_offset=349), UnreadableScanError, ""),
        (setting(vox_offset=-352), UnreadableScanError, ""),
        (setting(vox_offset=np.nan), UnreadableScanError, ""),
        (setting(vox_offset=np.inf), UnreadableScanError, ""),
        (setting(vox_offset=1e30), UnreadableScanError, ""),
        (setting(srow_x=[np.nan] * 4), UnreadableScanError, "has no valid position"),
        (setting(srow_x=[0] * 4), UnreadableScanError, "has no valid position"),
        (setting(scl_slope=2, scl_inter=np.inf), UnreadableScanError, "damaged header"),
        (setting(magic=b"ni1"), UnreadableScanError, "in a separate file"),
        (setting(magic=b"n+9"), UnreadableScanError, "is not a NIfTI file"),
        (setting(sizeof_hdr=349), UnreadableScanError, "is not a NIfTI file"),
    ],
)
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_bad_nifti_headers(
    tmp_path: Path, suffix: str, change: Callable[[Any], None], kind: type[ScanError], said: str
) -> None:
    path = tmp_path / f"a{suffix}"
    stored = nifti_bytes(change)
    path.write_bytes(gzip.compress(stored) if suffix == ".nii.gz" else stored)
    message = refusal(path, kind)
    assert said.replace("472", str(path.stat().st_size)) in message


@pytest.mark.parametrize("extent", [2**40, 2**62, 2**63 - 1])
def test_extents_beyond_any_memory(tmp_path: Path, extent: int) -> None:
    path = tmp_path / "a.nii"
    path.write_bytes(nifti_bytes(setting(dim=dims(extent, 4, 5)), version=2))
    assert "truncated or its header is damaged" in refusal(path)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert "truncated or its header is damaged" in refusal(tmp_path / "a.nii.gz")
    for name, head in (("a.nrrd", NRRD), ("a.mha", METAIMAGE)):
        (tmp_path / name).write_bytes(head.replace("3 4 5", f"{extent} 4 5").encode() + PLAIN)
        refusal(tmp_path / name)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
@pytest.mark.parametrize("packed", [False, True])
def test_truncated_anywhere(tmp_path: Path, suffix: str, packed: bool) -> None:
    whole, path = tmp_path / f"whole{suffix}", tmp_path / f"a{suffix}"
    noise = np.random.default_rng(0).integers(0, 900, (9, 10, 11)).astype(np.int16)
    if suffix.startswith(".nii"):
        save_nifti(whole, noise)
    else:
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(noise), str(whole), packed)
    stored = whole.read_bytes()
    for length in [*range(1, 700, 29), *range(700, len(stored), 211), len(stored) - 1]:
        path.write_bytes(stored[:length])
        refusal(path)


def test_voxels_beside_their_header(tmp_path: Path) -> None:
    path, image = tmp_path / "a.hdr", tmp_path / "a.img"
    nibabel.Nifti1Pair(ramp(), OBLIQUE).to_filename(path)
    stored = image.read_bytes()
    image.write_bytes(stored[:-1])
    assert "a.img is truncated" in refusal(path)
    image.write_bytes(stored + b"more")
    assert "is longer than its header states" in refusal(path)
    image.unlink()
    assert "a.img is missing" in refusal(path)


def test_gzip_where_the_name_says_otherwise(tmp_path: Path) -> None:
    plain, packed = save_nifti(tmp_path / "a.nii"), save_nifti(tmp_path / "a.nii.gz")
    swapped = tmp_path / "b.nii"
    swapped.write_bytes(packed.read_bytes())
    assert "is gzip-compressed but its name does not end in .gz" in refusal(swapped)
    packed.write_bytes(plain.read_bytes())
    assert "is not gzip-compressed despite its name" in refusal(packed)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.nrrd"])
@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("/annex/objects/MD5E-s7--0.nii.gz\n", "pointer of git-annex without its content; run git"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run git lfs pull"),
        ("<!DOCTYPE html><html>404</html>", "web page or an error message of a server; download"),
        ("\n <?xml version='1.0'?><Error>denied</Error>", "an error message of a server"),
    ],
)
def test_placeholder_of_a_file_that_was_not_fetched_is_named(
    tmp_path: Path, name: str, content: str, reported: str
) -> None:
    (tmp_path / name).write_text(content)
    assert reported in refusal(tmp_path / name)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
def test_a_flipped_bit_in_packed_voxels(tmp_path: Path, place: float) -> None:
    noise = np.random.default_rng(0).integers(0, 900, (9, 10, 11)).astype(np.int16)
    save_nifti(tmp_path / "a.nii.gz", noise)
    for name in ("a.nrrd", "a.mha"):
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(noise), str(tmp_path / name), True)
    for path in tmp_path.iterdir():
        stored = bytearray(path.read_bytes())
        stored[round(len(stored) * place)] ^= 16
        path.write_bytes(stored)
        assert "is damaged" in refusal(path) or "is truncated" in refusal(path)


@pytest.mark.parametrize("padding", [bytes(512), b""])
def test_zeros_that_pad_a_file_are_no_damage(tmp_path: Path, padding: bytes) -> None:
    path = save_nifti(tmp_path / "a.nii.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + padding))
    assert np.array_equal(read_file(path).voxels, ramp())
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"x"))
    assert "is longer than its header states" in refusal(path)
    for name, header in (("a.nrrd", NRRD), ("a.mha", METAIMAGE)):
        (tmp_path / name).write_bytes(header.encode() + PLAIN + padding)
        assert np.array_equal(read_file(tmp_path / name).voxels, ramp())


@pytest.mark.process
def test_bombs_cost_no_memory(tmp_path: Path) -> None:
    """Files of about 1 MB that unpack to 1 GiB while their headers promise 120 bytes or 1 GiB."""
    zeros = bytes(BOMB_BYTES // 16)
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    member = packer.compress(zeros) + packer.flush()
    packed = zlib.compressobj(1)
    first, other = (packed.compress(zeros) + packed.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    stream = first + other * 15
    start = gzip.compress(nifti_bytes(setting()))
    more = gzip.compress(nifti_bytes(setting(dim=dims(900, 900, 900))))
    size = f"CompressedData = True\nCompressedDataSize = {len(stream)}"
    mha = METAIMAGE.replace("CompressedDataSize = 0\n", "").replace("CompressedData = False", size)
    large = NRRD.replace("sizes: 3 4 5", "sizes: 500 500 500")
    files = {
        "a.nii.gz": (start + member * 16, "nifti"),
        "promising.nii.gz": (more + bytes(4096), "nifti"),
        "a.nrrd": (NRRD.replace("raw", "gzip").encode() + member * 16, "nrrd"),
        "a.mha": (mha.encode() + stream, "metaimage"),
        "digits.nrrd": (large.replace("raw", "ascii").encode() + b"0 " * 150_000, "nrrd"),
        "hex.nrrd": (large.replace("raw", "hex").encode() + b"00" * 150_000, "nrrd"),
    }
    for name, (stored, _) in files.items():
        (tmp_path / name).write_bytes(stored)
    asked = json.dumps([(str(tmp_path / name), kind) for name, (_, kind) in files.items()])
    command = [sys.executable, "-c", MEMORY_PROBE, asked]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ENOUGH)
    said, grown = json.loads(answer.stdout)
    assert len(said) == 6
    assert sum("is longer than its header states" in message for message in said) == 3
    assert "truncated or its header is damaged" in said[1]
    assert all(" of text; copy it again" in message for message in said[4:]), said
    assert grown < 64 << 20


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("encoding: raw", "encoding: jpeg", UnsupportedScanError, "save it with the encoding"),
        ("encoding: raw\n", "", UnreadableScanError, "how its voxels are encoded"),
        ("encoding: raw", "encoding: bzip2", UnreadableScanError, "is damaged"),
        ("encoding: raw", "encoding: gzip", UnreadableScanError, "cannot be decompressed"),
        (
            "encoding: raw",
            f"encoding: gzip\nbyte skip: -{10**9}",
            UnsupportedScanError,
            "skips more",
        ),
        ("encoding: raw", "encoding: hex\nbyte skip: -1", UnsupportedScanError, "skips more"),
        (
            "encoding: raw",
            f"encoding: gzip\nbyte skip: {10**9}",
            UnsupportedScanError,
            "skips more",
        ),
        ("encoding: raw", f"encoding: raw\nline skip: {10**8}", UnsupportedScanError, "skips more"),
        ("encoding: raw", f"encoding: raw\nbyte skip: {10**15}", UnreadableScanError, "truncated"),
        ("encoding: raw", "encoding: raw\nbyte skip: -9999", UnreadableScanError, "truncated"),
        ("encoding: raw", "encoding: hex", UnreadableScanError, "not encoded as its header states"),
        (
            "encoding: raw",
            "encoding: ascii",
            UnreadableScanError,
            "not encoded as its header states",
        ),
        ("sizes: 3 4 5", "sizes: 3 4 6", UnreadableScanError, "truncated"),
        ("sizes: 3 4 5", "sizes: 3 4 4", UnreadableScanError, "is longer than its header"),
        ("sizes: 3 4 5", "sizes: 3 0 6", UnreadableScanError, ""),
        ("dimension: 3", "dimension: 20", UnreadableScanError, ""),
        ("endian: little\n", "", UnreadableScanError, "does not state the byte order"),
        (
            "space origin: (1,2,3)\n\n",
            "data file: LIST\nx\n",
            UnreadableScanError,
            "damaged header",
        ),
        (
            "encoding: raw",
            "encoding: raw\ndata file: x%d 1 5 1",
            UnreadableScanError,
            "x1 is missing",
        ),
        (
            "encoding: raw",
            "encoding: raw\ndata file: x%d 1 4 1",
            UnreadableScanError,
            "over 4 files",
        ),
        (
            "encoding: raw",
            "encoding: raw\ndata file: x%s 1 5 1",
            UnreadableScanError,
            "an unknown way",
        ),
        ("encoding: raw", "encoding: raw\ndata file: x%d 1 5 0", UnreadableScanError, "steps of 0"),
        (
            "encoding: raw",
            "encoding: raw\ndata file: x%d 1 999999999999 1",
            UnsupportedScanError,
            "splits its voxels over more than",
        ),
        ("encoding: raw", "encoding: raw\ndata file: gone.raw", UnreadableScanError, "missing"),
        (
            "encoding: raw",
            "encoding: raw\ndata file: /dev/zero",
            UnreadableScanError,
            "not a regular file",
        ),
        ("(0,1,0)", "(0,1,1e308)", UnreadableScanError, "has no valid position"),
        ("type: int16", f"type: {'x' * 5000}", UnreadableScanError, "known voxel type"),
        ("type: int16", "type: block", UnsupportedScanError, "stores blocks"),
        ("type: int16", "type:int16", UnreadableScanError, "has an unknown entry in line 2"),
        ("type: int16", "type: int16\ntype: int16", UnreadableScanError, "gives type twice"),
        ("type: int16", "type: int16\rtype: int16", UnreadableScanError, "control character"),
        ("type: int16", "type: int16\nx:=\0", UnreadableScanError, "control character in line 3"),
        ("domain domain domain", "domain domain", UnreadableScanError, "gives kinds for 2 of 3"),
        ("domain domain domain", "complex domain domain", UnreadableScanError, "fit its size"),
        ("domain domain domain", "x domain domain", UnreadableScanError, "kind that is not known"),
        (
            "space: LPS",
            "space: LPQ",
            UnreadableScanError,
            "names a space that NRRD does not define",
        ),
        ("(1,0,0) ", "none ", UnsupportedScanError, "2D image"),
        ("(1,0,0) ", "", UnreadableScanError, "gives space directions for 2 of 3"),
        ("(1,0,0)", "(1,0)", UnreadableScanError, "has no valid position"),
        ("(1,0,0)", "(0,1,0)", UnreadableScanError, "do not span three dimensions"),
        ("(1,2,3)", "(nan,2,3)", UnreadableScanError, "has no valid position"),
    ],
)
def test_bad_nrrd_headers(
    tmp_path: Path, old: str, new: str, kind: type[ScanError], said: str
) -> None:
    path = tmp_path / "a.nrrd"
    path.write_bytes(NRRD.replace(old, new).encode() + PLAIN)
    assert said in refusal(path, kind)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("NDims = 3", "NDims = 100", UnreadableScanError, "for 100 axes in NDims"),
        ("NDims = 3", "NDims = -1", UnreadableScanError, "for -1 axes"),
        (
            "NDims = 3",
            "NDims = many",
            UnreadableScanError,
            "NDims with values that are not integers",
        ),
        ("NDims = 3", "NDims = 3\nNDims = 100", UnreadableScanError, "gives NDims twice"),
        ("NDims = 3", "NDims = 3\nNDims : 100", UnreadableScanError, "gives NDims twice"),
        ("DimSize = 3 4 5", "DimSize = 3 4", UnreadableScanError, "gives 2 sizes in DimSize"),
        ("DimSize = 3 4 5", "DimSize = 3 4 6", UnreadableScanError, "truncated"),
        ("DimSize = 3 4 5", "DimSize = 3 4 4", UnreadableScanError, "is longer than its header"),
        ("DimSize = 3 4 5", "DimSize = -3 4 6", UnreadableScanError, ""),
        ("ElementSpacing = 1", "ElementSpacing = -1", UnreadableScanError, "its header gives -1 x"),
        (
            "ObjectType",
            "ElementToIntensityFunctionSlope = 2\nObjectType",
            UnsupportedScanError,
            "scales its values by ElementToIntensityFunctionSlope",
        ),
        (
            "ObjectType",
            "ElementToIntensityFunctionOffset = x\nObjectType",
            UnsupportedScanError,
            "scales its values",
        ),
        (
            "ElementSpacing = 1",
            "ElementSpacing = 0",
            UnreadableScanError,
            "has no valid voxel size",
        ),
        ("Matrix = 1", "Matrix = 0", UnreadableScanError, ""),
        ("ElementType = MET_SHORT\n", "", UnreadableScanError, "known voxel type"),
        ("MET_SHORT", "MET_OTHER", UnsupportedScanError, "stores MET_OTHER voxels"),
        (
            "ObjectType",
            "no field\nObjectType",
            UnreadableScanError,
            "has an unknown entry in line 1",
        ),
        ("Data = True", "Data = perhaps", UnreadableScanError, "as neither True nor False"),
        ("Offset = 1 2 3", "Offset = 1 2", UnreadableScanError, "Offset is damaged"),
        ("ObjectType", "A\0 = 1\nObjectType", UnreadableScanError, "control character in line 1"),
        ("MET_SHORT", "MET_LONG", UnreadableScanError, "truncated"),
        ("Matrix = 1", "Matrix = 1e308", UnreadableScanError, "has no valid position"),
        ("Offset = 1", "Offset = inf", UnreadableScanError, "has no valid position"),
        ("LOCAL", "x" * 5000, UnreadableScanError, "File name too long"),
        (
            "BinaryData = True",
            "BinaryData = False",
            UnreadableScanError,
            "not encoded as its header",
        ),
        (
            "CompressedData = False",
            "CompressedData = True",
            UnreadableScanError,
            "cannot be decompressed",
        ),
        ("DataSize = 0", "DataSize = -5", UnreadableScanError, "begin and end"),
        (
            "DataSize = 0",
            "DataSize = 1e9",
            UnreadableScanError,
            "CompressedDataSize with values that",
        ),
        ("ObjectType", "HeaderSize = 7\nObjectType", UnreadableScanError, "begin and end"),
        ("LOCAL\n", "LIST\nx", UnreadableScanError, "damaged header"),
        ("LOCAL", "gone.raw", UnreadableScanError, "gone.raw is missing"),
        ("LOCAL", "/dev/zero", UnreadableScanError, "not a regular file"),
    ],
)
def test_bad_metaimage_headers(
    tmp_path: Path, old: str, new: str, kind: type[ScanError], said: str
) -> None:
    path = tmp_path / "a.mha"
    assert old in METAIMAGE
    path.write_bytes(METAIMAGE.replace(old, new).encode() + PLAIN)
    assert said in refusal(path, kind)


def test_more_axes_than_metaio_has_space_for(tmp_path: Path) -> None:
    """MetaIO fills arrays of ten with them and breaks the process."""
    path = tmp_path / "a.mha"
    head = METAIMAGE.replace("NDims = 3", "NDims = 100").replace("3 4 5", "3 4 5" + " 1" * 97)
    path.write_bytes(head.encode() + PLAIN)
    assert "for 100 axes in NDims" in refusal(path)


@pytest.mark.parametrize("size", [-9, -1, 1, 9, 10**10])
def test_a_wrong_packed_size_is_not_read_as_voxels(tmp_path: Path, size: int) -> None:
    """ITK fills what it could not unpack with zeros or with the packed bytes themselves, for which
    it takes as much memory as the header says.
    """
    path = tmp_path / "a.mha"
    packed = zlib.compress(PLAIN)
    stated = f"CompressedData = True\nCompressedDataSize = {len(packed) + size}"
    head = METAIMAGE.replace("CompressedDataSize = 0\n", "")
    path.write_bytes(head.replace("CompressedData = False", stated).encode() + packed)
    said = refusal(path)
    assert size < 10**10 or "the header declares 100000" in said


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a\udce9\n.nii"
    save_nifti(path)
    assert np.array_equal(read_file(path).voxels, ramp())
    path.with_suffix(".mha").write_bytes(METAIMAGE.encode() + PLAIN)
    assert np.array_equal(read_file(path.with_suffix(".mha")).voxels, ramp())
    path.with_suffix(".mha").write_bytes(b"")
    with pytest.raises(UnreadableScanError, match="is empty") as caught:
        read(study_of(path.with_suffix(".mha")))
    assert r"a\udce9\n.mha" in str(caught.value)
    str(caught.value).encode()


@in_one_folder
@given(
    changes=st.lists(st.tuples(st.integers(0, 351), st.integers(0, 255)), min_size=1, max_size=6),
    version=st.sampled_from([1, 2]),
)
@example([(315, 127)], 1)  # makes a NaN that signals, of one of the sform's ones
def test_no_header_breaks_the_reader(
    tmp_path: Path, changes: list[tuple[int, int]], version: int
) -> None:
    path = tmp_path / "a.nii"
    stored = bytearray(nifti_bytes(setting(), version))
    for place, value in changes:
        stored[place] = value
    path.write_bytes(stored)
    try:
        volume = read_file(path)
    except ScanError:
        return
    assert volume.voxels.nbytes <= len(stored)
    assert np.isfinite(volume.affine).all()


TAILS = {
    "a byte": b"\n",
    "text": b"uploaded by x\n" * 400,
    "a cut stream": gzip.compress(PLAIN)[:20],
}


@pytest.mark.parametrize("suffix", [".nii.gz", ".hdr.gz", ".nrrd"])
@pytest.mark.parametrize("tail", TAILS)
def test_bytes_behind_a_gzip_stream_are_skipped_with_a_note(
    tmp_path: Path, suffix: str, tail: str
) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".nrrd":
        packed = NRRD.replace("encoding: raw", "encoding: gzip").encode() + gzip.compress(PLAIN)
        path.write_bytes(packed)
    elif suffix == ".hdr.gz":
        nibabel.Nifti1Pair(ramp(), OBLIQUE).to_filename(path)
    else:
        save_nifti(path)
    plain = read_file(path)
    for file in study_of(path).files:
        file.write_bytes(file.read_bytes() + TAILS[tail])
    found = read_file(path)
    assert np.array_equal(found.voxels, ramp())
    assert np.array_equal(found.affine, plain.affine)
    added = "its file continues after the compressed voxels; the extra data is ignored"
    assert sorted(found.notes) == sorted((*plain.notes, added))


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_tail_does_not_hide_that_the_stream_itself_is_cut(tmp_path: Path, cut: int) -> None:
    path = save_nifti(tmp_path / "a.nii.gz", np.random.default_rng(0).normal(size=(20, 20, 20)))
    path.write_bytes(path.read_bytes()[:-cut] + b"uploaded by x")
    assert "is damaged" in refusal(path) or "is truncated" in refusal(path)
