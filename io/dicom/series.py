"""DICOM series assembled from the headers of files; each has one grid, or the reason why not."""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from ..choice import Choice
from ..errors import listed
from ..files.header_limits import pick_volume
from ..volume import Study
from .acceptance import Verdict, accepted
from .frames import Concatenation, Instance, Stack
from .geometry import depth_of, normal_of
from .grouping import Part, parts_of
from .header_scan import scan
from .object_types import NO_IMAGE, NO_PLACE, THROUGH_A_TABLE, is_enhanced_class
from .series_files import Members

Owner: TypeAlias = tuple[str, str]
"""Patient and study."""
HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """Images of one SeriesInstanceUID that show the same in one orientation.

    label: a name without patient data. verdict: whether it is accepted, skipped or rejected, with
    the reason. volumes: the slices of each volume, sorted along their normal; several where slices
    repeat, as over time. duplicates: number of ignored copies of its images. extents: along
    columns, rows and slices. spacing: along them, in millimetres. uneven: fault of its grid, if it
    is accepted nevertheless and resampled. notes: remarks for the user. text: its
    description, if that may be shown. study_numbers: of all series of its study. keep_private:
    whether its private elements go into the result. kind: its difference from other images of its
    SeriesInstanceUID, in words. is_incomplete: whether some of its images cannot be read.
    incomplete: that images are missing and it is taken without, in words for its result. uid: its
    SeriesInstanceUID. study: its StudyInstanceUID. number: SeriesNumber. modality: such as MR.
    files: all of its files. images: how many it has. patient: its identifier, never shown.
    reference: UID of its frame of reference, empty where none is given. is_result: whether this
    program made it. protocol: ProtocolName, never shown. is_chosen: whether setting series selected
    it. read_as: as of a `Study`.
    """

    label: str
    uid: str
    study: str
    number: int
    modality: str
    description: str
    files: tuple[Path, ...]
    verdict: Verdict
    reason: str | None = None
    volumes: tuple[Stack, ...] = ()
    images: int = 0
    duplicates: int = 0
    extents: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    uneven: str | None = None
    notes: tuple[str, ...] = ()
    text: str = ""
    study_numbers: frozenset[int] = frozenset()
    keep_private: bool = False
    kind: str = ""
    is_incomplete: bool = False
    patient: str = ""
    reference: str = ""
    incomplete: str = ""
    is_result: bool = False
    protocol: str = ""
    is_chosen: bool = False
    read_as: str = ""

    @property
    def folder(self) -> Path:
        """The folder that its files share."""
        return Path(os.path.commonpath([file.parent for file in self.files]))

    def volume(self, place: Path, index: int | None) -> Stack:
        """Return the slices of one of its volumes; place: its name in errors.

        Raises UnsupportedScanError if it has several and none is chosen.
        """
        first = self.volumes[0][0]
        extents = (first.columns, first.rows, len(self.volumes[0]), len(self.volumes))
        return self.volumes[pick_volume(place, extents, index, takes_all=False)]

    @property
    def content(self) -> Hashable:
        """Key of all that determines its results, without the names of its files."""
        at = {file: index for index, file in enumerate(self.files)}
        volumes = tuple(
            tuple((at[frame.file], frame.number) for frame in volume) for volume in self.volumes
        )
        return volumes, self.uneven, self.study_numbers, self.keep_private, self.incomplete

    @property
    def images_sha256(self) -> str:
        """Hash that is equal for the same images in the same files, whatever else is found.

        Two series may be stored in one file, which then does not determine the series.
        """
        images = [[(str(each.file), each.number) for each in volume] for volume in self.volumes]
        return sha256(repr((list(map(str, self.files)), images)).encode()).hexdigest()

    @property
    def explanation(self) -> str:
        """Reason, preceded by the series' own text if that may be shown."""
        return f'"{self.text}": {self.reason}' if self.text else self.reason or ""


