"""`model import` of ONNX networks as a user meets it, and the models that it makes."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from support.onnx_files import model, node, tiny, written
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.model.model_card import Established
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.engine.network.layers import FloatArray

DATA = (
    "--source T1 --target CT --intensity-in identity --intensity-out identity --axes RAS "
    "--spacing native --patch 16,16,16"
)
FLOAT = np.float32


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


class Bench:
    """A folder with an ONNX file, and what is made of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "m.safetensors"

    def import_(self, proto: Any, options: str = "", data: str = DATA) -> Result:
        path = written(proto, self.folder / "net.onnx")
        words = shlex.split(f"{data} {options}")
        return run("model", "import", path, "--output", self.output, "--force", *words)

    def imported(self, proto: Any, options: str = "", data: str = DATA) -> Model:
        result = self.import_(proto, options, data)
        assert result.exit_code == 0, result.stderr
        return load_model(self.output)

    def translated(self, voxels: FloatArray, options: str = "") -> FloatArray:
        """A scan through the model on the CPU."""
        scan, results = self.folder / "scan.nii", self.folder / "results"
        nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(scan)
        words = ["--model", self.output, "--output", results, "--device", "cpu"]
        result = run("translate", scan, *words, "--overwrite", *shlex.split(options))
        assert result.exit_code == 0, result.stdout + result.stderr
        [made] = results.glob("*.nii*")
        image: Any = nibabel.load(made)
        return np.asarray(image.get_fdata(), FLOAT)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def computed(found: Model, patch: FloatArray) -> FloatArray:
    with open_cpu_generator(found.network, threads=1) as generator:
        return generator(patch)


def scan() -> FloatArray:
    return np.random.default_rng(0).uniform(-1, 1, (16, 16, 16)).astype(FLOAT)


@pytest.mark.parametrize("fault", ["scale", "variance"])
def test_weights_that_are_no_numbers_name_file_and_layer(fault: str, bench: Bench) -> None:
    arrays = {name: np.ones(1, FLOAT) for name in ("scale", "shift", "mean", "variance")}
    arrays[fault][0] = {"scale": np.nan, "variance": -1}[fault]
    arrays["w"] = np.ones((1, 1, 1, 1, 1), FLOAT)
    norm = node("BatchNormalization", "a scale shift mean variance", "y")
    result = bench.import_(
        model([node("Conv", "x w", "a"), norm], arrays), "--input-range open --output-range open"
    )
    assert result.exit_code != 0
    text = " ".join(result.stderr.split())
    assert re.search(r"net.onnx: Layer 1\.\w+\.\w+ .* use an earlier checkpoint", text)
    assert not bench.output.exists()


def test_a_network_without_finite_results_is_refused_with_its_file(bench: Bench) -> None:
    powers = [node("Exp", *ends) for ends in ("xa", "ab", "bc", "cy")]
    result = bench.import_(model(powers), "--input-range open --output-range open")
    assert result.exit_code != 0
    text = " ".join(result.stderr.split())
    assert "net.onnx: The network computes numbers that are not finite" in text
    assert not bench.output.exists()


def test_from_pytorch_to_a_translated_scan(bench: Bench) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("monai")
    from support.onnx_networks import exported
    from support.torch_generators import padded_resnet, trained

    module = trained(padded_resnet()).eval()
    path = exported(module, bench.folder / "net.onnx", "opset 17", 16)
    result = run("model", "import", path, "--output", bench.output, *DATA.split())
    assert result.exit_code == 0, result.stderr
    voxels = scan()
    with torch.no_grad():
        expected = module(torch.from_numpy(voxels)[None, None]).numpy()[0, 0]
    found = bench.translated(voxels)
    assert np.abs(found - expected).max() < 1e-5
    assert run("model", "verify", bench.output).exit_code == 0


def test_nothing_is_asked_about_the_network(bench: Bench) -> None:
    result = bench.import_(tiny(), data="")
    assert result.exit_code == 2
    assert not bench.output.exists()
    assert result.stderr.strip().endswith(
        "--source, --target, --intensity-in, --intensity-out, --axes, --spacing, --patch."
    )
    found = bench.imported(tiny())
    assert found.card.established == Established("graph")
    assert found.card.output_range == "-1..1"


