"""A small world for batch tests: real scan files, bad ones of every kind, and a tiny model."""

import gzip
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest

from cuda_cyclegan.engine.model.intensity_maps import Identity, IntensityMap, Percentiles
from cuda_cyclegan.engine.model.model_card import ModelCard, Provenance, Reference
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.engine.model.reference import array_sha256, make_reference
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import sees_whole_patch
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.pipelines.results.manifest import Manifest, ManifestEntry
from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record

nibabel: Any = _nibabel
SHAPE = (20, 18, 16)
PERCENTILES = Percentiles(0.5, 99.5)


def scan(path: Path, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Path:
    """A sound int16 scan of noise in a file whose name says its format."""
    if path.suffix not in (".nii", ".gz"):
        return stored(path, _noise(seed, shape))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_noise_file(seed, shape, is_packed=path.suffix == ".gz"))
    return path


def _noise(seed: int, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(seed).integers(0, 1000, shape).astype(np.int16)


@lru_cache(maxsize=64)
def _noise_file(seed: int, shape: tuple[int, ...], *, is_packed: bool) -> bytes:
    """A NIfTI file of noise, which many tests write."""
    voxels = _noise(seed, shape)
    file = nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes()
    return gzip.compress(file, 1, mtime=0) if is_packed else file


def stored(path: Path, voxels: "np.ndarray[Any, Any]") -> Path:
    """An array as a NIfTI file of 1 mm voxels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
    return path


def recorded(output: Path) -> list[dict[str, Any]]:
    """All that the record of an output folder holds, line by line."""
    record = found_record(output)
    lines = (record / NAME).read_text().splitlines() if record else []
    return [json.loads(line) for line in lines]


@contextmanager
def killed_before_the_record(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """A run in the block is killed when its first result is in place and not on record yet."""
    append = Manifest.append

    def dies(self: Manifest, entry: ManifestEntry) -> None:
        if entry.status == "written":
            raise KeyboardInterrupt
        append(self, entry)

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "append", dies)
        yield


def bad_scans(folder: Path) -> dict[str, str]:
    """Fill a folder with bad files; names of the files and the class each must fail with."""
    folder.mkdir(parents=True, exist_ok=True)
    sound = scan(folder / "sound.nii.gz").read_bytes()
    (folder / "sound.nii.gz").unlink()
    (folder / "truncated.nii.gz").write_bytes(sound[: len(sound) // 2])
    (folder / "truncated.nii").write_bytes(gzip.decompress(sound)[:5000])
    (folder / "bomb.nii.gz").write_bytes(gzip.compress(gzip.decompress(sound) + bytes(1 << 24)))
    (folder / "not-gzip.nii.gz").write_bytes(gzip.decompress(sound))
    (folder / "empty.nii.gz").touch()
    (folder / "garbage.nii").write_bytes(b"not a scan at all " * 40)
    (folder / "garbage.mha").write_bytes(b"not a scan at all " * 40)
    (folder / "promise.nii").write_bytes(_promising_2_to_the_40())
    (folder / "promise.nrrd").write_text(
        "NRRD0004\ntype: short\ndimension: 3\nsizes: 1099511627776 8 8\nencoding: raw\n"
        "endian: little\n\n"
    )
    (folder / "no-voxels.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nDimSize = 8 8 8\nElementType = MET_SHORT\n"
        "ElementDataFile = gone.raw\n"
    )
    stored(folder / "nan.nii", np.full(SHAPE, np.nan, np.float32))
    stored(folder / "infinite.nii", np.full(SHAPE, np.inf, np.float32))
    stored(folder / "constant.nii", np.full(SHAPE, 7, np.int16))
    stored(folder / "zero-size.nii", np.zeros((8, 0, 8), np.int16))
    stored(folder / "four-d.nii", np.zeros((8, 8, 8, 3), np.int16))
    stored(folder / "flat.nii", np.zeros((8, 8), np.int16))
    stored(folder / "complex.nii", np.ones(SHAPE, np.complex64))
    return {
        **dict.fromkeys(
            [
                "truncated.nii.gz",
                "truncated.nii",
                "bomb.nii.gz",
                "not-gzip.nii.gz",
                "empty.nii.gz",
                "garbage.nii",
                "garbage.mha",
                "promise.nii",
                "promise.nrrd",
                "no-voxels.mhd",
                "zero-size.nii",
            ],
            "unreadable",
        ),
        **dict.fromkeys(["nan.nii", "infinite.nii", "constant.nii"], "preparation"),
        **dict.fromkeys(["four-d.nii", "flat.nii", "complex.nii"], "unsupported"),
    }


def _promising_2_to_the_40() -> bytes:
    header = nibabel.Nifti2Header()
    header.set_data_dtype(np.int16)
    header["dim"][:4] = 3, 1 << 40, 8, 8
    header["vox_offset"] = 544
    return header.binaryblock + bytes(4 + 1024)


def tiny_model(
    path: Path,
    seed: int = 0,
    source: str = "T1",
    target: str = "T2",
    intensity: IntensityMap = PERCENTILES,
) -> Path:
    """A random ResNet of 16x16x16 patches."""
    path.write_bytes(_tiny_model(seed, source, target, intensity))
    return path


def identity_model(path: Path, target: str = "T2", source: str = "T1") -> Path:
    """A model that gives back its input, since relu(x) - relu(-x) is x."""
    path.write_bytes(_identity_model(target, source))
    return path


def with_card(path: Path, **changes: Any) -> Path:
    """A model's file with some fields of its card changed."""
    model = load_model(path)
    card = replace(model.card, **changes)
    path.write_bytes(
        encode_model(card, model.network, model.reference_input, model.reference_output)
    )
    return path


@cache
def _tiny_model(seed: int, source: str, target: str, intensity: IntensityMap) -> bytes:
    spec = ResNetSpec(1, 1, 2, 1, downsamplings=1)
    random = np.random.default_rng(seed)
    shapes = dict(build(spec).weight_shapes())
    weights = {
        name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()
    }
    return model_bytes(spec, weights, intensity, target, source)


@cache
def _identity_model(target: str, source: str) -> bytes:
    spec = ResNetSpec(
        1, 1, 2, 0, downsamplings=0, norm="none", first_kernel=1, last_kernel=1, end="none"
    )
    shapes = dict(build(spec).weight_shapes())
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in ("first.weight", "last.weight"):
        weights[name] = np.float32([1, -1]).reshape(shapes[name])
    return model_bytes(spec, weights, Identity(), target, source)


MIX = ((1.0, 2.0),)


def mixing_model(
    path: Path,
    mix: tuple[tuple[float, ...], ...] = MIX,
    sources: tuple[str, ...] = ("T1", "T2"),
    targets: tuple[str, ...] = ("CT",),
    **card: Any,
) -> Path:
    """A model whose results are sums of its inputs; mix: for each result, how much of each."""
    count = len(sources)
    spec = ResNetSpec(
        count,
        len(targets),
        2 * count,
        0,
        downsamplings=0,
        norm="none",
        first_kernel=1,
        last_kernel=1,
        end="none",
    )
    shapes = dict(build(spec).weight_shapes())
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    signs = np.concatenate([np.eye(count), -np.eye(count)]).astype(np.float32)
    weights["first.weight"] = signs.reshape(shapes["first.weight"])
    weights["last.weight"] = (np.float32(mix) @ signs.T).reshape(shapes["last.weight"])
    network = Network(build(spec), weights)
    reference_input, reference_output = make_reference(network)
    reference = Reference(
        array_sha256(reference_input), array_sha256(reference_output), "cuda-cyclegan"
    )
    changes = {"source": ", ".join(sources), "target": ", ".join(targets)}
    changes |= {"input_channels": sources, "output_channels": targets}
    of = replace(_card(spec, Identity(), reference), **changes, **card)
    path.write_bytes(encode_model(of, network, reference_input, reference_output))
    return path


def model_bytes(
    spec: ResNetSpec,
    weights: dict[str, FloatArray],
    intensity: IntensityMap,
    target: str = "T2",
    source: str = "T1",
) -> bytes:
    """A model file with a true reference patch."""
    network = Network(build(spec), weights)
    reference_input, reference_output = make_reference(network)
    reference = Reference(
        array_sha256(reference_input), array_sha256(reference_output), "cuda-cyclegan"
    )
    card = _card(spec, intensity, reference, target, source)
    return encode_model(card, network, reference_input, reference_output)


def _card(
    spec: ResNetSpec,
    intensity: IntensityMap,
    reference: Reference,
    target: str = "T2",
    source: str = "T1",
) -> ModelCard:
    return ModelCard(
        name="tiny",
        architecture=spec,
        source=source,
        target=target,
        input_channels=(source,),
        output_channels=(target,),
        axes="RAS",
        spacing=None,
        patch=(16, 16, 16),
        intensity_in=intensity,
        intensity_out=intensity,
        small_volume_padding="edge",
        # Stated, so that no study is also computed as a whole volume.
        inference="patches" if sees_whole_patch(build(spec)) else None,
        provenance=Provenance("none", "0" * 64, "none", "test"),
        reference=reference,
    )
