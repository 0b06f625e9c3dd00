"""The generator on the CPU: ONNX Runtime in fp32, the default and the reference for all devices."""

from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from ..cores import usable_cores
from ..network.graph import INPUT, FloatArray, Graph, Network
from ..scaling import Stored
from ..sliding_window import Timing, Window

if TYPE_CHECKING:
    from onnx import ModelProto


class Generator(Protocol):
    """A generator ready to run on some device, open between `__enter__` and `__exit__`."""

    @property
    def graph(self) -> Graph:
        """What it computes."""
        ...

    @property
    def device(self) -> str:
        """The device in words, for reports."""
        ...

    def __call__(self, patches: FloatArray) -> FloatArray:
        """Translate patches float32 [N, C, D, H, W] of network intensity, typically [-1, 1].

        Returns [N, C', D, H, W]. Raises PrecisionOverflowError if a result is not finite.
        """
        ...


@runtime_checkable
class Sweeping(Protocol):
    """A generator that cuts and blends on its own device, too."""

    def sweep(
        self,
        source: Stored,
        window: Window,
        target: Stored,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_tiles: told how many more tiles are done.

        Both are of VOXEL_TYPES. Raises DeviceMemoryError if the device has no room for it, and
        PrecisionOverflowError if a result is not finite.
        """
        ...


class CpuGenerator:
    """A network in an ONNX Runtime session; a context manager that owns the session.

    threads: cores one patch is spread over; by default all that this process may use.
    """

    def __init__(self, network: Network, threads: int | None = None) -> None:
        self.graph = network.graph
        self._network = network
        self._threads = threads or usable_cores()
        self._session: Any = None

    @property
    def device(self) -> str:
        return f"CPU, {self._threads} threads, ONNX Runtime {_onnxruntime().__version__}"

    def __enter__(self) -> Self:
        from .conversion import to_onnx

        self._session = session(to_onnx(self._network), session_options(self._threads))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = None

    def __call__(self, patches: FloatArray) -> FloatArray:
        if self._session is None:
            raise RuntimeError("CpuGenerator runs only inside its with block.")
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
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
