"""Model files: what is stored, what is rejected, and the identity by which results are known."""

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_cards import CARD, SPEC, model_bytes, model_parts, random_network
from support.tiers import examples

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model import model_file
from cuda_cyclegan.engine.model.intensity_maps import Identity, Window
from cuda_cyclegan.engine.model.model_card import Established, ModelCard, card_to_json
from cuda_cyclegan.engine.model.model_file import (
    Model,
    decode_model,
    encode_model,
    is_model_file,
    load_model,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

Header = dict[str, Any]

sound = cache(model_bytes)
"""A model file that has nothing wrong."""


def parts(data: bytes) -> tuple[Header, bytes]:
    """Header and tensor data of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def assembled(header: Header, body: bytes, pad: int = 0) -> bytes:
    """A safetensors file whose metadata name the hash that its content really has."""
    index = {name: entry for name, entry in header.items() if name != "__metadata__"}
    content = json.dumps([header["__metadata__"].get("card"), index], sort_keys=True).encode()
    header["__metadata__"]["content_sha256"] = hashlib.sha256(content + body).hexdigest()
    text = json.dumps(header).encode()
    text += b" " * (pad - len(text) if pad else -len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def altered(change: Callable[[Header], Any]) -> bytes:
    """The sound file with another header."""
    header, body = parts(sound())
    change(header)
    return assembled(header, body)


@pytest.mark.parametrize(
    "spec",
    [SPEC, ResNetSpec(2, 1, 2, 0, norm="stored", upsampling="nearest"), UNetSpec(1, 1, 2, 2)],
    ids=["resnet", "stored norm", "unet"],
)
def test_a_saved_model_comes_back_whole(spec: Spec, tmp_path: Path) -> None:
    card, network, reference_input, reference_output = model_parts(spec)
    content = encode_model(card, network, reference_input, reference_output)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    model = load_model(path)

    assert model.card == card
    assert model.network.graph == network.graph
    assert model.network.weights.keys() == network.weights.keys()
    for name, array in network.weights.items():
        assert np.array_equal(model.network.weights[name], array)
    assert np.array_equal(model.reference_input, reference_input)
    assert np.array_equal(model.reference_output, reference_output)
    assert model.sha256 == hashlib.sha256(content).hexdigest()


def test_equal_models_have_equal_bytes() -> None:
    card, network, *pair = model_parts()
    backwards = Network(network.graph, dict(reversed(network.weights.items())))
    assert encode_model(card, network, *pair) == encode_model(card, backwards, *pair) == sound()


def test_other_programs_can_read_the_weights(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    (tmp_path / "m.safetensors").write_bytes(sound())
    tensors = load_file(tmp_path / "m.safetensors")
    assert np.array_equal(tensors["first.weight"], random_network().weights["first.weight"])


def test_a_network_that_the_card_does_not_describe_is_not_saved() -> None:
    card, _, *pair = model_parts()
    with pytest.raises(ValueError, match="not the one described by the model card"):
        encode_model(card, random_network(UNetSpec(1, 1, 2, 2)), *pair)


def test_weights_that_do_not_fit_the_card_are_not_saved() -> None:
    card, network, *pair = model_parts()
    network.weights["last.bias"][0] = np.nan  # type: ignore[index]
    with pytest.raises(ModelFileError, match=r"'last\.bias' contains numbers that are not finite"):
        encode_model(card, network, *pair)


def test_any_header_length_is_a_model() -> None:
    """A length whose first bytes look like those of a pickle is still a length."""
    header, body = parts(sound())
    data = assembled(header, body, pad=0x10280)
    assert data.startswith(b"\x80\x02")
    assert decode_model(data).card.name == CARD.name


def grown(header: Header) -> None:
    header["first.weight"]["shape"] = [2**40, 2**40, 7, 7, 7]


def overlapping(header: Header) -> None:
    header["first.bias"]["data_offsets"] = header["block0.conv0.bias"]["data_offsets"]


def halved(header: Header) -> None:
    header["first.weight"]["dtype"] = "F16"
    header["first.weight"]["shape"][0] *= 2


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "one byte": (lambda: b"{", "not a model file"),
    "text": (lambda: b"this is some text, and no model at all", "not a model file"),
    "ONNX": (lambda: b"\x08\x0a\x12\x07pytorch", "a network, such as .onnx, convert it"),
    "zip checkpoint": (lambda: b"PK\x03\x04" + bytes(100), "training checkpoint; .*model import"),
    "pickle": (
        lambda: b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(50),
        "training checkpoint",
    ),
    "header of 2^60 bytes": (
        lambda: struct.pack("<Q", 2**60) + sound()[8:],
        "declares 1152921504606846976",
    ),
    "header of 2^64 - 1 bytes": (lambda: b"\xff" * 8 + sound()[8:], "declares"),
    "header longer than the file": (
        lambda: struct.pack("<Q", 900_000) + sound()[8:500],
        "ends within its header",
    ),
    "cut in the header": (lambda: sound()[:200], "ends within its header"),
    "cut in the data": (lambda: sound()[:-1], "SHA-256"),
    "surplus data": (lambda: sound() + b"\0", "SHA-256"),
    "surplus data with its hash": (
        lambda: assembled(parts(sound())[0], parts(sound())[1] + bytes(4)),
        "is damaged",
    ),
    "one bit": (lambda: sound()[:-1] + bytes([sound()[-1] ^ 1]), "SHA-256"),
    "header is a list": (lambda: struct.pack("<Q", 9) + b"{[1,2,3]}", "not valid JSON"),
    "header is not UTF-8": (lambda: struct.pack("<Q", 8) + b'{"\xff\xfe":1}', "not valid JSON"),
    "deep header": (lambda: struct.pack("<Q", 500_000) + b'{"a":' * 100_000, "nested too deeply"),
    "other safetensors": (
        lambda: altered(lambda h: h["__metadata__"].pop("format")),
        "no model card",
    ),
    "no metadata": (lambda: struct.pack("<Q", 2) + b"{}", "no model card"),
    "newer format": (
        lambda: altered(lambda h: h["__metadata__"].update(format="cuda-cyclegan model 2")),
        "install a newer cuda-cyclegan",
    ),
    "no card": (lambda: altered(lambda h: h["__metadata__"].pop("card")), "no model card"),
    "shape of 2^80": (lambda: altered(grown), "is damaged"),
    "overlap": (lambda: altered(overlapping), "is damaged"),
    "half precision": (lambda: altered(halved), "'first.weight' is F16"),
    "no weight": (
        lambda: altered(lambda h: h.update(odd=h.pop("first.bias"))),
        "'first.bias' .*missing",
    ),
    "other shape": (
        lambda: altered(lambda h: h["first.weight"]["shape"].reverse()),
        r"'first\.weight' is 7x7x7x1x2, but the model card's architecture requires 2x1x7x7x7",
    ),
    "no reference": (
        lambda: altered(lambda h: h.update(odd=h.pop("reference.input"))),
        "'reference.input' .*missing",
    ),
    "odd reference": (
        lambda: altered(lambda h: h["reference.input"].update(shape=[1, 1, 31, 32, 32])),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    make, words = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(make())
    with pytest.raises(ModelFileError, match=words) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 400


def test_a_tensor_too_many_is_refused() -> None:
    header, body = parts(sound())
    end = len(body)
    header["spy"] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
    with pytest.raises(ModelFileError, match="'spy' is not part"):
        decode_model(assembled(header, body + bytes(4)))


def test_weights_that_are_not_finite_are_refused() -> None:
    header, body = parts(sound())
    start = header["first.weight"]["data_offsets"][0]
    body = body[:start] + np.float32(np.nan).tobytes() + body[start + 4 :]
    with pytest.raises(
        ModelFileError, match=r"'first\.weight' contains numbers that are not finite"
    ):
        decode_model(assembled(header, body))


def test_a_card_for_a_bigger_network_is_refused_before_anything_is_made() -> None:
    card = card_to_json(CARD).replace('"width":2', '"width":1024')
    data = altered(lambda header: header["__metadata__"].update(card=card))
    with pytest.raises(ModelFileError, match="but the model card's architecture requires"):
        decode_model(data)


def test_a_reference_that_would_fill_the_memory_is_refused() -> None:
    card, network, *_ = model_parts()
    endless = np.broadcast_to(np.float32(0), (1, 1, 1024, 1024, 1024))
    with pytest.raises(ModelFileError, match=r"'reference\.input' .* has at most 16777216 voxels"):
        encode_model(card, network, endless, endless)


@given(st.deferred(lambda: st.integers(0, len(sound()) - 1)), st.integers(1, 255))
@settings(max_examples=examples(150))
def test_a_changed_byte_is_refused_or_harmless(position: int, change: int) -> None:
    data = bytearray(sound())
    data[position] ^= change
    try:
        model = decode_model(bytes(data))
    except ModelFileError:
        return
    right = decode_model(sound())
    assert position < len(sound()) - len(parts(sound())[1])
    assert model.card == right.card
    for name, array in right.network.weights.items():
        assert np.array_equal(model.network.weights[name], array)


def test_an_edited_card_is_refused() -> None:
    edited = sound().replace(b'\\"axes\\":\\"RAS\\"', b'\\"axes\\":\\"LAS\\"')
    assert edited != sound()
    with pytest.raises(
        ModelFileError, match=r"The model card or the weights do not match .* SHA-256"
    ):
        decode_model(edited)


@given(st.binary(max_size=400))
@settings(max_examples=examples(100))
def test_any_bytes_are_refused(data: bytes) -> None:
    for hostile in (data, struct.pack("<Q", len(data)) + data, sound()[:1000] + data):
        with pytest.raises(ModelFileError):
            decode_model(hostile)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path, why in (tmp_path, "is not a file"), (tmp_path / "nowhere", "does not exist"):
        with pytest.raises(ModelFileError, match=f"{path} {why}"):
            load_model(path)


def test_a_file_that_is_moved_while_it_is_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, path = model_file.read_regular, tmp_path / "model"
    path.write_bytes(sound())

    def too_late(place: Path) -> bytes:
        place.unlink()
        return read(place)

    monkeypatch.setattr(model_file, "read_regular", too_late)
    with pytest.raises(ModelFileError, match=f"{path} does not exist"):
        load_model(path)


def test_a_model_file_is_known_by_its_claim(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    right, damaged, other = (tmp_path / name for name in ("a", "b", "c"))
    right.write_bytes(sound())
    damaged.write_bytes(sound()[:-5])
    save_file({"x": np.zeros(3, np.float32)}, other)
    assert [is_model_file(path) for path in (right, damaged, other)] == [True, True, False]
    assert not is_model_file(tmp_path / "nowhere")


known_parts = cache(model_parts)
Changed: TypeAlias = Callable[[ModelCard], ModelCard]


def model_of(
    changed: Changed = lambda card: card, weights: Mapping[str, FloatArray] | None = None
) -> Model:
    """A model of which some is changed."""
    card, network, *pair = known_parts()
    network = Network(network.graph, {**network.weights, **(weights or {})})
    return decode_model(encode_model(changed(card), network, *pair))


SAME: dict[str, Changed] = {
    "name": lambda card: replace(card, name="Better"),
    "contrasts": lambda card: replace(card, source="PD", input_channels=("PD",)),
    "licence": lambda card: replace(card, provenance=replace(card.provenance, licence="MIT")),
    "provenance": lambda card: replace(
        card, provenance=replace(card.provenance, notes="none", layout="x")
    ),
    "reference": lambda card: replace(
        card, reference=replace(card.reference, made_by="training code")
    ),
    "established": lambda card: replace(card, established=Established("code", "junyanz")),
    "patch": lambda card: replace(card, patch=(32, 32, 32)),
    "history": lambda card: replace(card, rewritten_from=("0" * 64,)),
}
OTHER: dict[str, Changed] = {
    "axes": lambda card: replace(card, axes="LPS"),
    "spacing": lambda card: replace(card, spacing=None),
    "intensity in": lambda card: replace(card, intensity_in=Identity()),
    "intensity out": lambda card: replace(card, intensity_out=Window(0.0, 1001.0)),
    "input range": lambda card: replace(card, input_range="0..1"),
    "output range": lambda card: replace(card, output_range="open"),
    "small volumes": lambda card: replace(card, small_volume_padding="minimum"),
}


@pytest.mark.parametrize("name", SAME)
def test_words_leave_it_as_it_is(name: str) -> None:
    model = model_of(SAME[name])
    assert model.identity == model_of().identity
    assert model.sha256 != model_of().sha256


@pytest.mark.parametrize("name", OTHER)
def test_change_of_voxels_changes_it(name: str) -> None:
    assert model_of(OTHER[name]).identity != model_of().identity


def test_one_weight_changes_it() -> None:
    name = "block0.conv0.weight"
    weight = model_of().network.weights[name] + np.float32(1e-6)
    assert model_of(weights={name: weight}).identity != model_of().identity


def test_it_is_the_same_in_every_version() -> None:
    found = model_of(
        lambda card: replace(card, provenance=replace(card.provenance, importer="another"))
    )
    assert found.identity == IDENTITY


IDENTITY = "7059e15f3e0051d5f1063f944d1f50d563f07aa8d93fa5d1df457d77b06dd0d3"
"""Identity of this very model; results of all users are made again if it changes."""
