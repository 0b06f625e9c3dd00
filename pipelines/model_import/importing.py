"""Import of a checkpoint or graph as a model: facts in it, assumptions, and open questions."""

from dataclasses import dataclass, replace

import numpy as np

from ...engine.errors import CheckpointError, naming
from ...engine.importing.checkpoint.evidence import Fact, Question, setting
from ...engine.importing.checkpoint.reference_search import TrialListener, ignore_trial
from ...engine.importing.reference_pair import read_reference
from ...engine.model.intensity_maps import (
    USUAL_RANGE,
    ChannelMaps,
    Identity,
    NetworkRange,
    ZScore,
    has_ends,
)
from ...engine.model.model_card import (
    ModelCard,
    PipelineProof,
    Provenance,
    Reference,
    check_numbers,
)
from ...engine.model.model_file import Model, decode_model, encode_model
from ...engine.model.reference import (
    Verification,
    array_sha256,
    check_reference_cost,
    make_reference,
    verify,
)
from ...engine.model.tiling import EVEN
from ...engine.network.graph import Graph, Network
from ...engine.network.graph_analysis import sees_whole_patch
from ...engine.network.layers import FloatArray, triple
from ..errors import SettingsError
from ..program import program_version
from .card_draft import SMALL_VOLUME_PADDING, CardDraft, default_name
from .file_kinds import (
    FoundNetwork,
    ImportRequest,
    ReferencePair,
    find_network,
    with_reference,
)
from .nnunet_data import with_facts

_DECIDED = ("set with", "only this computes", "as computed by", "written in")


@dataclass(frozen=True, slots=True)
class Survey:
    """Checkpoint compared with the request; a model can be made once `undecided` is empty.

    found: the generator. draft: model card as far as it is known. reference: the reference pair, if
    any.
    """

    found: FoundNetwork
    draft: CardDraft
    reference: ReferencePair | None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Facts about the network from the file, the reference or the user."""
        extents = [_EXTENTS] if sees_whole_patch(self.found.network.graph) else []
        outside = _note_of_range(self.reference, self.draft)
        return (*self.found.facts, *extents, *outside)

    @property
    def assumptions(self) -> tuple[Fact, ...]:
        """Assumptions about facts that were not stated."""
        return (*self.found.assumptions, *self.draft.assumptions())

    @property
    def undecided(self) -> tuple[Question, ...]:
        """Questions for the user: about the network first, then about its data."""
        asked = {question.field for question in self.found.undecided}
        of_card = (one for one in self.draft.undecided() if one.field not in asked)
        return (*self.found.undecided, *of_card)


@dataclass(frozen=True, slots=True)
class Imported:
    """Model as decoded from the bytes of its file, and its verification.

    model: the model. content: those bytes. verification: comparison with the reference.
    """

    model: Model
    content: bytes
    verification: Verification


def survey(request: ImportRequest, on_trial: TrialListener = ignore_trial) -> Survey:
    """Read a file and compare it with the statements about it; writes nothing.

    A reference resolves what a checkpoint leaves open, and verifies a graph. on_trial: called
    before each network that is compared with a reference. Raises EngineError or SettingsError.
    """
    found = find_network(request)
    with naming(found.path):
        _check_weights(found.network)
    stated = with_facts(request.draft, found.card) if found.card else request.draft
    graph = found.network.graph
    stated = _with_any_patch(stated, graph)
    draft = stated.with_network(found.fixed_patch, found.made_range)
    _check_draft(draft, graph)
    _check_reference_scan(request, draft)
    reference = read_reference(request.reference) if request.reference else None
    if reference:
        _check_reference(reference[0], graph)
        found = with_reference(found, reference, on_trial)
        draft = stated.with_network(found.fixed_patch, found.made_range)
        _check_range(reference, draft)
    return Survey(found, draft, reference)


_USUAL_PATCH = 128


def _with_any_patch(draft: CardDraft, graph: Graph) -> CardDraft:
    """Return the draft of a model of whole volumes with a patch that its network takes, for those
    who want patches nevertheless.
    """
    if draft.inference != "volume" or draft.patch is not None or graph.patch is not None:
        return draft
    return replace(draft, patch=triple(-(-_USUAL_PATCH // step) * step for step in graph.stride))


_EXTENTS = Fact(
    "extents",
    "part of the function",
    "norms take statistics of each patch, so other extents than those of training change results",
)

_FARTHEST = 10
"""Widths of the network's range beyond which a reference is of other units than the range."""

