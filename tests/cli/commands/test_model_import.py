"""`model import` as a user meets it, on checkpoints that torch wrote."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.lazy_modules import torch
from support.lazy_modules import torch_generators as made
from support.model_folder import DATA, ZEROS, ModelFolder, flags, run

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.model.intensity_maps import Identity, Percentiles, Window, ZScore
from cuda_cyclegan.engine.model.model_card import Established
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.network.architectures import ResNetSpec
from cuda_cyclegan.engine.network.layers import FloatArray


def pair_of(
    module: "torch.nn.Module", extent: int = 16, evaluate: bool = True
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


@pytest.fixture
def bench(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path)


@dataclass(frozen=True)
class Training:
    """One training repository: its generator, what it saves under which name, and the answers.

    save: from the generator and that of the other direction to what torch.save gets. code: its
    name. answers: what must be said beside that. evaluate: whether its test code calls eval().
    extent: edge of a patch that it takes.
    """

    make: Callable[[], "torch.nn.Module"]
    save: Callable[["torch.nn.Module", "torch.nn.Module"], object]
    name: str
    code: str
    answers: str = ""
    evaluate: bool = True
    extent: int = 16

    def pair(self, module: "torch.nn.Module") -> tuple[FloatArray, FloatArray]:
        return pair_of(module, self.extent, evaluate=self.evaluate)

    def checkpoint(self, bench: ModelFolder, module: "torch.nn.Module") -> Path:
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
    "ganslate",
    "--direction BtoA",
)
TRAININGS = {
    "davidiommi": Training(
        lambda: made.padded_resnet(pad="replicate", norm=made.tracked_instance),
        lambda module, _: module.state_dict(),
        "latest_net_G_A.pth",
        "davidiommi",
        evaluate=False,
    ),
    "DataParallel": Training(
        lambda: made.padded_resnet(),
        lambda module, _: torch.nn.DataParallel(module).state_dict(),
        "200_net_G_B.pth",
        "DavidSolanas",
        "--block-padding reflect",
    ),
    "ganslate": GANSLATE,
    "dhaberl": Training(
        lambda: made.NamedResNet(),
        lambda module, _: {"model_state_dict": torch.nn.DataParallel(module).state_dict()},
        "netG_A2B_epoch_9.pth.tar",
        "dhaberl",
    ),
    "naga-karthik": Training(
        lambda: made.sampling_resnet(),
        lambda module, _: module.state_dict(),
        "netG_A2B_9.pth",
        "naga-karthik",
    ),
    "U-Net": Training(
        lambda: made.UNet(levels=5, width=2, skip_first=False),
        lambda module, _: module.state_dict(),
        "latest_net_G.pth",
        "neoamos",
        extent=32,
    ),
}


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(training, id=name, marks=[pytest.mark.slow] * (name == "ganslate"))
        for name, training in TRAININGS.items()
    ],
)
class TestImportInTheWild:
    def test_the_model_computes_what_torch_does(
        self, bench: ModelFolder, training: Training
    ) -> None:
        module = made.trained(training.make())
        options = f"--code {training.code} {training.answers}"
        result = bench.import_(training.checkpoint(bench, module), options)
        assert result.exit_code == 0, result.stderr
        patch, expected = training.pair(module)
        assert distance(computed(load_model(bench.output), patch), expected) < 1e-4

    def test_without_answers_it_demands_exactly_those(
        self, bench: ModelFolder, training: Training
    ) -> None:
        checkpoint = training.checkpoint(bench, training.make())
        result = bench.import_(checkpoint)
        needed = flags(training.answers)
        of_the_code = {"--block-padding"}  # which only some codes leave open
        assert flags(result.stderr) == needed - of_the_code | {"--code"}
        assert result.exit_code == 2
        assert training.code in result.stdout
        result = bench.import_(checkpoint, f"--code {training.code}")
        assert flags(result.stderr) == needed
        assert result.exit_code == (2 if needed else 0)
        assert bench.output.exists() == (not needed)

    def test_a_reference_answers_instead(self, bench: ModelFolder, training: Training) -> None:
        module = made.trained(training.make())
        checkpoint = training.checkpoint(bench, module)
        patch, expected = training.pair(module)
        reference = bench.folder / "reference.npz"
        np.savez(reference, input=patch, output=expected)
        result = bench.import_(checkpoint, f"--reference '{reference}'")
        assert result.exit_code == 0, result.stderr
        assert "matches the training code" in result.stdout
        model = load_model(bench.output)
        assert model.card.reference.made_by == "training code"
        assert model.card.established == Established("reference")
        assert np.array_equal(model.reference_output, expected)
        assert distance(computed(model, patch), expected) < 1e-4
        assert run("verify", bench.output).exit_code == 0


class TestImport:
    def test_the_card_says_what_was_said(self, bench: ModelFolder) -> None:
        state = made.padded_resnet(pad="replicate").state_dict()
        checkpoint = bench.checkpoint(state)
        options = "--unproven --padding replicate --small-volume-padding reflect --name 'My model'"
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
        assert card.established == Established("unproven")
        assert "Unproven: the model and all its results are marked as such" in result.stdout
        assert card.provenance.source == "latest_net_G_A.pth"
        assert card.provenance.licence == "CC-BY-4.0"
        assert "padding: replicate (set with setting padding)" in card.provenance.notes
        assert "last activation: tanh (assumed)" in card.provenance.notes

    def test_native_spacing_and_identity_maps(self, bench: ModelFolder) -> None:
        data = (
            "--source T1 --target T2 --intensity-in identity --intensity-out identity "
            "--axes lps --spacing native --patch 16,16,8"
        )
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
        assert bench.import_(checkpoint, ZEROS, data).exit_code == 0
        card = load_model(bench.output).card
        assert (card.name, card.axes, card.spacing) == ("T1 to T2", "LPS", None)
        assert card.intensity_in == card.intensity_out == Identity()

    def test_every_channel_has_a_name(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet(2, 1).state_dict())
        code = "--code junyanz --block-padding reflect"
        result = bench.import_(checkpoint, code)
        assert result.exit_code == 2
        assert "--source must name 2 of the network's channels" in result.stderr
        data = DATA.replace("--source T1", "--source 'T1, FLAIR'")
        assert bench.import_(checkpoint, code, data).exit_code == 0
        assert load_model(bench.output).card.input_channels == ("T1", "FLAIR")

    def test_each_channel_may_have_a_map_of_its_own(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet(2, 1).state_dict())
        code = "--code junyanz --block-padding reflect"
        data = DATA.replace("--source T1", "--source T1,FLAIR")
        own = f"{code} --intensity-in zscore"
        assert bench.import_(checkpoint, own, data).exit_code == 0
        card = load_model(bench.output).card
        assert card.intensity_in == (Percentiles(0.5, 99.5), ZScore())
        shown = run("inspect", bench.output).stdout
        assert "percentile:0.5,99.5; zscore:1" in shown
        result = bench.import_(checkpoint, f"{own} --intensity-in minmax --force", data)
        assert result.exit_code == 2
        assert "once for each of the network's 2 channels, not 3 times" in (
            " ".join(result.stderr.split())
        )

    def test_alone_it_lists_what_it_knows_and_writes_nothing(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet().state_dict())
        before = bench.files()
        result = bench.import_(checkpoint, data="")
        assert result.exit_code == 2
        reported, assumed, asked = (
            result.stdout.index(title) for title in ("\nKnown", "\nAssumed", "\nYou must set")
        )
        assert reported < result.stdout.index("number of residual blocks") < assumed < asked
        assert asked < result.stdout.index("junyanz | DavidSolanas")
        needed = flags(DATA) | {"--code"}
        assert flags(result.stderr) == needed
        assert flags(result.stdout[asked:]) == needed | {"--reference", "--unproven"}
        assert bench.files() == before

    def test_without_a_known_code_it_asks_for_a_reference(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.padded_resnet(samplings=3).state_dict())
        result = bench.import_(checkpoint)
        assert result.exit_code == 2
        assert flags(result.stderr) == {"--reference"}
        assert "no supported training code" in " ".join(result.stdout.split())

    def test_the_card_names_the_code(self, bench: ModelFolder) -> None:
        card = load_model(bench.sound()).card
        assert card.established == Established("code", "mfazampour")
        assert "padding: zero (as computed by models/networks3d.py" in card.provenance.notes

    def test_equal_imports_make_equal_files(self, bench: ModelFolder) -> None:
        first = bench.sound().read_bytes()
        bench.output.unlink()
        assert bench.sound().read_bytes() == first

    def test_an_existing_output_is_kept_without_force(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
        bench.output.write_text("precious")
        result = bench.import_(checkpoint, ZEROS)
        assert result.exit_code == 2
        assert "already exists" in result.stderr
        assert bench.output.read_text() == "precious"
        assert bench.import_(checkpoint, f"--force {ZEROS}").exit_code == 0
        assert load_model(bench.output).card.name == "T1 to CT"

    def test_a_checkpoint_is_never_overwritten(self, bench: ModelFolder) -> None:
        checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict(), "model.safetensors")
        before = checkpoint.read_bytes()
        result = bench.import_(checkpoint, "--force")
        assert result.exit_code == 2
        assert checkpoint.read_bytes() == before

    @pytest.mark.slow
    def test_a_wrong_answer_does_not_pass_a_reference(self, bench: ModelFolder) -> None:
        module = made.trained(made.padded_resnet(pad="replicate"))
        patch, output = pair_of(module)
        reference = bench.folder / "reference.npz"
        np.savez(reference, input=patch, output=output)
        checkpoint = bench.checkpoint(module.state_dict())
        result = bench.import_(checkpoint, f"--padding reflect --reference '{reference}'")
        assert result.exit_code == 2
        assert (
            "The reference contradicts --padding reflect: it was computed with --padding replicate."
            in result.stderr
        )
        assert not bench.output.exists()

    @pytest.mark.slow
    def test_a_reference_of_another_checkpoint_is_refused_with_its_distance(
        self, bench: ModelFolder
    ) -> None:
        reference = bench.folder / "reference.npz"
        patch, output = pair_of(made.padded_resnet())
        np.savez(reference, input=patch, output=output)
        checkpoint = bench.checkpoint(made.trained(made.padded_resnet()).state_dict())
        result = bench.import_(checkpoint, f"--reference '{reference}'")
        assert result.exit_code == 2
        assert re.search(r"the closest \(.*\) is \d.* away", result.stderr)
        assert not bench.output.exists()


REFUSED: dict[str, tuple[str, str]] = {
    "odd map": ("--intensity-in histogram", "'histogram' is not window:LOW,HIGH"),
    "window upside down": ("--intensity-in window:5,1", "LOW must be below HIGH"),
    "window of one": ("--intensity-in window:5", "LOW must be below HIGH"),
    "window of nan": ("--intensity-out window:nan,5", "LOW must be below HIGH"),
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
    "name with a line break": (f"{ZEROS} --name 'a\nb'", "'name' must not contain control"),
    "question that does not arise": ("--concat skip-first", "--concat does not apply"),
    "unknown answer": ("--padding mirror", "--padding must be reflect, replicate, zero or"),
    "unknown code": ("--code pix2pix", "--code must be one of junyanz,"),
    "another code": ("--code junyanz", "--code junyanz contradicts the file, which has no outer"),
    "what no code does": (f"{ZEROS} --end none", "--end none contradicts --code mfazampour"),
    "epsilon": ("--epsilon 0", "--epsilon"),
    "the other direction": ("--direction BtoA", "contradicts the file name"),
    "unknown generator": ("--generator G_C", "--generator must be one of"),
    "no reference": ("--reference nowhere.npz", "the file does not exist"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_usage_is_refused_in_words(options: str, words: str, bench: ModelFolder) -> None:
    checkpoint = bench.checkpoint(made.unpadded_resnet().state_dict())
    result = bench.import_(checkpoint, options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not bench.output.exists()


def test_a_pickled_module_is_refused_with_advice(bench: ModelFolder) -> None:
    result = bench.import_(bench.checkpoint(made.unpadded_resnet(), "whole.pt"))
    assert result.exit_code == 2
    assert "contains a pickled object" in result.stderr
    assert "torch.save(model.state_dict()" in result.stderr
