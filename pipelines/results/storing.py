"""A result onto disk and onto the record, in an order that a kill at any moment leaves in order."""

import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from ...engine.model.card import ModelCard
from ...io.errors import WriteError
from ...io.files.atomic import advice
from ...io.files.parts import Gate
from ...io.volume import Derivation
from ...io.writing import files_at, places, write
from ..errors import OccupiedError
from ..report.writing import program_version
from ..study.translation import Translated
from .manifest import FileState, ManifestEntry, Recipe
from .output_file import save
from .record_folder import OutputPlace
from .resume import PlannedStudy, preview_of

Barrier: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Passed by each step that makes a part of a result appear, or appear whole."""


class Record(Protocol):
    """A manifest, or the way to one in another process."""

    @property
    def place(self) -> OutputPlace:
        """Where the manifest stands."""
        ...

    def append(self, entry: ManifestEntry) -> None:
        """Store an entry on disk before returning. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Store:
    """Where results are recorded, and what all of them are made with; card: the model's.

    record: the manifest. recipe: hashes of model and settings.
    """

    record: Record
    recipe: Recipe
    card: ModelCard

    def put(
        self,
        planned: PlannedStudy,
        made: Translated,
        inputs: tuple[FileState, ...],
        barrier: Barrier = nullcontext,
    ) -> tuple[FileState, ...]:
        """Write a result and record it; inputs: the states of the files before they were read.

        Returns those of the result's files. Raises WriteError, or OccupiedError if a file appeared
        since the study was planned.
        """
        entry = ManifestEntry(
            output=str(planned.study.name),
            status="writing",
            program=program_version(),
            recipe=self.recipe,
            inputs=(),
        )
        place, target = self.record.place, planned.target
        gate = self._gate(replace(entry, outputs=planned.earlier), place, barrier)
        files = (*places(target), preview_of(target)) if made.preview else places(target)
        appeared = [file for file in files if os.path.lexists(file)]
        if appeared and not planned.replaces:
            raise OccupiedError(
                f"{appeared[0]} appeared while the study was translated; move it away or use "
                "setting overwrite"
            )
        try:
            place.check()
            if planned.stale:
                planned.stale.unlink(missing_ok=True)
            if made.preview:
                save(preview_of(target), made.preview, gate)
            hashes = write(made.volume, target, self._derivation(inputs), gate)
            pictures = [preview_of(target)] if made.preview else []
            written = [*files_at(target), *pictures]
            outputs = tuple(FileState.of(file, hashes.get(file.name)) for file in written)
            place.check()
            self.record.append(replace(entry, status="written", inputs=inputs, outputs=outputs))
            return outputs
        except OSError as error:
            raise WriteError(f"{target} was not stored: {advice(error)}.") from error
        finally:
            if not os.path.lexists(target):
                with suppress(OSError, WriteError):
                    place.check()  # else the result may be there, where the folder is now
                    if made.preview:
                        preview_of(target).unlink(missing_ok=True)
                    self.record.append(replace(entry, status="failed"))

    def _gate(self, writing: ManifestEntry, place: OutputPlace, barrier: Barrier) -> Gate:
        """What tells the record of files before they appear, and refuses an output folder that is
        not the one of the run; writing: with the states of what may stand there already.
        """
        known = list(writing.outputs)

        @contextmanager
        def announced(coming: Sequence[Path]) -> Generator[None]:
            if coming:
                known.extend(map(FileState.coming, coming))
                self.record.append(replace(writing, outputs=tuple(known)))
            with barrier():
                place.check()
                yield

        return announced

    def put_preview(
        self, planned: PlannedStudy, picture: bytes, barrier: Barrier = nullcontext
    ) -> None:
        """Write the preview of a result that is up to date, and record it.

        Recorded just before it appears, so that a killed run leaves no picture that nobody knows.
        Raises WriteError, or OccupiedError if a file appeared there.
        """
        place, file, entry = self.record.place, preview_of(planned.target), planned.kept
        assert entry is not None
        if os.path.lexists(file):
            raise OccupiedError(
                f"{file} appeared while it was drawn; move it away or use setting overwrite"
            )
        digest = hashlib.sha256(picture).hexdigest()

        @contextmanager
        def recorded(coming: Sequence[Path]) -> Generator[None]:
            states = tuple(FileState.of(part, digest) for part in coming)
            if states:
                self.record.append(replace(entry, outputs=(*entry.outputs, *states)))
            with barrier():
                place.check()
                yield

        try:
            place.check()
            save(file, picture, recorded)
        except OSError as error:
            raise WriteError(f"{file} was not stored: {advice(error)}.") from error

    def _model_name(self) -> str:
        """The model's name, with what every reader of a result must know of it."""
        is_unproven = self.card.established.by == "unproven"
        return f"{self.card.name} (unproven)" if is_unproven else self.card.name

    def _derivation(self, inputs: tuple[FileState, ...]) -> Derivation:
        program = program_version()
        hashes = [self.recipe.model, self.recipe.settings, *(state.sha256 for state in inputs)]
        return Derivation(
            model=self._model_name(),
            source=self.card.source,
            target=self.card.target,
            program=program,
            fingerprint=hashlib.sha256("\n".join([program, *hashes]).encode()).hexdigest(),
        )
