"""Names of results by a pattern or a layout; results of earlier runs keep theirs."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model
from ...io.channels import name_parts, other_results, without_channel, words_of
from ...io.discovery import Discovery
from ...io.files.own_files import is_record
from ...io.files.parts import is_part
from ...io.maps import is_map_name
from ...io.volume import Obstacle, Study
from ..name_pattern import NamePattern, in_a_name, pattern_of
from ..settings import TranslateOptions
from .bids_dataset import check_layout
from .bids_names import bids_names, bids_suffixes, model_label
from .manifest import ManifestEntry, has_named_results, load

_Naming: TypeAlias = Callable[[Study], Study]


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
    entries = load(output)
    standing = _Standing(entries, model, output)
    naming = _naming(options, model.card, standing)
    studies = (standing.kept(study, naming(study)) for study in found.studies)
    return replace(found, studies=tuple(sorted(studies, key=lambda study: study.name)))


def _naming(options: TranslateOptions, card: ModelCard, standing: "_Standing") -> _Naming:
    if options.layout == "bids":
        suffixes = bids_suffixes(card, options.bids_suffix)

        def in_dataset(study: Study) -> Study:
            named = (bids_names(study, card, suffixes, label) for label in standing.labels)
            *tried, last = named
            return next((each for each in tried if standing.is_free(each)), last)

        return in_dataset
    if options.result_name:
        pattern = pattern_of(options.result_name)
        return lambda study: _by_pattern(study, card, pattern)
    return lambda study: study


def _by_pattern(study: Study, card: ModelCard, pattern: NamePattern) -> Study:
    base = without_channel(study.name, card.output_channels)
    stem, extension = name_parts(base)
    words = {
        "stem": stem,
        "suffix": stem.rpartition("_")[2] if "_" in stem else "",
        **{name: in_a_name(getattr(card, name)) for name in ("source", "target")},
        "model": in_a_name(card.name),
    }
    made = words_of(card.output_channels) if len(card.output_channels) > 1 else ("",)
    names: list[PurePosixPath] = []
    for word in made:
        name = pattern.name({**words, "channel": word})
        if word and not pattern.has_channel:
            name = f"{name}_{word}"
        if trouble := _trouble(name, extension):
            reason = f"setting result-name would call its result {name}{extension}, {trouble}"
            return replace(study, obstacle=study.obstacle or Obstacle("unsupported", reason))
        names.append(base.with_name(name + extension))
    if names[0] == study.name:
        return study
    return replace(study, name=names[0], other_results=tuple(names[1:]), mirrored=study.results)


def _trouble(name: str, extension: str) -> str | None:
    """Return the reason why no result may have a name, as the rest of a sentence, or None."""
    whole = name + extension
    if not name.strip() or name in (".", ".."):
        return "which is no name; add {stem} to it"
    if is_map_name(whole) or is_part(whole) or is_record(whole):
        return "which this program keeps for files of its own; choose another"
    return None


class _Standing:
    """Existing results of an output folder, by their scans."""

    def __init__(self, entries: Mapping[str, ManifestEntry], model: Model, output: Path) -> None:
        self._model, self._output = model, output
        self._entries = {place: entry for place, entry in entries.items() if self._stands(entry)}
        self._by_scan = {
            entry.mirrored_name: entry
            for entry in self._entries.values()
            if entry.recipe.model == model.identity
        }

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that distinguish the model's results from others', in order of preference; first
        none, for when no other model's result is in the way.
        """
        label = model_label(self._model.card)
        return "", label, f"{label}{self._model.identity[:6]}"

    def is_free(self, study: Study) -> bool:
        """Return whether no result of another model has the study's path."""
        entry = self._entries.get(str(study.name))
        return entry is None or entry.recipe.model == self._model.identity

    def kept(self, study: Study, named: Study) -> Study:
        """Return the study under the name of its existing result, or as it is named now."""
        entry = self._by_scan.get(str(study.name))
        if study.obstacle or entry is None or entry.output == str(named.name):
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

    def _stands(self, entry: ManifestEntry) -> bool:
        is_ours = entry.status != "failed"
        return is_ours and os.path.lexists(self._output / entry.output)
