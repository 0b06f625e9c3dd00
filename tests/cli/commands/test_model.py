"""The model commands as a user meets them, on checkpoints that torch wrote."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx as _onnx
import onnxruntime as _onnxruntime
import pytest
from typer.testing import CliRunner, Result

torch = pytest.importorskip("torch")
from support import torch_generators as made  # noqa: E402

from cuda_cyclegan.cli.app import app  # noqa: E402
from cuda_cyclegan.engine.model.card import Identity, Percentiles, Window  # noqa: E402
from cuda_cyclegan.engine.model.model import Model, encode_model, load_model  # noqa: E402
from cuda_cyclegan.engine.network.architectures import ResNetSpec  # noqa: E402
from cuda_cyclegan.engine.network.graph import FloatArray, Network  # noqa: E402
from cuda_cyclegan.engine.onnxruntime.session import open_cpu_generator  # noqa: E402

onnx: Any = _onnx
onnxruntime: Any = _onnxruntime

DATA = (
    "--source T1 --target CT --intensity-in percentile:0.5,99.5 --intensity-out window:-1000,2000 "
    "--axes RAS --spacing 1,1,1.5 --patch 32,32,32"
)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["model", *map(str, words)])


def pair_of(
    module: "torch.nn.Module", extent: int = 32, evaluate: bool = True
) -> tuple[FloatArray, FloatArray]:
    """A patch with structure, and what the training code makes of it."""
    seed = torch.Generator().manual_seed(3)
    coarse = torch.rand(1, 1, 4, 4, 4, generator=seed) * 2 - 1
    patch = torch.nn.functional.interpolate(coarse, size=(extent,) * 3, mode="trilinear")
    patch += torch.rand(patch.shape, generator=seed) * 0.2
    with torch.no_grad():
        return patch.numpy(), module.train(not evaluate)(patch).numpy()


def computed(model: Model, patch: FloatArray) -> FloatArray:
    with open_cpu_generator(model.network) as generator:
        return generator(patch)


def distance(output: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


def flags(text: str) -> set[str]:
    """Options named in a text."""
    return set(re.findall(r"--[a-z-]+", text))


class Bench:
    """A folder with checkpoints, and the commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "model.safetensors"

    def checkpoint(self, content: object, name: str = "latest_net_G_A.pth") -> Path:
        path = self.folder / name
        torch.save(content, path)
        return path

    def import_(self, checkpoint: Path, options: str = "", data: str = DATA) -> Result:
        words = shlex.split(f"{data} {options}")
        return run("import", checkpoint, "--output", self.output, *words)

    def sound(self) -> Path:
        """A model file made from a checkpoint that leaves nothing open."""
        module = made.trained(made.unpadded_resnet())
        result = self.import_(self.checkpoint(module.state_dict()))
        assert result.exit_code == 0, result.stderr
        return self.output

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@dataclass(frozen=True)
class Training:
    """One training repository: its generator, what it saves under which name, and the answers.

    save: from the generator and that of the other direction to what torch.save gets.
    evaluate: whether its test code calls eval().
    """

    make: Callable[[], "torch.nn.Module"]
    save: Callable[["torch.nn.Module", "torch.nn.Module"], object]
    name: str
    answers: str = ""
    evaluate: bool = True

    def pair(self, module: "torch.nn.Module") -> tuple[FloatArray, FloatArray]:
        return pair_of(module, evaluate=self.evaluate)

    def checkpoint(self, bench: Bench, module: "torch.nn.Module") -> Path:
        return bench.checkpoint(self.save(module, self.make()), self.name)


