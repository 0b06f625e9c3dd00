"""One measurement of `bench`, and the programs it is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ....engine.benchmark.alternatives import cudnn_library, modes
from ....engine.network.graph import Network
from ....pipelines.bench.measurement import Bench, BenchOutcome, measure
from ....pipelines.bench.rivals import CudnnTask, PytorchTask, RivalResult, RivalTask, in_child
from ....pipelines.errors import MissingLibraryError, SettingsError
from ...render import bench as shown
from ...render.progress_lines import tuning_line
from ...render.terminal import spinner
from ...render.text import printable
from .outputs import Outputs


@dataclass(frozen=True, slots=True)
class Rivals:
    """Competitors to measure as well. patience: seconds for each.

    pytorch: whether PyTorch, in each of its modes. cudnn: folders of other copies of cuDNN.
    """

    pytorch: bool
    cudnn: tuple[Path, ...]
    patience: float


def check(outputs: Outputs, rivals: Rivals) -> None:
    """Raise an error for a request that cannot be met, before anything is measured."""
    for folder in rivals.cudnn:
        cudnn_library(folder)
    if rivals.pytorch and find_spec("torch") is None:
        raise MissingLibraryError(
            "--against needs PyTorch, which is not installed; pip install torch, or omit --against."
        )
    if outputs.plot and find_spec("matplotlib") is None:
        raise MissingLibraryError(
            "--plot needs matplotlib, which is not installed; pip install 'cuda-cyclegan[plot]', "
            "or omit --plot."
        )


def run(bench: Bench, network: Network, outputs: Outputs, rivals: Rivals) -> None:
    """Measure, print and store the requested outputs. Raises EngineError, WriteError."""
    if rivals.cudnn and bench.setting.device.kind == "cpu":
        raise SettingsError("The CPU does not use cuDNN; choose a CUDA device or omit the option.")
    outputs.print_sentences([shown.heading(bench)])
    with spinner("Measuring"):
        outcome = measure(bench, network, _TuningLines(outputs))
    measured = outcome.measured
    outputs.print_lines(shown.facts(measured))
    outputs.print_lines(shown.layers(measured, outputs.columns))
    outputs.print_sentences(shown.layer_notes(measured))
    if outputs.plot:
        from ...render.bench_plots import draw

        draw(bench, measured, outputs.plot)
        outputs.print_sentences([f"Written: {printable(str(outputs.plot))}"])
    _compare(bench, outcome, outputs, rivals)


class _TuningLines:
    """Progress callback: reports that tactics are being tuned, and when tuning is done."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._is_tuning = False

    def __call__(self, what: str, share: float | None) -> None:
        if share is None:
            self._outputs.print_sentences([printable(what)])
            return
        if share == 1 or not self._is_tuning:
            self._outputs.progress(tuning_line(share))
        self._is_tuning = share < 1


def _compare(bench: Bench, outcome: BenchOutcome, outputs: Outputs, rivals: Rivals) -> None:
    measured, results = outcome.measured, list[RivalResult]()
    try:
        for task in _tasks(bench, outcome, rivals):
            outputs.progress(f"Measuring {printable(task.name)}")
            with spinner(f"at most {rivals.patience:g} s"):
                results.append(in_child(task, rivals.patience))
    finally:  # a user who stops a long run keeps the results so far
        outputs.print_lines(shown.table(bench, measured, results, outputs.columns))
        outputs.print_sentences(shown.notes(measured, results))
        outputs.store(shown.of_measurement(bench, measured, results))


def _tasks(bench: Bench, outcome: BenchOutcome, rivals: Rivals) -> Iterator[RivalTask]:
    for folder in rivals.cudnn:
        yield CudnnTask(folder, bench, outcome.output)
    if rivals.pytorch:
        setting = bench.setting
        for mode in modes(setting.device.kind, setting.precision):
            yield PytorchTask(mode.name, bench, outcome.output)