_ROUNDING = 1e-3
"""Share of the range by which training codes exceed it without meaning to."""


def _outside(reference: ReferencePair, draft: CardDraft) -> tuple[float, str]:
    """Return how far a reference's input exceeds a bounded input range, in its widths, and both
    ranges in words; 0 if the range is open or not known.
    """
    if draft.input_range in (None, "open"):
        return 0.0, ""
    low, high = (0.0, 1.0) if draft.input_range == "0..1" else (-1.0, 1.0)
    ends = float(reference[0].min()), float(reference[0].max())
    far = max(low - ends[0], ends[1] - high, 0.0) / (high - low)
    return far, f"from {ends[0]:.4g} to {ends[1]:.4g}, and the network's range is {low:g}..{high:g}"


def _check_range(reference: ReferencePair, draft: CardDraft) -> None:
    """Raise CheckpointError for a reference whose input cannot be in the network's range."""
    far, ranges = _outside(reference, draft)
    if far > _FARTHEST:
        raise CheckpointError(
            f"The reference input reaches {ranges}, so it was not mapped as the scans will be; "
            f"compute the reference with mapped intensities, or correct {setting('input_range')} "
            f"and {setting('intensity_in')}."
        )


def _note_of_range(reference: ReferencePair | None, draft: CardDraft) -> list[Fact]:
    far, ranges = _outside(reference, draft) if reference else (0.0, "")
    if far <= _ROUNDING:
        return []
    why = f"the reference input reaches {ranges}; check setting input-range"
    return [Fact("reference input", "outside the range", why)]


def make_model(survey: Survey) -> Imported:
    """Return the model of a survey with nothing undecided.

    Without a reference from the training code this program computes its own. Raises ModelFileError
    if the statements do not form a valid model card.
    """
    network = survey.found.network
    pair = survey.reference or make_reference(network)
    with naming(survey.found.path):
        _check_result(pair[1])
    reference = Reference(
        input_sha256=array_sha256(pair[0]),
        output_sha256=array_sha256(pair[1]),
        made_by="training code" if survey.reference else "cuda-cyclegan",
    )
    content = encode_model(_card(survey, reference), network, *pair)
    model = decode_model(content)
    return Imported(model, content, verify(model))


def _check_weights(network: Network) -> None:
    """Raise CheckpointError for weights that are no numbers, also a norm's whose variance is
    negative.
    """
    for name, array in network.weights.items():
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"Layer {name} has weights that are not finite: the training run diverged; use an "
                "earlier checkpoint."
            )


def _check_result(output: FloatArray) -> None:
    if not np.isfinite(output).all():
        raise CheckpointError(
            "The network computes numbers that are not finite for a patch of noise: the training "
            "run diverged, or a number in its code is infinite; use an earlier checkpoint, or "
            "correct the code."
        )


def with_proof(imported: Imported, proof: PipelineProof) -> Imported:
    """Return the model with the proof of its pipeline on its card."""
    old = imported.model
    card = replace(old.card, pipeline=proof)
    content = encode_model(card, old.network, old.reference_input, old.reference_output)
    return replace(imported, model=decode_model(content), content=content)


def _check_reference_scan(request: ImportRequest, draft: CardDraft) -> None:
    """Raise SettingsError for a reference scan before the proof of the network, and without a
    stated way of inference, as each of them alone explains any difference.
    """
    if request.reference_scan is None:
        return
    if request.reference is None:
        raise SettingsError(
            f"{setting('reference_scan').capitalize()} needs {setting('reference')}, which proves "
            "the network first; give both.",
            "reference_scan",
            "reference",
        )
    if draft.tiling is None and draft.inference is None:
        raise SettingsError(
            f"{setting('reference_scan').capitalize()} needs the patches of the training code's "
            f"inference; state {setting('tiling')}, or {setting('patch')}=whole for none.",
            "reference_scan",
            "tiling",
            "patch",
        )


