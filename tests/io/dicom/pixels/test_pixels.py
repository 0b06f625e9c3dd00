"""Pixels of every packing and kind become the values that their header means."""

import os
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import imagecodecs as _imagecodecs
import numpy as np
import pydicom as _pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.encaps import encapsulate
from pydicom.uid import (
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLSLossless,
    RLELossless,
)
from support.dicom_judges import assert_converts_to, judge
from support.dicom_phantoms import Phantom
from support.frames import unpack_here

from cuda_cyclegan.io.dicom.pixels import reading as dicom
from cuda_cyclegan.io.dicom.pixels.decoding import decode, padding_mask, scale_of
from cuda_cyclegan.io.dicom.pixels.unpacking import UnpackingTimeError
from cuda_cyclegan.io.dicom.recognition import is_data_set
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError, UnreadableScanError, UnsupportedScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Volume

imagecodecs: Any = _imagecodecs
pydicom: Any = _pydicom
PHANTOM = Phantom()
MR = Phantom("MR", intercept=0.0)


def volume_of(folder: Path) -> Volume:
    [study] = discover([folder], None).studies
    return read(study)


def stored(path: Path) -> Any:
    return decode(pydicom.dcmread(path), path, 0, unpack_here).values


def real(name: str) -> Path:
    path = get_testdata_file(name)
    assert path is not None, f"{name} comes with pydicom or pydicom-data"
    return Path(str(path))


@pytest.mark.parametrize(
    "name",
    [
        "MR_small_implicit.dcm",
        "MR_small_bigendian.dcm",
        "MR_small_RLE.dcm",
        "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm",
        "MR_small_padded.dcm",
    ],
)
def test_real_files_in_every_packing_hold_the_same_slice(name: str) -> None:
    np.testing.assert_array_equal(stored(real(name)), stored(real("MR_small.dcm")))


def test_a_real_deflated_file_is_read() -> None:
    pixels = stored(real("image_dfl.dcm"))
    assert pixels.shape == (512, 512)
    assert pixels.std() > 0


def test_overlays_in_unused_bits_are_no_part_of_the_values() -> None:
    dataset = pydicom.dcmread(real("MR_small.dcm"))
    plain = dataset.pixel_array
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 12, 11, 0
    dataset.PixelData = ((plain & 0x0FFF) | 0x1000).astype(np.uint16).tobytes()
    found = decode(dataset, Path("overlay"), 0, unpack_here).values
    np.testing.assert_array_equal(found, plain & 0x0FFF)


def test_negative_values_of_twelve_bits_keep_their_sign() -> None:
    dataset = pydicom.dcmread(real("MR_small.dcm"))
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 12, 11, 1
    values = np.linspace(-2048, 2047, 64 * 64).astype(np.int16).reshape(64, 64)
    dataset.PixelData = (values & 0x0FFF).tobytes()
    found = decode(dataset, Path("signed"), 0, unpack_here).values
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("kind", ["u2", "i2"])
def test_values_in_the_upper_bits_of_a_word_are_taken_from_there(kind: str) -> None:
    dataset = pydicom.dcmread(real("MR_small.dcm"))
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 12, 15, int(kind == "i2")
    values = (np.arange(64 * 64).reshape(64, 64) - 2048 * (kind == "i2")).astype(kind)
    dataset.PixelData = (values << 4 | 5).astype(kind).tobytes()
    found = decode(dataset, Path("upper"), 0, unpack_here).values
    np.testing.assert_array_equal(found, values)


def converted(command: list[str]) -> Callable[[Path], None]:
    """A packing that an independent program makes."""

    def pack(path: Path) -> None:
        made = path.with_suffix(".packed")
        subprocess.run([judge(command[0]), *command[1:], path, made], check=True)
        made.replace(path)

    return pack


def compressed(syntax: str) -> Callable[[Path], None]:
    def pack(path: Path) -> None:
        dataset = pydicom.dcmread(path)
        dataset.compress(syntax, generate_instance_uid=False)
        dataset.save_as(path)

    return pack


