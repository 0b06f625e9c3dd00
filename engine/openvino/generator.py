"""A generator in OpenVINO: fp32 with exact norms, or bf16 on processors that have it."""

import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any, cast

import numpy as np

from ..cores import usable_cores
from ..errors import DeviceUnavailableError
from ..network.graph import Graph, Network
from ..network.layers import FloatArray
from ..options import Precision

_CPU = "CPU"


def openvino() -> Any:
    """Return the package, without its telemetry: it takes a stub of it if the import fails.

    In containers without /sys its threads library would complain on the terminal.
    """
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))
    return import_module("openvino")


@contextmanager
def open_openvino_generator(
    network: Network,
    precision: Precision = "fp32",
    threads: int | None = None,
    *,
    profiled: bool = False,
) -> Generator["OpenVinoGenerator"]:
    """A network in OpenVINO, which ends with the `with` block.

    precision: "fp32", or "bf16", whose norms and other sums are float32. threads: cores one patch
    is spread over; by default all that this process may use. profiled: whether operators are
    timed.

    Raises DeviceUnavailableError for bf16 on a processor without it.
    """
    core = openvino().Core()
    if precision == "bf16" and "BF16" not in core.get_property(_CPU, "OPTIMIZATION_CAPABILITIES"):
        raise DeviceUnavailableError(
            "This processor has no bf16 arithmetic (AMX or AVX512-BF16); use setting "
            "precision=fp32."
        )
    options = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": threads or usable_cores(),
        "NUM_STREAMS": 1,
        # Others work on the same cores: the operating system places threads.
        "ENABLE_CPU_PINNING": False,
        "PERF_COUNT": profiled,
    }
    with closing(OpenVinoGenerator(network, core, options)) as generator:
        yield generator


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """An operator as OpenVINO runs it. names: of the ONNX operators fused in it. seconds: mean."""

    names: tuple[str, ...]
    seconds: float


class OpenVinoGenerator:
    """A network in OpenVINO, compiled for the shape of the last patches; threads may share it.

    device: what computes, in words.
    """

    def __init__(self, network: Network, core: Any, options: Mapping[str, Any]) -> None:
        self.graph: Graph = network.graph
        package = openvino()
        version = package.__version__.partition("-")[0]
        self.device = f"CPU, {options['INFERENCE_NUM_THREADS']} threads, OpenVINO {version}"
        self._network: Network | None = network
        self._tensor = package.Tensor
        self._core = core
        self._options = options
        self._shape: tuple[int, ...] = ()
        self._compiled: Any = None
        self._request: Any = None
        self._turn = Lock()

    def close(self) -> None:
        """Free the compiled network, whoever still holds this generator."""
        self._network = self._compiled = self._request = None
        self._shape = ()

    def __call__(self, patches: FloatArray) -> FloatArray:
        if self._network is None:
            raise RuntimeError("This generator is closed.")
        depth, height, width = patches.shape[2:]
        self.graph.check_patch((depth, height, width))
        source = np.ascontiguousarray(patches)
        with self._turn:
            if patches.shape != self._shape:
                self._compile(self._network, patches.shape)
            output = np.empty(self._request.get_output_tensor(0).shape, np.float32)
            self._request.set_input_tensor(0, self._tensor(source, shared_memory=True))
            self._request.set_output_tensor(0, self._tensor(output, shared_memory=True))
            self._request.infer()
        return output

    def operators(self) -> Iterator[TimedOperator]:
        """Yield all operators in order; those that took less than a microsecond took none."""
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            names = tuple(str(info["originalLayersNames"].value).split(","))
            spent = str(info["execTimeMcs"].value)
            yield TimedOperator(names, 0.0 if spent == "not_executed" else float(spent) / 1e6)

    def _compile(self, network: Network, shape: tuple[int, ...]) -> None:
        from ..onnxruntime.conversion import to_onnx

        self._compiled = self._request = None  # two would not fit where one does
        is_exact = self._options["INFERENCE_PRECISION_HINT"] == "f32"
        # In bf16 the operator's own float32 sums are exact enough, and faster.
        model = self._core.read_model(
            to_onnx(
                network, exact_norms=is_exact, by_columns=True, by_phases=True
            ).SerializeToString()
        )
        model.reshape([*shape])
        self._compiled = self._core.compile_model(model, _CPU, self._options)
        self._request = self._compiled.create_infer_request()
        self._shape = shape