def _check_draft(draft: CardDraft, graph: Graph) -> None:
    inputs, outputs = graph.in_channels, graph.out_channels
    _check_names("source", draft.source, inputs)
    _check_names("target", draft.target, outputs)
    _check_maps("intensity_in", draft.intensity_in, inputs, "input_range", draft.input_range)
    _check_maps("intensity_out", draft.intensity_out, outputs, "output_range", draft.output_range)
    if draft.patch:
        graph.check_patch(draft.patch)
    check_numbers(
        draft.intensity_in,
        draft.intensity_out,
        None if draft.spacing == "native" else draft.spacing,
    )


def _check_names(field: str, names: tuple[str, ...] | None, channels: int) -> None:
    if names is not None and len(names) != channels:
        raise SettingsError(
            f"{setting(field).capitalize()} must name {channels} of the network's channels, "
            f"separated by commas, not {len(names)}.",
            field,
        )


def _check_maps(
    field: str, maps: ChannelMaps | None, channels: int, end: str, onto: NetworkRange | None
) -> None:
    """Check that there is one map for all channels, or one each, and that each has the ends it
    needs. Raises SettingsError.

    end: the setting of the network's range, `onto`, on the maps' side.
    """
    if isinstance(maps, tuple) and not 1 < len(maps) == channels:
        raise SettingsError(
            f"{setting(field).capitalize()} must be given once, or once for each of the network's "
            f"{channels} channels, not {len(maps)} times.",
            field,
        )
    each = maps if isinstance(maps, tuple) else (maps,)
    endless = [one for one in each if one and one != Identity() and not has_ends(one)]
    if onto == "0..1" and endless:
        kind = "z-score" if isinstance(endless[0], ZScore) else "map"
        raise SettingsError(
            f"{setting(field).capitalize()} is a {kind}, which has no ends to map onto the range "
            f"0..1; use {setting(end)}=open, or give another map.",
            field,
            end,
        )


def _check_reference(patch: FloatArray, graph: Graph) -> None:
    channels, depth, height, width = patch.shape[1:]
    if channels != graph.in_channels:
        raise CheckpointError(
            f"The reference input has {channels} channels, but this generator takes "
            f"{graph.in_channels}; compute it with this checkpoint."
        )
    graph.check_patch((depth, height, width))
    check_reference_cost(graph, (depth, height, width))


def _card(survey: Survey, reference: Reference) -> ModelCard:
    draft = survey.draft
    if (
        survey.found.undecided
        or survey.found.established is None
        or draft.source is None
        or draft.target is None
        or draft.intensity_in is None
        or draft.intensity_out is None
        or draft.axes is None
        or (draft.spacing is None and draft.grid is None)
        or draft.patch is None
    ):
        raise ValueError("undecided questions remain")
    return ModelCard(
        name=draft.name or default_name(draft.source, draft.target),
        architecture=survey.found.architecture,
        established=survey.found.established,
        source=", ".join(draft.source),
        target=", ".join(draft.target),
        input_channels=draft.source,
        output_channels=draft.target,
        axes=draft.axes,
        spacing=None if draft.spacing == "native" else draft.spacing,
        patch=draft.patch,
        intensity_in=draft.intensity_in,
        intensity_out=draft.intensity_out,
        small_volume_padding=(
            SMALL_VOLUME_PADDING
            if draft.small_volume_padding is None
            else draft.small_volume_padding
        ),
        provenance=_provenance(survey),
        reference=reference,
        input_range=draft.input_range or USUAL_RANGE,
        output_range=draft.output_range or USUAL_RANGE,
        crop=draft.crop,
        grid_window=draft.grid_window,
        grid=draft.grid,
        tiling=draft.tiling or EVEN,
        grid_rule=draft.grid_rule or "cover",
        maps_on=draft.maps_on or "scan",
        inference=draft.inference,
    )


def _provenance(survey: Survey) -> Provenance:
    """Return the origin of the weights, with every decision that the weights do not determine."""
    found = survey.found
    notes = [
        f"{finding.subject}: {finding.value} ({finding.reason})"
        for finding in found.facts
        if finding.reason.startswith(_DECIDED)
    ]
    notes += [f"{finding.subject}: {finding.value} (assumed)" for finding in found.assumptions]
    return Provenance(
        source=found.path.name,
        sha256=found.sha256,
        layout=found.layout,
        importer=f"cuda-cyclegan {program_version()}",
        notes="; ".join(notes),
        licence=survey.draft.licence or "",
    )
