"""Selection of the scans that a model takes: channels joined, contrast and masks checked."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from ...io.channels import ChannelName, in_channels
from ...io.choice import SkipKind
from ...io.contrast.statement import Statement
from ...io.contrast.texts import modality_named, read_text
from ...io.contrast.weighing import kinds_taken, weigh
from ...io.contrast.words import ScanKind
from ...io.discovery import Discovery, KnownHeaders, is_chosen
from ...io.exclusion import Doubt, judged, without_doubtful
from ...io.volume import Study
from ..errors import SettingsError
from .evidence import HEADER, EvidenceReader

if TYPE_CHECKING:
    from ...engine.model.model_card import ModelCard


def studies_for(
    found: Discovery,
    card: "ModelCard | None",
    takes: Collection[SkipKind],
    patterns: Sequence[tuple[str, str]] = (),
    known: KnownHeaders | None = None,
) -> Discovery:
    """Join the scans of a search to the studies that a model takes, as `in_channels` does.

    Masks and scans of another contrast than the model's source are skipped, or refused if they were
    named. card: of the model; without one, only masks are. takes: kinds accepted anyway. patterns:
    of channels by name. known: headers read by earlier searches. Raises SettingsError for a pattern
    of a channel that the model does not have, or has twice.
    """
    reader = EvidenceReader(known)
    found = _without_masks(found, card, takes, reader)
    if card is None:
        return found
    found = _joined(found, card, patterns)
    return without_doubtful(found, partial(_contrast_doubts, card=card, reader=reader), takes)


def without_masks(
    found: Discovery,
    card: "ModelCard | None",
    takes: Collection[SkipKind],
    known: KnownHeaders | None = None,
) -> Discovery:
    """Return the search without masks, unless the model takes some."""
    return _without_masks(found, card, takes, EvidenceReader(known))


def contrast_checked(
    study: Study,
    card: "ModelCard",
    takes: Collection[SkipKind] = (),
    *,
    is_confirmed: bool = False,
) -> Study:
    """Return the study, with a blocking error if its contrast is not the model's source.

    is_confirmed: whether a search has weighed the words of a DICOM series, which only cause notes
    then.
    """
    reader = EvidenceReader()
    doubts = partial(_contrast_doubts, card=card, reader=reader, is_confirmed=is_confirmed)
    return judged(study, doubts, takes)


def unchecked_contrasts(card: "ModelCard") -> tuple[str, ...]:
    """Return the names of input channels for which no scan can be checked."""
    names = card.input_channels if len(card.input_channels) > 1 else (card.source,)
    return tuple(name for name in names if not kinds_taken(name))


def _without_masks(
    found: Discovery,
    card: "ModelCard | None",
    takes: Collection[SkipKind],
    reader: EvidenceReader,
) -> Discovery:
    """Return the search without masks and synthetic images; studies state what was read."""
    read = tuple(replace(study, read_as=reader.of(study).read_as) for study in found.studies)
    doubts = partial(_mask_doubts, taken=_taken_by(card), reader=reader)
    return without_doubtful(replace(found, studies=read), doubts, takes)


def _taken_by(card: "ModelCard | None") -> frozenset[ScanKind]:
    words = (card.source, *card.input_channels) if card else ()
    stated = [each for text in words for each in read_text(text, "", is_description=True)]
    return frozenset(kind for each in stated for kind in each.kinds)


def _joined(found: Discovery, card: "ModelCard", patterns: Sequence[tuple[str, str]]) -> Discovery:
    known, by_name = card.input_channels, dict(patterns)
    unknown = [name for name in by_name if name not in known]
    if unknown or len(by_name) < len(patterns):
        what = f"no channel {unknown[0]}" if unknown else "each channel only once"
        raise SettingsError(
            f"The model has {what}; its channels are {', '.join(known)}.", "channels"
        )
    channels = [ChannelName(name, by_name.get(name, "")) for name in known]
    return in_channels(found, channels, card.output_channels)


def _mask_doubts(
    study: Study, taken: frozenset[ScanKind], reader: EvidenceReader
) -> Sequence[Doubt]:
    for stated in reader.of(study).stated:
        if stated.mark in ("mask", "synthetic") and not stated.kinds <= taken:
            words = _states(stated)
            if stated.by == HEADER:
                words = f"{HEADER} declares its voxels as {stated.text}"
            return (Doubt(f"{words}, so it is not a scan", stated.mark),)
    return ()


def _contrast_doubts(
    study: Study, card: "ModelCard", reader: EvidenceReader, *, is_confirmed: bool = False
) -> Sequence[Doubt]:
    """Return doubts about the contrast of a study, which block it or become notes.

    What its evidence leaves open becomes a note, unless names and patterns chose the file's
    channel. A study with a blocking error has none.
    """
    if study.blocker:
        return ()
    if not study.scans:
        return tuple(_doubts(study, card.source, reader, is_confirmed=is_confirmed))
    return tuple(
        replace(doubt, words=f"{scan.channel}: {doubt.words}")
        for scan in study.scans
        for doubt in _doubts(scan, scan.channel, reader, is_confirmed=is_confirmed)
        if doubt.words != _unknown(scan.channel)
    )


def _doubts(
    scan: Study, source: str, reader: EvidenceReader, *, is_confirmed: bool
) -> Iterator[Doubt]:
    evidence, taken = reader.of(scan), kinds_taken(source)
    yield from (Doubt(f"{remark}; check that it fits") for remark in evidence.remarks)
    if not taken:
        yield Doubt(_unchecked(scan, source))
        return
    stated = [each for each in evidence.stated if each.mark not in ("mask", "synthetic")]
    weighed = weigh(stated, taken, is_confirmed=scan.is_dicom and (is_confirmed or is_chosen(scan)))
    model = f"the model translates {_in_words(source)}"
    if against := weighed.against:
        is_of_header = against.is_coarse and scan.is_dicom
        words = f"its modality is {scan.modality}" if is_of_header else _states(against)
        yield Doubt(f"{words}, and {model}", "modality" if is_of_header else "contrast")
        return
    for doubt in weighed.doubts:
        yield Doubt(f"{_states(doubt)}, and {model}; check that it fits")
    for objection in evidence.fields.objections(taken):
        yield Doubt(f"{objection}, and {model}; check that it fits")
    if not (weighed.is_shown or weighed.doubts or is_chosen(scan)):
        is_stated = any(each.is_coarse for each in stated)
        yield Doubt(_unknown(source) if is_stated else _unchecked(scan, source))


def _states(stated: Statement) -> str:
    """Return a statement as a sentence: "its name states T2 (t2w)"."""
    if stated.text == stated.in_words:
        return f"{stated.by} states {stated.text}"
    return f"{stated.by} states {stated.in_words} ({stated.text})"


def _unchecked(scan: Study, source: str) -> str:
    if not scan.is_dicom:
        return _unknown(source)
    modality = f"its modality ({scan.modality or 'not given'})"
    return f"{modality} could not be checked against the model's source ({source})"


def _unknown(source: str) -> str:
    return f"nothing shows that the scan is {_in_words(source)}; check that it fits"


@lru_cache(64)
def _in_words(source: str) -> str:
    """Name a source with its modality, if that is another word."""
    modality = modality_named(source, "", "")
    return source if modality in ("", source) else f"{source} ({modality})"