@pytest.mark.parametrize(
    "option", ["--padding zero", "--code junyanz", "--unproven", "--end tanh", "--direction AtoB"]
)
def test_options_of_the_network_have_no_meaning(bench: Bench, option: str) -> None:
    result = bench.import_(tiny(), option)
    assert result.exit_code == 2
    flag = option.split()[0]
    assert f"{flag} does not apply to this generator" in result.stderr
    assert not bench.output.exists()


def test_a_missing_operator_is_named_and_nothing_is_written(bench: Bench) -> None:
    proto = tiny()
    proto.graph.node[2].op_type = "Softsign"
    proto.graph.node[2].name = "/model/act"
    proto.graph.node[2].ClearField("attribute")
    result = bench.import_(proto)
    assert result.exit_code == 2
    assert (
        "Operator Softsign (node '/model/act') is not supported; supported operators:"
        in result.stderr
    )
    assert not bench.output.exists()


def test_all_missing_operators_are_named_at_once(bench: Bench) -> None:
    proto = tiny()
    for at, kind in ((2, "Softsign"), (3, "Einsum")):
        proto.graph.node[at].op_type = kind
        proto.graph.node[at].ClearField("attribute")
    result = bench.import_(proto)
    assert result.exit_code == 2
    assert result.stderr.endswith(
        " is not supported; also not supported: Einsum; supported operators: docs/onnx.md.\n"
    )


