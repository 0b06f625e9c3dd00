"""Scans, checkpoints and bad files for the record of the program's behaviour, from fixed seeds.

Made without the program, so that they stay the same whatever becomes of it.
"""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import SimpleITK as _SimpleITK
import torch
from support import torch_generators as generators
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom, oblique
from torch import nn

nibabel: Any = _nibabel
sitk: Any = _SimpleITK

VOXEL_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float32", "float64")
SHAPE = (18, 14, 11)
SPACING = np.diag([0.9, 1.1, 2.0])
TURN = np.linalg.qr(np.array([[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2], [0.0, -0.2, 0.8]]))[0]
DIRECTIONS = {
    "ras": np.eye(3),
    "flipped": np.diag([-1.0, 1.0, -1.0]),
    "permuted": np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
    "oblique": TURN,
}
SUFFIXES = (".nii", ".nii.gz", ".hdr", ".nrrd", ".nhdr", ".mha", ".mhd")

CHECKPOINTS: dict[str, Callable[[], nn.Module]] = {
    "reflect": lambda: generators.padded_resnet(width=3, blocks=1),
    "replicate": lambda: generators.padded_resnet(
        width=3, blocks=1, pad="replicate", samplings=1, norm=generators.affine_instance
    ),
    "stored": lambda: generators.unpadded_resnet(
        width=2, blocks=1, norm=generators.batch, bias=False
    ),
    "unet": lambda: generators.UNet(levels=3, width=4),
    "unet-deeper": lambda: generators.UNet(levels=2, width=3, skip_first=False),
    "sampling": lambda: generators.sampling_resnet(width=2, blocks=1),
    "named": lambda: generators.NamedResNet(2, 1),
    "two-channels": lambda: generators.padded_resnet(inputs=2, width=2, blocks=1),
    "discriminator": generators.patch_discriminator,
}


