"""Input files of a study, and whether they changed while they were read."""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...io.errors import ScanError, UnreadableScanError
from ...io.reading import causes_named
from ...io.volume import Study
from ..results.file_states import FileState


class InputFiles:
    """Files of a study as they were when this object was created. Any thread may call."""

    def __init__(self, study: Study) -> None:
        """Record the marks of the files. Raises ScanError."""
        self._study = study
        self._marks = self._marks_now()

    def states(self, go_on: Callable[[], None]) -> tuple[FileState, ...]:
        """Return the files' states with hashes. Raises ScanError, also if they changed meanwhile.

        go_on: called now and then; an exception that it raises ends the work.
        """
        with self.unchanged(), causes_named(self._study.files[0]):
            states = tuple(FileState.of(file, go_on=go_on) for file in self._study.files)
        for file, mark, state in zip(self._study.files, self._marks, states, strict=True):
            # Only this detects a replaced file with the same size and date.
            _require_unchanged(mark.st_ctime_ns == state.changed_ns, file)
        return states

    def confirmed(self, states: Sequence[FileState]) -> tuple[FileState, ...]:
        """Return the states, after checking that the files still have them once all is read.

        A file whose name, owner or permissions changed meanwhile is hashed again. Raises ScanError.
        """
        return states_again(self._study, states)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Check at the end of the block that the files are unchanged.

        Raises UnreadableScanError if they changed, in place of any ScanError that this caused.
        """
        try:
            yield
        except ScanError as error:
            self._check(error)
            raise
        self._check(None)

    def _check(self, cause: ScanError | None) -> None:
        for file, was, now in zip(self._study.files, self._marks, self._marks_now(), strict=True):
            is_same = (was.st_size, was.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
            _require_unchanged(is_same, file, cause)

    def _marks_now(self) -> list[os.stat_result]:
        with causes_named(self._study.files[0]):
            return [file.stat() for file in self._study.files]


def states_again(study: Study, known: Iterable[FileState]) -> tuple[FileState, ...]:
    """Return the current states of a study's files; known: earlier ones, also under other names.

    A file whose marks differ is hashed again. Raises ScanError, also if the content of one changed.
    """
    with causes_named(study.files[0]):
        pairs = list(zip(study.files, known, strict=True))
        states = tuple(replace(state, name=file.name).again(file) for file, state in pairs)
    for now, (file, was) in zip(states, pairs, strict=True):
        _require_unchanged(now.sha256 == was.sha256, file)
    return states


def _require_unchanged(is_same: bool, file: Path, cause: ScanError | None = None) -> None:
    """Raise UnreadableScanError unless a file is the same as before."""
    if not is_same:
        raise UnreadableScanError(
            f"{file} changed while it was read; translate it again when it is complete."
        ) from cause
