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
from ..host.memory import is_out_of_memory
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


def failure_of(error: Exception, stage: Stage | None) -> Failure:
    """What the user is told about an exception that came in this stage."""
    kind = _class(error)
    reason = str(error)
    if kind == "internal" and is_out_of_memory(error):
        kind = "memory"
    if kind == "memory":
        reason = "There is not enough memory for this study; close other programs."
    if kind == "internal":
        reason = (
            f"{type(error).__name__}: {error}; this looks like a fault of the program, please "
            "report it with what setting verbose prints."
        )
    return Failure(kind, " ".join(reason.split()), stage, isinstance(error, _PASSING))


def _class(error: Exception) -> FailureClass:
    for kind, errors in _CLASSES.items():
        if isinstance(error, errors):
            return kind
    return "internal"