def write_checkpoints(folder: Path) -> None:
    """A state_dict of each layout, and what one of them makes of a patch."""
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    for name, make in CHECKPOINTS.items():
        torch.save(generators.trained(make()).state_dict(), folder / f"{name}.pth")
    module = generators.trained(CHECKPOINTS["replicate"]()).eval()
    patch = torch.rand(1, 1, 16, 16, 16, generator=torch.Generator().manual_seed(5)) * 2 - 1
    with torch.no_grad():
        np.savez(folder / "reference.npz", input=patch.numpy(), output=module(patch).numpy())
    (folder / "garbage.pth").write_bytes(b"no checkpoint at all " * 30)
    whole = (folder / "reflect.pth").read_bytes()
    (folder / "truncated.pth").write_bytes(whole[: len(whole) // 2])


def voxels(dtype: str, seed: int, shape: tuple[int, ...] = SHAPE) -> "np.ndarray[Any, Any]":
    """Noise on a slope that fills much of what the type holds, in moderation."""
    kind = np.dtype(dtype)
    low, high = (-1000, 3000) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    low, high = max(low, -1000), min(high, 3000)
    noise = np.random.default_rng(seed).integers(0, (high - low) // 2, shape)
    slope = np.linspace(0, (high - low) / 2 - 1, shape[0]).astype(np.int64)
    values = (noise + slope.reshape(-1, *[1] * (len(shape) - 1)) + low).astype(kind)
    return values + kind.type(0.37) if kind.kind == "f" else values


def write_matrix(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Every voxel type in every direction and format."""
    folder.mkdir(parents=True)
    for number, dtype in enumerate(VOXEL_TYPES):
        for direction in DIRECTIONS:
            for suffix in suffixes:
                name = f"{dtype}-{direction}-{suffix.replace('.', '')}{suffix}"
                write_scan(folder / name, dtype, direction, number)


def write_scan(path: Path, dtype: str, direction: str, seed: int) -> None:
    """One scan in the format of its name; those of ITK are packed if the seed is odd."""
    values = voxels(dtype, seed)
    turn, origin = DIRECTIONS[direction], [-11.5, 7.25, 30.0]
    if path.suffix in (".nii", ".gz", ".hdr"):
        affine = np.eye(4)
        affine[:3, :3], affine[:3, 3] = turn @ SPACING, origin
        kind = nibabel.Nifti1Pair if path.suffix == ".hdr" else nibabel.Nifti1Image
        image = kind(values, affine, dtype=values.dtype)
        image.header["descrip"] = b"TE 30, TR 2000"
        image.header.set_xyzt_units("mm", "sec")
        if dtype == "int16":
            image.header.set_slope_inter(0.5, -100)
        image.to_filename(path)
    else:
        image = sitk.GetImageFromArray(values.T.copy())
        image.SetSpacing(np.diag(SPACING).tolist())
        image.SetDirection(turn.ravel().tolist())
        image.SetOrigin(origin)
        image.SetMetaData("Modality", "MET_MOD_MR" if path.suffix.startswith(".m") else "MR")
        sitk.WriteImage(image, str(path), bool(seed % 2))


def write_odd_scans(folder: Path) -> None:
    """Sound scans that need more than a look: of four dimensions, and smaller than any patch."""
    folder.mkdir(parents=True)
    many = nibabel.Nifti1Image(voxels("int16", 1, (*SHAPE, 3)), np.eye(4))
    many.to_filename(folder / "four-d.nii.gz")
    small = nibabel.Nifti1Image(voxels("int16", 2, (7, 6, 5)), np.diag([3.0, 3.0, 3.0, 1.0]))
    small.to_filename(folder / "small.nii")
    large = nibabel.Nifti1Image(voxels("uint16", 3, (40, 37, 33)), np.diag([1.0, 1.0, 1.0, 1.0]))
    large.to_filename(folder / "large.nii.gz")


def write_dicom(folder: Path) -> None:
    """Series of CT and MR, oblique too, an enhanced one, and one with a slice missing."""
    ct = Phantom()
    mr = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0, seed=1)
    tilted = oblique(Phantom("MR", number=5, series="1.2.3.4.5.8", seed=2))
    gap = Phantom("MR", number=6, series="1.2.3.4.5.9", seed=3)
    short = Phantom("MR", slices=3, number=8, series="1.2.3.4.5.11", seed=5)
    for name, phantom in {"ct": ct, "mr": mr, "oblique": tilted, "short": short}.items():
        phantom.write(folder / name)
    gap.write(folder / "gap")[5].unlink()
    enhanced = Phantom("MR", number=7, series="1.2.3.4.5.10", seed=4)
    write_enhanced(enhanced, folder / "enhanced" / "object.dcm", slopes=(2.0,))


def write_bad_scans(folder: Path) -> None:
    """Write files that are not scans, damaged ones, and scans that the program does not take."""
    folder.mkdir(parents=True)
    write_scan(folder / "sound.nii.gz", "int16", "ras", 0)
    sound = (folder / "sound.nii.gz").read_bytes()
    (folder / "truncated.nii.gz").write_bytes(sound[: len(sound) // 2])
    (folder / "truncated.nii").write_bytes(gzip.decompress(sound)[:3000])
    (folder / "not-gzip.nii.gz").write_bytes(gzip.decompress(sound))
    (folder / "empty.nii.gz").touch()
    (folder / "garbage.nii").write_bytes(b"not a scan at all " * 40)
    (folder / "garbage.mha").write_bytes(b"not a scan at all " * 40)
    (folder / "promise.nrrd").write_text(
        "NRRD0004\ntype: short\ndimension: 3\nsizes: 1099511627776 8 8\nencoding: raw\n"
        "endian: little\n\n"
    )
    (folder / "no-voxels.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nDimSize = 8 8 8\nElementType = MET_SHORT\n"
        "ElementDataFile = gone.raw\n"
    )
    odd = {
        "nan": np.full(SHAPE, np.nan, np.float32),
        "constant": np.full(SHAPE, 7, np.int16),
        "zero-size": np.zeros((8, 0, 8), np.int16),
        "four-d": np.zeros((8, 8, 8, 3), np.int16),
        "flat": np.zeros((8, 8), np.int16),
        "complex": np.ones(SHAPE, np.complex64),
    }
    for name, values in odd.items():
        nibabel.Nifti1Image(values, np.eye(4)).to_filename(folder / f"{name}.nii")
    (folder / "notes.txt").write_text("nothing to translate")
    (folder / "broken.dcm").write_bytes(bytes(128) + b"DICM" + bytes(range(200)))


def write_bad_reports(folder: Path) -> None:
    """Files that are no report of a batch."""
    folder.mkdir(parents=True)
    (folder / "other.json").write_text(json.dumps({"schema": "another/1"}))
    (folder / "newer.json").write_text(json.dumps({"schema": "cuda-cyclegan/translate-report/9"}))
    (folder / "text.json").write_text("no JSON")
    (folder / "empty.json").write_text('{"schema": "cuda-cyclegan/translate-report/1"}')


def write_configs(folder: Path) -> None:
    """Config files for the options of commands: one that is obeyed, and wrong ones."""
    folder.mkdir(parents=True)
    texts = {
        "sound": '[translate]\noverlap = 0.5\nblend = "linear"\npreview = true\n',
        "unknown-key": "[translate]\noverlapp = 0.5\n",
        "unknown-command": "[transalte]\noverlap = 0.5\n",
        "wrong-value": "[translate]\noverlap = 5\n",
        "wrong-type": '[translate]\noverlap = "much"\n',
        "no-toml": "overlap 0.5",
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)


def write_inputs(folder: Path) -> None:
    """All of them, each kind in a folder of its own."""
    write_checkpoints(folder / "checkpoints")
    write_matrix(folder / "matrix")
    write_matrix(folder / "few", (".nii.gz", ".mha"))
    write_odd_scans(folder / "odd")
    write_dicom(folder / "dicom")
    write_bad_scans(folder / "bad")
    write_bad_reports(folder / "reports")
    write_configs(folder / "configs")
    (folder / "empty").mkdir()
    (folder / "big").mkdir()
    big = nibabel.Nifti1Image(voxels("int16", 4, (150, 140, 130)), np.diag([1.2, 0.8, 1.0, 1.0]))
    big.to_filename(folder / "big" / "scan.nii")


if __name__ == "__main__":
    write_inputs(Path(sys.argv[1]))
