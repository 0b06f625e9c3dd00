"""Errors of the engine, each a sentence for the user.

EngineError
├── CheckpointError        a weights file cannot be imported: hostile, unknown or ambiguous
├── ModelFileError         a model file is damaged, of another version, or fails its own proof
├── PatchShapeError        a patch does not fit the network
├── DeviceUnavailableError a device or an installed library is missing, or not to be trusted
├── CudaError              a call of the CUDA driver, NVRTC or cuDNN failed
├── DeviceMemoryError      device memory, or pinned memory of the host, does not suffice
└── PrecisionOverflowError a result is not finite in the chosen precision
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from .options import Precision

_MOST_LISTED = 12


class EngineError(Exception):
    """Base of all engine errors; the message says what, where and what to do."""


class CheckpointError(EngineError):
    """A training checkpoint cannot become a model: refused, not understood, or not unambiguous."""


class ModelFileError(EngineError):
    """A model file is damaged, was made by a newer version, or does not pass its own check."""


class PatchShapeError(EngineError):
    """A patch's extents do not fit the network's stride, kernels or padding."""


class DeviceUnavailableError(EngineError):
    """The requested device, or a library it needs, is not on this machine, or computes wrongly."""


class CudaError(EngineError):
    """A call of the CUDA driver, NVRTC or cuDNN failed.

    call: the function. layer: the layer it was for, if there is one. is_sticky: whether the driver
    rejects all further work of this process, so that only a new process can continue.
    """

    def __init__(
        self, call: str, reason: str, advice: str, layer: str | None = None, is_sticky: bool = False
    ) -> None:
        where = f" for layer {layer}" if layer else ""
        super().__init__(f"{call} failed{where}: {reason}; {advice}.")
        self.call, self.reason, self.advice = call, reason, advice
        self.layer, self.is_sticky = layer, is_sticky

    def at(self, layer: str) -> "CudaError":
        """Return the same error with the layer at which it happened."""
        return type(self)(self.call, self.reason, self.advice, layer, self.is_sticky)


class DeviceMemoryError(EngineError):
    """The usable device memory, or the pinned memory of the host, does not suffice.

    wanted, free: bytes requested, and bytes that were left; None if the library does not report
    them.
    """

    def __init__(self, message: str, wanted: int | None = None, free: int | None = None) -> None:
        super().__init__(message)
        self.wanted, self.free = wanted, free


class PrecisionOverflowError(EngineError):
    """A result is not finite: the precision's range is too small for this network and patch."""

    @classmethod
    def of(cls, precision: Precision) -> Self:
        """Return the error of a result in one precision."""
        advice = (
            "use setting precision=bf16 or fp32"
            if precision == "fp16"
            else "the input differs too much from the training data, or the model is damaged"
        )
        return cls(f"A value exceeded the range of {precision}; {advice}.")


def quoted(text: str) -> str:
    """Return a name from a file, cut and escaped so that it cannot disturb a message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def listed(names: Iterable[str]) -> str:
    """Return names in a list, only the first few if there are many."""
    names = list(names)
    shown = ", ".join(names[:_MOST_LISTED])
    more = len(names) - _MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Begin the message of a CheckpointError with the file that it is about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
