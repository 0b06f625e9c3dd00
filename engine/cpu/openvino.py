"""Networks in OpenVINO: fp32 with exact norms, or bf16 on processors that have it."""

import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..cores import usable_cores
from ..errors import DeviceUnavailableError
from ..network.graph import INPUT, Graph, Network
from ..network.layers import FloatArray
from ..options import Precision

if TYPE_CHECKING:
    from onnx import ModelProto


_CPU = "CPU"


def openvino() -> Any:
    """Return the package, without its telemetry: it takes a stub of it if the import fails.

    In containers without /sys its threads library would complain on the terminal.
    """
    os.environ.setdefault("HWLOC_HIDE_ERRORS", "2")
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))
    return import_module("openvino")


_starting = Lock()


def openvino_core() -> Any:
    """Return this process's only Core, which is never closed; threads may ask at the same time.

    A Core gives its thread a signal stack, and at its end restores the earlier one. If two overlap,
    the last one leaves a stack that no longer exists, and the next signal, such as Ctrl-C, is a
    segmentation fault (OpenVINO 2026.4.1).
    """
    with _starting:  # `cache` alone would let each of them create one
        return _core()


@cache
def _core() -> Any:
    return openvino().Core()


@contextmanager
def open_openvino_generator(
    network: Network,
    precision: Precision = "fp32",
    threads: int | None = None,
    *,
    profiled: bool = False,
) -> Generator["OpenVinoGenerator"]:
    """Open a network in OpenVINO, which ends with the `with` block.

    precision: "fp32", or "bf16", whose norms and other sums are float32. threads: cores one patch
    is spread over; by default all that this process may use. profiled: whether operators are timed.

    Raises DeviceUnavailableError for bf16 on a processor without it.
    """
    runtime = OpenVino(precision, threads or usable_cores(), profiled=profiled)
    with closing(OpenVinoGenerator(network, runtime)) as generator:
        yield generator


class OpenVino:
    """The runtime set up for one precision and a number of threads.

    Raises DeviceUnavailableError for bf16 on a processor without it.
    """

    def __init__(self, precision: Precision, threads: int, *, profiled: bool = False) -> None:
        self.precision: Precision = precision
        self.threads = threads
        self._core = openvino_core()
        known = self._core.get_property(_CPU, "OPTIMIZATION_CAPABILITIES")
        if precision == "bf16" and "BF16" not in known:
            raise DeviceUnavailableError(
                "This processor has no bf16 arithmetic (AMX or AVX512-BF16); use setting "
                "precision=fp32."
            )
        self.version = str(openvino().__version__).partition("-")[0]
        self._options = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            # Others work on the same cores: the operating system places threads.
            "ENABLE_CPU_PINNING": False,
            "PERF_COUNT": profiled,
        }

    def compiled(
        self, model: "ModelProto", shapes: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> "CompiledModel":
        """Compile a model. shapes: of inputs that it leaves open, by name."""
        read = self._core.read_model(model.SerializeToString())
        if shapes:
            read.reshape({name: [*shape] for name, shape in shapes.items()})
        return CompiledModel(self._core.compile_model(read, _CPU, self._options))


class CompiledModel:
    """A model with one output in OpenVINO, for fixed shapes; one thread may call it at a time."""

    def __init__(self, compiled: Any) -> None:
        self._tensor = openvino().Tensor
        self._compiled = compiled
        self._request = compiled.create_infer_request()

    def __call__(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        output = np.empty(self._request.get_output_tensor(0).shape, np.float32)
        self.into(inputs, output)
        return output

    def into(self, inputs: Mapping[str, FloatArray], output: FloatArray) -> None:
        """Compute the output into memory of the caller; all arrays are contiguous."""
        for name, array in inputs.items():
            is_shared = array.flags.writeable  # OpenVINO shares no other memory
            self._request.set_tensor(name, self._tensor(array, shared_memory=is_shared))
        self._request.set_output_tensor(0, self._tensor(output, shared_memory=True))
        self._request.infer()

    def release(self) -> None:
        """Free the memory of tensors between operators; the next run allocates it again."""
        self._compiled.release_memory()

    def operators(self) -> Iterator["TimedOperator"]:
        """Yield all operators in order; those that took less than a microsecond took none."""
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            names = tuple(str(info["originalLayersNames"].value).split(","))
            spent = str(info["execTimeMcs"].value)
            yield TimedOperator(names, 0.0 if spent == "not_executed" else float(spent) / 1e6)


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """An operator as OpenVINO runs it. names: of the ONNX operators fused in it. seconds: mean."""

    names: tuple[str, ...]
    seconds: float


class OpenVinoGenerator:
    """A network in OpenVINO, compiled for the shape of the last patches; threads may share it.

    device: description of the device.
    """

    def __init__(self, network: Network, runtime: OpenVino) -> None:
        self.graph: Graph = network.graph
        self.device = f"CPU, {runtime.threads} threads, OpenVINO {runtime.version}"
        self._network: Network | None = network
        self._runtime = runtime
        self._shape: tuple[int, ...] = ()
        self._compiled: CompiledModel | None = None
        self._turn = Lock()

    def close(self) -> None:
        """Free the compiled network, even if this generator is still referenced."""
        self._network = self._compiled = None
        self._shape = ()

    def __call__(self, patches: FloatArray) -> FloatArray:
        source = np.ascontiguousarray(patches)
        with self._turn:
            return self._for_shape(patches.shape)({INPUT: source})

    def operators(self) -> Iterator[TimedOperator]:
        """Yield all operators in order; those that took less than a microsecond took none."""
        return self._for_shape(self._shape).operators()

    def _for_shape(self, shape: tuple[int, ...]) -> CompiledModel:
        from .onnx_model import to_onnx

        if self._network is None:
            raise RuntimeError("This generator is closed.")
        if self._compiled is None or shape != self._shape:
            depth, height, width = shape[2:]
            self.graph.check_patch((depth, height, width))
            self._compiled = None  # two would not fit where one does
            model = to_onnx(
                self._network,
                # In bf16 the operator's own float32 sums are exact enough, and faster.
                exact_norms=self._runtime.precision == "fp32",
                by_columns=True,
                by_phases=True,
                patch=(depth, height, width),
            )
            self._compiled = self._runtime.compiled(model, {INPUT: shape})
            self._shape = shape
        return self._compiled
