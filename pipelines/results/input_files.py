"""A study's files, which may not change while a study is made of them."""

from collections.abc import Generator
from contextlib import contextmanager

from ...io.errors import ScanError, UnreadableScanError
from ...io.reading import causes_named
from ...io.volume import Study
from .manifest import FileState


class InputFiles:
    """The files of a study as they were when this was made. Any thread may call."""

    def __init__(self, study: Study) -> None:
        """Raises ScanError."""
        self._study = study
        self._marks = self._marks_now()

    def states(self) -> tuple[FileState, ...]:
        """Their bytes by hash. Raises ScanError, also if they changed meanwhile."""
        with self.unchanged(), causes_named(self._study.files[0]):
            return tuple(map(FileState.of, self._study.files))

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Make sure that at the end of the block they are still as they were.

        Raises UnreadableScanError if they are not, whatever ScanError that led to.
        """
        try:
            yield
        except ScanError as error:
            self._check(error)
            raise
        self._check(None)

    def _check(self, cause: ScanError | None) -> None:
        for file, was, now in zip(self._study.files, self._marks, self._marks_now(), strict=True):
            if was != now:
                raise UnreadableScanError(
                    f"{file} changed while it was read; translate it again when it is complete."
                ) from cause

    def _marks_now(self) -> list[tuple[int, int]]:
        with causes_named(self._study.files[0]):
            found = [file.stat() for file in self._study.files]
        return [(status.st_size, status.st_mtime_ns) for status in found]
