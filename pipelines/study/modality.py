"""Whether a scan is of the kind that a model takes: an MR for a model of T1, a CT for one of CT."""

from collections.abc import Iterator
from dataclasses import replace

from ...engine.model.card import ModelCard
from ...io.contrasts import Contrasts
from ...io.discovery import Discovery
from ...io.sidecar import told_beside
from ...io.volume import Obstacle, Study


def for_model(found: Discovery, card: ModelCard, *, any_modality: bool = False) -> Discovery:
    """A search whose studies say what `held_against` finds."""
    studies = (held_against(study, card, any_modality=any_modality) for study in found.studies)
    return replace(found, studies=tuple(studies))


def held_against(study: Study, card: ModelCard, *, any_modality: bool = False) -> Study:
    """The study, with an obstacle if it is of another modality than the card's source.

    Refused is only what the scan itself says, by DICOM's Modality. What is likely by a name or a
    file beside it, or cannot be told, becomes a note; and so does what any_modality lets pass.
    """
    if study.obstacle:
        return study
    if study.format != "dicom":
        return replace(study, notes=(*study.notes, *_doubts(study, card)))
    takes, is_of = Contrasts.named_in(card.source), Contrasts.named_in(study.modality)
    if not (takes.modalities and is_of.modalities):
        told = f"its modality ({study.modality or 'not given'})"
        note = f"{told} could not be checked against the model's source ({card.source})"
        return replace(study, notes=(*study.notes, note))
    if not takes.contradicts(is_of):
        return study
    told = f"its modality is {study.modality}, and the model translates {_in_words(card.source)}"
    if any_modality:
        note = f"{told}; it is taken all the same, as was asked"
        return replace(study, notes=(*study.notes, note))
    reason = f"{told}; leave it out, or take it all the same with setting any-modality"
    return replace(study, obstacle=Obstacle("unsupported", reason))


def _doubts(study: Study, card: ModelCard) -> Iterator[str]:
    """The first thing that speaks against a scan whose own header tells no contrast."""
    takes = Contrasts.named_in(card.source)
    for told, contrasts in told_beside(study):
        if takes.contradicts(contrasts):
            yield f"{told}, and the model translates {_in_words(card.source)}; check that it fits"
            return


def _in_words(source: str) -> str:
    """A source with its modality, where that is another word."""
    modality = Contrasts.named_in(source).modality
    return source if modality in (None, source) else f"{source} ({modality})"