def assemble(found: Iterable[Members], choice: Choice) -> list[Series]:
    """Return all series, sorted by label; images that form no volume have rows of their own."""
    members = list(found)
    numbers: dict[str, set[int]] = defaultdict(set)
    owners: dict[str, set[Owner]] = defaultdict(set)
    for each in members:
        numbers[each.first.study] |= {instance.number for instance in each.instances}
        owners[each.first.series].add(_owner(each))
    places = Counter((each.first.series, each.folder) for each in members)
    rows: list[Series] = []
    for each in members:
        uid = each.first.series
        row = replace(
            _common_fields(each, choice, is_alone=places[uid, each.folder] == 1),
            study_numbers=frozenset(numbers[each.first.study]),
        )
        if len(owners[uid]) > 1:
            row = replace(row, notes=(*row.notes, _OWNERS_NAMED))
        rows += _series(each, row, choice)
    return sorted(_named_apart(rows), key=lambda series: (series.label, series.files))


def _named_apart(rows: Sequence[Series]) -> Iterator[Series]:
    """Yield the rows, with the owner in labels that would give two results one name.

    Files of one series may be in several folders, and so may parts of another patient's series
    with the same identifier.
    """
    names = Counter((row.folder, row.label) for row in rows if row.verdict != "skipped")
    for row in rows:
        is_shared = row.verdict != "skipped" and names[row.folder, row.label] > 1
        owner = _digest(f"{row.patient} {row.study}")
        yield replace(row, label=f"{row.label}-{owner}") if is_shared else row


_OWNERS_NAMED = (
    "other images with its SeriesInstanceUID belong to another patient or study and are handled "
    "separately"
)


def _owner(members: Members) -> Owner:
    return members.first.patient, members.first.study


def _common_fields(members: Members, choice: Choice, *, is_alone: bool) -> Series:
    """Return what all rows of a series share; is_alone: in its folder, by its identifier."""
    first = members.first
    label = f"series-{first.number:04}-{_digest(first.series)}"
    if not is_alone:
        label = f"{label}-{_digest(' '.join(_owner(members)))}"
    return Series(
        label=label,
        uid=first.series,
        study=first.study,
        number=first.number,
        modality=first.modality,
        description=first.description,
        files=(),
        verdict="skipped",
        duplicates=members.copies,
        notes=(*_identifier_notes(members), *_number_notes(members, choice)),
        text=first.description if choice.show_phi else "",
        keep_private=choice.keep_private,
        patient=first.patient,
        incomplete=_note_for_result(members, choice),
        is_result=any(instance.is_result for instance in members.instances),
        protocol=first.protocol,
        is_chosen=choice.series is not None,
    )


def _number_notes(members: Members, choice: Choice) -> Iterator[str]:
    """Yield notes on images that seem missing, by counts that are wrong or that a user ignores."""
    if members.absent and choice.allow_uneven:
        yield f"{_absent_files(members)}; the images present are used"
    images = len(members.instances)
    if images < (declared := max(each.declared for each in members.instances)):
        yield (
            f"its headers declare {declared} images but {images} are present; such numbers are "
            "often wrong"
        )


def _identifier_notes(members: Members) -> Iterator[str]:
    """Yield notes on what the SOPInstanceUIDs of a series leave unverified."""
    if copies := members.copies:
        note = f"{copies} cop{'y' if copies == 1 else 'ies'} of images ignored"
        if members.unlike:
            note += f"; {members.unlike} differ in content from the image that is used"
        yield note
    images = len(members.instances)
    if images > (identifiers := _identifiers_in(members)):
        yield (
            f"its {images} images have {identifiers} SOPInstanceUID between them; "
            "they are distinguished by their positions"
        )


def _identifiers_in(members: Members) -> int:
    return len({each.uid for each in members.instances})


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:HASH_DIGITS]


def _series(members: Members, row: Series, choice: Choice) -> Iterator[Series]:
    """Yield the images that no volume may contain, by reason, and then each part of the others."""
    for reason, same in _by_blocker(members).items():
        files = tuple(instance.file for instance in same)
        yield replace(row, reason=reason, files=files, images=len(same))
    if aside := _unplaced(members):
        rows = _without(aside, members, row, choice)
        if any(one.verdict == "taken" for one in rows) and not any(
            one.verdict == "refused" for one in rows
        ):
            yield from rows
            return
    yield from _volumes(members, row, choice, _why_incomplete(members, choice))


