"""The generator on the CPU: ONNX Runtime in fp32, the default and the reference for all devices."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..cores import usable_cores
from ..network.graph import INPUT, Graph, Network
from ..network.layers import FloatArray

if TYPE_CHECKING:
    from onnx import ModelProto


@contextmanager
def open_cpu_generator(network: Network, threads: int | None = None) -> Generator["CpuGenerator"]:
    """A network in an ONNX Runtime session, which ends with the `with` block.

    threads: cores one patch is spread over; by default all that this process may use.
    """
    from .conversion import to_onnx

    threads = threads or usable_cores()
    running = session(to_onnx(network), session_options(threads))
    generator = CpuGenerator(network.graph, running, threads)
    try:
        yield generator
    finally:
        generator.close()


class CpuGenerator:
    """A network in an ONNX Runtime session, made by `open_cpu_generator`."""

    def __init__(self, graph: Graph, running: Any, threads: int) -> None:
        self.graph = graph
        self._session = running
        self._threads = threads

    @property
    def device(self) -> str:
        return f"CPU, {self._threads} threads, ONNX Runtime {_onnxruntime().__version__}"

    def close(self) -> None:
        """Let the session's memory go, whoever still holds this generator."""
        self._session = None

    def __call__(self, patches: FloatArray) -> FloatArray:
        if self._session is None:
            raise RuntimeError("This generator is closed.")
        extents = patches.shape[2:]
        self.graph.check_patch((extents[0], extents[1], extents[2]))
        [translated] = self._session.run(None, {INPUT: patches})
        return translated


def _onnxruntime() -> Any:
    """The package, which ships no types; without it and onnx a GPU's start is 0.3 s shorter."""
    return import_module("onnxruntime")


def session_options(threads: int) -> Any:
    """How ONNX Runtime is set up here."""
    options = _onnxruntime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    # The arena keeps the largest patch ever seen; without it memory follows the run.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options


def session(model: "ModelProto", options: Any) -> Any:
    """A model ready to run on the CPU."""
    return _onnxruntime().InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        enable_fallback=0,  # which would print what went wrong and try the same again
    )
