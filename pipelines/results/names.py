"""Names of results: from the user, by a pattern or a layout, and each one unique."""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model
from ...io.channels import name_parts, other_results, without_channel, words_of
from ...io.discovery import Discovery
from ...io.errors import listed
from ...io.files.own_files import is_record
from ...io.files.parts import is_part
from ...io.files.regular import is_folder
from ...io.formats.registry import (
    RESULT_SUFFIXES,
    SUFFIXES,
    format_named,
    result_format,
    suffix_of,
)
from ...io.maps import MapMark, is_map_name
from ...io.sidecars import sidecar_of
from ...io.volume import Blocker, Study
from ...io.writing import map_beside, result_files, result_files_for
from ..errors import SettingsError
from ..name_pattern import NamePattern, in_a_name, pattern_of
from ..settings import TranslateOptions
from .bids import bids_names, bids_suffixes, check_layout, model_label
from .manifest import entries_of, has_named_results
from .resume import preview_of

_Naming: TypeAlias = Callable[[Study], Sequence[Study]]
"""Function that returns a study under the names that its result may have, the best first."""


def results_named(
    found: Discovery, model: Model, options: TranslateOptions, output: Path
) -> Discovery:
    """Return the search results with the result names that the options define.

    A scan with an existing result of this model in the output folder keeps that result's name.
    Raises SettingsError, or OutputFolderError for a manifest that cannot be read.
    """
    check_layout(output, options)
    is_default = not options.result_name and options.layout == "mirror"
    if is_default and not has_named_results(output):
        return found
    naming = _naming(options, model)
    named = [(study, naming(study)) for study in found.studies]
    names = {str(each.name) for study, candidates in named for each in (study, *candidates)}
    existing = _Existing(names, model, output)
    studies = (existing.kept(study, existing.first_free(candidates)) for study, candidates in named)
    return replace(found, studies=tuple(sorted(studies, key=lambda study: study.name)))


def _naming(options: TranslateOptions, model: Model) -> _Naming:
    card = model.card
    if options.layout == "bids":
        suffixes = bids_suffixes(card, options.bids_suffix)
        label = model_label(card)
        # Labels that distinguish the model's results, if another model's are in the way.
        labels = ("", label, f"{label}{model.identity[:6]}")
        return lambda study: [bids_names(study, card, suffixes, each) for each in labels]
    if options.result_name:
        pattern = pattern_of(options.result_name)
        return lambda study: [_by_pattern(study, card, pattern)]
    return lambda study: [study]


def _by_pattern(study: Study, card: ModelCard, pattern: NamePattern) -> Study:
    base = without_channel(study.name, card.output_channels)
    stem, extension = name_parts(base)
    words = {
        "stem": stem,
        "suffix": stem.rpartition("_")[2] if "_" in stem else "",
        **{name: in_a_name(getattr(card, name)) for name in ("source", "target")},
        "model": in_a_name(card.name),
    }
    channels = words_of(card.output_channels) if len(card.output_channels) > 1 else ("",)
    names: list[PurePosixPath] = []
    for word in channels:
        name = pattern.name({**words, "channel": word})
        if word and not pattern.has_channel:
            name = f"{name}_{word}"
        if trouble := _trouble(name, extension):
            reason = f"Setting result-name would call its result {name}{extension}, {trouble}"
            return replace(study, blocker=study.blocker or Blocker("unsupported", reason))
        names.append(base.with_name(name + extension))
    if names[0] == study.name:
        return study
    return replace(study, name=names[0], other_results=tuple(names[1:]), mirrored=study.results)


def _trouble(name: str, extension: str) -> str | None:
    """Return the reason why no result may have a name, as the rest of a sentence, or None."""
    whole = name + extension
    if not name.strip() or name in (".", ".."):
        return "which is not a name; add {stem} to it"
    if is_map_name(whole) or is_part(whole) or is_record(whole):
        return "which this program keeps for files of its own; choose another"
    return None


