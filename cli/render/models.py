"""Contents of model files and checkpoints, as text and as JSON for scripts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.decoding import Json, encode_record
from ...engine.importing.checkpoint.evidence import Fact, Question
from ...engine.importing.checkpoint.recognise import Recognised
from ...engine.model import intensity_maps as maps
from ...engine.model.architecture_json import architecture_to_json
from ...engine.model.calibration import PERCENTILES, Typical
from ...engine.model.grid_window import spelled_each, spelled_number
from ...engine.model.intensity_maps import ChannelMaps, IntensityMap, IntensityStep
from ...engine.model.model_card import ModelCard, ScanCrop, card_as_json, stated_ranges
from ...engine.model.model_file import Model
from ...engine.model.reference import TOLERANCE, Verification, bf16_error
from ...engine.model.tiling import OWN, Tiling
from ...engine.network.graph import Graph
from ...pipelines.model_import.file_kinds import FoundNetwork
from ...pipelines.model_import.inspection import (
    InspectedCheckpoint,
    NetworkFacts,
    network_facts,
    parameter_count,
)
from ...pipelines.study.selection import unchecked_contrasts
from .documents import json_text, written
from .tables import listing
from .terminal import broken
from .text import counted, flagged, option, printable, scaled

if TYPE_CHECKING:
    from ...engine.network.architectures import Architecture
    from ...pipelines.model_import.combining import Combined
    from ...pipelines.model_import.importing import Imported, Survey
    from ...pipelines.model_import.pipeline_proof import Mismatch
    from ...pipelines.model_import.single_changes import SingleChange


_INDENT = "  "
_MAKERS = {"training code": "the training code", "cuda-cyclegan": "this program at import"}
_PROVE = (
    "'model verify' can prove that the file is intact. To prove that it computes what the "
    "training code computed, import with --reference and the file written by the script of "
    "'cuda-cyclegan model reference-script'."
)


def survey_lines(found: "Survey", columns: int | None) -> Iterator[str]:
    """Return the three parts of an import."""
    file = found.found
    named = f"{printable(str(file.path))}: {file.kind}, {file.layout}"
    yield from [named] if columns is None else broken(named, columns)
    yield ""
    yield from _findings(found.facts, found.assumptions, found.undecided, columns)


def imported_lines(imported: "Imported", output: Path) -> Iterator[str]:
    """Describe the new model file."""
    established = imported.model.card.established
    if imported.model.card.reference.made_by == "training code":
        yield f"Proved: weights, graph and arithmetic, as it {proof(imported.verification)}"
        yield _pipeline_proof(imported.model.card)
    elif established.by == "unproven":
        yield f"Unproven: the model and all its results are marked as such. {_PROVE}"
    elif established.by == "graph":
        yield (
            "Network: as the file describes it; --reference proves that the training code computes "
            "the same"
        )
    else:
        yield f"It computes what the unmodified {established.in_words} computes. {_PROVE}"
    for name in unchecked_contrasts(imported.model.card):
        yield (
            f"note: scans cannot be checked for the contrast {printable(name)}, which is unknown; "
            "name the source with --source, such as T1, T1ce, T2, FLAIR, MR, CT, CBCT or PET"
        )
    parameters = scaled(parameter_count(imported.model.network))
    yield f"Model: {printable(imported.model.card.name)}, {parameters} parameters"
    yield written(output, len(imported.content))


def combined_lines(combined: "Combined", output: Path) -> Iterator[str]:
    """Describe the file of an ensemble."""
    card, found = combined.model.card, combined.verification
    by = "training codes'" if found.made_by == "training code" else "models'"
    what = "mean and disagreement" if card.disagreement else "mean"
    yield (
        f"Proved: it computes the {what} of the {by} outputs; relative error "
        f"{found.relative_error:.2g} (allowed {TOLERANCE:g}) on a patch of {_times(found.extents)}"
    )
    if card.established.by == "unproven":
        yield "Unproven, as one of the models is: all results are marked as such"
    for words in combined.dropped:
        yield f"note: not on the new model card, as it is that of one network: {words}"
    parameters = scaled(parameter_count(combined.model.network))
    yield f"Model: {printable(card.name)}, {parameters} parameters"
    yield written(output, len(combined.content))


def _pipeline_proof(card: ModelCard) -> str:
    if card.pipeline is None:
        return (
            "Not covered by the proof: axes, names of channels, units, grid and tiling, which no "
            "patch can show; --reference-scan proves them"
        )
    return f"Proved: the pipeline, as it {_pipeline(card)}"


def _pipeline(card: ModelCard) -> str:
    if card.pipeline is None:
        return "unproven"
    return (
        "gives the training code's result for a whole scan, at most "
        f"{card.pipeline.difference:.2g} of its range off (allowed {card.pipeline.allowed:.2g})"
    )


_SPELLED_CHANGES: dict[str, Callable[[ModelCard], str]] = {
    "axes": lambda card: card.axes,
    "source": lambda card: ",".join(card.input_channels),
    "spacing": lambda card: _numbers(card.spacing) if card.spacing else "native",
    "grid": lambda card: _numbers(card.grid or ()),
    "grid_rule": lambda card: card.grid_rule,
    "maps_on": lambda card: card.maps_on,
    "grid_window": lambda card: card.grid_window.spelled if card.grid_window else "",
    "intensity_in": lambda card: _spelled_maps(card.intensity_in),
    "intensity_out": lambda card: _spelled_maps(card.intensity_out),
    "input_range": lambda card: card.input_range,
    "output_range": lambda card: card.output_range,
    "tiling": lambda card: spelled_tiling(card.tiling),
    "patch": lambda card: "whole" if card.inference == "volume" else _numbers(card.patch),
    "small_volume_padding": lambda card: str(card.small_volume_padding),
}
"""Values of the options of `model import` by which a card can be changed; "" for none."""


def _spelled_change(change: "SingleChange") -> str:
    value = _SPELLED_CHANGES[change.field](change.card)
    return f"{option(change.field)} {value}" if value else f"no {option(change.field)}"


def mismatch_lines(found: "Mismatch") -> Iterator[str]:
    """Describe a result that is not the training code's, and the change that explains it."""
    if found.extents:
        here, there = map(_times, found.extents)
        yield (
            f"Error: OUTPUT has neither the scan's grid nor the model's of {here} voxels: along "
            f"the model's axes it has {there}."
        )
    else:
        yield (
            f"Error: The model's result for the scan is up to {found.difference:.2g} of the range "
            f"of OUTPUT off, and {found.allowed:.2g} is allowed."
        )
    if found.mirrored:
        axes = " and ".join("ijk"[axis] for axis in found.mirrored)
        yield f"Explained: OUTPUT is a mirror image along {axes}; write it as its affine states."
    elif found.named:
        changes = " or ".join(map(_spelled_change, found.named))
        yield f"Explained: with {changes} the result is that of OUTPUT; check that option."
    else:
        left = "" if found.tried == found.count else f" of {found.count}; time was up"
        yield (
            f"Not explained: none of {counted(found.tried, 'single change')} of an option"
            f"{left} gives that of OUTPUT; perhaps several options are wrong."
        )
    yield "Nothing was written."


