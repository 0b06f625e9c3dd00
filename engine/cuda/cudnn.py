"""cuDNN's convolutions: one graph for a shape, all plans that its heuristics offer for it."""

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Self

from ..compiler.steps import ConvShape
from ..errors import CudaError, DeviceMemoryError, DeviceUnavailableError
from ..network.layers import Triple
from ..options import Precision
from ..probe.cuda_packages import REMEDY, known_fault
from .driver import Stream


def _imported() -> Any:
    """Import the frontend without PyTorch, which it would load if installed, in 3 s."""
    is_hidden = "torch" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    try:
        return import_module("cudnn")
    finally:
        if is_hidden:
            del sys.modules["torch"]


cudnn: Any = _imported()  # the package's types are generated and incomplete

_SOURCE, _WEIGHT, _TARGET = 1, 2, 3

_STATUS = re.compile(r"\bCUDNN_STATUS_(\w+)")
"""A return code in an exception of the frontend, which reports it only in the text."""

_NAME = re.compile(r"eng(\d+)((?:_k\d+=-?\d+)*)")
_KNOB = re.compile(r"_k(\d+)=(-?\d+)")

_KNOBS = {
    1: "SWIZZLE",
    2: "TILE_SIZE",
    4: "EDGE",
    11: "MULTIPLY",
    12: "SPLIT_K_BUF",
    13: "TILEK",
    14: "STAGES",
    15: "REDUCTION_MODE",
    17: "SPLIT_K_SLC",
    18: "IDX_MODE",
    23: "SPECFILT",
    24: "KERNEL_CFG",
    25: "WORKSPACE",
    27: "TILE_CGA_M",
    28: "TILE_CGA_N",
    29: "BLOCK_SIZE",
    30: "OCCUPANCY",
    31: "ARRAY_SIZE_PER_THREAD",
    33: "SPLIT_COLS",
    34: "TILE_ROWS",
    35: "TILE_COLS",
    36: "LOAD_SIZE",
    37: "CTA_COUNT",
    38: "STREAM_K",
    39: "SPLIT_P_SLC",
    40: "TILE_M",
    41: "TILE_N",
    42: "WARP_SPEC_CFG",
}
"""cuDNN's numbers of knobs, by which it names plans (cudnnBackendKnobType_t), and the frontend's
names, by which it takes them. The frontend has none for some.
"""

_NO_MEMORY = {
    "ALLOC_FAILED",
    "INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
}


class Cudnn:
    """A cuDNN handle whose work goes to one stream.

    Raises DeviceUnavailableError for a version that is known to compute wrongly.
    """

    def __init__(self, stream: Stream) -> None:
        if fault := known_fault(cudnn.backend_version()):
            raise DeviceUnavailableError(f"cuDNN cannot be used: {fault}; {REMEDY}.")
        self.handle: int = checked("cudnnCreate", cudnn.create_handle)
        try:
            checked("cudnnSetStream", lambda: cudnn.set_stream(self.handle, int(stream.handle)))
        except BaseException:
            self._destroy()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._destroy()

    def _destroy(self) -> None:
        with suppress(RuntimeError):  # it is gone already where the context was lost
            cudnn.destroy_handle(self.handle)

    @property
    def version(self) -> str:
        """Version of cuDNN and of its frontend."""
        return f"{cudnn.backend_version()}/{cudnn.__version__}"


def checked(name: str, function: Callable[[], Any], layer: str | None = None) -> Any:
    """Return the result of a cuDNN call.

    Raises DeviceMemoryError if cuDNN is out of memory, else CudaError with cuDNN's own message.
    """
    try:
        return function()
    except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as error:
        reason = " ".join(str(error).split())[:400]
        failed = CudaError(name, reason, "run again with setting device=cpu", layer)
        if _NO_MEMORY & set(_STATUS.findall(str(error))):
            raise DeviceMemoryError(str(failed)) from error
        raise failed from error