class _Existing:
    """Existing results of an output folder, by their scans.

    names: of the scans and of results; others are not looked for.
    """

    def __init__(self, names: Iterable[str], model: Model, output: Path) -> None:
        self._model = model
        entries = {
            entry.output: replace(entry, inputs=(), outputs=(), maps=())  # for less memory
            for entry in entries_of(output, names)
        }
        self._entries = {
            place: entry
            for place, entry in entries.items()
            if entry.status != "failed" and os.path.lexists(output / entry.output)
        }
        self._by_scan = {
            entry.mirrored_name: entry
            for entry in self._entries.values()
            if entry.recipe.model == model.identity
        }

    def first_free(self, candidates: Sequence[Study]) -> Study:
        """Return the first whose path no result of another model has, or the last."""
        return next(filter(self._is_free, candidates), candidates[-1])

    def _is_free(self, study: Study) -> bool:
        entry = self._entries.get(str(study.name))
        return entry is None or entry.recipe.model == self._model.identity

    def kept(self, study: Study, named: Study) -> Study:
        """Return the study under the name of its existing result, or as it is named now."""
        entry = self._by_scan.get(str(study.name))
        if study.blocker or entry is None or entry.output == str(named.name):
            return named
        name = PurePosixPath(entry.output)
        others = tuple(map(PurePosixPath, entry.others))
        if not entry.mirrored:
            others = other_results(name, self._model.card.output_channels)
        note = f"its result of an earlier run keeps the name {name}"
        return replace(
            study,
            name=name,
            other_results=others,
            mirrored=study.results if entry.mirrored else (),
            notes=(*study.notes, note),
        )


def is_result_file(output: Path) -> bool:
    """Return whether an output names a scan file, and not a folder."""
    return suffix_of(output) in SUFFIXES and not output.is_dir()


def named_result(found: Discovery, target: Path) -> Discovery:
    """Return the only study that was found, under the name of its result.

    Raises SettingsError for several studies, for a suffix that does not fit the study, and for the
    name of a map.
    """
    if not found.studies:
        return found
    if len(found.studies) > 1:
        raise SettingsError(
            f"{target} is the name of one file, and there are {len(found.studies)} studies; name a "
            "folder with setting output, or a single scan.",
            "output",
        )
    study = next(iter(found.studies))
    if study.other_results:
        raise SettingsError(
            f"{target} is the name of one file, and the model makes {len(study.results)} of a "
            "study; name a folder with setting output.",
            "output",
        )
    _check_suffix(study, target)
    if any(os.path.realpath(file) == os.path.realpath(target) for file in study.files):
        raise SettingsError(
            f"{target} is the scan itself; choose another setting output.", "output"
        )
    return replace(found, studies=(replace(study, name=PurePosixPath(target.name)),))


def _check_suffix(study: Study, target: Path) -> None:
    if is_map_name(target.name):
        raise SettingsError(
            f"{target} has the name of a map of a result; choose another setting output.",
            "output",
        )
    own = suffix_of(study.files[0])
    is_pair = own.startswith(".hdr")
    # A scan with separate header and voxel files cannot become one file of its own format.
    fitting = [each for each in RESULT_SUFFIXES if not (is_pair and SUFFIXES[each] == study.format)]
    if own in SUFFIXES and own not in fitting and format_named(study.format).writes:
        fitting.append(own)
    if suffix_of(target) in fitting:
        return
    raise SettingsError(
        f"{target} cannot hold the result of {study.files[0].name}; its name must end in "
        f"{', '.join(fitting[:-1])} or {fitting[-1]}.",
        "output",
    )


def read_only_refused(found: Discovery) -> Discovery:
    """Return the search results with a blocking error for each study whose result would have a
    format that is only read.
    """
    return replace(found, studies=tuple(map(_unless_read_only, found.studies)))


def _unless_read_only(study: Study) -> Study:
    wanted = result_format(study.format, study.name)
    if wanted.writes or study.blocker:
        return study
    reason = f"{wanted.name} files are only read; choose the result's with setting format=nifti"
    return replace(study, blocker=Blocker("unsupported", reason))


MOVE = "move one away"