def _numbers(values: Iterable[float]) -> str:
    return ",".join(map(spelled_number, values))


def proof(found: Verification) -> str:
    """Describe a passed verification."""
    figures = (
        f"relative error {found.relative_error:.2g} (allowed {TOLERANCE:g}) on a patch of "
        f"{_times(found.extents)}"
    )
    if found.made_by == "training code":
        return f"matches the training code; {figures}"
    return f"matches its output at import; {figures}, computed without the training code"


def model_lines(model: Model, columns: int | None) -> Iterator[str]:
    """Describe a model card."""
    card = model.card
    yield f"Model {printable(card.name)}"
    yield ""
    spacing = "that of each scan" if card.spacing is None else f"{_times(card.spacing)} mm"
    if card.grid:
        spacing = f"that of {_times(card.grid)} voxels"
    yield from _section(
        "Translates",
        [
            ("from", ", ".join(card.input_channels)),
            ("to", ", ".join(card.output_channels)),
            *([("disagreement", f"of {card.disagreement} networks")] if card.disagreement else []),
            ("intensity in", _spelled_maps(card.intensity_in)),
            ("intensity out", _spelled_maps(card.intensity_out)),
            *_ranges(card),
            ("axes D, H, W", card.axes),
            ("spacing", spacing),
            *([("cropped to", _spelled_crop(card.crop))] if card.crop else []),
            *([("grid rule", card.grid_rule)] if card.spacing else []),
            *([("grid window", card.grid_window.spelled)] if card.grid_window else []),
            *([("intensities", _MAPPED[card.maps_on])] if card.maps_on in _MAPPED else []),
            ("patch", _times(card.patch)),
            ("tiling", spelled_tiling(card.tiling)),
            ("small volumes", str(card.padding)),
            ("inference", model.inference),
        ],
        columns,
    )
    yield from _section(
        "Network",
        [
            *_spec(card.architecture),
            *_facts(network_facts(model.network, card.patch)),
        ],
        columns,
    )
    yield from calibration_lines(card, columns)
    provenance = card.provenance
    yield from _section(
        "Provenance",
        [
            ("checkpoint", provenance.source),
            ("its SHA-256", provenance.sha256),
            ("key names", provenance.layout),
            ("behaviour known from", _evidence(card)),
            ("pipeline", _pipeline(card)),
            ("imported by", provenance.importer),
            ("licence", provenance.licence or "not stated"),
            *(("note", flagged(note)) for note in provenance.notes.split("; ") if note),
        ],
        columns,
    )
    yield from _section(
        "File",
        [
            ("SHA-256", model.sha256),
            ("reference patch", _times(model.reference_input.shape[2:])),
            ("written by", _MAKERS[card.reference.made_by]),
            *_bf16(model),
        ],
        columns,
    )


