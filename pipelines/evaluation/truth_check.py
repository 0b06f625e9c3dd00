"""Detection of truths that are no truth: the result itself, or a scan or result of its batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...io.volume import Study
from ..errors import ComparisonError, NewerRecordError, OutputFolderError
from ..results.file_states import FileState
from ..results.manifest import entries_of
from .pairs import ScanPair


@dataclass(frozen=True, slots=True)
class TruthCheck:
    """Files of the batches that wrote the results, by size and hash.

    sources: scans that were translated. results: their results. sizes: sizes of both. unread:
    folders with a record that cannot be read.
    """

    sources: frozenset[tuple[int, str]]
    results: frozenset[tuple[int, str]]
    sizes: frozenset[int]
    unread: tuple[Path, ...]

    @classmethod
    def of(cls, results: Iterable[Study]) -> "TruthCheck":
        """Read the records of all folders that contain a result."""
        sources: set[tuple[int, str]] = set()
        written: set[tuple[int, str]] = set()
        unread: list[Path] = []
        folders = {folder for study in results for folder in study.files[0].absolute().parents}
        for folder in sorted(folders):
            try:
                for entry in entries_of(folder):
                    sources.update((state.size, state.sha256) for state in entry.inputs)
                    written.update((state.size, state.sha256) for state in entry.files)
            except (NewerRecordError, OutputFolderError):
                unread.append(folder)
        sizes = frozenset(size for size, _ in sources | written)
        return cls(frozenset(sources), frozenset(written), sizes, tuple(unread))

    def check(self, pair: ScanPair) -> None:
        """Raise ComparisonError if the truth is the result, or a scan or result of the batch.

        Reads the truth's first file only if a file of its size is known.
        """
        assert pair.result
        assert pair.truth
        result, truth = pair.result.files[0], pair.truth.files[0]
        if truth.samefile(result):
            raise ComparisonError(f"The truth is the result itself{_ADVICE}")
        size = truth.stat().st_size
        is_as_large = size == result.stat().st_size
        if size not in self.sizes and not is_as_large:
            return
        digest = FileState.of(truth).sha256
        if is_as_large and digest == FileState.of(result).sha256:
            raise ComparisonError(f"The truth is a copy of the result{_ADVICE}")
        if (size, digest) in self.sources:
            raise ComparisonError(
                f"The truth is a scan that was translated here, so the figures would show how much "
                f"the network changed{_ADVICE}"
            )
        if (size, digest) in self.results:
            raise ComparisonError(f"The truth is another result of this batch{_ADVICE}")

    def notes(self) -> list[str]:
        """Return a note for each record that was not searched for the truth."""
        return [
            f"the record of {folder} cannot be read, so nothing shows whether the truth is a scan "
            "that was translated there"
            for folder in self.unread
        ]


_ADVICE = "; give an acquired scan of the target contrast, or compare them with setting any-truth."
