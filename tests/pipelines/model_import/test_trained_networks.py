"""Trained networks of other projects give from file to file what their own code gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.lazy_modules import torch
from support.trained_networks import definition, unpacked
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's exporter and TorchScript
]

SAMPLE = Path(__file__).parents[3] / "sample_data" / "scans" / "icbm152_2009_t1_2mm.nii.gz"
INTENSITIES = "clip-percentile:0.5,99.5+sample-zscore+standard:-1.98672566,4.42477876"
OPEN = "--input-range open --output-range open --spacing native --axes RAS --source T1"


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


@dataclass(frozen=True)
class Trained:
    """A trained network in a folder. network: of PyTorch, in double precision."""

    folder: Path
    network: Any

    def imported(self, *words: str) -> None:
        """Import it from ONNX with a reference of its own."""
        patch, single = torch.rand(1, 1, 64, 64, 64) * 2 - 1, self.network.float()
        file, axes = self.folder / "net.onnx", {0: "n", 2: "d", 3: "h", 4: "w"}
        torch.onnx.export(
            single, (patch,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": axes}
        )
        reference = self.folder / "reference.npz"
        with torch.no_grad():
            np.savez(reference, input=patch.numpy(), output=single(patch).numpy())
        said = [*OPEN.split(), *words, "--reference", reference, "--output", self.model]
        assert "Proved" in run("model", "import", file, *said)

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"

    def __call__(self, values: Any) -> Any:
        """Return what its own code makes of [D, H, W], for each channel."""
        with torch.no_grad():
            return self.network.double()(values[None, None].double())[0].numpy()

    def translated(self, scan: Path, name: str, *words: str) -> tuple[list[Any], str]:
        """Translate a scan; return the results in RAS, by name, and what the command showed."""
        shown = run(
            *("translate", scan, "--model", self.model, "--output", self.folder / name),
            *("--device", "cpu", "--output-type", "float32", *words),
        )
        return [values_of(each) for each in sorted((self.folder / name).rglob("*.nii.gz"))], shown


def values_of(file: Path) -> Any:
    return nibabel.as_closest_canonical(nibabel.load(file)).get_fdata(dtype=np.float32)


def sample(folder: Path, extents: tuple[int, int, int], noise: float = 0) -> Path:
    """The middle of the sample's scan."""
    image: Any = nibabel.load(SAMPLE)
    starts = [(size - wanted) // 2 for size, wanted in zip(image.shape, extents, strict=True)]
    box = tuple(slice(at, at + size) for at, size in zip(starts, extents, strict=True))
    part = image.slicer[box]
    values = part.get_fdata(dtype=np.float32)
    values += np.random.default_rng(0).normal(0, noise, extents).astype(np.float32)
    path = folder / "scan.nii.gz"
    nibabel.Nifti1Image(values, part.affine).to_filename(path)
    return path


def padded(values: Any) -> Any:
    """Repeat the last voxels up to multiples of 32."""
    widths = [width for size in reversed(values.shape) for width in (0, -size % 32)]
    grown = torch.nn.functional.pad(values[None, None], widths, mode="replicate")
    return grown[0, 0]


def relative(made: Any, wanted: Any) -> float:
    return float(np.linalg.norm(made - wanted) / np.linalg.norm(wanted))


def dice(one: Any, other: Any) -> float:
    return 2 * float(np.logical_and(one, other).sum()) / float(one.sum() + other.sum())


@pytest.fixture
def deepbet(tmp_path: Path) -> Trained:
    """Brain extraction, trained on whole volumes (Fisch et al. 2023; MIT)."""
    package = unpacked("deepbet", tmp_path / "package")
    network = torch.jit.load(package / "data" / "models" / "model.pt", map_location="cpu").eval()
    return Trained(tmp_path, network)


@pytest.fixture
def topaz(tmp_path: Path) -> Trained:
    """A denoiser of tomograms that resizes its maps to those of its skips (Bepler et al. 2020)."""
    package = unpacked("topaz_em", tmp_path / "package") / "topaz"
    kind = definition(
        package / "denoising" / "models.py",
        "UDenoiseNet3D",
        torch=torch,
        nn=torch.nn,
        F=torch.nn.functional,
    )
    network = kind(base_width=7).eval()
    weights = package / "pretrained" / "denoise" / "unet-3d-10a-v0.2.4.sav"
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return Trained(tmp_path, network)


def test_a_brain_extraction_trained_on_whole_volumes(deepbet: Trained) -> None:
    deepbet.imported(
        *("--intensity-in", INTENSITIES, "--intensity-out", "identity"),
        *("--target", "background,brain", "--patch", "whole"),
    )
    scan = sample(deepbet.folder, (64, 96, 64))
    values = torch.from_numpy(values_of(scan))
    normalize = definition(deepbet.folder / "package" / "deepbet" / "utils.py", "normalize")
    wanted = deepbet(normalize(values, values.quantile(0.005), values.quantile(0.995)))
    made, _ = deepbet.translated(scan, "whole")
    assert 0.05 < (wanted[1] > 0.5).mean() < 0.95
    for one, by_deepbet in zip(made, wanted, strict=True):
        assert relative(one, by_deepbet) <= 1e-5
    said = "--inference", "patches", "--patch", "32,32,32"
    patches, shown = deepbet.translated(scan, "patches", *said)
    assert dice(patches[1] > 0.5, wanted[1] > 0.5) < 0.9
    assert "smaller than the whole volumes of the model" in shown


def test_a_denoiser_that_resizes_to_its_skips(topaz: Trained) -> None:
    topaz.imported(
        *("--intensity-in", "zscore", "--intensity-out", "zscore"),
        *("--target", "denoised", "--patch", "64,64,64"),
    )
    scan = sample(topaz.folder, (44, 64, 48), noise=60)
    values = torch.from_numpy(values_of(scan))
    mean, deviation = values.mean(), values.std(correction=0)
    normalised = (values - mean) / deviation
    [as_its_code], [on_padded] = topaz(normalised), topaz(padded(normalised))[:, :44, :64, :48]
    [made], _ = topaz.translated(scan, "whole", "--inference", "volume")
    assert relative((made - float(mean)) / float(deviation), on_padded) <= 1e-5
    assert relative((made - float(mean)) / float(deviation), as_its_code) > 0.01
    said = "--model", topaz.model, "--output", topaz.folder / "whole", "--overwrite"
    planned = run("plan", scan, *said, "--inference", "volume", "--device", "cpu")
    assert "its 44x64x48 voxels are padded to 64x64x64 for the network" in planned
