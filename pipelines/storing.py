"""A result onto disk and onto the record, in an order that a kill at any moment leaves in order."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..io.errors import WriteError
from ..io.reading import causes_named
from ..io.volume import Study, Volume
from ..io.writing import places, write
from .errors import OccupiedError
from .manifest import Entry, FileState, Manifest, Recipe
from .plan import PlannedStudy
from .report_json import program_version


@dataclass(frozen=True, slots=True)
class Store:
    """Where results are recorded, and what all of them are made with."""

    manifest: Manifest
    recipe: Recipe

    def put(self, planned: PlannedStudy, volume: Volume, inputs: tuple[FileState, ...]) -> None:
        """Write a result and record it; inputs: the states of the files before they were read.

        Raises WriteError, or OccupiedError if a file appeared since the study was planned.
        """
        entry = Entry(
            output=str(planned.study.name),
            status="writing",
            program=program_version(),
            recipe=self.recipe,
            inputs=inputs,
        )
        target = planned.target
        appeared = [file for file in places(target) if os.path.lexists(file)]
        if appeared and not planned.replaces:
            raise OccupiedError(
                f"{appeared[0]} appeared while the study was translated; move it away or use "
                "--overwrite"
            )
        try:
            self.manifest.append(entry)
            write(volume, target)
            outputs = _states([file for file in places(target) if file.exists()])
            self.manifest.append(replace(entry, status="written", outputs=outputs))
        except OSError as error:
            raise WriteError(
                f"{target} could not be stored ({error.strerror}); free some space or choose "
                "another output folder."
            ) from error
        finally:
            if not os.path.lexists(target):
                with suppress(OSError):
                    self.manifest.append(replace(entry, status="failed"))


def input_states(study: Study) -> tuple[FileState, ...]:
    """The states of a study's files, to be taken before it is read: a file that changes from then
    on has other marks at the next run. Raises ScanError.
    """
    with causes_named(study.files[0]):
        return _states(study.files)


def _states(files: Sequence[Path]) -> tuple[FileState, ...]:
    return tuple(FileState.of(file) for file in files)
