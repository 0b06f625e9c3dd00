"""`bench` on a machine without a card: figures, files, and one sentence for what cannot be."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.commands.bench import run as bench_run
from cuda_cyclegan.cli.render.text import quantity, scaled
from cuda_cyclegan.engine.benchmark.measurement import Latency
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.pipelines.bench.rivals import FailedRival, Rival

TINY = (
    "--device",
    "cpu",
    "--ngf",
    "4",
    "--blocks",
    "1",
    "--patch",
    "16,16,16",
    "--seconds",
    "0.05",
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def printed(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "cuda-cyclegan/bench/1"
    return found


def complaint(*arguments: object, status: int = 2) -> str:
    done = run(*arguments)
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    [line] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line.removeprefix("Error: ")


def misuse(*arguments: object) -> str:
    """Return typer's message about options, from its box of several lines."""
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_the_tables_and_the_json_show_the_same() -> None:
    done = run(*TINY, "--json", "bench.json", "--plot", "plot.png")
    assert done.exit_code == 0, done.output
    with Image.open("plot.png") as picture:
        assert min(picture.size) > 600
    found = json.loads(Path("bench.json").read_text())
    assert found["setting"] == {"patch": [16, 16, 16], "batch": 1, "precision": "fp32"}
    assert found["measured"]["flops"] == flops(build(ResNetSpec(1, 1, 4, 1)), (16, 16, 16))
    assert sum(layer["flops"] for layer in found["layers"]) == found["measured"]["flops"]
    assert "ResNet generator, ngf 4, 1 blocks" in done.stdout
    for word in ("latency", "throughput", "arithmetic", "peaks", "memory", "share"):
        assert word in done.stdout
    rows = [line for line in done.stdout.splitlines() if "16x16x16" in line and "%" in line]
    most = max(row.count("%") for row in rows)  # a norm, which may be slowest, has no share of one
    assert most == 3, "share, and both of the peaks"
    assert "\N{FULL BLOCK}" in rows[0]


