"""Which scans are a study as a model takes it, and whether of its kind: an MR for a model of T1."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...engine.model.model_card import ModelCard
from ...io.channels import ChannelName, in_channels
from ...io.contrasts import Contrasts, told_beside
from ...io.discovery import Discovery
from ...io.volume import Obstacle, Study
from ..errors import SettingsError


def joined_for_model(
    found: Discovery, card: ModelCard, patterns: Sequence[tuple[str, str]] = ()
) -> Discovery:
    """A search whose scans are joined to the studies that a model takes, as `in_channels` does.

    patterns: of channels by name. Raises SettingsError for one that the model has not, or twice.
    """
    known, told = card.input_channels, dict(patterns)
    unknown = [name for name in told if name not in known]
    if unknown or len(told) < len(patterns):
        what = f"no channel {unknown[0]}" if unknown else "each channel but once"
        raise SettingsError(f"The model has {what}; its channels are {', '.join(known)}.")
    channels = [ChannelName(name, told.get(name, "")) for name in known]
    return in_channels(found, channels, card.output_channels)


def modalities_checked(
    found: Discovery, card: ModelCard, *, any_modality: bool = False
) -> Discovery:
    """A search whose studies say what `modality_checked` finds."""
    studies = (modality_checked(study, card, any_modality=any_modality) for study in found.studies)
    return replace(found, studies=tuple(studies))


def modality_checked(study: Study, card: ModelCard, *, any_modality: bool = False) -> Study:
    """The study, with an obstacle if it is of another modality than the card's source.

    Refused is only what the scan itself says, by DICOM's Modality. What is likely by a name or a
    file beside it, or cannot be told, becomes a note; and so does what any_modality lets pass.
    """
    if study.obstacle:
        return study
    if not study.scans:
        return _checked(study, card.source, any_modality=any_modality)
    held = [
        _checked(replace(scan, notes=()), scan.channel, any_modality=any_modality)
        for scan in study.scans
    ]
    notes = [f"{scan.channel}: {note}" for scan in held for note in scan.notes]
    obstacles = [
        replace(scan.obstacle, reason=f"{scan.channel}: {scan.obstacle.reason}")
        for scan in held
        if scan.obstacle
    ]
    return replace(
        study, notes=(*study.notes, *notes), obstacle=obstacles[0] if obstacles else None
    )


def _checked(scan: Study, source: str, *, any_modality: bool) -> Study:
    if scan.format != "dicom":
        return replace(scan, notes=(*scan.notes, *_doubts(scan, source)))
    takes, is_of = Contrasts.named_in(source), Contrasts.named_in(scan.modality)
    if not (takes.modalities and is_of.modalities):
        told = f"its modality ({scan.modality or 'not given'})"
        note = f"{told} could not be checked against the model's source ({source})"
        return replace(scan, notes=(*scan.notes, note))
    if not takes.contradicts(is_of):
        return scan
    told = f"its modality is {scan.modality}, and the model translates {_in_words(source)}"
    if any_modality:
        note = f"{told}; it is taken all the same, as was asked"
        return replace(scan, notes=(*scan.notes, note))
    reason = f"{told}; leave it out, or take it all the same with setting any-modality"
    return replace(scan, obstacle=Obstacle("unsupported", reason))


def _doubts(scan: Study, source: str) -> Iterator[str]:
    """The first thing that speaks against a scan whose own header tells no contrast."""
    takes = Contrasts.named_in(source)
    for told, contrasts in told_beside(scan):
        if takes.contradicts(contrasts):
            yield f"{told}, and the model translates {_in_words(source)}; check that it fits"
            return


def _in_words(source: str) -> str:
    """A source with its modality, where that is another word."""
    modality = Contrasts.named_in(source).modality
    return source if modality in (None, source) else f"{source} ({modality})"
