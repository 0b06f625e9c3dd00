"""Kinds of files and folders that hold a generator: how each is recognised and read.

What is of none of `KINDS` is read as a training checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from math import isclose
from pathlib import Path
from typing import TypeAlias

from ...engine.cpu.session import open_cpu_generator
from ...engine.errors import CheckpointError, quoted
from ...engine.importing.checkpoint.evidence import (
    Fact,
    NetworkChoices,
    Question,
    meaningless,
    setting,
)
from ...engine.importing.checkpoint.recognise import Recognised, recognise
from ...engine.importing.checkpoint.reference_search import TrialListener, resolve
from ...engine.importing.checkpoint_file import read_checkpoint
from ...engine.importing.known_networks.monai_bundle import is_bundle, read_bundle
from ...engine.importing.known_networks.nnunet_folder import is_nnunet_folder, read_nnunet
from ...engine.importing.onnx_file import is_onnx, read_onnx
from ...engine.importing.operators.converter import convert_graph, operators_of
from ...engine.importing.operators.operator_graph import OperatorGraph
from ...engine.importing.torch_export.archive import is_exported
from ...engine.importing.torch_export.exported_graph import read_exported
from ...engine.model.intensity_maps import NetworkRange
from ...engine.model.model_card import Established
from ...engine.model.reference import TOLERANCE, relative_error
from ...engine.network.architectures import Architecture
from ...engine.network.ensemble import mean_network
from ...engine.network.graph import INPUT, Graph, Network, times
from ...engine.network.graph_analysis import ValueRange, output_range
from ...engine.network.layers import Add, FloatArray, Triple
from .card_draft import CardDraft
from .monai_data import BundleData, bundle_data
from .nnunet_data import NNUNET_CODE, nnunet_card, nnunet_facts

ReferencePair: TypeAlias = tuple[FloatArray, FloatArray]

_FILE = "the graph in the file"


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Checkpoint and all statements of the user about it.

    checkpoint: its file. reference: .npz or .pt file of a patch and the training code's output for
    it. choices: choices about the architecture. draft: description of the training data. folds: of
    an nnU-Net folder, to be averaged. omit: parts of a MONAI bundle that results lack.
    reference_scan: files of a scan and of the training code's result for it.
    """

    checkpoint: Path
    choices: NetworkChoices = field(default_factory=NetworkChoices)
    draft: CardDraft = field(default_factory=CardDraft)
    reference: Path | None = None
    folds: tuple[str, ...] = ()
    omit: tuple[str, ...] = ()
    reference_scan: tuple[Path, Path] | None = None


@dataclass(frozen=True, slots=True)
class FoundNetwork:
    """Generator, and all facts about it.

    path, sha256: path and hash of its file. kind: kind of the file. layout: naming scheme of its
    layers. network: graph and weights. architecture: as in a model card. established: evidence that
    verifies the network's computation; None if there is none. facts, assumptions: about the
    network. undecided: questions about it. recognised: the recognised checkpoint; None for a graph.
    card: what a model folder states about scans; None for a file. is_half: whether the file
    computes in half precision, and the network in single.
    """

    path: Path
    sha256: str
    kind: str
    layout: str
    network: Network = field(repr=False)
    architecture: Architecture = field(repr=False)
    established: Established | None
    facts: tuple[Fact, ...]
    assumptions: tuple[Fact, ...]
    undecided: tuple[Question, ...] = ()
    recognised: Recognised | None = field(default=None, repr=False)
    card: CardDraft | None = None
    is_half: bool = False

    @property
    def fixed_patch(self) -> Triple | None:
        """Only patch that the network takes; None if it takes others too."""
        return self.network.graph.patch

    @property
    def made_range(self) -> NetworkRange | None:
        """Range of the network's output, by its last layers; None if they do not show it."""
        return _known_range(output_range(self.network))


def find_network(request: ImportRequest) -> FoundNetwork:
    """Return the generator in a file or folder; raises CheckpointError."""
    path, kind = request.checkpoint, kind_of_file(request.checkpoint)
    if request.folds and kind is not NNUNET:
        raise CheckpointError(f"{path} is not an nnU-Net folder; omit {setting('folds')}.")
    if request.omit and kind is not BUNDLE:
        raise CheckpointError(f"{path} is not a MONAI bundle; omit {setting('omit')}.")
    if kind is not None:
        return kind.read(request)
    return _of_checkpoint(recognise(read_checkpoint(path), request.choices))