def _evidence(card: ModelCard) -> str:
    words = card.established.in_words
    is_proved = card.established.by == "graph" and card.reference.made_by == "training code"
    return f"{words}, proved by a reference" if is_proved else words


def _bf16(model: Model) -> Iterator[tuple[str, str]]:
    error = bf16_error(model)
    if error is not None:
        yield "bf16 on this CPU", f"relative error {error:.1e}"


def calibration_lines(card: ModelCard, columns: int | None) -> Iterator[str]:
    """Describe the reference set; empty for a model without calibration."""
    rows: list[tuple[str, str, str]] = []
    if card.expected:
        rows += [
            (f"percentile {percent} of intensity", *_typical(figure))
            for percent, figure in zip(PERCENTILES, card.expected.intensity, strict=True)
        ]
        for name, figures in (
            ("extent", card.expected.extent),
            ("spacing", card.expected.spacing),
        ):
            rows += [
                (f"{name} along {axis}, mm", *_typical(figure))
                for axis, figure in zip("DHW", figures, strict=True)
            ]
    if card.cycle:
        rows.append(("cycle error", *_typical(card.cycle.error)))
        limit = card.cycle.limit
        if limit is not None:
            rows.append(("marked above a cycle error of", f"{limit:.3g}", ""))
    if card.results:
        rows.append(("results that others are compared with", str(card.results.studies), ""))
    if rows:
        rows.insert(0, ("", "mean", "sd"))
    yield from _section("Reference set: foreground, on the network's scale", rows, columns)


def _typical(figure: Typical) -> tuple[str, str]:
    return f"{figure.mean:.3g}", f"{figure.sd:.2g}"


def checkpoint_lines(found: InspectedCheckpoint, columns: int | None) -> Iterator[str]:
    """Describe a checkpoint's networks, and the import of its generator."""
    checkpoint = found.checkpoint
    yield f"{printable(str(checkpoint.path))}: {checkpoint.kind}, a training checkpoint"
    yield ""
    rows = [
        (
            network.name or "(top of the file)",
            f"{network.dimensions}-D",
            counted(network.tensors, "tensor"),
            f"{scaled(network.parameters)} parameters",
        )
        for network in found.networks
    ]
    yield from _section("Networks", rows, columns)
    others = [("SHA-256", checkpoint.sha256)]
    if checkpoint.set_aside:
        others.append(("ignored, not run", ", ".join(checkpoint.set_aside)))
    if checkpoint.options.files:
        others.append(("training options", ", ".join(checkpoint.options.files)))
    yield from _section("File", others, columns)
    if found.generator:
        left = [
            (
                part.name or "(top of the file)",
                "another network" if part.is_network else "training state",
                counted(part.tensors, "tensor"),
            )
            for part in found.generator.left
        ]
        yield from _section("Not used", left, columns)
        yield from _generator(found.generator, columns)
    else:
        yield f"Cannot be imported: {printable(flagged(found.blocker or ''))}"