def test_a_file_of_one_patch_answers_for_it_and_takes_no_other(bench: Bench) -> None:
    proto = tiny()
    for axis, extent in enumerate((1, 1, 16, 16, 16)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = extent
    without = DATA.replace(" --patch 16,16,16", "")
    result = bench.import_(proto, data=without)
    assert result.exit_code == 0, result.stderr
    assert "exactly 16x16x16" in result.stdout
    assert load_model(bench.output).card.patch == (16, 16, 16)
    result = bench.import_(proto, data=f"{without} --patch 32,32,32")
    assert result.exit_code == 2
    assert "exported for patches of 16x16x16" in result.stderr
    bench.imported(proto, data=without)
    larger = np.random.default_rng(1).normal(size=(20, 18, 16)).astype(FLOAT)
    assert bench.translated(larger).shape == larger.shape


def test_a_proof_says_what_it_covers_and_what_it_cannot_show(bench: Bench) -> None:
    patch, expected = reference_of(bench.imported(tiny()))
    result = bench.import_(tiny(), f"--reference '{written_pair(bench, patch, expected)}'")
    shown = " ".join(result.stdout.split())
    assert "Proved: weights, graph and arithmetic" in shown
    assert "Not covered by the proof: axes, names of channels, units, grid and tiling" in shown


@pytest.mark.parametrize(
    ("scale", "onto", "outcome"),
    [
        (1.0, "-1..1", "silent"),
        (1.0, "open", "silent"),
        (1.0, "0..1", "note"),
        (3.0, "-1..1", "note"),
        (1000.0, "-1..1", "refused"),
        (1000.0, "open", "silent"),
    ],
)
def test_a_reference_of_another_range_than_the_scans_is_noted_or_refused(
    scale: float, onto: str, outcome: str, bench: Bench
) -> None:
    patch, expected = reference_of(bench.imported(tiny()), scale)
    pair = written_pair(bench, patch, expected)
    result = bench.import_(tiny(), f"--reference '{pair}' --input-range={onto}")
    shown = " ".join((result.stdout + result.stderr).split())
    assert result.exit_code == (2 if outcome == "refused" else 0), shown
    assert ("was not mapped as the scans will be" in shown) == (outcome == "refused")
    assert ("outside the range" in shown) == (outcome == "note")


def reference_of(found: Model, scale: float = 1.0) -> tuple[FloatArray, FloatArray]:
    values = np.random.default_rng(0).uniform(-scale, scale, (1, 1, 8, 8, 8)).astype(FLOAT)
    return values, computed(found, values)


def written_pair(bench: Bench, patch: FloatArray, expected: FloatArray) -> Path:
    reference = bench.folder / "pair.npz"
    np.savez(reference, input=patch, output=expected)
    return reference


def test_whole_volumes_are_the_default_of_a_model_that_was_trained_on_them(bench: Bench) -> None:
    data = DATA.replace("16,16,16", "whole")
    found = bench.imported(tiny(), data=data)
    assert (found.inference, found.card.patch) == ("volume", (128, 128, 128))


def test_a_reference_proves_the_graph_or_refuses_it(bench: Bench) -> None:
    patch = scan()[None, None]
    expected = computed(bench.imported(tiny()), patch)
    reference = bench.folder / "reference.npz"
    np.savez(reference, input=patch, output=expected)
    found = bench.imported(tiny(), f"--reference '{reference}'")
    assert found.card.reference.made_by == "training code"
    assert run("model", "verify", bench.output).exit_code == 0
    assert "graph, proved by a reference" in run("model", "inspect", bench.output).stdout
    np.savez(reference, input=patch, output=expected + FLOAT(0.01))
    bench.output.unlink()
    result = bench.import_(tiny(), f"--reference '{reference}'")
    assert result.exit_code == 2
    assert "The graph does not compute the reference" in result.stderr
    assert not bench.output.exists()


def test_exported_and_imported_again_it_is_the_same(bench: Bench) -> None:
    first = bench.imported(tiny())
    again = bench.folder / "again.onnx"
    assert run("model", "export-onnx", bench.output, "--output", again).exit_code == 0
    words = ["model", "import", again, "--output", bench.output, "--force", *DATA.split()]
    assert run(*words).exit_code == 0
    second = load_model(bench.output)
    assert second.network.graph == first.network.graph
    assert second.identity == first.identity
    for name, weight in first.network.weights.items():
        assert np.array_equal(second.network.weights[name], weight)
    patch = scan()[None, None]
    assert np.array_equal(computed(first, patch), computed(second, patch))


def test_a_generator_of_the_family_comes_back_with_its_weights(tmp_path: Path) -> None:
    from support.model_cards import model_bytes

    source, exported = tmp_path / "a.safetensors", tmp_path / "a.onnx"
    source.write_bytes(model_bytes())
    assert run("model", "export-onnx", source, "--output", exported).exit_code == 0
    output = tmp_path / "b.safetensors"
    result = run("model", "import", exported, "--output", output, *DATA.split())
    assert result.exit_code == 0, result.stderr
    before, after = load_model(source).network, load_model(output).network
    weights = zip(before.graph.weight_shapes(), after.graph.weight_shapes(), strict=True)
    for (name, _), (again, _) in weights:
        assert np.array_equal(before.weights[name], after.weights[again])


def test_inspect_shows_what_the_network_is(bench: Bench) -> None:
    bench.imported(tiny())
    reported = run("model", "inspect", bench.output).stdout
    for words in (
        "layer graph",
        "conv x 2",
        "5 x 5 x 5 voxels, and the whole patch through its norms",
    ):
        assert words in reported
    found = json.loads(run("model", "inspect", bench.output, "--json").stdout)
    assert found["established"] == "graph"
    assert found["network"]["parameters"] == 2 * 4 * 27 + 4 + 1 + 8
    assert found["network"]["flops"] == 2 * 2 * 4 * 27 * 16**3
    reported = run("model", "inspect", bench.folder / "net.onnx").stdout
    assert "Conv x 2" in reported
    assert (
        json.loads(run("model", "inspect", bench.folder / "net.onnx", "--json").stdout)["kind"]
        == "network"
    )


def half_more(end: str = "") -> Any:
    """A network that adds a half, and a sigmoid behind it if so named."""
    arrays = {"w": np.ones((1, 1, 1, 1, 1), FLOAT), "b": np.full(1, 0.5, FLOAT)}
    last = [node(end, "a", "y")] if end else []
    return model([node("Conv", "x w b", "a" if end else "y"), *last], arrays)


RANGED = DATA.replace("identity", "window:0,100")


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ("--input-range -1..1 --output-range -1..1", lambda x: np.clip(x, 0, 100) + 25),
        ("--input-range 0..1 --output-range 0..1", lambda x: np.clip(x, 0, 100) + 50),
        ("--input-range open --output-range open", lambda x: x + 25),
        ("--input-range 0..1 --output-range -1..1", lambda x: np.clip(x, 0, 100) / 2 + 75),
    ],
)
def test_intensities_go_by_the_networks_own_range(bench: Bench, ranges: str, expected: Any) -> None:
    found = bench.imported(half_more(), ranges, RANGED)
    reported = shlex.split(ranges)[1::2]
    assert [found.card.input_range, found.card.output_range] == reported
    voxels = np.linspace(-20, 120, 16**3, dtype=FLOAT).reshape(16, 16, 16)
    assert np.abs(bench.translated(voxels) - expected(voxels)).max() < 1e-3