def with_reference(
    found: FoundNetwork, reference: ReferencePair, on_trial: TrialListener
) -> FoundNetwork:
    """Return a generator verified with a reference, which resolves what a checkpoint leaves open.

    on_trial: called before each network that is compared with the reference. Raises
    CheckpointError if the generator does not reproduce the reference.
    """
    if found.recognised:
        return _of_checkpoint(resolve(found.recognised, *reference, on_trial=on_trial))
    proof = _proof(found, reference)
    return replace(found, facts=(*found.facts, proof))


def _of_nnunet(request: ImportRequest) -> FoundNetwork:
    folder = read_nnunet(request.checkpoint, request.folds)
    _check_meaning(request.choices)
    patch = folder.configuration.patch_size
    folds = [convert_graph(graph, patch).network for graph in folder.graphs]
    network = mean_network(folds, "fold")
    return FoundNetwork(
        path=request.checkpoint.resolve(),
        sha256=folder.sha256,
        kind=folder.graphs[0].kind,
        layout=folder.graphs[0].layout,
        network=network,
        architecture=network.graph,
        established=NNUNET_CODE,
        facts=tuple(nnunet_facts(folder, request.folds)),
        assumptions=(),
        card=nnunet_card(folder, network.graph.out_channels, request.draft.axes),
    )


def _of_checkpoint(recognised: Recognised) -> FoundNetwork:
    """Return the generator recognised in a training checkpoint."""
    return FoundNetwork(
        path=recognised.checkpoint.path,
        sha256=recognised.checkpoint.sha256,
        kind=recognised.checkpoint.kind,
        layout=recognised.match.layout,
        network=recognised.network,
        architecture=recognised.spec,
        established=recognised.established,
        facts=recognised.facts,
        assumptions=recognised.assumptions,
        undecided=recognised.undecided,
        recognised=recognised,
    )


def _of_onnx(request: ImportRequest) -> FoundNetwork:
    return _of_graph(read_onnx(request.checkpoint), request.choices, request.draft.patch)


def _of_program(request: ImportRequest) -> FoundNetwork:
    return _of_graph(read_exported(request.checkpoint), request.choices, request.draft.patch)


def _of_graph(file: OperatorGraph, choices: NetworkChoices, patch: Triple | None) -> FoundNetwork:
    """Return the network of a graph. Raises CheckpointError, naming unsupported parts."""
    _check_meaning(choices)
    written = convert_graph(file, patch)
    network = written.network
    return FoundNetwork(
        path=file.path,
        sha256=file.sha256,
        kind=file.kind,
        layout=file.layout,
        network=network,
        architecture=network.graph,
        established=Established("graph"),
        facts=tuple(_facts(file, network, written.reason)),
        assumptions=(),
        is_half=file.is_half,
    )


def _of_bundle(request: ImportRequest) -> FoundNetwork:
    """Return the network of a MONAI bundle, and what the bundle states about its data."""
    bundle, stated = read_bundle(request.checkpoint), request.draft
    channels = bundle.graph.dims[1]
    assert isinstance(channels, int)
    data = bundle_data(bundle.config, channels, request.omit)
    found = _of_graph(bundle.graph, request.choices, stated.patch or data.patch)
    card = CardDraft(
        axes=stated.axes or data.axes,
        spacing=None if stated.grid else data.spacing,
        grid=None if stated.spacing else data.grid,
        grid_rule=data.grid_rule,
        intensity_in=data.intensity_in,
        input_range=None if stated.intensity_in else data.input_range,
        maps_on=data.maps_on,
        crop=data.crop,
        grid_window=data.grid_window,
        patch=data.patch,
        small_volume_padding=data.padding,
        tiling=data.tiling,
        inference=data.inference,
    )
    return replace(
        found,
        card=card,
        facts=(*found.facts, *_facts_of_bundle(data), *_omitted(data, request)),
        undecided=tuple(_unanswered(data, request)),
    )


def _facts_of_bundle(data: BundleData) -> Iterator[Fact]:
    tiling, spacing = data.tiling, data.spacing
    whole = "whole volumes" if data.inference == "volume" else None
    for name, value in (
        ("axes", data.axes),
        ("spacing", spacing and ",".join(f"{edge:g}" for edge in spacing)),
        ("grid rule", spacing and data.grid_rule),
        ("grid", data.grid and times(data.grid)),
        ("input intensities", data.intensity_in and str(data.intensity_in)),
        ("their range", data.input_range),
        ("measured on", data.maps_on and f"the {data.maps_on}"),
        ("cropped to", data.crop and f"{data.crop.around} voxels, margin {data.crop.margin}"),
        ("window on the grid", data.grid_window and data.grid_window.spelled),
        ("patch", whole or (data.patch and times(data.patch))),
        ("tiling", tiling and f"MONAI's, overlap {tiling.overlap}, {tiling.blend}"),
    ):
        if value:
            yield Fact(name, value, _BUNDLE)


