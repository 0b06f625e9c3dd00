"""Many studies, one after another: each fails alone, each result is on record when it appears."""

import hashlib
import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..io.errors import WriteError
from ..io.reading import causes_named
from ..io.volume import Derivation
from ..io.writing import files_at, places, write
from .errors import OccupiedError
from .events import Listen, StudyDone, StudyStarted, TilesDone
from .failures import failure_of
from .manifest import Entry, FileState, Manifest, Recipe
from .memory import PeakMeter
from .plan import PlannedStudy, preview_of
from .report import StudyReport
from .report_json import program_version
from .saving import save
from .stopwatch import Stopwatch
from .study_run import Translated, Translator, translate_study


@dataclass(frozen=True, slots=True)
class Batch:
    """Studies under one set of settings, and where their results are recorded."""

    planned: tuple[PlannedStudy, ...]
    translator: Translator
    recipe: Recipe
    manifest: Manifest
    listen: Listen

    def run(self) -> tuple[StudyReport, ...]:
        """The rows of all studies, or of those up to a KeyboardInterrupt, in their order."""
        rows: list[StudyReport] = []
        try:
            for planned in self.planned:
                row, trace = self._row(planned)
                rows.append(row)
                self.listen(StudyDone(row, trace))
                if row.status == "interrupted":
                    break
        except KeyboardInterrupt:
            pass
        return tuple(rows)

    def _row(self, planned: PlannedStudy) -> tuple[StudyReport, str | None]:
        """A study's row and, if it failed, the traceback."""
        row = StudyReport(
            name=str(planned.study.name),
            source=planned.study.files[0],
            output=planned.target,
            status="up to date",
            notes=planned.study.notes,
        )
        if planned.action == "keep":
            return replace(row, preview=self._preview_of(planned)), None
        if planned.refusal:
            return replace(row, status="failed", failure=planned.refusal), None
        return self._translate(planned, replace(row, due=planned.reason))

    def _translate(self, planned: PlannedStudy, row: StudyReport) -> tuple[StudyReport, str | None]:
        self.listen(StudyStarted(planned))
        watch, memory, trace = Stopwatch(), PeakMeter(), None
        try:
            row = self._make(planned, row, watch)
        except KeyboardInterrupt:
            row = replace(row, status="interrupted")
        except Exception as error:
            # The one place that keeps a study's failure, of any kind, from the rest of the batch.
            # Only text leaves it: the exception itself would keep the study's arrays alive.
            trace = "".join(traceback.format_exception(error))
            row = replace(row, status="failed", failure=failure_of(error, watch.stage))
        seconds, stages = watch.total(), dict(watch.seconds)
        return replace(row, seconds=seconds, stages=stages, peak_memory=memory.read()), trace

    def _make(self, planned: PlannedStudy, row: StudyReport, watch: Stopwatch) -> StudyReport:
        """Translate and store one study; its row with what became known."""
        # Before reading: a file that changes from here on has other marks at the next run.
        with watch.time("read"), causes_named(planned.study.files[0]):
            inputs = _states(planned.study.files)
        made = translate_study(planned.study, self.translator, watch, self._tell_tiles)
        with watch.time("write"):
            self._store(planned, made, inputs)
        return replace(
            row,
            status="translated",
            voxels=made.volume.voxels.size,
            tiles=made.tiles,
            preview=self._preview_of(planned),
            seams=made.seams,
        )

    def _preview_of(self, planned: PlannedStudy) -> Path | None:
        return preview_of(planned.target) if self.translator.extras.preview else None

    def _store(
        self, planned: PlannedStudy, made: Translated, inputs: tuple[FileState, ...]
    ) -> None:
        entry = Entry(
            output=str(planned.study.name),
            status="writing",
            program=program_version(),
            recipe=self.recipe,
            inputs=inputs,
        )
        target = planned.target
        files = (*places(target), preview_of(target)) if made.preview else places(target)
        appeared = [file for file in files if os.path.lexists(file)]
        if appeared and not planned.replaces:
            raise OccupiedError(
                f"{appeared[0]} appeared while the study was translated; move it away or use "
                "--overwrite"
            )
        try:
            self.manifest.append(entry)
            if planned.stale:
                planned.stale.unlink(missing_ok=True)
            if made.preview:
                save(preview_of(target), made.preview)
            write(made.volume, target, self._derivation(inputs))
            pictures = [preview_of(target)] if made.preview else []
            outputs = _states([*files_at(target), *pictures])
            self.manifest.append(replace(entry, status="written", outputs=outputs))
        except OSError as error:
            raise WriteError(
                f"{target} could not be stored ({error.strerror}); free some space or choose "
                "another output folder."
            ) from error
        finally:
            if not os.path.lexists(target):
                with suppress(OSError):
                    if made.preview:
                        preview_of(target).unlink(missing_ok=True)
                    self.manifest.append(replace(entry, status="failed"))

    def _derivation(self, inputs: tuple[FileState, ...]) -> Derivation:
        card, program = self.translator.model.card, program_version()
        hashes = [self.recipe.model, self.recipe.settings, *(state.sha256 for state in inputs)]
        return Derivation(
            model=card.name,
            source=card.source,
            target=card.target,
            program=program,
            fingerprint=hashlib.sha256("\n".join([program, *hashes]).encode()).hexdigest(),
        )

    def _tell_tiles(self, done: int, total: int) -> None:
        self.listen(TilesDone(done, total))


def _states(files: Sequence[Path]) -> tuple[FileState, ...]:
    return tuple(FileState.of(file) for file in files)
