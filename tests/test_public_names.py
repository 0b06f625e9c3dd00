"""The package as other programs see it: its names, what importing it costs, and its examples."""

import doctest
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan
from support.bench_batches import write_model

import cuda_cyclegan as cc
from cuda_cyclegan.engine.model import model_file as model
from cuda_cyclegan.io import conversion
from cuda_cyclegan.pipelines.api import checkpoint, folder, looking, translator

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_data" / "training"
MOST_SECONDS = 0.05
NAMES = """
BatchReport BatchStarted CardDraft ClipPercentiles ClipValues CudaLimits CycleCheck DeviceOpened
DeviceUnavailableError EngineError EvaluatedStudy Event Failure FolderShard FoundStudy
GammaCurve Identity IntensityMap Logarithm MinMax Model ModelCard ModelFileError NetworkChoices
Percentiles Picture PipelineError PlannedRow Remark SampleZScore ScanError Standard Steps
StudyDone StudyReport StudyStarted TilesDone TranslateOptions Translator Tuning UndecidedError
Volume Window Worked ZScore __version__ discover evaluate from_nibabel from_simpleitk from_torch
import_checkpoint load_model plan preview shards show to_nibabel to_simpleitk translate_folder
translate_shard
"""
PARAMETERS = {
    "discover": "inputs modality series include exclude",
    "evaluate": "results truth mask protocol any_truth segmentations",
    "plan": ("inputs model output device options modality series channels include exclude limits"),
    "preview": "result scan",
    "shards": (
        "inputs model output count device options modality series channels include exclude limits"
    ),
    "show": "result scan",
    "Translator": (
        "model device precision patch overlap blend resample_channels inference nan_to "
        "fewest_slices allow_uneven any_contrast allow_synthetic limits on_event"
    ),
    "from_nibabel": "image",
    "from_simpleitk": "image",
    "from_torch": "module example output card replace",
    "import_checkpoint": "checkpoint output card choices reference folds omit replace",
    "load_model": "path",
    "to_nibabel": "volume",
    "to_simpleitk": "volume",
    "translate_folder": (
        "inputs model output device options modality series channels include exclude limits "
        "on_event"
    ),
    "translate_shard": "shard on_event",
}


def test_these_names_are_public() -> None:
    """A change of one is listed in CHANGELOG.md."""
    assert cc.__all__ == NAMES.split()
    assert dir(cc) == NAMES.split()
    for name in NAMES.split():
        assert getattr(cc, name) is not None


@pytest.mark.parametrize("name", PARAMETERS)
def test_these_parameters_are_public(name: str) -> None:
    assert list(inspect.signature(getattr(cc, name)).parameters) == PARAMETERS[name].split()


def test_a_translator_does_this() -> None:
    public = [name for name in vars(cc.Translator) if not name.startswith("_")]
    assert public == [
        "close",
        "translate",
        "translate_file",
        "translate_volume",
        "translate_channels",
    ]


@pytest.mark.parametrize("name", ["nothing", "_private", "__wrapped__"])
def test_other_names_are_none_of_it(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'cuda_cyclegan' has no attribute '{name}'"):
        getattr(cc, name)


def test_importing_it_loads_nothing() -> None:
    program = (
        "import sys, time; before = {*sys.modules}; start = time.process_time()\n"
        "import cuda_cyclegan; seconds = time.process_time() - start\n"
        "print(seconds, *sorted({*sys.modules} - before))"
    )
    spent: list[float] = []
    for _ in range(5):  # a busy machine slows some of them down
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        seconds, *loaded = done.stdout.split()
        assert [name for name in loaded if "cuda_cyclegan" in name] == ["cuda_cyclegan"]
        assert "numpy" not in loaded
        spent.append(float(seconds))
    assert min(spent) < MOST_SECONDS


def test_results_of_public_names_are_typed() -> None:
    assert (Path(cc.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("name", ["cuda-cyclegan", "2nd clone"])
def test_lint_passes_whatever_the_clone_is_called(name: str, tmp_path: Path) -> None:
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    clone = tmp_path / name
    clone.mkdir()
    for file in ("__init__.py", "__main__.py", "pyproject.toml"):
        (clone / file).write_bytes((ROOT / file).read_bytes())
    done = subprocess.run([ruff, "check", "."], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


EXAMPLES = {
    found.name: found
    for module in (model, conversion, checkpoint, folder, looking, translator)
    for found in doctest.DocTestFinder().find(module)
    if found.examples
}


def is_long(name: str) -> bool:
    """Whether the example looks for the one network that computes a reference."""
    return name.endswith(".import_checkpoint")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * is_long(name)) for name in EXAMPLES],
)
def test_the_examples_run_as_they_are_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("a", "b"):
        scan(tmp_path / "scans" / f"{file}.nii.gz")
    for file in ("latest_net_G_A.pth", "reference.npz"):
        (tmp_path / file).symlink_to(SAMPLE / file)
    if "import_checkpoint" not in name:
        write_model(tmp_path / "t1-to-t2.safetensors", 2, 1, (16, 16, 16))
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    example.globs |= {each: getattr(cc, each) for each in cc.__all__}
    assert not doctest.DocTestRunner(verbose=False).run(example).failed


@pytest.mark.parametrize(
    "function", [name for name in PARAMETERS if name != "Translator"] + ["Translator"]
)
def test_every_function_has_an_example(function: str) -> None:
    assert any(name.endswith(f".{function}") for name in EXAMPLES)


def test_every_method_has_an_example() -> None:
    without: list[Any] = [
        name
        for name in ("translate", "translate_file", "translate_volume", "translate_channels")
        if not any(found.endswith(f"Translator.{name}") for found in EXAMPLES)
    ]
    assert without == []