def _generator(generator: Recognised, columns: int | None) -> Iterator[str]:
    yield f"Generator: {generator.match.layout}"
    yield ""
    yield from _findings(generator.facts, generator.assumptions, generator.undecided, columns)


def _findings(
    known: Sequence[Fact],
    assumed: Sequence[Fact],
    undecided: Sequence[Question],
    columns: int | None,
) -> Iterator[str]:
    for title, findings in (
        ("Known", known),
        ("Assumed, because nothing contradicts it", assumed),
    ):
        rows = [(item.subject, item.value, flagged(item.reason)) for item in findings]
        yield from _section(title, rows, columns)
    yield from _section(
        "You must set these: a wrong guess would still give plausible images",
        [(option(item.field), " | ".join(item.answers), flagged(item.why)) for item in undecided],
        columns,
    )


def _section(title: str, rows: Sequence[Sequence[str]], columns: int | None) -> Iterator[str]:
    if not rows:
        return
    shown = [[printable(cell) for cell in row] for row in rows]
    yield title
    yield from (_INDENT + line for line in listing(shown, columns and columns - len(_INDENT)))
    yield ""


def _ranges(card: ModelCard) -> Iterator[tuple[str, str]]:
    for name, value in stated_ranges(card).items():
        yield name.replace("_", " "), str(value)


def _facts(facts: NetworkFacts) -> Iterator[tuple[str, str]]:
    counts = (f"{kind.replace('_', ' ')} x {count}" for kind, count in facts.layers.items())
    yield "layers", ", ".join(counts)
    reached = f"{_times(facts.receptive_field)} voxels"
    whole = ", and the whole patch through its norms" if facts.sees_whole_patch else ""
    yield "receptive field", reached + whole
    yield "stride", _times(facts.stride)
    yield "parameters", scaled(facts.parameters)
    yield f"FLOPs of {_times(facts.patch)}", scaled(facts.flops)


def network_lines(found: FoundNetwork, columns: int | None) -> Iterator[str]:
    """Describe a network in an ONNX file or a torch.export archive."""
    yield f"{printable(str(found.path))}: {found.kind}, a network"
    yield ""
    yield from _findings(found.facts, found.assumptions, found.undecided, columns)
    yield from _section("Network", list(_facts(network_facts(found.network))), columns)


def _spec(architecture: "Architecture") -> Iterator[tuple[str, str]]:
    if isinstance(architecture, Graph):
        channels = f"{architecture.in_channels} in, {architecture.out_channels} out"
        yield from (("kind", "layer graph"), ("channels", channels))
        if architecture.patch:
            yield "patch", f"exactly {_times(architecture.patch)}"
        return
    yield "kind", "ResNet" if type(architecture).__name__ == "ResNetSpec" else "U-Net"
    for name, value in architecture_to_json(architecture).items():
        if name != "kind":
            yield name.replace("_", " "), _fact(value).replace("_", " ")


def _fact(value: Json) -> str:
    match value:
        case bool():
            return ("no", "yes")[value]
        case dict():
            kind, rest = value.get("kind", ""), [name for name in value if name != "kind"]
            words = [str(kind)] if kind else []
            return ", ".join([*words, *(f"{name} {_fact(value[name])}" for name in rest)])
        case list() | tuple():
            return " x ".join(map(_fact, value))
        case _:
            return str(value)


def _times(extents: Iterable[float]) -> str:
    return " x ".join(f"{extent:g}" for extent in extents)


def spelled_tiling(tiling: Tiling) -> str:
    """Return a tiling as `model import --tiling` takes it."""
    own = OWN[tiling.code]
    stated = [f"overlap={spelled_each(tiling.overlap)}", f"blend={tiling.blend}"]
    stated += [] if tiling.sigma == own.sigma else [f"sigma={spelled_each(tiling.sigma)}"]
    return f"{tiling.code}:{','.join([*stated, *(['border'] if tiling.border else [])])}"