@pytest.mark.slow
def test_a_model_file_brings_its_patch(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    own = ("--model", model, "--seconds", "0.05", "--device", "cpu", "--batch", 2)
    found = printed(*own, "--plot", "plot.svg")
    assert ElementTree.parse("plot.svg").getroot().tag.endswith("svg")
    assert found["network"] == str(model)
    assert found["setting"]["batch"] == 2
    assert found["measured"]["batch"] == 2


@pytest.mark.slow
def test_modes_are_rows_and_one_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def known(task: Any, _: float) -> Rival | FailedRival:
        if "compile" in task.name:
            return FailedRival(task.name, "no compiler was found")
        return Rival(
            task.name, "torch 2.9", True, Latency(5.0, 4.0, 6.0, 9), 1 << 30, 2 << 30, 3e-3
        )

    monkeypatch.setattr(bench_run, "in_child", known)
    monkeypatch.setattr(bench_run, "find_spec", lambda _: object())
    done = run(*TINY, "--against", "pytorch", "--json", "bench.json")
    assert done.exit_code == 0, done.output
    found = json.loads(Path("bench.json").read_text())
    ran, fell = found["others"]
    assert ran["ratio"] == pytest.approx(5.0 / found["measured"]["latency"]["median"])
    assert fell == {"name": "compile fp32", "reason": "no compiler was found"}
    [row] = [line for line in done.stdout.splitlines() if line.startswith("eager fp32")]
    assert row.split()[2:5] == ["5000", "4000", "6000"]
    assert "1.00 GiB  2.00 GiB    3e-03" in row
    assert "times as long" in done.stdout
    assert "torch 2.9" in done.stdout
    assert "compile fp32: no compiler was found" in done.stdout


@pytest.mark.slow
def test_stopped_long_mode_keeps_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    done_before: list[str] = []

    def stopped(task: Any, _: float) -> FailedRival:
        if done_before:
            raise KeyboardInterrupt
        done_before.append(task.name)
        return FailedRival(task.name, "no reason")

    monkeypatch.setattr(bench_run, "in_child", stopped)
    monkeypatch.setattr(bench_run, "find_spec", lambda _: object())
    done = run(*TINY, "--against", "pytorch", "--json", "bench.json")
    assert done.exit_code == 130
    [other] = json.loads(Path("bench.json").read_text())["others"]
    assert other == {"name": "eager fp32", "reason": "no reason"}
    assert "eager fp32: no reason" in done.stdout


def test_a_sweep_proposes_what_translate_takes(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    own = ("--model", model, "--device", "cpu", "--seconds", "0.01", "--scan", "20,18,16")
    done = run(*own, "--patch", "8,8,8", "--batch", 1, "--sweep", "--write-config")
    assert done.exit_code == 0, done.output
    assert "Proposed: --patch 8,8,8 --batch 1 --precision fp32" in done.stdout
    file = tmp_path / "user" / "cuda-cyclegan" / "cuda-cyclegan.toml"
    written = tomllib.loads(file.read_text())["translate"]
    assert written["patch"] == "8,8,8"
    assert written["precision"] == "fp32"
    assert written["batch"] == 1
    scan(tmp_path / "in" / "a.nii")
    translate = ["translate", tmp_path / "in", "--model", model, "--output", "out"]
    report = ["--device", "cpu", "--report", "report.json"]
    done = CliRunner().invoke(app, [*map(str, translate), *report])
    assert done.exit_code == 0, done.output
    assert json.loads(Path("report.json").read_text())["settings"]["patch"] == [8, 8, 8]


def test_a_sweep_goes_through_patches_and_batches() -> None:
    found = printed(*TINY[:6], "--sweep", "--seconds", "0.01", "--patch", "16,16,16")
    assert [row["batch"] for row in found["tried"]][:2] == [1, 2]
    rates = {row["voxels_per_second"]: row["batch"] for row in found["tried"]}
    assert found["proposed"]["batch"] == rates[max(rates)]
    assert found["scan"] == {"extents": [192, 256, 256], "overlap": 0.25}


def test_incompatible_options_are_reported(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    assert "'--arch'" in misuse("--model", model, "--arch", "unet")
    assert "'--ngf'" in misuse("--model", model, "--ngf", "8")
    assert "'--levels'" in misuse("--levels", "3")
    assert "'--blocks'" in misuse("--arch", "unet", "--blocks", "3")
    assert "'--arch'" in misuse("--arch", "vnet")
    assert "'--against'" in misuse("--sweep", "--against", "pytorch")
    assert "'--write-config'" in misuse("--write-config")
    assert "'--plot'" in misuse("--plot", "plot.pdf")
    assert "'--scan'" in misuse("--scan", "1,2")


def test_impossible_request_is_one_sentence(tmp_path: Path) -> None:
    assert "multiple of 4x4x4" in complaint("--device", "cpu", "--patch", "17,16,16")
    assert "gone.safetensors" in complaint("--model", tmp_path / "gone.safetensors")
    assert ", not in fp16" in complaint("--device", "cpu", "--precision", "fp16")
    assert "CPU does not use cuDNN" in complaint(*TINY, "--cudnn", _library(tmp_path))
    assert "libcudnn.so.9" in complaint(*TINY, "--cudnn", tmp_path / "gone", status=4)


@pytest.mark.parametrize(
    ("module", "option", "value", "advice"),
    [
        ("torch", "--against", "pytorch", "pip install torch"),
        ("matplotlib", "--plot", "plot.png", "cuda-cyclegan[plot]"),
    ],
)
def test_a_library_that_is_missing_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, module: str, option: str, value: str, advice: str
) -> None:
    there = bench_run.find_spec
    monkeypatch.setattr(bench_run, "find_spec", lambda n: None if n == module else there(n))
    assert advice in complaint(*TINY, option, value, status=4)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom cuda_cyclegan.cli.app import app\n"
        "try: app(['bench', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'numpy', 'torch', 'matplotlib', 'onnxruntime'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Example: cuda-cyclegan bench" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_large_numbers_have_a_letter_and_a_unit() -> None:
    assert quantity(754e12, "FLOP/s") == "754 TFLOP/s"
    assert quantity(4.25e12, "B/s") == "4.25 TB/s"
    assert quantity(999, "B") == "999 B"
    assert scaled(1.5e15) == "1500T"


def _library(folder: Path) -> Path:
    (folder / "libcudnn.so.9").touch()
    return folder