@pytest.mark.process
@pytest.mark.parametrize(
    "pack",
    [
        converted(["dcmconv", "--write-xfer-implicit"]),
        converted(["dcmconv", "--write-xfer-big"]),
        converted(["dcmconv", "--write-xfer-deflated"]),
        compressed(RLELossless),
        compressed(JPEG2000Lossless),
        converted(["dcmcjpeg", "--encode-lossless-sv1"]),
        converted(["dcmcjpeg", "--encode-lossless", "--selection-value", "6"]),
        converted(["dcmcjpls", "--encode-lossless"]),
        converted(["dcmcrle"]),
    ],
    ids=[
        *("implicit", "big endian", "deflated", "RLE", "JPEG 2000"),
        *("JPEG lossless SV1", "JPEG lossless", "JPEG-LS", "RLE of dcmtk"),
    ],
)
def test_a_series_reads_the_same_in_every_packing(
    tmp_path: Path, pack: Callable[[Path], None]
) -> None:
    phantom = replace(PHANTOM, slices=8, rows=48, columns=40)  # JPEG 2000 takes no smaller ones
    for path in phantom.write(tmp_path / "in"):
        pack(path)
    volume = volume_of(tmp_path / "in")
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0), phantom.voxels())
    np.testing.assert_allclose(volume.affine, phantom.affine(), atol=1e-6)


def edited(folder: Path, phantom: Phantom = PHANTOM, **values: Any) -> Volume:
    def edit(data: Any, _: int) -> None:
        for name, value in values.items():
            setattr(data, name, value)

    phantom.write(folder, edit)
    return volume_of(folder)


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian]
)
def test_data_sets_that_show_nothing_of_themselves_are_read(tmp_path: Path, syntax: str) -> None:
    """Files lack suffix, preamble and file meta information, as `dcmconv -F` writes them."""
    for path in PHANTOM.write(tmp_path / "in"):
        data = pydicom.dcmread(path)
        if syntax == ExplicitVRBigEndian:
            data.PixelData = data.pixel_array.astype(">i2").tobytes()
        bare = pydicom.Dataset({tag: data[tag] for tag in data.keys()})  # noqa: SIM118
        bare.set_original_encoding(None, None)
        little, implicit = syntax != ExplicitVRBigEndian, syntax == ImplicitVRLittleEndian
        pydicom.dcmwrite(path, bare, implicit_vr=implicit, little_endian=little)
    assert np.array_equal(volume_of(tmp_path / "in").voxels, PHANTOM.voxels().T)


def implicit_under_explicit(path: Path) -> None:
    """VRs left out, though the transfer syntax declares them."""
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    data.save_as(path, implicit_vr=True, little_endian=True)
    content = path.read_bytes()
    (length,) = struct.unpack_from("<I", content, 140)
    content = content[:140] + struct.pack("<I", length + 2) + content[144:]
    declared = b"UI\x14\x001.2.840.10008.1.2.1\0"
    path.write_bytes(content.replace(b"UI\x12\x001.2.840.10008.1.2\0", declared, 1))


