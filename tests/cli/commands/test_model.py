"""The model commands besides import, as a user meets them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx as _onnx
import onnxruntime as _onnxruntime
import pytest
from support.lazy_modules import torch_generators as made
from support.model_folder import DATA, ModelFolder, run

from cuda_cyclegan.engine.cpu.openvino_support import has_bf16
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

onnx: Any = _onnx
onnxruntime: Any = _onnxruntime


def distance(output: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


@pytest.fixture
def bench(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path)


@pytest.mark.parametrize("command", ["import", "inspect", "verify", "export-onnx"])
@pytest.mark.parametrize("content", [b"", b"garbage" * 9, b"\xff" * 8 + b"{", b"PK\x03\x04" * 9])
def test_damaged_files_end_in_one_sentence(
    command: str, content: bytes, bench: ModelFolder
) -> None:
    file = bench.folder / "damaged file\n.pth"
    file.write_bytes(content)
    words = shlex.split(DATA) if command == "import" else []
    output = ["--output", bench.output] if command in ("import", "export-onnx") else []
    result = run(command, file, *output, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not bench.output.exists()


def test_verbose_adds_the_traceback(bench: ModelFolder) -> None:
    result = run("verify", bench.folder / "nowhere", "--verbose")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


class TestVerify:
    def test_a_sound_model_is_proved_with_its_figure(self, bench: ModelFolder) -> None:
        result = run("verify", bench.sound())
        assert result.exit_code == 0
        assert "relative error 0 (allowed 0.0001)" in result.stdout
        assert "without the training code" in result.stdout

    def test_a_model_with_one_other_weight_is_disproved(self, bench: ModelFolder) -> None:
        model = load_model(bench.sound())
        weights = dict(model.network.weights)
        weights["block0.conv0.weight"] = weights["block0.conv0.weight"].copy()
        weights["block0.conv0.weight"][0, 0, 1, 1, 1] += 1
        network = Network(model.network.graph, weights)
        pair = model.reference_input, model.reference_output
        bench.output.write_bytes(encode_model(model.card, network, *pair))
        result = run("verify", bench.output)
        assert result.exit_code == 1
        assert re.search(r"relative error 0\.\d+, but at most 0\.0001 is allowed", result.stderr)

    def test_a_flipped_bit_is_refused(self, bench: ModelFolder) -> None:
        data = bytearray(bench.sound().read_bytes())
        data[-1] ^= 1
        bench.output.write_bytes(data)
        result = run("verify", bench.output)
        assert result.exit_code == 2
        assert "SHA-256" in result.stderr


class TestInspect:
    def test_a_model_shows_its_card(self, bench: ModelFolder) -> None:
        result = run("inspect", bench.sound())
        assert result.exit_code == 0
        for words in (
            "Model T1 to CT",
            "percentile:0.5,99.5",
            "window:-1000,2000",
            "1 x 1 x 1.5 mm",
            "RAS",
            "code mfazampour",
            "latest_net_G_A.pth",
            load_model(bench.output).sha256,
        ):
            assert words in result.stdout

    def test_a_model_as_json(self, bench: ModelFolder) -> None:
        result = run("inspect", "--json", bench.sound())
        found = json.loads(result.stdout)
        assert found["kind"] == "model"
        assert found["established"] == "code mfazampour"
        assert found["sha256"] == load_model(bench.output).sha256
        assert found["card"]["intensity_out"] == {"kind": "window", "low": -1000, "high": 2000}
        assert found["reference_extents"] == [32, 32, 32]
        error = found["bf16_error"]
        assert 1e-4 < error < 0.1 if has_bf16() else error is None

    def test_a_checkpoint_shows_networks_and_questions(self, bench: ModelFolder) -> None:
        pair = [made.padded_resnet(pad="replicate").state_dict() for _ in range(2)]
        critic = made.patch_discriminator().state_dict()
        contents = {"G_AB": pair[0], "G_BA": pair[1], "D_B": critic}
        checkpoint = bench.checkpoint(contents, "1000.pth")
        result = run("inspect", checkpoint)
        assert result.exit_code == 0
        for words in ("G_AB", "G_BA", "D_B", "--direction", "AtoB | BtoA", "ganslate"):
            assert words in result.stdout
        found = json.loads(run("inspect", checkpoint, "--json").stdout)
        assert found["kind"] == "checkpoint"
        assert [network["name"] for network in found["networks"]] == ["G_AB", "G_BA", "D_B"]
        assert [question["flag"] for question in found["generator"]["undecided"]] == [
            "--direction",
            "--code",
        ]
        assert found["generator"]["fitting_codes"] == [
            "junyanz",
            "DavidSolanas",
            "lucpaul",
            "ganslate",
        ]
        assert found["generator"]["left"] == [
            {"name": "G_BA", "tensors": 20, "is_network": True},
            {"name": "D_B", "tensors": 6, "is_network": True},
        ]

    def test_a_checkpoint_without_a_generator_says_why(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.patch_discriminator().state_dict(), "net_D.pth")
        result = run("inspect", checkpoint)
        assert result.exit_code == 0
        assert "Cannot be imported: This is a plain chain of convolutions" in result.stdout
        assert "generator" in json.loads(run("inspect", checkpoint, "--json").stdout)["obstacle"]


class TestEdit:
    def test_new_labels_keep_the_hash_of_the_network(self, bench: ModelFolder) -> None:
        old, edited = load_model(bench.sound()), bench.folder / "edited.safetensors"
        words = "--name Better --licence MIT --source PD --target 'CT, bone'"
        result = run("edit", bench.output, "--output", edited, *shlex.split(words))
        assert result.exit_code == 2, "one channel has one name"
        result = run("edit", bench.output, "--output", edited, *shlex.split(words)[:-2])
        assert result.exit_code == 0, result.stderr
        new = load_model(edited)
        assert (new.card.name, new.card.source, new.card.provenance.licence) == (
            "Better",
            "PD",
            "MIT",
        )
        assert new.identity == old.identity
        assert new.sha256 != old.sha256
        assert new.card.rewritten_from == (old.sha256,)
        assert run("verify", edited).exit_code == 0

    def test_it_needs_something_to_say_and_another_file(self, bench: ModelFolder) -> None:
        model = bench.sound()
        before = model.read_bytes()
        other = bench.folder / "other.safetensors"
        result = run("edit", model, "--output", other)
        assert result.exit_code == 2
        assert "--name, --licence, --source or --target" in result.stderr
        assert run("edit", model, "--output", model, "--name", "X", "--force").exit_code == 2
        assert model.read_bytes() == before


class TestExportOnnx:
    def test_the_onnx_computes_the_reference(self, bench: ModelFolder) -> None:
        model = load_model(bench.sound())
        exported = bench.folder / "model.onnx"
        result = run("export-onnx", bench.output, "--output", exported)
        assert result.exit_code == 0
        proto = onnx.load(exported)
        onnx.checker.check_model(proto, full_check=True)
        [card, digest] = (item.value for item in proto.metadata_props)
        assert json.loads(card)["name"] == "T1 to CT"
        assert digest == model.sha256
        session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
        [output] = session.run(None, {"input": model.reference_input})
        assert distance(output, model.reference_output) < 5e-6

    def test_an_existing_file_is_kept_without_force(self, bench: ModelFolder) -> None:
        exported = bench.folder / "model.onnx"
        exported.write_text("precious")
        model = bench.sound()
        assert run("export-onnx", model, "--output", exported).exit_code == 2
        assert exported.read_text() == "precious"
        assert run("export-onnx", model, "--output", exported, "--force").exit_code == 0
        assert exported.read_bytes() != b"precious"

    def test_a_folder_that_cannot_be_made_is_reported(self, bench: ModelFolder) -> None:
        model = bench.sound()
        result = run("export-onnx", model, "--output", model / "below" / "x.onnx")
        assert result.exit_code == 2
        assert "was not written" in result.stderr


def test_the_reference_script_is_python() -> None:
    result = run("reference-script")
    assert result.exit_code == 0
    compile(result.stdout, "make_reference.py", "exec")
    assert "reference.npz" in result.stdout
