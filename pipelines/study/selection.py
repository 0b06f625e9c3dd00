"""Selection of the scans that a model takes: channels joined, contrast and masks checked."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...io.channels import ChannelName, in_channels
from ...io.choice import SkipKind
from ...io.contrasts import Contrasts
from ...io.discovery import Discovery, KnownHeaders
from ...io.exclusion import Doubt, judged, without_doubtful
from ...io.labels import mask_reason, takes_masks
from ...io.sidecars import contrast_hints
from ...io.volume import Study
from ..errors import SettingsError

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
    found = without_masks(found, card, takes, known)
    if card is None:
        return found
    found = _joined(found, card, patterns)
    return without_doubtful(found, partial(_contrast_doubts, card=card), takes)


def without_masks(
    found: Discovery,
    card: "ModelCard | None",
    takes: Collection[SkipKind],
    known: KnownHeaders | None = None,
) -> Discovery:
    """Return the search without masks, unless the model takes some."""
    return without_doubtful(found, partial(_mask_doubts, card=card, known=known), takes)


def contrast_checked(study: Study, card: "ModelCard", takes: Collection[SkipKind] = ()) -> Study:
    """Return the study, with a blocking error if its contrast is not the model's source."""
    return judged(study, partial(_contrast_doubts, card=card), takes)


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
    study: Study, card: "ModelCard | None", known: KnownHeaders | None
) -> Sequence[Doubt]:
    takes = card is not None and takes_masks((card.source, *card.input_channels))
    if takes or study.format == "dicom":
        return ()
    file = study.files[0]
    reason = mask_reason(file, known)
    return (Doubt(f"{reason}, so it is not a scan", "mask"),) if reason else ()


def _contrast_doubts(study: Study, card: "ModelCard") -> Sequence[Doubt]:
    """Return doubts about the contrast of a study, which block it or become notes.

    A DICOM series is checked by its Modality, and a file by its name and the JSON next to it.
    What they leave open becomes a note, unless names and patterns chose the file's channel. A study
    with a blocking error has none.
    """
    if study.blocker:
        return ()
    if not study.scans:
        return tuple(_doubts(study, card.source))
    return tuple(
        replace(doubt, words=f"{scan.channel}: {doubt.words}")
        for scan in study.scans
        for doubt in _doubts(scan, scan.channel)
        if doubt.words != _unknown(scan.channel)
    )


def _doubts(scan: Study, source: str) -> Iterator[Doubt]:
    if scan.format == "dicom":
        yield from _doubts_of_series(scan, source)
    else:
        yield from _doubts_of_file(scan, source)


def _doubts_of_series(scan: Study, source: str) -> Iterator[Doubt]:
    takes, is_of = Contrasts.named_in(source), Contrasts.named_in(scan.modality)
    if not (takes.modalities and is_of.modalities):
        what = f"its modality ({scan.modality or 'not given'})"
        yield Doubt(f"{what} could not be checked against the model's source ({source})")
    elif takes.contradicts(is_of):
        what = f"its modality is {scan.modality}"
        yield Doubt(f"{what}, and the model translates {_in_words(source)}", "modality")


def _doubts_of_file(scan: Study, source: str) -> Iterator[Doubt]:
    """Yield doubts about a file; one is only a note if something else confirms the contrast."""
    takes = Contrasts.named_in(source)
    hints = list(contrast_hints(scan))
    is_met = any(takes.is_met_by(each.contrasts) for each in hints)
    against = next((each.by for each in hints if takes.contradicts(each.against)), None)
    if against:
        words = f"{against}, and the model translates {_in_words(source)}"
        yield Doubt(f"{words}; check that it fits") if is_met else Doubt(words, "contrast")
    elif not is_met:
        yield Doubt(_unknown(source))


def _unknown(source: str) -> str:
    return f"nothing shows that the scan is {_in_words(source)}; check that it fits"


def _in_words(source: str) -> str:
    """Name a source with its modality, if that is another word."""
    modality = Contrasts.named_in(source).modality
    return source if modality in (None, source) else f"{source} ({modality})"