def numbers_as_pixels(kind: bytes) -> Callable[[Path], None]:
    """Pixels called numbers of a kind, whose length has two bytes."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        at = content.rindex(b"\xe0\x7f\x10\0OW")
        (length,) = struct.unpack_from("<I", content, at + 8)
        head = content[: at + 4] + kind + struct.pack("<H", length)
        path.write_bytes(head + content[at + 12 :])

    return change


@pytest.mark.parametrize(
    "change",
    [implicit_under_explicit, *map(numbers_as_pixels, (b"US", b"SS", b"UL", b"LO"))],
    ids=["implicit", "US", "SS", "UL", "LO"],
)
def test_pixels_are_read_whatever_their_vr(tmp_path: Path, change: Callable[[Path], None]) -> None:
    for path in PHANTOM.write(tmp_path / "in"):
        change(path)
    np.testing.assert_array_equal(volume_of(tmp_path / "in").voxels.T, PHANTOM.voxels())


@pytest.mark.parametrize("change", [implicit_under_explicit, numbers_as_pixels(b"US")])
def test_pixels_of_other_vrs_are_what_dcm2niix_reads(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    for path in PHANTOM.write(tmp_path / "in"):
        change(path)
    assert_converts_to(volume_of(tmp_path / "in"), tmp_path / "in", tmp_path / "out")


@pytest.mark.process
@pytest.mark.parametrize("behind", [b"\xff", b"\xff\xff\xff", b"\0\xff"])
@pytest.mark.parametrize(
    "pack",
    [converted(["dcmcjpeg", "--encode-lossless-sv1"]), converted(["dcmcjpls"])],
    ids=["JPEG lossless", "JPEG-LS"],
)
def test_a_frame_that_a_scanner_padded_with_fill_bytes_is_read(
    tmp_path: Path, pack: Callable[[Path], None], behind: bytes
) -> None:
    for path in PHANTOM.write(tmp_path / "in"):
        pack(path)
        data = pydicom.dcmread(path)
        frame = pydicom.encaps.get_frame(data.PixelData, 0, number_of_frames=1).rstrip(b"\0")
        comment = b"\xff\xfe\0\3A"  # of odd length
        data.PixelData = encapsulate([frame[:2] + comment + frame[2:] + behind])
        data["PixelData"].is_undefined_length = True
        data.save_as(path)
    np.testing.assert_array_equal(volume_of(tmp_path / "in").voxels.T, PHANTOM.voxels())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("is_said", [False, True])
def test_the_sign_of_jpeg_2000_may_be_another_than_the_header_says(
    tmp_path: Path, signed: bool, is_said: bool
) -> None:
    """The bits are then the number that the header states, as in pydicom."""
    kind = np.int16 if signed else np.uint16
    values = (np.arange(48 * 40).reshape(48, 40) - (1000 if signed else 0)).astype(kind)
    path = replace(PHANTOM, slices=1, rows=48, columns=40).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    data.BitsStored, data.HighBit, data.PixelRepresentation = 12, 11, int(is_said)
    frame = imagecodecs.jpeg2k_encode(values, level=0, reversible=True, bitspersample=12)
    data.PixelData = encapsulate([frame])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    np.testing.assert_array_equal(decode(data, path, 0, unpack_here).values, data.pixel_array)
    assert data.pixel_array.dtype == decode(data, path, 0, unpack_here).values.dtype


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\x08\0\x05\0",
        b"\x08\0\x05\0\xff\xff\xff\xff" + bytes(200),
        b"\x08\0\x05\0\x0a\0\0\0ISO_IR 100\x10\0\x10\0\x04\0\0\0",
        b"\x08\0\x08\0\x02\0\0\0A \x08\0\x05\0\x02\0\0\0A ",
        bytes(300),
    ],
)
def test_file_with_another_beginning_is_no_data_set(start: bytes) -> None:
    assert not is_data_set(start)


def test_rescale_makes_the_values(tmp_path: Path) -> None:
    volume = edited(tmp_path / "in", RescaleSlope="0.5", RescaleIntercept="-100")
    assert (volume.slope, volume.intercept) == (0.5, -100.0)
    expected = PHANTOM.voxels() * 0.5 - 100
    np.testing.assert_allclose(volume.values().transpose(2, 1, 0), expected)


def test_slices_of_different_slopes_become_their_values(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        data.RescaleSlope, data.RescaleIntercept = 1 + at / 4, at

    PHANTOM.write(tmp_path / "in", edit)
    volume = volume_of(tmp_path / "in")
    at = np.arange(12)[:, None, None]
    assert volume.voxels.dtype == np.float32
    expected = PHANTOM.voxels() * (1 + at / 4) + at
    np.testing.assert_allclose(volume.values().transpose(2, 1, 0), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(np.uint8, 8), (np.uint16, 12), (np.uint16, 16), (np.int16, 16), (np.uint32, 32)],
)
def test_integers_of_all_widths_keep_their_type(tmp_path: Path, dtype: Any, bits: int) -> None:
    values = (PHANTOM.voxels() % 256).astype(dtype)

    def edit(data: Any, at: int) -> None:
        data.BitsAllocated = np.dtype(dtype).itemsize * 8
        data.BitsStored, data.HighBit = bits, bits - 1
        data.PixelRepresentation = int(np.dtype(dtype).kind == "i")
        data.PixelData = values[at].tobytes()

    PHANTOM.write(tmp_path / "in", edit)
    volume = volume_of(tmp_path / "in")
    assert volume.voxels.dtype == dtype
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0), values)


def test_inverted_grey_is_turned_round_but_not_quantities(tmp_path: Path) -> None:
    grey = edited(tmp_path / "grey", MR, PhotometricInterpretation="MONOCHROME1")
    values = grey.values().transpose(2, 1, 0)
    np.testing.assert_array_equal(values, -1.0 - MR.voxels())
    assert [note.split(";")[0] for note in grey.notes] == [
        "12 of its 12 images have inverted grey (MONOCHROME1)"
    ]
    units = edited(tmp_path / "units", PHANTOM, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(units.values().transpose(2, 1, 0), PHANTOM.voxels() - 1024.0)
    assert units.notes == ()


def test_slices_without_the_scale_of_the_others_are_refused(tmp_path: Path) -> None:
    def silent(data: Any, at: int) -> None:
        if at == 4:
            del data.RescaleSlope, data.RescaleIntercept

    PHANTOM.write(tmp_path / "in", silent)
    with pytest.raises(UnreadableScanError, match="has 1 of 12 slices without a rescale slope"):
        volume_of(tmp_path / "in")
    replace(PHANTOM, intercept=0.0).write(tmp_path / "same", silent)
    assert volume_of(tmp_path / "same").notes == ()


@pytest.mark.parametrize("slope", [1, 2, None])
def test_a_slope_of_0_among_others_is_refused(tmp_path: Path, slope: float | None) -> None:
    def edit(data: Any, at: int) -> None:
        data.RescaleSlope = 0 if at == 4 else slope

    MR.write(tmp_path / "in", edit)
    with pytest.raises(UnreadableScanError, match="1 of 12 slices with a rescale slope of 0"):
        volume_of(tmp_path / "in")


def test_a_slice_without_the_intercept_of_the_others_is_refused(tmp_path: Path) -> None:
    """The values would be off by 1024 from those of its neighbours."""

    def silent(data: Any, at: int) -> None:
        if at == 4:
            del data.RescaleIntercept

    PHANTOM.write(tmp_path / "in", silent)
    reported = "has 1 of 12 slices without a rescale intercept, so"
    with pytest.raises(UnreadableScanError, match=reported):
        volume_of(tmp_path / "in")


def test_slopes_without_any_intercept_are_taken(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        data.RescaleSlope = 1 + at / 8
        del data.RescaleIntercept

    PHANTOM.write(tmp_path / "in", edit)
    volume = volume_of(tmp_path / "in")
    slopes = 1 + np.arange(12) / 8
    np.testing.assert_array_equal(volume.voxels.T, PHANTOM.voxels() * slopes[:, None, None])
    assert volume.notes == ("its headers have no rescale intercept; 0 is used",)


@pytest.mark.parametrize(
    ("element", "units", "refused"),
    [
        ("RescaleType", ("HU", "OD"), True),
        ("Units", ("BQML", "CNTS"), True),
        ("RescaleType", ("HU", "US"), False),
        ("RescaleType", ("HU", ""), False),
    ],
)
def test_slices_in_several_units_are_refused(
    tmp_path: Path, element: str, units: tuple[str, str], refused: bool
) -> None:
    def edit(data: Any, at: int) -> None:
        setattr(data, element, units[at // 6])

    PHANTOM.write(tmp_path / "in", edit)
    reported = (
        pytest.raises(UnreadableScanError, match="in 2 different units")
        if refused
        else nullcontext()
    )
    with reported:
        volume_of(tmp_path / "in")


@pytest.mark.parametrize("modality", ["CT", "MR"])
def test_values_of_a_ct_that_says_nothing_of_their_unit_have_a_note(
    tmp_path: Path, modality: str
) -> None:
    def silent(data: Any, _: int) -> None:
        data.RescaleSlope = data.RescaleIntercept = None

    Phantom(modality).write(tmp_path / "in", silent)
    note = "its headers have no rescale slope, or one of 0; 1 is used"
    assert volume_of(tmp_path / "in").notes == ((note,) if modality == "CT" else ())


def test_a_slope_of_0_in_all_slices_of_an_mr_has_a_note(tmp_path: Path) -> None:
    volume = edited(tmp_path / "in", MR, RescaleSlope="0", RescaleIntercept="0")
    assert volume.notes == ("its headers have no rescale slope, or one of 0; 1 is used",)


@pytest.mark.parametrize("what", ["values", "overlay", "sign"])
def test_values_beyond_their_bits_have_a_note(tmp_path: Path, what: str) -> None:
    def edit(data: Any, at: int) -> None:
        data.BitsStored, data.HighBit = 8, 7
        data.PixelRepresentation = int(what == "sign")
        if what == "overlay":
            data.add_new(0x60000102, "US", 9)
        if what == "sign":
            values = PHANTOM.voxels()[at] % 256
            data.PixelData = (values.astype(np.int8) if at % 2 else values).astype("<i2").tobytes()

    PHANTOM.write(tmp_path / "in", edit)
    note = (
        "pixels of 10 of its 12 images use more bits than the header declares; the extra bits are "
        "ignored"
    )
    assert volume_of(tmp_path / "in").notes == ((note,) if what == "values" else ())


@pytest.mark.parametrize("as_unsigned", [False, True])
def test_padding_takes_the_lowest_value_of_the_rest(tmp_path: Path, as_unsigned: bool) -> None:
    values = PHANTOM.voxels()
    values[:, :4] = -2000
    values[:, :, :3] = -1990

    def edit(data: Any, at: int) -> None:
        data.PixelData = values[at].tobytes()
        padding = -2000 % 65536 if as_unsigned else -2000
        limit = -1990 % 65536 if as_unsigned else -1990
        kind = "US" if as_unsigned else "SS"
        data.add_new("PixelPaddingValue", kind, padding)
        data.add_new("PixelPaddingRangeLimit", kind, limit)

    PHANTOM.write(tmp_path / "in", edit)
    found = volume_of(tmp_path / "in").voxels.transpose(2, 1, 0)
    padded = values < -1000
    np.testing.assert_array_equal(found[~padded], values[~padded])
    assert set(found[padded]) == {values[~padded].min()}


@pytest.mark.parametrize("modality", ["CT", "MR"])
@pytest.mark.parametrize("limit", [None, 1030])
def test_padding_among_the_values_is_noted(
    tmp_path: Path, modality: str, limit: int | None
) -> None:
    """Water is 1024 as it is stored; only in CT is that a measurement."""
    phantom = Phantom(modality)

    def edit(data: Any, at: int) -> None:
        values = phantom.voxels()[at] - 124  # from -24, below air
        values[:3, :4] = 1024
        values[3, :4] = 3000
        data.PixelData = values.tobytes()
        data.add_new("PixelPaddingValue", "SS", 1024)
        if limit is not None:
            data.add_new("PixelPaddingRangeLimit", "SS", limit)

    phantom.write(tmp_path / "in", edit)
    volume = volume_of(tmp_path / "in")
    filled = volume.voxels[:4, :3]
    assert isinstance(volume.header, dicom.DicomHeader)
    assert volume.header.padding is None
    [note] = [note for note in volume.notes if "PixelPaddingValue" in note]
    assert (
        "(stored 1024) is within the range of its other values; the 144 pixels with it are" in note
    )
    if modality == "CT":
        assert (filled == 1024).all()
        assert note.endswith("used as they are")
    else:
        assert (filled == volume.voxels.min()).all()
        assert note.endswith("filled with the lowest value")


def test_padding_takes_the_lowest_value_of_a_negative_slope(tmp_path: Path) -> None:
    values = PHANTOM.voxels()
    values[:, :4] = -2000

    def edit(data: Any, at: int) -> None:
        data.PixelData = values[at].tobytes()
        data.add_new("PixelPaddingValue", "SS", -2000)
        data.RescaleSlope, data.RescaleIntercept = "-1", "0"

    PHANTOM.write(tmp_path / "in", edit)
    found = volume_of(tmp_path / "in").voxels.transpose(2, 1, 0)
    padded = values == -2000
    assert set(found[padded]) == {values[~padded].max()}, "stored, and so the lowest value"


@pytest.mark.parametrize(("signed", "padding"), [(False, 63536), (True, -32768)])
def test_padding_may_be_a_number_beyond_the_bits_of_values(
    tmp_path: Path, signed: bool, padding: int
) -> None:
    """Padding of -2000 in CT of 12 bits is an example; cut to them, it would be 2096, which is
    bone.
    """
    kind = np.dtype(np.int16 if signed else np.uint16)
    values = PHANTOM.voxels().astype(kind)
    values[:, :4] = padding

    def edit(data: Any, at: int) -> None:
        data.BitsStored, data.HighBit, data.PixelRepresentation = 12, 11, int(signed)
        data.PixelData = values[at].tobytes()
        data.add_new("PixelPaddingValue", "SS" if signed else "US", padding)

    PHANTOM.write(tmp_path / "in", edit)
    volume = volume_of(tmp_path / "in")
    found = volume.voxels.transpose(2, 1, 0)
    np.testing.assert_array_equal(found[:, 4:], values[:, 4:])
    assert set(found[:, :4].ravel()) == {values[:, 4:].min()}
    assert volume.notes == ()
    assert isinstance(volume.header, dicom.DicomHeader)
    assert volume.header.padding
    assert volume.header.padding.value == padding


def test_a_cut_file_fails_its_series_with_the_reason(tmp_path: Path) -> None:
    paths = PHANTOM.write(tmp_path / "in")
    paths[5].write_bytes(paths[5].read_bytes()[:-300])
    with pytest.raises(UnreadableScanError, match=r"im005 is truncated or damaged"):
        volume_of(tmp_path / "in")


@pytest.mark.process
@pytest.mark.parametrize(
    "pack",
    [
        converted(["dcmcjpeg", "--encode-lossless-sv1"]),
        converted(["dcmcjpls", "--encode-lossless"]),
        converted(["dcmcrle"]),
        compressed(JPEG2000Lossless),
    ],
    ids=["JPEG lossless", "JPEG-LS", "RLE", "JPEG 2000"],
)
@pytest.mark.parametrize("kept_share", [0.6, 0.9])
def test_a_cut_packed_file_fails_its_series_with_the_reason(
    tmp_path: Path, pack: Callable[[Path], None], kept_share: float
) -> None:
    paths = replace(PHANTOM, slices=8, rows=48, columns=40).write(tmp_path / "in")
    for path in paths:
        pack(path)
    content = paths[3].read_bytes()
    header = content.index(b"\xe0\x7f\x10\x00")
    paths[3].write_bytes(content[: header + int((len(content) - header) * kept_share)])
    with pytest.raises(UnreadableScanError, match=r"im003 is truncated or damaged"):
        volume_of(tmp_path / "in")


def test_a_file_that_says_another_packing_fails_with_the_reason(tmp_path: Path) -> None:
    for path in PHANTOM.write(tmp_path / "in"):
        content = path.read_bytes()
        syntax = b"1.2.840.10008.1.2.1\0"
        path.write_bytes(content.replace(syntax, b"1.2.840.10008.1.2.5\0", 1))
    with pytest.raises(ScanError, match=r"RLE Lossless"):
        volume_of(tmp_path / "in")


def test_a_packing_without_decoder_is_named(tmp_path: Path) -> None:
    paths = PHANTOM.write(tmp_path / "in")
    for path in paths:
        content = path.read_bytes()
        # MPEG2, of the same length
        path.write_bytes(content.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0", 1))
    with pytest.raises((UnsupportedScanError, UnreadableScanError), match=r"im000"):
        volume_of(tmp_path / "in")


@pytest.mark.parametrize("most_bytes_at_once", [dicom.MOST_BYTES_AT_ONCE, 0])
def test_headers_that_were_read_hold_no_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes_at_once: int
) -> None:
    monkeypatch.setattr(dicom, "MOST_BYTES_AT_ONCE", most_bytes_at_once)
    phantom = replace(PHANTOM, slices=8, rows=512, columns=512)
    phantom.write(tmp_path / "in")
    [study] = discover([tmp_path / "in"], None).studies
    read(study)  # what libraries keep is not the study's
    tracemalloc.start()
    volume = read(study)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one = volume.voxels.nbytes // phantom.slices
    assert held < volume.voxels.nbytes + one
    assert peak < volume.voxels.nbytes + 4 * one


def test_huge_promised_sizes_take_no_memory(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.Rows = data.Columns = 65535

    PHANTOM.write(tmp_path / "in", edit)
    with pytest.raises(UnreadableScanError, match=r"declares|truncated"):
        volume_of(tmp_path / "in")


CLAIMED = 6000


def claiming(packing: str) -> bytes:
    """A frame of 20 x 24 pixels that claims many more, for each of which there would be memory."""
    pixels = np.arange(20 * 24, dtype=np.uint8).reshape(20, 24)
    encode, marker, at, numbers = {
        JPEGBaseline8Bit: (imagecodecs.jpeg8_encode, b"\xff\xc0", 5, ">HH"),
        JPEGLSLossless: (imagecodecs.jpegls_encode, b"\xff\xf7", 5, ">HH"),
        JPEG2000Lossless: (imagecodecs.jpeg2k_encode, b"\xff\x51", 6, ">II"),
    }[packing]
    packed = bytearray(encode(pixels))
    struct.pack_into(numbers, packed, packed.index(marker) + at, CLAIMED, CLAIMED)
    return bytes(packed)


@pytest.mark.parametrize("packing", [JPEGBaseline8Bit, JPEGLSLossless, JPEG2000Lossless])
def test_a_frame_that_claims_other_extents_than_its_header_is_refused_before_it_is_unpacked(
    tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = replace(PHANTOM, slices=1).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelRepresentation = 7, 0
    data.file_meta.TransferSyntaxUID = packing
    data.PixelData = encapsulate([claiming(packing)])
    data["PixelData"].is_undefined_length = True
    monkeypatch.setattr("imagecodecs.jpeg8_decode", None)
    monkeypatch.setattr("pydicom.pixels.get_decoder", None)
    with pytest.raises(UnreadableScanError, match="6000 x 6000 pixels but its header declares 24"):
        decode(data, path, 0, unpack_here)


@pytest.mark.parametrize(("kind", "bits"), [("US", 60_000), ("UL", 4_000_000), ("US", 0)])
def test_values_of_a_damaged_number_of_bits_are_refused(
    tmp_path: Path, kind: str, bits: int
) -> None:
    path = replace(PHANTOM, modality="MR", slices=1).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    data.PhotometricInterpretation = "MONOCHROME1"
    del data.BitsStored
    data.add_new("BitsStored", kind, bits)
    with pytest.raises(UnreadableScanError, match="it declares"):
        scale_of(data, None, path)


def test_a_padding_value_that_no_pixel_can_have_is_no_padding(tmp_path: Path) -> None:
    path = replace(PHANTOM, slices=1).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    data.add_new("PixelPaddingValue", "FD", 1e300)
    assert padding_mask(data, stored(path)) is None


@pytest.mark.parametrize("syntax", [HTJ2KLossless, JPEG2000Lossless, JPEGLSLossless])
def test_pixels_are_what_pydicom_and_its_plugins_make_of_them(syntax: str) -> None:
    encode = {
        HTJ2KLossless: imagecodecs.htj2k_encode,
        JPEG2000Lossless: imagecodecs.jpeg2k_encode,
        JPEGLSLossless: imagecodecs.jpegls_encode,
    }[syntax]
    data = pydicom.dcmread(real("MR_small.dcm"))
    values = data.pixel_array.astype(np.uint16)
    data.PixelRepresentation = 0
    data.PixelData = encapsulate([encode(values)])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = syntax
    found = decode(data, Path("one"), 0, unpack_here).values
    np.testing.assert_array_equal(found, data.pixel_array)


@pytest.mark.parametrize(("allocated", "kind"), [(8, "u1"), (12, "u2"), (16, "u2"), (24, "u4")])
def test_packed_pixels_are_as_wide_as_their_header_allocates(
    tmp_path: Path, allocated: int, kind: str
) -> None:
    path = replace(PHANTOM, slices=1).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    values = (PHANTOM.voxels()[0] % 256).astype(np.uint8)
    data.BitsAllocated, data.PixelRepresentation = allocated, 0
    data.PixelData = encapsulate([imagecodecs.jpegls_encode(values)])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = JPEGLSLossless
    found = decode(data, path, 0, unpack_here).values
    assert found.dtype == kind
    np.testing.assert_array_equal(found, values)


def test_a_box_of_jpeg_2000_without_a_length_is_damage(tmp_path: Path) -> None:
    """pydicom walks on the spot there for ever."""
    path = replace(PHANTOM, slices=1).write(tmp_path)[0]
    data = pydicom.dcmread(path)
    values = PHANTOM.voxels()[0]
    frame = imagecodecs.jpeg2k_encode(values, level=0, reversible=True, codecformat="jp2")
    at = frame.index(b"jp2c") - 4
    data.PixelData = encapsulate([frame[:at] + b"\0\0\0\0free" + frame[at:]])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    with pytest.raises(UnreadableScanError, match="is truncated or damaged: its pixels"):
        decode(data, path, 0, unpack_here)


def test_a_frame_that_takes_too_long_is_damage(tmp_path: Path) -> None:
    path = replace(PHANTOM, slices=1).write(tmp_path)[0]

    def unpack(_: Any) -> Any:
        raise UnpackingTimeError(3)

    data = pydicom.dcmread(path)
    data.PixelData = encapsulate([imagecodecs.jpegls_encode(PHANTOM.voxels()[0].astype("u2"))])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = JPEGLSLossless
    with pytest.raises(
        UnreadableScanError, match="not be decompressed within 3 s of processor time"
    ):
        decode(data, path, 0, unpack)


@pytest.mark.parametrize(
    "name",
    [
        *("693_J2KI.dcm", "693_J2KR.dcm", "J2K_pixelrep_mismatch.dcm", "JPEG2000.dcm"),
        *("JPEGLSNearLossless_08.dcm", "JPEGLSNearLossless_16.dcm", "emri_small_RLE.dcm"),
        *("emri_small_jpeg_2k_lossless.dcm", "emri_small_jpeg_ls_lossless.dcm"),
        *("MR_small_RLE.dcm", "MR_small_jpeg_ls_lossless.dcm"),
    ],
)
def test_real_packed_files_are_what_pydicom_and_its_plugins_make_of_them(name: str) -> None:
    found = stored(real(name))
    expected = pydicom.pixels.pixel_array(real(name), index=0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_zeros_without_end_behind_the_pixels_are_not_parsed(tmp_path: Path) -> None:
    """A copy that preallocates leaves such zeros; each eight of them would be an element."""
    paths = PHANTOM.write(tmp_path)
    os.truncate(paths[5], paths[5].stat().st_size + (64 << 30))
    np.testing.assert_array_equal(volume_of(tmp_path).voxels.T, PHANTOM.voxels())


def test_a_series_whose_file_went_away_reports_it(tmp_path: Path) -> None:
    paths = PHANTOM.write(tmp_path / "in")
    [study] = discover([tmp_path / "in"], None).studies
    paths[3].unlink()
    with pytest.raises(UnreadableScanError, match=r"im003 is missing"):
        read(study)


def test_one_slope_in_another_spelling_is_one_slope(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        data.RescaleSlope = "1.0" if at % 2 else "1"

    replace(PHANTOM, slices=8).write(tmp_path / "in", edit)
    assert volume_of(tmp_path / "in").voxels.dtype == np.int16