GANSLATE = Training(
    lambda: made.padded_resnet(pad="replicate", up_bias=True),
    lambda module, other: {
        "G_AB": other.state_dict(),
        "G_BA": module.state_dict(),
        "D_B": made.patch_discriminator().state_dict(),
        "optimizer_G": torch.optim.Adam(module.parameters()).state_dict(),
    },
    "1000.pth",
    "--direction BtoA --padding replicate",
)
TRAININGS = {
    "davidiommi": Training(
        lambda: made.padded_resnet(pad="replicate", norm=made.tracked_instance),
        lambda module, _: module.state_dict(),
        "latest_net_G_A.pth",
        "--padding replicate --norm-statistics patch",
        evaluate=False,
    ),
    "DataParallel": Training(
        made.padded_resnet,
        lambda module, _: torch.nn.DataParallel(module).state_dict(),
        "200_net_G_B.pth",
        "--padding reflect",
    ),
    "ganslate": GANSLATE,
    "dhaberl": Training(
        made.NamedResNet,
        lambda module, _: {"model_state_dict": torch.nn.DataParallel(module).state_dict()},
        "netG_A2B_epoch_9.pth.tar",
    ),
    "naga-karthik": Training(
        lambda: made.sampling_resnet(mode="trilinear", align_corners=False),
        lambda module, _: module.state_dict(),
        "netG_A2B_9.pth",
        "--padding replicate --upsampling trilinear",
    ),
    "U-Net": Training(
        lambda: made.UNet(levels=4, skip_first=False),
        lambda module, _: module.state_dict(),
        "latest_net_G.pth",
        "--concat deeper-first",
    ),
}


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
class TestImportInTheWild:
    def test_the_model_computes_what_torch_does(self, bench: Bench, training: Training) -> None:
        module = made.trained(training.make())
        result = bench.import_(training.checkpoint(bench, module), training.answers)
        assert result.exit_code == 0, result.stderr
        patch, expected = training.pair(module)
        assert distance(computed(load_model(bench.output), patch), expected) < 1e-4

    def test_without_answers_it_demands_exactly_those(
        self, bench: Bench, training: Training
    ) -> None:
        result = bench.import_(training.checkpoint(bench, training.make()))
        needed = flags(training.answers)
        assert flags(result.stderr) == needed
        assert result.exit_code == (2 if needed else 0)
        assert bench.output.exists() == (not needed)

    def test_a_reference_answers_instead(self, bench: Bench, training: Training) -> None:
        module = made.trained(training.make())
        checkpoint = training.checkpoint(bench, module)
        patch, expected = training.pair(module)
        reference = bench.folder / "reference.npz"
        np.savez(reference, input=patch, output=expected)
        result = bench.import_(checkpoint, f"--reference {reference}")
        assert result.exit_code == 0, result.stderr
        assert "computes what the training code computed" in result.stdout
        model = load_model(bench.output)
        assert model.card.reference.made_by == "training code"
        assert np.array_equal(model.reference_output, expected)
        assert distance(computed(model, patch), expected) < 1e-4
        assert run("verify", bench.output).exit_code == 0


class TestImport:
    def test_the_card_says_what_was_said(self, bench: Bench) -> None:
        state = made.padded_resnet(pad="replicate").state_dict()
        checkpoint = bench.checkpoint(state)
        options = "--padding replicate --small-volume-padding reflect --name 'My model'"
        result = bench.import_(checkpoint, f"{options} --licence CC-BY-4.0")
        assert result.exit_code == 0, result.stderr
        card = load_model(bench.output).card
        assert card.name == "My model"
        assert card.architecture == ResNetSpec(1, 1, 4, 2, padding="replicate")
        assert (card.source, card.target) == ("T1", "CT")
        assert (card.input_channels, card.output_channels) == (("T1",), ("CT",))
        assert (card.axes, card.spacing, card.patch) == ("RAS", (1.0, 1.0, 1.5), (32, 32, 32))
        assert card.intensity_in == Percentiles(0.5, 99.5)
        assert card.intensity_out == Window(-1000, 2000)
        assert card.small_volume_padding == "reflect"
        assert card.reference.made_by == "cuda-cyclegan"
        assert card.provenance.source == "latest_net_G_A.pth"
        assert card.provenance.licence == "CC-BY-4.0"
        assert "padding: replicate (said with setting padding)" in card.provenance.notes
        assert "last activation: tanh (assumed)" in card.provenance.notes

    def test_native_spacing_and_identity_maps(self, bench: Bench) -> None:
        data = (
            "--source T1 --target T2 --intensity-in identity --intensity-out identity "
            "--axes lps --spacing native --patch 16,16,8"
        )
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
        assert bench.import_(checkpoint, data=data).exit_code == 0
        card = load_model(bench.output).card
        assert (card.name, card.axes, card.spacing) == ("T1 to T2", "LPS", None)
        assert card.intensity_in == card.intensity_out == Identity()

    def test_every_channel_has_a_name(self, bench: Bench) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet(2, 1).state_dict())
        result = bench.import_(checkpoint, "--padding reflect")
        assert result.exit_code == 2
        assert "--source must name 2 of the network's channels" in result.stderr
        data = DATA.replace("--source T1", "--source 'T1, FLAIR'")
        assert bench.import_(checkpoint, "--padding reflect", data).exit_code == 0
        assert load_model(bench.output).card.input_channels == ("T1", "FLAIR")

    def test_alone_it_lists_the_three_parts_and_writes_nothing(self, bench: Bench) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet().state_dict())
        before = bench.files()
        result = bench.import_(checkpoint, data="")
        assert result.exit_code == 2
        told, assumed, asked = (
            result.stdout.index(title) for title in ("\nTold", "\nAssumed", "\nTo be answered")
        )
        assert told < result.stdout.index("number of residual blocks") < assumed
        assert assumed < result.stdout.index("last activation") < asked
        assert asked < result.stdout.index("reflect | replicate")
        needed = flags(DATA) | {"--padding"}
        assert flags(result.stdout[asked:]) == flags(result.stderr) == needed
        assert bench.files() == before

    def test_equal_imports_make_equal_files(self, bench: Bench) -> None:
        first = bench.sound().read_bytes()
        bench.output.unlink()
        assert bench.sound().read_bytes() == first

    def test_an_existing_output_is_kept_without_force(self, bench: Bench) -> None:
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
        bench.output.write_text("precious")
        result = bench.import_(checkpoint)
        assert result.exit_code == 2
        assert "is there already" in result.stderr
        assert bench.output.read_text() == "precious"
        assert bench.import_(checkpoint, "--force").exit_code == 0
        assert load_model(bench.output).card.name == "T1 to CT"

    def test_a_checkpoint_is_never_overwritten(self, bench: Bench) -> None:
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict(), "model.safetensors")
        before = checkpoint.read_bytes()
        result = bench.import_(checkpoint, "--force")
        assert result.exit_code == 2
        assert checkpoint.read_bytes() == before

    def test_a_wrong_answer_does_not_pass_a_reference(self, bench: Bench) -> None:
        module = made.trained(made.padded_resnet(pad="replicate"))
        patch, output = pair_of(module)
        reference = bench.folder / "reference.npz"
        np.savez(reference, input=patch, output=output)
        checkpoint = bench.checkpoint(module.state_dict())
        result = bench.import_(checkpoint, f"--padding reflect --reference {reference}")
        assert result.exit_code == 2
        assert (
            "The reference contradicts --padding reflect: it was computed with --padding replicate."
            in result.stderr
        )
        assert not bench.output.exists()

    def test_a_reference_of_another_checkpoint_is_refused_with_its_distance(
        self, bench: Bench
    ) -> None:
        reference = bench.folder / "reference.npz"
        patch, output = pair_of(made.padded_resnet())
        np.savez(reference, input=patch, output=output)
        checkpoint = bench.checkpoint(made.trained(made.padded_resnet()).state_dict())
        result = bench.import_(checkpoint, f"--reference {reference}")
        assert result.exit_code == 2
        assert re.search(r"the closest is \d.* away", result.stderr)
        assert not bench.output.exists()