def rivals_refused(
    found: Discovery,
    output: Path,
    marks: Sequence[MapMark] = (),
    *,
    preview: bool = False,
    sidecars: bool = False,
    remedy: str = MOVE,
) -> Discovery:
    """Return the search results with a blocking error for each study whose results collide with
    others.

    All files and folders of results, their maps, previews and sidecars below `output` are compared;
    two collide if they have the same path, or one is inside the other. remedy: advice for the user.
    Each of these is named after its own source and lists the others, in any order, so that all
    names are unique afterwards. Names that differ only in Unicode normalisation are the same path,
    and so are those that differ only in case if the disk of `output` ignores case.
    """
    one_case = _ignores_case(output)
    owners: dict[str, set[int]] = defaultdict(set)
    for number, study in enumerate(found.studies):
        for place in _places(study, marks, preview=preview, sidecars=sidecars):
            owners[_folded(place, one_case=one_case)].add(number)
    rivals: dict[int, set[int]] = defaultdict(set)
    for place, sharing in owners.items():
        around = [owners[folder] for folder in _folders_of(place) if folder in owners]
        if len(together := sharing.union(*around)) > 1:
            for number in together:
                rivals[number] |= together - {number}
    return _refused(found, rivals, remedy) if rivals else found


def _places(
    study: Study, marks: Sequence[MapMark], *, preview: bool, sidecars: bool
) -> Iterator[str]:
    """Yield files and folders that may be made for a study, relative to the output folder."""
    for result in study.results:
        yield from (place.as_posix() for place in result_files_for(Path(result), study))
    for beside in (map_beside(Path(study.name), mark.kind) for mark in marks):
        yield from (place.as_posix() for place in result_files(beside))
    if preview:
        yield preview_of(Path(study.name)).as_posix()
    if sidecars:
        yield from (sidecar_of(Path(result)).as_posix() for result in study.results)


def _folded(place: str, *, one_case: bool) -> str:
    composed = unicodedata.normalize("NFC", place)
    return unicodedata.normalize("NFC", composed.casefold()) if one_case else composed


def _folders_of(place: str) -> Iterator[str]:
    while folder := place.rpartition("/")[0]:
        yield folder
        place = folder


def _refused(found: Discovery, rivals: dict[int, set[int]], remedy: str) -> Discovery:
    sources = {number: _source(found.studies[number], found.root) for number in rivals}
    known = {study.name for at, study in enumerate(found.studies) if at not in rivals}
    studies: list[Study] = []
    for at, study in enumerate(found.studies):
        if at in rivals:
            name = _free_name(sources[at], known)
            known.add(name)
            reason = _reason(sources[at], sorted(sources[each] for each in rivals[at]))
            blocker = study.blocker or Blocker("occupied", f"{reason}; {remedy}")
            study = replace(study, name=name, other_results=(), blocker=blocker, mirrored=())
        studies.append(study)
    return replace(found, studies=tuple(sorted(studies, key=lambda study: study.name)))


def _source(study: Study, root: Path) -> PurePosixPath:
    file = study.files[0]
    return PurePosixPath(file.relative_to(root) if file.is_relative_to(root) else file.name)


def _free_name(source: PurePosixPath, known: Iterable[PurePosixPath]) -> PurePosixPath:
    """Return the source's own name, numbered if several studies share one DICOM file."""
    name, number = source, 1
    while name in known:
        number += 1
        name = source.with_name(f"{source.name} ({number})")
    return name


def _reason(source: PurePosixPath, others: Sequence[PurePosixPath]) -> str:
    named = listed([*map(str, others)])
    if any(_folded(str(source), one_case=True) == _folded(str(o), one_case=True) for o in others):
        named += " (their names differ only in case or in Unicode normalisation)"
    return f"its result would overwrite that of {named}"


def _ignores_case(output: Path) -> bool:
    """Return whether the disk of `output` ignores case, tested with an existing name on it."""
    place = Path(os.path.realpath(output))
    folder = next(path for path in (place, *place.parents) if is_folder(path))
    try:
        names = [*folder.iterdir(), folder]
        known = next(path for path in names if path.name.swapcase() != path.name)
        return known.with_name(known.name.swapcase()).samefile(known)
    except (OSError, StopIteration):
        return False
