"""The reference patch: defined exactly, checked honestly, and read as plain data."""

import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.model_cards import model_bytes, model_parts, random_network

from cuda_cyclegan.cli.render.documents import rendered_text
from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.importing.reference_pair import read_reference
from cuda_cyclegan.engine.model.model_file import Model, decode_model
from cuda_cyclegan.engine.model.reference import (
    TOLERANCE,
    array_sha256,
    make_reference,
    reference_extents,
    reference_input,
    relative_error,
    verify,
)
from cuda_cyclegan.engine.network.architectures import UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

PATCH = np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 1, 8, 8, 8)


def lowbias32(number: int) -> int:
    """The hash as C. Wellons published it, in plain integers."""
    number ^= number >> 16
    number = number * 0x7FEB352D % 2**32
    number ^= number >> 15
    number = number * 0x846CA68B % 2**32
    return number ^ number >> 16


def defined_value(
    channel: int, voxel: tuple[int, int, int], extents: tuple[int, int, int]
) -> float:
    """One voxel of the reference input, straight from its definition."""
    lattice = tuple(extent // 8 + 2 for extent in extents)
    number = channel
    for at, extent in zip(voxel, extents, strict=True):
        number = number * extent + at
    weighted = 0
    for corner in np.ndindex(2, 2, 2):
        index, weight = channel, 1
        for step, at, extent in zip(corner, voxel, lattice, strict=True):
            index = index * extent + at // 8 + step
            weight *= at % 8 if step else 8 - at % 8
        weighted += weight * (lowbias32(2**31 + index) >> 16)
    return (3 * (weighted // 512) + (lowbias32(number) >> 16) - 2**17) / 2**17


def test_the_input_is_as_defined() -> None:
    extents = (16, 24, 40)
    patch = reference_input(2, extents)
    for channel, *voxel in [(0, 0, 0, 0), (1, 15, 23, 39), (0, 7, 8, 9), (1, 3, 20, 33)]:
        at = voxel[0], voxel[1], voxel[2]
        assert patch[(0, channel, *at)] == np.float32(defined_value(channel, at, extents))


def test_the_input_never_changes() -> None:
    digest = "ad01c8bbc3e5ce4a7c0aefc20d649bfc84e0f47636543ceb64dd6b77c019ac5c"
    assert array_sha256(reference_input(1, (32, 32, 32))) == digest


def test_the_input_has_structure_and_range() -> None:
    patch = reference_input(1, (64, 64, 64))
    assert patch.dtype == np.float32
    assert patch.min() >= -1
    assert patch.max() < 1
    assert 0.2 < patch.std() < 0.6


def test_extents_suit_the_network() -> None:
    assert reference_extents(random_network().graph) == (32, 32, 32)
    assert reference_extents(build(UNetSpec(1, 1, 2, levels=6))) == (64, 64, 64)


def test_a_sound_model_is_proved() -> None:
    found = verify(decode_model(model_bytes()))
    assert found.passed
    assert found.relative_error == 0
    assert found.extents == (32, 32, 32)


@pytest.mark.parametrize("name", ["first.weight", "block0.conv1.weight", "last.bias"])
def test_one_changed_weight_is_found(name: str) -> None:
    model = decode_model(model_bytes())
    weights = {key: array.copy() for key, array in model.network.weights.items()}
    weights[name].flat[0] += 0.5
    found = verify(replace(model, network=Network(model.network.graph, weights)))
    assert not found.passed
    assert found.hashes_match
    assert found.relative_error > TOLERANCE


@pytest.mark.parametrize("field", ["reference_input", "reference_output"])
def test_another_reference_than_the_card_names_is_found(field: str) -> None:
    model: Model = decode_model(model_bytes())
    array = getattr(model, field).copy()
    array.flat[0] += 1e-6
    found = verify(replace(model, **{field: array}))
    assert not found.hashes_match
    assert not found.passed


def test_the_reference_is_what_the_network_makes() -> None:
    _, network, patch, output = model_parts()
    again = make_reference(network)
    assert np.array_equal(again[0], patch)
    assert np.array_equal(again[1], output)


def test_relative_error_is_that_of_l2_norms() -> None:
    assert relative_error(PATCH * 1.5, PATCH) == pytest.approx(0.5)
    assert relative_error(PATCH, PATCH) == 0
    assert relative_error(PATCH, 0 * PATCH) > 1


# --- the file that training code makes ---


def saved(path: Path, **arrays: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Path:
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", ">f4"])
def test_an_npz_is_read(dtype: str, tmp_path: Path) -> None:
    stored = PATCH.astype(dtype)
    source, target = read_reference(
        saved(tmp_path / "r.npz", input=stored, output=stored[..., ::-1])
    )
    assert source.dtype == np.float32
    assert np.array_equal(source, stored.astype(np.float32))
    assert np.array_equal(target, source[..., ::-1])


def test_a_compressed_npz_in_fortran_order_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "r.npz", input=np.asfortranarray(PATCH), output=PATCH)
    source, target = read_reference(tmp_path / "r.npz")
    assert np.array_equal(source, PATCH)
    assert np.array_equal(target, PATCH)


def test_a_pt_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pair = {"input": torch.from_numpy(PATCH), "output": torch.from_numpy(PATCH * 2).half()}
    torch.save(pair, tmp_path / "r.pt")
    source, target = read_reference(tmp_path / "r.pt")
    assert np.array_equal(source, PATCH)
    assert np.array_equal(target, (PATCH * 2).astype(np.float16).astype(np.float32))


def with_object(path: Path) -> None:
    array = np.empty((1, 1, 1, 1, 1), object)
    array[...] = {"spy": print}
    np.savez(path, input=array, output=array, allow_pickle=True)


def cut(path: Path) -> None:
    saved(path, input=PATCH, output=PATCH)
    path.write_bytes(path.read_bytes()[:-700])


def with_wrong_checksum(path: Path) -> None:
    saved(path, input=PATCH, output=PATCH)
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("output.npy", b"")
        with archive.open("input.npy", "w") as entry:
            for _ in range(513):
                entry.write(bytes(1 << 20))


def claimed(path: Path) -> None:
    """A directory that says of an array that it is a bomb."""
    saved(path, input=np.zeros((1, 1, 1, 1, 999), np.float32), output=PATCH)
    size = 128 + 999 * 4
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", size), struct.pack("<I", 1 << 30)))


def with_infinity(path: Path) -> None:
    saved(path, input=PATCH, output=PATCH / 0.0)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "the file does not exist"),
    "a folder": (lambda path: path.mkdir(), "the file does not exist"),
    "empty": (lambda path: path.touch(), "is empty"),
    "text": (lambda path: path.write_text("input"), "not usable"),
    "cut": (cut, "damaged"),
    "wrong checksum": (with_wrong_checksum, "damaged"),
    "one array": (lambda path: saved(path, input=PATCH), "exactly 'input' and 'output'"),
    "an array too many": (
        lambda path: saved(path, input=PATCH, output=PATCH, more=PATCH),
        "exactly 'input' and 'output'",
    ),
    "pickled objects": (with_object, "not usable"),
    "whole numbers": (
        lambda path: saved(path, input=PATCH.astype(np.int16), output=PATCH),
        "'input' must be floating point",
    ),
    "three axes": (
        lambda path: saved(path, input=PATCH[0, 0], output=PATCH),
        r"\[1, C, D, H, W\], not float32 of 8x8x8",
    ),
    "two patches": (
        lambda path: saved(path, input=np.concatenate([PATCH, PATCH]), output=PATCH),
        "not float32 of 2x1x8x8x8",
    ),
    "nothing in it": (lambda path: saved(path, input=PATCH[..., :0], output=PATCH), "8x8x0"),
    "infinity": (with_infinity, "'output' contains numbers that are not finite"),
    "claims of a bomb": (claimed, "may have at most 512 MiB"),
    "bomb": (bomb, "may have at most 512 MiB"),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize(
    "name", [*sorted(UNUSABLE.keys() - {"bomb"}), pytest.param("bomb", marks=pytest.mark.slow)]
)
def test_a_file_that_is_no_reference_is_refused(name: str, tmp_path: Path) -> None:
    make, words = UNUSABLE[name]
    path = tmp_path / "reference.npz"
    make(path)
    with pytest.raises(ModelFileError, match=words) as caught:
        read_reference(path)
    message = str(caught.value)
    assert message.count(str(path)) == 1
    assert "reference-script" in message
    assert "\n" not in message


def test_a_pt_without_the_pair_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"input": torch.zeros(1, 1, 4, 4, 4)}, tmp_path / "r.pt")
    with pytest.raises(ModelFileError, match="'input' and 'output'"):
        read_reference(tmp_path / "r.pt")


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_script_makes_what_is_read(
    evaluate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from support import torch_generators as made

    module = made.trained(made.padded_resnet(norm=made.tracked_instance, dropout=True))
    monkeypatch.chdir(tmp_path)
    torch.save(module.state_dict(), "generator.pth")
    printed = rendered_text("make_reference.py.j2")
    script = printed.replace("EVAL = True", f"EVAL = {evaluate}")
    fresh = made.padded_resnet(norm=made.tracked_instance, dropout=True)
    exec(compile(script, "make_reference.py", "exec"), {"build_generator": lambda: fresh})

    source, target = read_reference(tmp_path / "reference.npz")
    module.train(not evaluate)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.eval()
    with torch.no_grad():
        expected: FloatArray = module(torch.tensor(source)).numpy()
    assert np.abs(target - expected).max() < 1e-6
