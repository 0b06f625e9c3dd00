"""Storing of a result on disk and in the record, in an order that is safe to kill at any moment."""

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from ...engine.model.model_card import ModelCard
from ...io.errors import DiskFullError, WriteError
from ...io.files.atomic import refused, whole_file
from ...io.files.disk import free_bytes
from ...io.files.parts import Gate, remove
from ...io.volume import Derivation, Study, SyntheticMark, Volume
from ...io.writing import files_at, is_series, is_written_in_order, map_beside, write
from ..errors import OccupiedError
from ..program import program_version
from ..series_description import DescriptionPattern
from ..study.figures import CycleError
from ..study.maps import StudyMap
from ..study.translator import Translated
from .file_states import FileState
from .manifest import ManifestEntry, MapRecord, Recipe, place_of
from .record_folder import OutputPlace
from .resume import PlannedStudy, files_of, map_places
from .sidecar import SidecarMaker
from .written_ahead import LEAST_BYTES, WrittenAhead, WrittenSeries

Barrier: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Barrier passed by each step that makes a part of a result, or the whole result, visible."""


class Record(Protocol):
    """Manifest, or a connection to one in another process."""

    @property
    def place(self) -> OutputPlace:
        """Output place of the manifest."""
        ...

    def append(self, entry: ManifestEntry) -> None:
        """Store an entry on disk before returning. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Store:
    """Store that writes and records results; card: model card of the model.

    record: the manifest. recipe: hashes of model and settings. sidecars: maker of the JSON files
    next to results; None if there are none. description: pattern for the SeriesDescription of DICOM
    results; None describes them by target and model.
    """

    record: Record
    recipe: Recipe
    card: ModelCard
    sidecars: SidecarMaker | None = None
    description: DescriptionPattern | None = None

    def put(
        self,
        planned: PlannedStudy,
        translated: Translated,
        inputs: tuple[FileState, ...],
        barrier: Barrier = nullcontext,
        cycle: CycleError | None = None,
        notes: tuple[str, ...] = (),
        ahead: Sequence[WrittenAhead] = (),
    ) -> tuple[FileState, ...]:
        """Write a result and record it; inputs: the states of the files before they were read.

        notes: from its translation. ahead: results that are already partly written.

        Returns the states of the result's files. Raises WriteError, or OccupiedError if a file
        appeared since the study was planned.
        """
        has_words = planned.picture or is_series(planned.study.format, planned.target)
        entry = ManifestEntry(
            output=str(planned.study.name),
            status="writing",
            program=program_version(),
            recipe=self.recipe,
            inputs=(),
            outputs=(),
            words=self.card.words if has_words else (),
            mirrored=tuple(map(str, planned.study.mirrored)),
            others=tuple(map(str, planned.study.other_results)) if planned.study.mirrored else (),
            place=place_of(planned.study),
        )
        place, target = self.record.place, planned.target
        maps = tuple(MapRecord(each.mark.kind, each.mark.recipe) for each in translated.maps)
        gate = self._gate(replace(entry, outputs=planned.earlier, maps=maps), place, barrier)
        beside = [*map_places(target, [each.mark.kind for each in translated.maps])]
        beside += [*_pictures(planned, translated), *planned.sidecars]
        appeared = [file for file in (*files_of(planned), *beside) if os.path.lexists(file)]
        if appeared and not planned.replaces:
            raise OccupiedError(
                f"{appeared[0]} appeared while the study was translated; move it away or use "
                "setting overwrite"
            )
        try:
            place.check()
            written = self._write(planned, translated, replace(entry, inputs=inputs), gate, ahead)
            place.check()
            written = replace(written, cycle=cycle, notes=notes)
            self.record.append(written)
            return written.outputs
        except OSError as error:
            raise refused(f"{target} was not stored", error) from error
        finally:
            if not any(map(os.path.lexists, planned.targets)):
                with suppress(OSError, WriteError):
                    place.check()  # otherwise the result may be in the folder's new location
                    for file in beside:
                        remove(file)
                    self.record.append(replace(entry, status="failed"))

    def begin(
        self, planned: PlannedStudy, volume: Volume, barrier: Barrier = nullcontext
    ) -> WrittenAhead | None:
        """Begin to write a result before its voxels are computed, if that pays; `put` names it."""
        target = planned.target
        is_large = volume.voxels.nbytes >= LEAST_BYTES
        if not is_large or len(planned.targets) > 1 or not is_written_in_order(volume, target):
            return None

        return WrittenAhead(volume, target, self._gate_of_parts(barrier))

    def begin_series(
        self, planned: PlannedStudy, volumes: Sequence[Volume], barrier: Barrier = nullcontext
    ) -> tuple[WrittenSeries, ...]:
        """Begin the result of each channel of a series, which `put` names.

        volumes: the first volume of each channel, which is written when it is added.
        """
        gate = self._gate_of_parts(barrier)
        return tuple(
            WrittenSeries(volume, target, gate)
            for volume, target in zip(volumes, planned.targets, strict=True)
        )

    def _gate_of_parts(self, barrier: Barrier) -> Gate:
        """Return the gate that is passed when the part of a result is made."""

        @contextmanager
        def passed(_: Sequence[Path]) -> Generator[None]:
            with barrier():
                self.record.place.check()
                yield

        return Gate(passed, self.record.place.output)

    def _write(
        self,
        planned: PlannedStudy,
        translated: Translated,
        entry: ManifestEntry,
        gate: Gate,
        ahead: Sequence[WrittenAhead],
    ) -> ManifestEntry:
        """Write all files of a study, the result last, so that it never exists without the others.

        Returns the entry to record. Raises WriteError and OSError.
        """
        target, derivation = planned.target, self._derivation(planned.study, entry.inputs, 0)
        for old in (*([planned.stale] if planned.stale else []), *planned.stale_beside):
            remove(old)
        beside = {**_pictures(planned, translated), **self._sidecars(planned, entry.program)}
        for place, content in beside.items():
            _save(place, content, gate)
        source_mark = translated.volumes[0].mark
        maps = tuple(
            self._put_map(each, source_mark, target, derivation, gate) for each in translated.maps
        )
        hashes: dict[str, str] = {}
        for channel, (volume, each) in enumerate(
            zip(translated.volumes, planned.targets, strict=True)
        ):
            if begun := next((one for one in ahead if one.target == each), None):
                hashes |= begun.put(gate)
            elif volume.further:
                raise WriteError(
                    f"{each} was not written, because its volumes are no longer available; run the "
                    "command again."
                )
            else:
                derived = self._derivation(planned.study, entry.inputs, channel)
                hashes |= write(volume, each, derived, gate)
        written = [*(file for each in planned.targets for file in files_at(each)), *beside]
        outputs = tuple(FileState.of(file, hashes.get(file.name)) for file in written)
        written_entry = replace(entry, status="written", outputs=outputs, maps=maps)
        return replace(
            written_entry,
            spread=translated.spread,
            resampled=translated.resampled,
            measures=translated.measures,
            seams=translated.seams,
        )

    def _put_map(
        self,
        mapped: StudyMap,
        source_mark: SyntheticMark | None,
        result: Path,
        derivation: Derivation,
        gate: Gate,
    ) -> MapRecord:
        """Write a map next to its result; raises WriteError and OSError.

        source_mark: the result's mark.
        """
        mark, target = mapped.mark, map_beside(result, mapped.mark.kind)
        parts = derivation.fingerprint, mark.kind, mark.recipe
        own = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        volume = replace(mapped.volume, mark=source_mark and replace(source_mark, shows=mark.kind))
        hashes = write(volume, target, replace(derivation, fingerprint=own, shows=mark), gate)
        states = tuple(FileState.of(file, hashes.get(file.name)) for file in files_at(target))
        return MapRecord(mark.kind, mark.recipe, states)

    def _gate(self, writing: ManifestEntry, place: OutputPlace, barrier: Barrier) -> Gate:
        """Return the gate that records files before they appear, and rejects an output folder that
        is not the run's; writing: entry with the states of files that may exist already.
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

        return Gate(announced, place.output)

    def put_beside(
        self, planned: PlannedStudy, picture: bytes | None, barrier: Barrier = nullcontext
    ) -> None:
        """Write the files that an up-to-date result lacks next to it, and record them.

        picture: its preview, if that is pending. Each file is recorded just before it appears, so
        that a killed run leaves no unrecorded file. Raises WriteError, or OccupiedError if a file
        appeared there.
        """
        place, file, entry = self.record.place, planned.picture, planned.kept
        assert entry is not None
        coming = self._sidecars(planned, entry.program)
        ours = {state.name for state in planned.earlier}
        appeared = [each for each in coming if each.name not in ours and os.path.lexists(each)]
        if picture and file:
            appeared += [file] if planned.stale is None and os.path.lexists(file) else []
            coming[file] = picture
        if appeared:
            raise OccupiedError(
                f"{appeared[0]} appeared while it was drawn; move it away or use setting overwrite"
            )
        known = list(entry.outputs)

        @contextmanager
        def recorded(parts: Sequence[Path]) -> Generator[None]:
            known.extend(map(FileState.of, parts))
            if parts:
                self.record.append(replace(entry, outputs=tuple(known)))
            with barrier():
                place.check()
                yield

        try:
            place.check()
            if planned.stale:
                remove(planned.stale)
            for each, content in coming.items():
                _save(each, content, Gate(recorded, place.output))
        except OSError as error:
            raise refused(f"No file was written next to {planned.target}", error) from error

    def _sidecars(self, planned: PlannedStudy, program: str) -> dict[Path, bytes]:
        """Return the pending JSON files next to a study's results, by their paths."""
        if self.sidecars is None or not planned.sidecars:
            return {}
        contents = self.sidecars.contents(planned.study, program)
        return dict(zip(planned.sidecars, contents, strict=True))

    def _derivation(self, study: Study, inputs: tuple[FileState, ...], channel: int) -> Derivation:
        program = program_version()
        hashes = [self.recipe.model, self.recipe.settings, *(state.sha256 for state in inputs)]
        model, source, _ = self.card.words
        made_of = [program, *self.card.words, *hashes]
        if channel:  # results of the same inputs must still differ
            made_of.append(f"channel {channel}")
        if study.incomplete:
            made_of.append(study.incomplete)
        target = self.card.targets[channel]
        fields = {"model": model, "source": source, "target": target}
        return Derivation(
            model=model,
            source=source,
            target=target,
            program=program,
            fingerprint=hashlib.sha256("\n".join(made_of).encode()).hexdigest(),
            newest_source=max(state.modified_ns for state in inputs) // 10**9,
            channel=channel,
            incomplete=study.incomplete,
            description=self.description.filled(fields) if self.description else "",
        )