def _unplaced(members: Members) -> list[Instance]:
    """Return single images without a position that may be set aside.

    One whose number is among those of the slices is a slice itself.
    """
    placed = [each for each in members.instances if each.frames]
    numbers = [each.image for each in placed]
    classes = {each.sop_class for each in placed if not is_enhanced_class(each.sop_class)}
    return [
        each
        for each in members.instances
        if each.blocker == NO_PLACE
        and each.sop_class in classes
        and not min(numbers) < each.image < max(numbers)
    ]


def _without(
    aside: Sequence[Instance], members: Members, row: Series, choice: Choice
) -> list[Series]:
    """Return the rows of the images without some, of which they must be independent: none may be
    uneven or known to be incomplete.
    """
    count, verb = len(aside), "was" if len(aside) == 1 else "were"
    omitted = (
        f"{count} of the {len(members.instances)} images of the source had no position and {verb} "
        "omitted"
    )
    note = f"{omitted}: {listed([each.file.name for each in aside])}"
    incomplete = f"{row.incomplete}; {omitted}" if row.incomplete else omitted
    row = replace(row, notes=(*row.notes, note), incomplete=incomplete)
    strict = replace(choice, allow_uneven=False)
    missing = _why_incomplete(members, strict, [each.file for each in aside])
    if max(each.declared for each in members.instances) > len(members.instances) - count:
        missing = missing or omitted
    return list(_volumes(members, row, strict, missing))


def _volumes(members: Members, row: Series, choice: Choice, lost: str | None) -> Iterator[Series]:
    """Yield each part of the images that have positions. lost: why some are missing, in words."""
    frames = [frame for instance in members.instances for frame in instance.frames]
    cut = {each.file: each.cut for each in members.instances if each.cut}
    parts = parts_of(frames, choice.fewest_slices) if frames else []
    for count, part in enumerate(parts, 1):
        own = replace(row, kind=part.kind, images=len(part.frames))
        if len(parts) > 1:
            kind = f": {part.kind}" if part.kind else ""
            note = f"one of {len(parts)} parts of its series{kind}"
            own = replace(own, label=f"{row.label}-{count}", notes=(*own.notes, note))
        elif part.kind:
            own = replace(own, notes=(*own.notes, f"its images show {part.kind}"))
        own = replace(own, notes=(*own.notes, *part.notes))
        missing = lost or _cut_short([frame.file for frame in part.frames], cut)
        is_whole = len(part.frames) == len(members.instances)
        yield _series_of_part(own, part, missing, choice, is_whole=is_whole)


def _by_blocker(members: Members) -> dict[str, list[Instance]]:
    found: dict[str, list[Instance]] = defaultdict(list)
    for instance in members.instances:
        if instance.blocker:
            found[instance.blocker].append(instance)
    return found


def _why_incomplete(members: Members, choice: Choice, aside: Collection[Path] = ()) -> str | None:
    """Return which images of the series cannot be read or placed, in words. aside: files of images
    that it does without.
    """
    lost = [f"{each.file.name} ({each.reason})" for each in members.lost]
    if lost:
        reason = "cannot be read and may be slices of it; restore or remove the damaged files"
        files = "file" if len(lost) == 1 else "files"
        return (
            f"{len(lost)} {files} next to its {len(members.instances)} images {reason}: "
            f"{listed(lost)}"
        )
    if members.unlike and len(members.instances) > _identifiers_in(members):
        return (
            f"{members.unlike} more images have the SOPInstanceUID and position of one of its "
            f"{len(members.instances)} images but different content, so they cannot be grouped "
            "reliably; export it again with unique identifiers"
        )
    if members.rivals:
        files = [
            " or ".join(str(file.relative_to(members.folder)) for file in both)
            for both in members.rivals
        ]
        return (
            f"files of one of its images have different pixels, and nothing shows which is right; "
            f"remove the wrong one of {listed(files)}"
        )
    classes = {each.sop_class for each in members.instances if each.frames}
    for blockers, reason in _AMONG_SLICES.items():
        blind = [
            each.file.name
            for each in members.instances
            if each.blocker in blockers and each.sop_class in classes and each.file not in aside
        ]
        if blind:
            return f"{len(blind)} of its {len(members.instances)} images {reason}: {listed(blind)}"
    if members.absent and not choice.allow_uneven:
        return (
            f"{_absent_files(members)}; copy the whole series, or use setting allow-uneven to use "
            "the images present"
        )
    return _missing_of_objects(
        each.concatenation for each in members.instances if each.concatenation
    )


