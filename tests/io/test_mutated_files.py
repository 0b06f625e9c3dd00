"""Mutated headers and codestreams: no crash, no hang, and what stands beside them is read."""

import gzip
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import imagecodecs as _imagecodecs
import nibabel as _nibabel
import numpy as np
import pytest
from pydicom.encaps import encapsulate
from pydicom.uid import HTJ2K, JPEG2000, JPEGLosslessSV1, JPEGLSLossless
from support.batch_world import scan
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import STORED, Phantom
from support.mutations import mutated, within_seconds
from support.translate_world import World

from cuda_cyclegan.io.dicom.pixels.unpacking import Coding, FrameUnpacker, codestream_in
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.found_headers import read_headers
from cuda_cyclegan.io.reading import look_at, read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

imagecodecs: Any = _imagecodecs
nibabel: Any = _nibabel
PHANTOM = Phantom("MR", slices=8, rows=8, columns=8)
DERIVATION = Derivation("model", "MR", "MR", "0", "0" * 64, STORED)
FEW, MANY = range(10), range(3000)
pytestmark = pytest.mark.filterwarnings("ignore:::nibabel")  # as the program does


def classic(folder: Path, seed: int) -> None:
    """A series one of whose slices is mutated."""
    [path, *_] = PHANTOM.write(folder)
    content = path.read_bytes()
    path.write_bytes(mutated(content, seed, 128, content.rindex(b"\xe0\x7f\x10\0")))


def enhanced(folder: Path, seed: int) -> None:
    """An enhanced object that is mutated."""
    folder.mkdir()
    write_enhanced(PHANTOM, folder / "one")
    content = (folder / "one").read_bytes()
    changed = mutated(content, seed, 128, content.rindex(b"\xe0\x7f\x10\0"))
    (folder / "one").write_bytes(changed)


def dicom_header(folder: Path, seed: int) -> None:
    (classic, enhanced)[seed % 2](folder, seed)


def nifti_header(folder: Path, seed: int) -> None:
    """NIfTI-1 and 2, with an extension, packed or not, in one file or two."""
    voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
    kind = (nibabel.Nifti1Image, nibabel.Nifti2Image, nibabel.Nifti1Pair)[seed % 3]
    image = kind(voxels, np.diag([1.0, 2.0, 3.0, 1.0]))
    image.header.set_qform(image.affine, 1)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension(6, b"a comment"))
    folder.mkdir()
    name = "one.img" if seed % 3 == 2 else "one.nii"
    image.to_filename(folder / name)
    path = folder / name.replace("img", "hdr")
    content = path.read_bytes()
    changed = mutated(content, seed, 0, min(len(content), 700))
    path.write_bytes(changed)
    if seed % 5 == 0 and path.suffix == ".nii":
        path.with_suffix(".nii.gz").write_bytes(gzip.compress(changed, 1))
        path.unlink()


def analyze_header(folder: Path, seed: int) -> None:
    """Analyze, and the place of its voxels by SPM; one of both files is mutated."""
    folder.mkdir()
    voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
    image = nibabel.Spm99AnalyzeImage(voxels, np.diag([-2.0, 3, 4, 1]))
    image.to_filename(folder / "one.img")
    path = folder / ("one.hdr" if seed % 2 else "one.mat")
    content = path.read_bytes()
    path.write_bytes(mutated(content, seed, 0 if seed % 2 else 100, len(content)))


MAKERS = {"DICOM": dicom_header, "NIfTI": nifti_header, "Analyze": analyze_header}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "seeds",
    [FEW, *(pytest.param(part, marks=pytest.mark.slow) for part in (MANY[:1500], MANY[1500:]))],
)
def test_mutated_headers_are_survived(tmp_path: Path, kind: str, seeds: range) -> None:
    read_well(MAKERS[kind], tmp_path, seeds)


