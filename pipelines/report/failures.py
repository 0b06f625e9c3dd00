"""From the exception that ended a study to its class and one line."""

from ...engine.errors import EngineError
from ...io.errors import DiskFullError, ScanError, UnsupportedScanError, WriteError
from ..errors import (
    OccupiedError,
    OutputFolderAwaitedError,
    OutputFolderError,
    PreparationError,
    SettingsError,
    VerificationError,
)
from ..host.memory import address_space_limit, is_out_of_memory
from ..host.thread_limits import NO_MORE_THREADS, is_out_of_threads
from ..stopwatch import Stage
from .report import Failure, FailureClass

_CLASSES: dict[FailureClass, tuple[type[Exception], ...]] = {
    "write": (WriteError, OutputFolderError),
    "unsupported": (UnsupportedScanError,),
    "unreadable": (ScanError,),
    "preparation": (PreparationError,),
    "engine": (EngineError, SettingsError, VerificationError),
    "occupied": (OccupiedError,),
    "memory": (MemoryError,),
}


_PASSING = (DiskFullError, OutputFolderAwaitedError)


def failure_of(error: Exception, stage: Stage | None, volume: str = "") -> Failure:
    """What the user is told about an exception that came in this stage.

    volume: of a series that was being made, in words; empty where there is but one.
    """
    kind = _class(error)
    reason = str(error)
    if kind == "internal" and is_out_of_memory(error):
        kind = "memory"
    if kind == "memory":
        reason = _memory_advice()
    if kind == "internal" and is_out_of_threads(error):
        kind, reason = "memory", NO_MORE_THREADS
    if kind == "internal":
        reason = (
            f"{type(error).__name__}: {error}; this looks like a fault of the program, please "
            "report it with what setting verbose prints."
        )
    if volume and stage != "write":
        reason = f"In {volume}: {reason}"
    return Failure(kind, " ".join(reason.split()), stage, isinstance(error, _PASSING))


def _memory_advice() -> str:
    limit = address_space_limit()
    if limit is None:
        return "There is not enough memory for this study; close other programs."
    return (
        "There is not enough memory for this study, as this program may have no more than "
        f"{limit / 2**30:.1f} GiB of address space; raise that limit (ulimit -v)."
    )


def _class(error: Exception) -> FailureClass:
    for kind, errors in _CLASSES.items():
        if isinstance(error, errors):
            return kind
    return "internal"