def _omitted(data: BundleData, request: ImportRequest) -> Iterator[Fact]:
    """Yield the parts that the user leaves out. Raises CheckpointError for an unknown one."""
    names = {left.name for left in data.left}
    for name in request.omit:
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise CheckpointError(
                f"The bundle has no {quoted(name)} that is not reproduced; such parts are: {known}."
                f" Check {setting('omit')}."
            )
        yield Fact("omitted", name, f"set with {setting('omit')}")


def _unanswered(data: BundleData, request: ImportRequest) -> Iterator[Question]:
    """Yield a question for each part of a bundle whose effect nobody states."""
    draft = request.draft
    stated = {one.name for one in fields(draft) if getattr(draft, one.name) is not None}
    if request.draft.inference:
        stated |= {"patch", "tiling"}
    for left in data.left:
        if left.name in request.omit or stated & {*left.answers}:
            continue
        first = next((name for name in left.answers if name != "omit"), "omit")
        yield Question(
            first,
            () if first != "omit" else (left.name,),
            f"{left.name} of the bundle is not reproduced, as {left.why}; state its effect, or "
            f"have results without it by {setting('omit')}={left.name}",
        )


_BUNDLE = "written in the bundle"


def _check_meaning(choices: NetworkChoices) -> None:
    """Raise CheckpointError for choices about the network, which a graph leaves none of."""
    named = ("code", "unproven", "direction", "generator")
    stated = [*choices.stated(), *(name for name in named if getattr(choices, name))]
    if stated:
        raise meaningless(stated[0])


def _facts(file: OperatorGraph, network: Network, reason: str) -> Iterator[Fact]:
    graph = network.graph
    counts = (f"{kind} x {count}" for kind, count in operators_of(file).items())
    yield Fact("written by", file.producer or "not stated", "the file")
    yield Fact("channels", f"{graph.in_channels} in, {graph.out_channels} out", _FILE)
    yield Fact("operators", ", ".join(counts), _FILE)
    if file.is_half:
        why = "the file computes in half precision; setting reference shows the difference"
        yield Fact("precision", "single", why)
    if _adds_input(graph):
        yield Fact("adds its input", "yes", _FILE)
    if graph.patch:
        why = f"{reason}; export it with open extents for others"
        yield Fact("patch", f"exactly {times(graph.patch)}", why)


def _proof(found: FoundNetwork, reference: ReferencePair) -> Fact:
    patch, expected = reference
    with open_cpu_generator(found.network) as generator:
        output = generator(patch)
    if output.shape != expected.shape:
        raise CheckpointError(
            "The shape of the reference output differs from that of the network's output."
        )
    error = relative_error(output, expected)
    if error > TOLERANCE:
        way = "the network that computed it"
        if found.is_half:
            way = "that network in single precision, as the rounding of this file may explain it"
        raise CheckpointError(
            f"The graph does not compute the reference: it is {error:.2g} away (relative L2), "
            f"where {TOLERANCE:g} is allowed; export {way}, or omit {setting('reference')}."
        )
    return Fact("reference", "computed", f"{error:.1g} away (relative L2)")


def _adds_input(graph: Graph) -> bool:
    last = graph.nodes[-1]
    return isinstance(last.layer, Add) and INPUT in last.inputs


_RANGES: tuple[tuple[NetworkRange, ValueRange], ...] = (
    ("-1..1", (-1.0, 1.0)),
    ("0..1", (0.0, 1.0)),
)
_NEAR = 1e-5


def _known_range(ends: ValueRange) -> NetworkRange | None:
    """Return the range with these ends, up to rounding; None if no range has them."""
    for name, known in _RANGES:
        if all(isclose(a, b, abs_tol=_NEAR) for a, b in zip(ends, known, strict=True)):
            return name
    return None


@dataclass(frozen=True, slots=True)
class FileKind:
    """Kind of file or folder that defines its network completely.

    recognise: whether a path is of the kind, by its first bytes, its name or the files in it. read:
    returns the network; raises CheckpointError.
    """

    recognise: Callable[[Path], bool]
    read: Callable[[ImportRequest], FoundNetwork]


NNUNET, BUNDLE = FileKind(is_nnunet_folder, _of_nnunet), FileKind(is_bundle, _of_bundle)
KINDS = (
    NNUNET,
    BUNDLE,
    FileKind(is_onnx, _of_onnx),
    FileKind(is_exported, _of_program),
)


def kind_of_file(path: Path) -> FileKind | None:
    """Return the kind of a file or folder; None for a training checkpoint, or if unknown."""
    return next((kind for kind in KINDS if kind.recognise(path)), None)