def _absent_files(members: Members) -> str:
    return f"{_absent_count(members)}: {listed([image.file.name for image in members.absent])}"


def _absent_count(members: Members) -> str:
    return (
        f"{len(members.absent)} of its {members.listed} images listed in the DICOMDIR are missing"
    )


def _note_for_result(members: Members, choice: Choice) -> str:
    if not members.absent or not choice.allow_uneven:
        return ""
    return f"the source was incomplete: {_absent_count(members)}"


def _missing_of_objects(there: Iterable[Concatenation]) -> str | None:
    """Return which parts of an object in several files are missing, in words."""
    objects: dict[str, list[Concatenation]] = defaultdict(list)
    for part in there:
        objects[part.uid].append(part)
    for parts in objects.values():
        total = max(max(part.number, part.total) for part in parts)
        if lost := sorted({*range(1, total + 1)} - {part.number for part in parts}):
            return (
                f"it is one object in {total} files (a concatenation), and number "
                f"{listed(list(map(str, lost)))} is missing; copy or export it again"
            )
    return None


_AMONG_SLICES = {
    (NO_PLACE, NO_IMAGE): "have no pixels or no position; export it again",
    (THROUGH_A_TABLE,): "have values mapped by a lookup table; export it without",
}
"""Blockers of images that are of one class with slices of the series, and so slices themselves."""


def _cut_short(files: Iterable[Path], cut: Mapping[Path, str]) -> str | None:
    found = [file for file in dict.fromkeys(files) if file in cut]
    if not found:
        return None
    verb = "is" if len(found) == 1 else "are"
    names = listed([file.name for file in found])
    return f"{names} {verb} truncated or damaged ({cut[found[0]]}); copy or export it again"


def _series_of_part(
    row: Series, part: Part, missing: str | None, choice: Choice, *, is_whole: bool
) -> Series:
    """Return the row of some images.

    missing: which others of them cannot be read, in words. is_whole: whether their
    SeriesInstanceUID has no others.
    """
    normal = normal_of(part.frames[0])
    frames = sorted(part.frames, key=lambda frame: depth_of(frame, normal))
    files = tuple(dict.fromkeys(frame.file for frame in frames))
    first = frames[0]
    row = replace(row, files=files, reference=first.reference, modality=first.contrast.modality)
    if refusal := choice.refusal(row.modality, row.description, row.label):
        return replace(row, reason=refusal)
    if missing:
        return replace(row, verdict="refused", reason=missing, is_incomplete=True)
    found = accepted(frames, part.trouble, choice, is_whole=is_whole)
    return replace(
        row,
        verdict=found.verdict,
        reason=found.reason,
        volumes=found.volumes,
        extents=found.extents,
        spacing=found.spacing,
        uneven=found.uneven,
        incomplete="; ".join(filter(None, (row.incomplete, found.incomplete))),
        notes=(*row.notes, *found.notes),
    )


def added_since(study: Study) -> tuple[Path, ...]:
    """Return images of a study's series that were added to its folders after the search.

    Only headers of new files are read. Raises OSError.
    """
    known = {*study.files}
    new = [
        path
        for folder, listed in study.listed
        if folder.stat().st_mtime_ns != listed
        for path in _changed_since(folder, listed)
        if path not in known
    ]
    series = {each.series.uid for each in study.channels if isinstance(each.series, Series)}
    return tuple(each.file for each in scan(sorted(new)).instances if each.series in series)


def _changed_since(folder: Path, moment: int) -> Iterator[Path]:
    """Yield files by the times of their own file system, not of this machine's clock."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file() and entry.stat().st_ctime_ns >= moment:
                yield folder / entry.name