def _save(place: Path, picture: bytes, gate: Gate) -> None:
    with whole_file(place, gate) as part:
        part.write_bytes(picture)


def _pictures(planned: PlannedStudy, translated: Translated) -> dict[Path, bytes]:
    """Return the preview by its path; empty if there is no preview, or no path for one."""
    return {planned.picture: translated.preview} if planned.picture and translated.preview else {}


PLENTY = 32
"""Multiple of a scan's size that its result never reaches; with more free, the disk was full only
for a moment, or because of something else."""


class DiskSpace:
    """Check of free disk space before hours are spent on a result that could not be stored.

    Any thread may call it. The size of a result is not known in advance, as it may be compressed.
    So after a result did not fit, a scan of the same size or larger is rejected until the disk has
    more free space than then.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._asking = threading.Lock()
        self._free = 0
        self._too_large: int | None = None

    @contextmanager
    def taken(self, scan: Sequence[Path]) -> Generator[None]:
        """Record a full disk if the result of a scan in these files does not fit in the block."""
        try:
            yield
        except DiskFullError:
            size, free = _bytes_of(scan), free_bytes(self._output)
            if free <= PLENTY * size:
                with self._asking:
                    known, self._free = self._too_large, free
                    self._too_large = size if known is None else min(size, known)
            raise

    def check(self, scan: Sequence[Path]) -> None:
        """Raise DiskFullError if there is no space for the result of a scan in these files."""
        with self._asking:
            if self._too_large is None or _bytes_of(scan) < self._too_large:
                return
            if free_bytes(self._output) > self._free:
                self._too_large = None
                return
        raise DiskFullError(
            f"It was not started, because the disk of {self._output} is full; free some space or "
            "choose another output folder."
        )


def _bytes_of(files: Sequence[Path]) -> int:
    found = 0
    for file in files:
        with suppress(OSError):  # reported when the file is read
            found += file.stat().st_size
    return found
