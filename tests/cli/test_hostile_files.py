"""Files that ask for more than their size lets expect: a sentence, in little memory and time."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.lazy_modules import torch
from support.lazy_modules import torch_generators as made
from support.model_cards import model_parts, random_network
from support.waiting import ENOUGH
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.intensity_maps import IntensityMap, Percentiles, Window, ZScore
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.engine.model.reference import array_sha256
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec

MEMORY = 3 << 30
"""Limit of the address space, most of it for libraries that are mapped and never touched."""

ANSWERS = (
    "--source T1 --target CT --intensity-in minmax --intensity-out minmax --axes RAS "
    "--spacing native --patch 32,32,32 --direction AtoB"
)
DATA = [*ANSWERS.split(), "--unproven"]


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    """The program in a process that may not grow beyond MEMORY."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    return subprocess.run(
        [sys.executable, "-m", "cuda_cyclegan", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        preexec_fn=limited,
        check=False,
    )


def refused(*words: object) -> str:
    """The one sentence with which the program ends."""
    done = run(*words)
    return only_sentence(done.returncode, done.stdout, done.stderr)


def refused_here(*words: object) -> str:
    """The same in this process, for a command that computes nothing."""
    done = CliRunner().invoke(app, list(map(str, words)))
    return only_sentence(done.exit_code, done.stdout, done.stderr)


def only_sentence(status: int, output: str, errors: str) -> str:
    assert status == 2, output[-2000:] + errors[-2000:]
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1
    assert len(errors) < 1000
    return errors


def imported(checkpoint: Path, *options: str, data: Sequence[str] = DATA) -> str:
    """Return the message with which an import is refused; data: its answers about the scans."""
    output = checkpoint.with_name("model.safetensors")
    sentence = refused("model", "import", checkpoint, "--output", output, *data, *options)
    assert not output.exists()
    return sentence


def sharing(width: int, blocks: int) -> dict[str, object]:
    """A generator of which all weights look into one storage, as large as its largest."""
    with torch.device("meta"):
        state = made.unpadded_resnet(width=width, blocks=blocks).state_dict()
    storage = torch.zeros(max(tensor.numel() for tensor in state.values()))
    return {name: storage[: like.numel()].view(like.shape) for name, like in state.items()}


@pytest.mark.process
@pytest.mark.parametrize(
    ("width", "blocks", "words"),
    [
        pytest.param(52, 1445, "blocks must lie from 0 to 64", marks=pytest.mark.slow),
        (52, 64, "share 4.5 MiB in the file"),
    ],
)
def test_one_small_storage_under_many_weights(
    width: int, blocks: int, words: str, tmp_path: Path
) -> None:
    """13.5 GB of float32 out of 5 MB."""
    path = tmp_path / "latest_net_G_A.pth"
    torch.save(sharing(width, blocks), path)
    assert path.stat().st_size < 6e6
    assert words in imported(path)
    shown = run("model", "inspect", path)
    assert shown.returncode == 0, shown.stderr
    assert words in shown.stdout


@pytest.mark.slow
def test_weights_beyond_any_model(tmp_path: Path) -> None:
    path = tmp_path / "latest_net_G_A.pth"
    torch.save(sharing(256, 64), path)
    assert "a model may have at most 2 GiB" in imported(path)


@pytest.mark.process
def test_layers_that_share_their_weights_honestly(tmp_path: Path) -> None:
    module = made.unpadded_resnet(blocks=9)
    state = module.state_dict()
    first = next(name for name in state if ".conv_block." in name).rsplit(".conv_block", 1)[0]
    for name in state:
        _, found, rest = name.partition(".conv_block.")
        if found:
            state[name] = state[f"{first}.conv_block.{rest}"]
    path = tmp_path / "latest_net_G_A.pth"
    torch.save(state, path)
    output = tmp_path / "model.safetensors"
    done = run("model", "import", path, "--output", output, *DATA)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_generator_whose_smallest_patch_is_endless(tmp_path: Path) -> None:
    path = tmp_path / "latest_net_G_A.pth"
    torch.save(made.UNet(levels=10, width=1).state_dict(), path)
    sentence = imported(path, "--concat", "skip-first", "--patch", "1024,1024,1024")
    assert "A reference patch of 1024x1024x1024 takes" in sentence


def model_file(folder: Path, spec: ResNetSpec | UNetSpec, extent: int) -> Path:
    """A model with a reference of any extent, which nothing computed."""
    card, network, *_ = model_parts(spec)
    patch = np.zeros((1, 1, extent, extent, extent), np.float32)
    digest = array_sha256(patch)
    reference = replace(card.reference, input_sha256=digest, output_sha256=digest)
    path = folder / "model.safetensors"
    path.write_bytes(encode_model(replace(card, reference=reference), network, patch, patch))
    return path


@pytest.mark.slow
def test_a_reference_that_takes_hours(tmp_path: Path) -> None:
    path = model_file(tmp_path, ResNetSpec(1, 1, width=64, blocks=1), 256)
    assert "A reference patch of 256x256x256 takes" in refused("model", "verify", path)


