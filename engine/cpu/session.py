"""A generator in ONNX Runtime, in fp32; on the CPU it is the reference for all devices."""

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..cores import usable_cores
from ..network.graph import INPUT, Graph, Network
from ..network.graph_analysis import held_bytes
from ..network.layers import FloatArray, Triple

if TYPE_CHECKING:
    from onnx import ModelProto


Providers: TypeAlias = Mapping[str, Mapping[str, str]]
"""Execution providers by ONNX Runtime's names, with their options; each computes the operators that
those before it do not.
"""

CPU = "CPUExecutionProvider"
_SESSION_BYTES = 16 << 20
_CPU_ALONE: Providers = MappingProxyType({CPU: {}})


@contextmanager
def open_cpu_generator(
    network: Network, threads: int | None = None, *, rewritten: bool = True
) -> Generator["SessionGenerator"]:
    """Open a network in an ONNX Runtime session, which ends with the `with` block.

    threads: cores one patch is spread over; by default all that this process may use. rewritten:
    whether the graph is rewritten first, for exact norms and for speed. That takes longer than a
    small patch, whose norms are exact without it: up to 24^3 voxels.
    """
    from .onnx_model import to_onnx

    threads = threads or usable_cores()
    options = session_options(threads)
    if not rewritten:
        options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    weights: dict[str, FloatArray] = {}
    model = to_onnx(network, exact_norms=rewritten, by_columns=rewritten, outside=weights)
    running = session(model, options, weights=weights)
    version = onnxruntime().__version__
    words = f"CPU, {threads} threads, ONNX Runtime {version}"
    with closing(SessionGenerator(network.graph, running, words)) as generator:
        yield generator


def session_bytes(network: Network, patch: Triple | None) -> int:
    """Return the bytes of a session on the CPU besides its model, at most about what was measured.

    patch: (D, H, W) that it translates; None leaves out the bytes of a patch. The session
    has one copy of the weights, packed for its kernels. For seven ResNets and U-Nets (8 to
    254 MiB of weights, patches of 16 to 64 voxels; ONNX Runtime 1.32, 2026-11-27) it is 0.9 to 1.4
    times the rise of the resident set.
    """
    packed = sum(weight.nbytes for weight in network.weights.values())
    of_patch = held_bytes(network.graph, patch) * 5 // 2 if patch else 0
    return _SESSION_BYTES + packed + of_patch


class SessionGenerator:
    """A network in an ONNX Runtime session. device: description of the device."""

    def __init__(self, graph: Graph, running: Any, device: str) -> None:
        self.graph = graph
        self.device = device
        self._session = running
        self._checked: Triple | None = None

    def close(self) -> None:
        """Free the session's memory, even if this generator is still referenced."""
        self._session = None

    def __call__(self, patches: FloatArray) -> FloatArray:
        if self._session is None:
            raise RuntimeError("This generator is closed.")
        depth, height, width = patches.shape[2:]
        if self._checked != (depth, height, width):
            self.graph.check_patch((depth, height, width))
            self._checked = depth, height, width
        [translated] = self._session.run(None, {INPUT: patches})
        return translated


def onnxruntime() -> Any:
    """Import the package, which has no types; without it and onnx a GPU starts 0.3 s sooner."""
    return import_module("onnxruntime")


def session_options(threads: int) -> Any:
    """Return the session options of ONNX Runtime."""
    options = onnxruntime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    # Threads that wait busily for their next part take a fifth of the processor's time, which those
    # that read, prepare and write can use.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena keeps the largest patch ever seen; without it memory follows the run.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options


def session(
    model: "ModelProto",
    options: Any,
    providers: Providers = _CPU_ALONE,
    weights: Mapping[str, FloatArray] = MappingProxyType({}),
) -> Any:
    """Return a session of a model, ready to run.

    weights: those that the model only names; the session copies them.
    """
    value_of = onnxruntime().OrtValue.ortvalue_from_numpy
    options.add_external_initializers([*weights], [*map(value_of, weights.values())])
    return onnxruntime().InferenceSession(
        model.SerializeToString(),
        options,
        providers=[*providers],
        provider_options=[*map(dict, providers.values())],
        enable_fallback=0,  # which would print what went wrong and try the same again
    )