def test_a_whole_number_scan_goes_by_it_too(bench: Bench) -> None:
    bench.imported(half_more(), "--input-range 0..1 --output-range open", RANGED)
    voxels = np.arange(16**3, dtype=np.int16).reshape(16, 16, 16) % 160
    found = bench.translated(voxels)
    expected = np.clip(voxels / 100, 0, 1) + 0.5
    assert np.abs(found - (expected * 50 + 50)).max() <= 0.51


@pytest.mark.parametrize(
    ("end", "ranges"),
    [("Tanh", ("-1..1", "-1..1")), ("", ("open", "open"))],
)
def test_the_last_layer_shows_the_range(bench: Bench, end: str, ranges: tuple[str, str]) -> None:
    card = bench.imported(half_more(end)).card
    assert (card.input_range, card.output_range) == ranges


@pytest.mark.parametrize("end", ["", "Relu"])
def test_a_network_without_ends_does_not_show_its_ranges(bench: Bench, end: str) -> None:
    result = bench.import_(half_more(end), data=RANGED)
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("listed above: --input-range, --output-range.")
    assert not bench.output.exists()


def test_tanh_brought_to_another_range_is_shown(bench: Bench) -> None:
    nodes = [node("Conv", "x w b", "a"), node("Tanh", "a", "t"), node("Add", "t one", "p")]
    arrays = {"w": np.ones((1, 1, 1, 1, 1), FLOAT), "b": np.zeros(1, FLOAT), "one": FLOAT(1)}
    proto = model([*nodes, node("Div", "p two", "y")], arrays | {"two": FLOAT(2)})
    assert bench.import_(proto, data=RANGED).stderr.strip().endswith("above: --input-range.")
    assert bench.imported(proto, "--input-range 0..1", RANGED).card.output_range == "0..1"


@pytest.mark.parametrize(
    ("entering", "leaving", "flag"),
    [
        ("zscore", "window:0,100", "--input-range"),
        ("window:0,100", "zscore:2", "--output-range"),
    ],
)
def test_a_z_score_is_not_brought_onto_a_range(
    bench: Bench, entering: str, leaving: str, flag: str
) -> None:
    data = DATA.replace("--intensity-in identity", f"--intensity-in {entering}")
    data = data.replace("--intensity-out identity", f"--intensity-out {leaving}")
    result = bench.import_(half_more("Sigmoid"), "--input-range 0..1", data)
    assert result.exit_code == 2
    assert flag in result.stderr
    assert "z-score, which has no ends" in " ".join(result.stderr.split())
    assert not bench.output.exists()


@pytest.mark.parametrize("takes", ["-1..1", "0..1"])
def test_a_sigmoid_shows_what_comes_out_and_not_what_goes_in(bench: Bench, takes: str) -> None:
    card = bench.imported(half_more("Sigmoid"), f"--input-range {takes}").card
    assert (card.input_range, card.output_range) == (takes, "0..1")


def test_a_range_changes_the_identity_and_the_usual_one_is_not_written(bench: Bench) -> None:
    usual = bench.imported(half_more("Tanh"))
    assert b"input_range" not in bench.output.read_bytes()
    other = bench.imported(half_more("Tanh"), "--input-range 0..1")
    assert b"input_range" in bench.output.read_bytes()
    assert usual.identity != other.identity


def test_a_checkpoint_says_its_range_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from support import torch_generators as made
    from support.model_folder import ModelFolder

    folder = ModelFolder(tmp_path)
    checkpoint = folder.checkpoint(made.trained(made.unpadded_resnet()).state_dict())
    result = folder.import_(checkpoint, "--unproven --end sigmoid")
    assert result.exit_code == 2
    assert "--input-range" in result.stderr
    assert not folder.output.exists()
    result = folder.import_(checkpoint, "--unproven --end sigmoid --input-range 0..1")
    assert result.exit_code == 0, result.stderr
    card = load_model(folder.output).card
    assert (card.input_range, card.output_range) == ("0..1", "0..1")