@pytest.mark.slow
def test_a_reference_for_import_that_takes_hours(tmp_path: Path) -> None:
    checkpoint, reference = tmp_path / "latest_net_G_A.pth", tmp_path / "reference.npz"
    torch.save(made.unpadded_resnet(width=64).state_dict(), checkpoint)
    patch = np.zeros((1, 1, 256, 256, 256), np.float32)
    np.savez_compressed(reference, input=patch, output=patch)
    sentence = imported(checkpoint, "--reference", str(reference))
    assert "A reference patch of 256x256x256 takes" in sentence


def with_card(path: Path, change: Callable[[dict[str, object]], object]) -> Path:
    """The model with another card, under a hash that is right."""
    from hashlib import sha256

    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    card = json.loads(header["__metadata__"]["card"])
    change(card)
    text = json.dumps(card)
    index = {name: entry for name, entry in header.items() if name != "__metadata__"}
    content = json.dumps([text, index], sort_keys=True).encode() + body
    header["__metadata__"] |= {"card": text, "content_sha256": sha256(content).hexdigest()}
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + body)
    return path


def intensity(kind: str, **numbers: float) -> dict[str, object]:
    return {"kind": kind, **numbers}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("intensity_in", intensity("window", low=0.0, high=1e-300)),
        ("intensity_in", intensity("window", low=-1e300, high=1e300)),
        ("intensity_in", intensity("window", low=1e6, high=1e6 + 1e-3)),
        ("intensity_in", intensity("zscore", spread=1e-300)),
        ("intensity_out", intensity("zscore", spread=1e300)),
        ("intensity_out", intensity("percentiles", low=50.0, high=50.0 + 1e-12)),
        ("spacing", [1e-300, 1.0, 1.0]),
        ("spacing", [1.0, 1e300, 1.0]),
        ("name", "n" * 500_000),
        ("target", "n" * 500_000),
    ],
)
def test_numbers_and_words_that_no_scan_has(field: str, value: object, tmp_path: Path) -> None:
    path = model_file(tmp_path, ResNetSpec(1, 1, 2, 1), 32)
    with_card(path, lambda card: card.update({field: value}))
    assert f"field '{field}" in refused_here("model", "inspect", path)
    scans = Path(__file__).parents[2] / "sample_data" / "scans"
    words = ("translate", scans, "--model", path, "--output", tmp_path / "out", "--device", "cpu")
    assert f"field '{field}" in refused(*words)


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--intensity-in", "window:0,1e-300", "intensity_in"),
        ("--intensity-out", "zscore:1e-300", "intensity_out.spread"),
        ("--spacing", "1e-300,1,1", "spacing"),
    ],
)
def test_such_numbers_are_refused_before_the_import_computes(
    option: str, value: str, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "latest_net_G_A.pth"
    torch.save(made.unpadded_resnet().state_dict(), path)
    place = DATA.index(option)
    data = *DATA[:place], option, value, *DATA[place + 2 :]
    assert f"field '{field}'" in imported(path, data=data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("intensity_in", Window(-1024.0, 3071.0)),
        ("intensity_in", Window(0.0, 3e-9)),  # diffusivity in m2/s
        ("intensity_in", Percentiles(0.5, 99.95)),
        ("intensity_in", ZScore(0.01)),
        ("spacing", (0.003, 0.012, 0.012)),  # optical coherence tomography
        ("spacing", (8e-6, 8e-6, 4e-5)),  # electron microscopy
    ],
)
def test_numbers_of_unusual_scans_are_sound(
    field: str, value: IntensityMap | tuple[float, ...], tmp_path: Path
) -> None:
    card, network, *pair = model_parts()
    unusual = replace(card, **{field: value})  # type: ignore[arg-type]
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode_model(unusual, network, *pair))
    assert getattr(load_model(path).card, field) == value


@pytest.mark.process
def test_a_grid_far_finer_than_the_scan(tmp_path: Path) -> None:
    """A model of 0.02 mm on scans of 1 mm: 125 000 voxels for each."""
    import nibabel

    scan = tmp_path / "scan.nii.gz"
    random = np.random.default_rng(0).integers(0, 1000, (20, 20, 20)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(random, np.eye(4)), scan)
    card, network, *pair = model_parts()
    path = tmp_path / "model.safetensors"
    fine = replace(card, spacing=(0.02, 0.02, 0.02))
    path.write_bytes(encode_model(fine, network, *pair))
    out = tmp_path / "out"
    done = run("translate", scan, "--model", path, "--output", out, "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "125000 for each of its own" in shown
    assert not list(out.glob("*.nii*"))


@pytest.mark.process
def test_the_limits_leave_sound_files_alone(tmp_path: Path) -> None:
    """The refusals above are therefore not caused by the memory limit."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode_model(*model_parts()))
    assert random_network().graph.stride
    done = run("model", "verify", path)
    assert done.returncode == 0, done.stderr