def read_well(make: Callable[[Path, int], None], folder: Path, seeds: range) -> None:
    for seed in seeds:
        beside = folder / f"{seed}"
        beside.mkdir()
        make(beside / "mutated", seed)
        with within_seconds(f"seed {seed}"):
            found = discover([beside], None)
            read_headers(found, 0, every_volume=False)
            for study in found.studies:
                with suppress(ScanError):
                    look_at(study, 0)
                with suppress(ScanError):
                    suffix = "" if study.format == "dicom" else "".join(study.files[0].suffixes)
                    place = folder / "out" / f"{seed}" / f"one{suffix}"
                    write(read(study, 0), place, DERIVATION)


def encoded(width: int) -> list[tuple[Coding, bytes]]:
    j, i = np.indices((40, width))
    pixels = (1000 + 400 * np.sin(i / 9) + 300 * np.cos(j / 7) + (i * j) % 17).astype(np.uint16)
    small = (pixels // 8).astype(np.uint8)
    j2k: Any = imagecodecs.jpeg2k_encode
    return [
        ("jpeg", imagecodecs.jpeg8_encode(pixels, lossless=True, bitspersample=12)),
        ("jpeg", imagecodecs.jpeg8_encode(small, level=90)),
        ("jpeg-ls", imagecodecs.jpegls_encode(pixels)),
        ("jpeg-ls", imagecodecs.jpegls_encode(pixels, level=2)),
        ("jpeg-2000", j2k(pixels, level=0, reversible=True, codecformat="j2k")),
        ("jpeg-2000", j2k(pixels, level=60, codecformat="jp2")),
        ("jpeg-2000", imagecodecs.htj2k_encode(pixels)),
    ]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(100), marks=pytest.mark.process),
        pytest.param(range(2000), marks=pytest.mark.slow),
    ],
)
def test_mutated_codestreams_are_survived(seeds: range) -> None:
    packed = encoded(48)
    sound = [codestream_in(each, coding) for coding, each in packed]
    with FrameUnpacker() as unpack:
        expected = [unpack(frame) for frame in sound]
        for seed in seeds:
            which = seed % len(packed)
            coding, content = packed[which]
            changed = mutated(content, seed, 0, 200 if seed % 3 else None)
            with within_seconds(f"seed {seed}"), suppress(ValueError, RuntimeError):
                frame = codestream_in(changed, coding)
                if frame.rows * frame.columns < 1 << 24:  # others are not what their header says
                    unpack(frame)
            if seed % 50 == 0:
                np.testing.assert_array_equal(unpack(sound[which]), expected[which])


def packed_frame(folder: Path, seed: int) -> None:
    """A packed series one of whose frames is mutated."""
    phantom = replace(PHANTOM, rows=40, columns=48)
    encode, syntax = (
        (imagecodecs.jpegls_encode, JPEGLSLossless),
        (imagecodecs.jpeg2k_encode, JPEG2000),
        (imagecodecs.htj2k_encode, HTJ2K),
        (partial(imagecodecs.jpeg8_encode, lossless=True, bitspersample=16), JPEGLosslessSV1),
    )[seed % 4]

    def edit(data: Any, at: int) -> None:
        frame = encode(phantom.voxels()[at].astype(np.uint16))
        data.PixelRepresentation = 0
        data.PixelData = encapsulate([mutated(frame, seed, 0, 200) if at == 3 else frame])
        data["PixelData"].is_undefined_length = True
        data.file_meta.TransferSyntaxUID = syntax

    phantom.write(folder, edit)


@pytest.mark.slow
@pytest.mark.parametrize("make", [*MAKERS.values(), packed_frame])
def test_scans_beside_mutated_files_are_translated(
    tmp_path: Path, make: Callable[[Path, int], None]
) -> None:
    world = World(tmp_path)
    for seed in range(300):
        make(world.inputs / f"mutated-{seed}", seed)
        if seed % 100 == 0:
            scan(world.inputs / f"sound-{seed}" / "a.nii.gz")
            replace(PHANTOM, series=f"1.2.3.4.9.{seed}").write(world.inputs / f"sound-{seed}" / "b")
    options = ("--device", "cpu", "--any-modality", "--report", str(world.report))
    done = world.run(*options, timeout=600)
    assert done.returncode == 1, done.stderr
    rows = world.rows()
    sound = [row["status"] for name, row in rows.items() if name.startswith("sound")]
    assert sound == ["translated"] * 6