REFUSED: dict[str, tuple[str, str]] = {
    "odd map": ("--intensity-in histogram", "'histogram' is not window:LOW,HIGH"),
    "window upside down": ("--intensity-in window:5,1", "LOW below HIGH"),
    "window of one": ("--intensity-in window:5", "LOW below HIGH"),
    "window of nan": ("--intensity-out window:nan,5", "LOW below HIGH"),
    "percentile": ("--intensity-in percentile:1,101", "from 0 to 100"),
    "spread": ("--intensity-in zscore:0", "SPREAD above zero"),
    "surplus": ("--intensity-in minmax:0,1", "is not window:LOW,HIGH"),
    "axes": ("--axes RAR", "such as RAS"),
    "spacing": ("--spacing 1,1", "in mm"),
    "negative spacing": ("--spacing 1,1,-1", "in mm"),
    "endless spacing": ("--spacing 1,1,inf", "in mm"),
    "patch": ("--patch 32", "three extents"),
    "patch and network": ("--patch 30,30,30", "multiple of 4x4x4"),
    "small patch": ("--patch 32,32,0", "three extents"),
    "names": ("--source 'T1,,T2'", "each channel once"),
    "name with a line break": ("--name 'a\nb'", "'name' must not hold control"),
    "question that does not arise": ("--concat skip-first", "--concat has no meaning"),
    "unknown answer": ("--padding mirror", "reflect"),
    "the other direction": ("--direction BtoA", "contradicts the file name"),
    "unknown generator": ("--generator G_C", "--generator must be one of"),
    "no reference": ("--reference nowhere.npz", "no such file"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_usage_is_refused_in_words(options: str, words: str, bench: Bench) -> None:
    checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
    result = bench.import_(checkpoint, options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not bench.output.exists()


def test_a_pickled_module_is_refused_with_advice(bench: Bench) -> None:
    result = bench.import_(bench.checkpoint(made.unpadded_resnet(), "whole.pt"))
    assert result.exit_code == 2
    assert "whole pickled object" in result.stderr
    assert "torch.save(model.state_dict()" in result.stderr


@pytest.mark.parametrize("command", ["import", "inspect", "verify", "export-onnx"])
@pytest.mark.parametrize("content", [b"", b"garbage" * 9, b"\xff" * 8 + b"{", b"PK\x03\x04" * 9])
def test_damaged_files_end_in_one_sentence(command: str, content: bytes, bench: Bench) -> None:
    file = bench.folder / "damaged file\n.pth"
    file.write_bytes(content)
    words = shlex.split(DATA) if command == "import" else []
    output = ["--output", bench.output] if command in ("import", "export-onnx") else []
    result = run(command, file, *output, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not bench.output.exists()


def test_verbose_adds_the_traceback(bench: Bench) -> None:
    result = run("verify", bench.folder / "nowhere", "--verbose")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


class TestVerify:
    def test_a_sound_model_is_proved_with_its_figure(self, bench: Bench) -> None:
        result = run("verify", bench.sound())
        assert result.exit_code == 0
        assert "relative error 0 (allowed 0.0001)" in result.stdout
        assert "without the training code" in result.stdout

    def test_a_model_with_one_other_weight_is_disproved(self, bench: Bench) -> None:
        model = load_model(bench.sound())
        weights = dict(model.network.weights)
        weights["block0.conv0.weight"] = weights["block0.conv0.weight"].copy()
        weights["block0.conv0.weight"][0, 0, 1, 1, 1] += 1
        network = Network(model.network.graph, weights)
        pair = model.reference_input, model.reference_output
        bench.output.write_bytes(encode_model(model.card, network, *pair))
        result = run("verify", bench.output)
        assert result.exit_code == 1
        assert re.search(r"relative error 0\.\d+, where 0\.0001 is allowed", result.stderr)

    def test_a_flipped_bit_is_refused(self, bench: Bench) -> None:
        data = bytearray(bench.sound().read_bytes())
        data[-1] ^= 1
        bench.output.write_bytes(data)
        result = run("verify", bench.output)
        assert result.exit_code == 2
        assert "SHA-256" in result.stderr


class TestInspect:
    def test_a_model_shows_its_card(self, bench: Bench) -> None:
        result = run("inspect", bench.sound())
        assert result.exit_code == 0
        for words in (
            "Model T1 to CT",
            "percentile:0.5,99.5",
            "window:-1000,2000",
            "1 x 1 x 1.5 mm",
            "RAS",
            "latest_net_G_A.pth",
            load_model(bench.output).sha256,
        ):
            assert words in result.stdout

    def test_a_model_as_json(self, bench: Bench) -> None:
        result = run("inspect", "--json", bench.sound())
        found = json.loads(result.stdout)
        assert found["kind"] == "model"
        assert found["sha256"] == load_model(bench.output).sha256
        assert found["card"]["intensity_out"] == {"kind": "window", "low": -1000, "high": 2000}
        assert found["reference_extents"] == [32, 32, 32]

    def test_a_checkpoint_shows_networks_and_questions(self, bench: Bench) -> None:
        checkpoint = GANSLATE.checkpoint(bench, GANSLATE.make())
        result = run("inspect", checkpoint)
        assert result.exit_code == 0
        for words in ("G_AB", "G_BA", "D_B", "--direction", "AtoB | BtoA", "--padding"):
            assert words in result.stdout
        found = json.loads(run("inspect", checkpoint, "--json").stdout)
        assert found["kind"] == "checkpoint"
        assert [network["name"] for network in found["networks"]] == ["G_AB", "G_BA", "D_B"]
        assert [question["flag"] for question in found["generator"]["undecided"]] == [
            "--direction",
            "--padding",
        ]

    def test_a_checkpoint_without_a_generator_says_why(self, bench: Bench) -> None:
        checkpoint = bench.checkpoint(made.patch_discriminator().state_dict(), "net_D.pth")
        result = run("inspect", checkpoint)
        assert result.exit_code == 0
        assert "Cannot be imported: This is a plain chain of convolutions" in result.stdout
        assert "generator" in json.loads(run("inspect", checkpoint, "--json").stdout)["obstacle"]


class TestExportOnnx:
    def test_the_onnx_computes_the_reference(self, bench: Bench) -> None:
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
        assert distance(output, model.reference_output) < 1e-6

    def test_an_existing_file_is_kept_without_force(self, bench: Bench) -> None:
        exported = bench.folder / "model.onnx"
        exported.write_text("precious")
        model = bench.sound()
        assert run("export-onnx", model, "--output", exported).exit_code == 2
        assert exported.read_text() == "precious"
        assert run("export-onnx", model, "--output", exported, "--force").exit_code == 0
        assert exported.read_bytes() != b"precious"

    def test_a_folder_that_cannot_be_made_is_told(self, bench: Bench) -> None:
        model = bench.sound()
        result = run("export-onnx", model, "--output", model / "below" / "x.onnx")
        assert result.exit_code == 2
        assert "was not written" in result.stderr


def test_the_reference_script_is_python() -> None:
    result = run("reference-script")
    assert result.exit_code == 0
    compile(result.stdout, "make_reference.py", "exec")
    assert "reference.npz" in result.stdout
