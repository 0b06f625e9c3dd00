"""Conversion of an exception to one sentence on stderr and an exit status."""

import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..engine.errors import DeviceUnavailableError, EngineError
from ..io.errors import ScanError, WriteError
from ..pipelines.errors import MissingLibraryError, PipelineError, SettingsError
from ..pipelines.host.memory import address_space_limit, check_address_space, is_out_of_memory
from ..pipelines.host.thread_limits import NO_MORE_THREADS, is_out_of_threads
from .render.service_log import journal_mark, to_file
from .render.skipped import nothing_found, skipped_scans, unread_places
from .render.terminal import print_line, print_sentences
from .render.text import flagged, memory, printable, printable_lines

if TYPE_CHECKING:
    from ..io.search import Skipped
    from ..pipelines.report.report import Skip


class Exit(IntEnum):
    """Exit status of a command; 128 is added for a signal, as shells do."""

    DONE = 0
    SOME_FAILED = 1
    USAGE = 2
    NO_STUDY = 3
    MISSING = 4
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


FOR_THE_USER = EngineError, ScanError, PipelineError
"""Errors whose message is meant for the user."""


@contextmanager
def errors_reported(*, verbose: bool) -> Generator[None]:
    """Run a command's work; any exception is reported to the user and ends the program."""
    try:
        check_address_space()
        yield
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        if _is_interruption(error):
            raise KeyboardInterrupt from error
        if verbose:
            print_line(printable_lines(traceback.format_exc()), sys.stderr)
        complain(sentence(error))
        raise typer.Exit(status(error)) from error


def _is_interruption(error: Exception) -> bool:
    """Return whether Ctrl-C interrupted Python while it acquired or released a lock."""
    before: BaseException | None = error if isinstance(error, RuntimeError) else None
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__context__
    return before is not None


def status(error: Exception) -> Exit:
    """Return the exit status of an error that ends the whole command."""
    if not isinstance(error, FOR_THE_USER) and (
        is_out_of_memory(error) or is_out_of_threads(error)
    ):
        return Exit.SOME_FAILED
    match error:
        case DeviceUnavailableError() | MissingLibraryError() | ImportError():
            return Exit.MISSING
        case EngineError() | ScanError() | PipelineError() | OSError():
            return Exit.USAGE
        case _:
            return Exit.SOME_FAILED


def sentence(error: Exception) -> str:
    """Return the error in one sentence, which names settings as options."""
    if isinstance(error, SettingsError):
        return flagged(str(error), error.settings)
    if isinstance(error, FOR_THE_USER):
        return flagged(str(error))
    if is_out_of_memory(error):
        return _memory_advice()
    if is_out_of_threads(error):
        return NO_MORE_THREADS
    match error:
        case ImportError():
            return (
                f"The library {error.name or 'that is needed'} is missing or broken ({error}); "
                "reinstall cuda-cyclegan."
            )
        case OSError():
            why = error.strerror or error
            if error.filename is None:  # such as a pipe or a connection
                return f"The system reports: {why}."
            return f"{error.filename} cannot be used ({why})."
        case _:
            return (
                f"{type(error).__name__}: {error}; this looks like a bug: please report it with "
                "the output of --verbose."
            )


def _memory_advice() -> str:
    limit = address_space_limit()
    if limit is None:
        return "There is not enough memory; close other programs or use a smaller patch."
    return (
        f"There is not enough memory: this program is limited to {memory(limit)} of address "
        "space; raise the limit (ulimit -v) or use a smaller patch."
    )


def stored(write: Callable[[], object]) -> Exit:
    """Write a requested file at the end of a command; report why it cannot be written."""
    try:
        write()
    except WriteError as error:
        complain(sentence(error))
        return Exit.SOME_FAILED
    return Exit.DONE


def complain_of_nothing(inputs: Iterable[Path], skipped: "Sequence[Skip | Skipped]") -> Exit:
    """Report that no study was found, after the skipped and unread inputs; return the status."""
    print_sentences(skipped_scans(skipped), sys.stderr)
    print_sentences(unread_places(skipped), sys.stderr)
    complain(nothing_found(inputs, skipped))
    return Exit.NO_STUDY


def complain(text: str) -> None:
    """Report one sentence on stderr, and in the log file of a service."""
    line = f"Error: {printable(text)}"
    print_sentences([f"{journal_mark('error')}{line}"], sys.stderr)
    to_file(line, "error", {})