class ConvolutionPlans:
    """The plans for one convolution; each must be built before it can run.

    name: the only plan to create, without heuristics. is_quick: whether to ask the first heuristic
    alone, in 5 ms in place of 27. Raises CudaError if cuDNN has no plan at all, or cannot create
    that one by its name.
    """

    def __init__(
        self,
        library: Cudnn,
        shape: ConvShape,
        name: str | None = None,
        *,
        is_quick: bool = False,
    ) -> None:
        self._handle = library.handle
        self._graph = _graph(library.handle, shape)
        checked("cudnnBackendFinalize", self._prepare)
        checked("create_execution_plan", lambda: self._offer(name, is_quick))
        self._deselect(shape.precision)
        checked("check_support", self._graph.check_support)
        self.count: int = self._graph.get_execution_plan_count()

    def _prepare(self) -> None:
        self._graph.validate()
        self._graph.build_operation_graph()

    def _offer(self, name: str | None, is_quick: bool) -> None:
        if name is None:
            modes = cudnn.heur_mode
            others = () if is_quick else (modes.B, modes.FALLBACK)
            self._graph.create_execution_plans([modes.A, *others])
            return
        self._graph.create_execution_plan(*_engine_and_knobs(name))
        if self.name(0) != name:
            raise RuntimeError(f"cuDNN returned plan {self.name(0)} instead of {name}")

    def _deselect(self, precision: Precision) -> None:
        notes = cudnn.numerical_note
        unwanted = [
            notes.NONDETERMINISTIC,
            notes.REDUCED_PRECISION_REDUCTION,
            notes.DOWN_CONVERT_INPUTS,
            notes.WINOGRAD,
            notes.FFT,
        ]
        # TF32 is the arithmetic of Tensor Cores on float32.
        self._graph.deselect_numeric_notes(
            [*unwanted, notes.TENSOR_CORE] if precision == "fp32" else unwanted
        )

    def name(self, index: int) -> str:
        """Return cuDNN's name of a plan: its engine and knobs, the latter ordered by number."""
        name = self._graph.get_plan_name_at_index(index)
        engine, *knobs = name.split("_k")
        return "_k".join([engine, *sorted(knobs, key=lambda knob: int(knob.partition("=")[0]))])

    def build(self, index: int) -> int:
        """Build a plan and return the bytes of its workspace. Raises CudaError if that is
        impossible.
        """
        checked("build_plan_at_index", lambda: self._graph.build_plan_at_index(index))
        return self._graph.get_workspace_size_plan_at_index(index)

    def run(self, index: int, source: int, weight: int, target: int, workspace: int) -> None:
        """Queue the convolution with one plan; device addresses."""
        tensors = {_SOURCE: source, _WEIGHT: weight, _TARGET: target}
        checked(
            "cudnnBackendExecute",
            lambda: self._graph.execute_plan_at_index(tensors, workspace, index, self._handle),
        )


def _engine_and_knobs(name: str) -> tuple[int, dict[Any, int]]:
    """Return engine and knobs of a plan's name for the frontend. Raises RuntimeError if invalid."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise RuntimeError(f"{name} is not the name of a plan")
    knobs = {int(knob): int(value) for knob, value in _KNOB.findall(found[2])}
    types: Mapping[str, Any] = cudnn.knob_type.__members__
    if unnamed := [knob for knob in knobs if _KNOBS.get(knob) not in types]:
        raise RuntimeError(f"cuDNN's frontend does not know knobs {unnamed} of {name}")
    return int(found[1]), {types[_KNOBS[knob]]: value for knob, value in knobs.items()}


def _graph(handle: int, shape: ConvShape) -> Any:
    types = cudnn.data_type
    stored = {"fp16": types.HALF, "bf16": types.BFLOAT16}.get(shape.precision, types.FLOAT)
    graph = cudnn.pygraph(
        io_data_type=stored,
        intermediate_data_type=types.FLOAT,
        compute_data_type=types.FLOAT,
        handle=handle,
    )
    source_channels, target_channels = shape.source_channels, shape.target_channels
    outputs, inputs = target_channels, source_channels
    if shape.transposed:
        outputs, inputs = inputs, outputs

    def tensor(batch: int, channels: int, extents: Triple, uid: int) -> Any:
        dims, strides = _channels_last(batch, channels, extents)
        return graph.tensor(dim=dims, stride=strides, data_type=stored, uid=uid)

    source = tensor(shape.batch, source_channels, shape.source_extents, _SOURCE)
    # cuDNN detects groups by the channels that the weight lacks.
    weight = tensor(outputs, inputs // shape.groups, shape.kernel, _WEIGHT)
    settings: dict[str, Any] = {
        "pre_padding": list(shape.before),
        "post_padding": list(shape.after),
        "stride": list(shape.stride),
        "dilation": list(shape.dilation),
    }
    if shape.transposed:
        target = graph.conv_dgrad(loss=source, filter=weight, **settings)
    else:
        target = graph.conv_fprop(image=source, weight=weight, **settings)
    dims, strides = _channels_last(shape.batch, target_channels, shape.target_extents)
    target.set_output(True).set_data_type(stored).set_uid(_TARGET)
    target.set_dim(dims).set_stride(strides)
    return graph


def _channels_last(batch: int, channels: int, extents: Triple) -> tuple[list[int], list[int]]:
    depth, height, width = extents
    row = width * channels
    return (
        [batch, channels, depth, height, width],
        [depth * height * row, 1, height * row, row, channels],
    )