_MAPPED = {
    "grid": "mapped after resampling",
    "window": "mapped after cropping and padding of the grid",
}


def _spelled_crop(crop: ScanCrop) -> str:
    fills = crop.fill if isinstance(crop.fill, tuple) else (crop.fill,)
    return (
        f"voxels {crop.around.replace('_', ' ')}, margin {crop.margin}, with "
        f"{'/'.join(f'{fill:g}' for fill in fills)} around results"
    )


def _spelled_maps(maps: ChannelMaps) -> str:
    return "; ".join(map(spelled, maps)) if isinstance(maps, tuple) else spelled(maps)


def spelled(intensity: IntensityMap | IntensityStep) -> str:
    """Return an intensity map as the options of `model import` take it."""
    match intensity:
        case maps.Window(low, high):
            return f"window:{spelled_number(low)},{spelled_number(high)}"
        case maps.Percentiles(low, high):
            return f"percentile:{spelled_number(low)},{spelled_number(high)}"
        case maps.ZScore(spread):
            return f"zscore:{spelled_number(spread)}"
        case maps.SampleZScore():
            return "sample-zscore"
        case maps.Standard(mean, sd):
            return f"standard:{spelled_number(mean)},{spelled_number(sd)}"
        case maps.MinMax():
            return "minmax"
        case maps.ClipValues(low, high):
            return f"clip:{spelled_number(low)},{spelled_number(high)}"
        case maps.ClipPercentiles(low, high):
            return f"clip-percentile:{spelled_number(low)},{spelled_number(high)}"
        case maps.Logarithm(offset):
            return f"log:{spelled_number(offset)}"
        case maps.GammaCurve(gamma):
            return f"gamma:{spelled_number(gamma)}"
        case maps.Steps(steps, over, outside):
            where = "" if over == "all" else f"@{over.replace('_', '-')}"
            only = ",only" if outside == "zero" else ""
            return f"{'+'.join(map(spelled, steps))}{where}{only}"
        case maps.Identity():
            return "identity"


def model_json(found: Model | InspectedCheckpoint | FoundNetwork, file: Path) -> str:
    """Encode as a JSON object; `kind` is model, checkpoint or network."""
    match found:
        case Model():
            described = _model(found)
        case InspectedCheckpoint():
            described = _checkpoint(found)
        case FoundNetwork():
            described = _network(found)
    return json_text({"file": file, **described})


def _model(model: Model) -> dict[str, Any]:
    return {
        "kind": "model",
        "sha256": model.sha256,
        "established": model.card.established.in_words,
        "parameters": parameter_count(model.network),
        "reference_extents": model.reference_input.shape[2:],
        "bf16_error": bf16_error(model),
        "network": network_facts(model.network, model.card.patch),
        "card": card_as_json(model.card),
    }


def _network(found: FoundNetwork) -> dict[str, Any]:
    return {
        "kind": "network",
        "sha256": found.sha256,
        "format": found.kind,
        "network": network_facts(found.network),
        "told": [_finding(finding) for finding in found.facts],
    }


def _checkpoint(found: InspectedCheckpoint) -> dict[str, Any]:
    checkpoint, generator = found.checkpoint, found.generator
    described: dict[str, Any] = {
        "kind": "checkpoint",
        "sha256": checkpoint.sha256,
        "format": checkpoint.kind,
        "networks": found.networks,
        "set_aside": checkpoint.set_aside,
        "options": dict(checkpoint.options.values),
        "obstacle": found.blocker and flagged(found.blocker),
    }
    if generator:
        described["generator"] = {
            "layout": generator.match.layout,
            "fitting_codes": generator.fitting_codes,
            "left": generator.left,
            "told": [_finding(finding) for finding in generator.facts],
            "assumed": [_finding(finding) for finding in generator.assumptions],
            "undecided": [_question(question) for question in generator.undecided],
        }
    return described


def _finding(finding: Fact) -> Fact:
    return replace(finding, reason=flagged(finding.reason))


def _question(question: Question) -> dict[str, Any]:
    described = encode_record(question)
    return {"field": described.pop("field"), "flag": option(question.field), **described}
