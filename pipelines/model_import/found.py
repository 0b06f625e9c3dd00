"""Generator found in a file: in a training checkpoint, or as a graph of operators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path
from typing import TypeAlias

from ...engine.cpu.session import open_cpu_generator
from ...engine.errors import CheckpointError
from ...engine.importing.checkpoint_file import read_checkpoint
from ...engine.importing.evidence import Fact, NetworkChoices, Question, meaningless, setting
from ...engine.importing.monai.bundle import MonaiBundle, is_bundle, read_bundle
from ...engine.importing.onnx.onnx_file import is_onnx, read_onnx
from ...engine.importing.onnx.onnx_graph import operators_of, write_down
from ...engine.importing.onnx.operator_graph import OperatorGraph
from ...engine.importing.recognise import Recognised, recognise
from ...engine.importing.reference_search import TrialListener, resolve
from ...engine.importing.torch_export.archive import is_exported
from ...engine.importing.torch_export.exported_graph import read_exported
from ...engine.model.intensity_maps import NetworkRange, Window
from ...engine.model.model_card import Established
from ...engine.model.reference import TOLERANCE, relative_error
from ...engine.network.architectures import Architecture
from ...engine.network.graph import INPUT, Graph, Network, times
from ...engine.network.graph_analysis import ValueRange, output_range
from ...engine.network.layers import Add, FloatArray, Triple
from .card_draft import CardDraft
from .nnunet_folder import NnunetFolder, is_nnunet_folder, read_nnunet

ReferencePair: TypeAlias = tuple[FloatArray, FloatArray]

_FILE = "the graph in the file"


@dataclass(frozen=True, slots=True)
class FoundNetwork:
    """Generator, and all facts about it.

    path, sha256: path and hash of its file. kind: kind of the file. layout: naming scheme of its
    layers. network: graph and weights. architecture: as in a model card. established: evidence that
    verifies the network's computation; None if there is none. told, assumed: facts. undecided:
    questions about the network. recognised: the recognised checkpoint; None for a graph. card: what
    a model folder says about scans; None for a file.
    """

    path: Path
    sha256: str
    kind: str
    layout: str
    network: Network = field(repr=False)
    architecture: Architecture = field(repr=False)
    established: Established | None
    told: tuple[Fact, ...]
    assumed: tuple[Fact, ...]
    undecided: tuple[Question, ...] = ()
    recognised: Recognised | None = field(default=None, repr=False)
    card: CardDraft | None = None

    @property
    def fixed_patch(self) -> Triple | None:
        """Only patch that the network takes; None if it takes others too."""
        return self.network.graph.patch

    @property
    def made_range(self) -> NetworkRange | None:
        """Range of the network's output, by its last layers; None if they do not show it."""
        return _told_range(output_range(self.network))


def find_network(
    path: Path,
    choices: NetworkChoices,
    draft: CardDraft | None = None,
    folds: Sequence[str] = (),
) -> FoundNetwork:
    """Return the generator in a file or folder; draft: what the user says about scans. folds: of an
    nnU-Net folder.

    Raises CheckpointError.
    """
    patch = draft.patch if draft else None
    if is_nnunet_folder(path):
        return _of_nnunet(read_nnunet(path, folds, draft.axes if draft else None), choices, path)
    if folds:
        raise CheckpointError(f"{path} is no folder of nnU-Net; leave out {setting('folds')}.")
    if is_bundle(path):
        return _of_bundle(read_bundle(path), choices, draft or CardDraft())
    if (file := read_graph(path)) is not None:
        return of_graph(file, choices, patch)
    return _of_checkpoint(recognise(read_checkpoint(path), choices))


def read_graph(path: Path) -> OperatorGraph | None:
    """Return the graph of an ONNX file or a torch.export archive; None for files of other kinds.

    Raises CheckpointError.
    """
    if is_onnx(path):
        return read_onnx(path)
    return read_exported(path) if is_exported(path) else None


def with_reference(
    found: FoundNetwork, reference: ReferencePair, on_trial: TrialListener
) -> FoundNetwork:
    """Return a generator verified with a reference, which resolves what a checkpoint leaves open.

    on_trial: called before each network that is compared with the reference. Raises
    CheckpointError if the generator does not reproduce the reference.
    """
    if found.recognised:
        return _of_checkpoint(resolve(found.recognised, *reference, on_trial=on_trial))
    proof = _proof(found.network, reference)
    return replace(found, told=(*found.told, proof))


def _of_nnunet(folder: NnunetFolder, choices: NetworkChoices, path: Path) -> FoundNetwork:
    if wrong := _meaningless(choices):
        raise meaningless(wrong)
    return FoundNetwork(
        path=path.resolve(),
        sha256=folder.sha256,
        kind="nnU-Net folder",
        layout=f"nnU-Net v2 {folder.kind}",
        network=folder.network,
        architecture=folder.network.graph,
        established=folder.established,
        told=folder.facts,
        assumed=(),
        card=folder.draft,
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
        told=recognised.told,
        assumed=recognised.defaulted,
        undecided=recognised.undecided,
        recognised=recognised,
    )


def of_graph(
    file: OperatorGraph, choices: NetworkChoices, patch: Triple | None = None
) -> FoundNetwork:
    """Return the network of a graph. Raises CheckpointError, naming unsupported parts."""
    if wrong := _meaningless(choices):
        raise meaningless(wrong)
    written = write_down(file, patch)
    network = written.network
    return FoundNetwork(
        path=file.path,
        sha256=file.sha256,
        kind=file.kind,
        layout=file.layout,
        network=network,
        architecture=network.graph,
        established=Established("graph"),
        told=tuple(_facts(file, network, written.reason)),
        assumed=(),
    )


def _of_bundle(bundle: MonaiBundle, choices: NetworkChoices, said: CardDraft) -> FoundNetwork:
    """Return the network of a MONAI bundle, and what the bundle says of its data.

    said: what the user says, which comes first.
    """
    found = of_graph(bundle.graph, choices, said.patch or bundle.patch)
    card = CardDraft(
        axes=said.axes or bundle.axes,
        spacing=None if said.grid else bundle.spacing,
        patch=bundle.patch,
    )
    told = [
        Fact(name, value, _BUNDLE)
        for name, value in (
            ("axes", bundle.axes),
            ("spacing", bundle.spacing and ",".join(f"{edge:g}" for edge in bundle.spacing)),
            ("patch", bundle.patch and times(bundle.patch)),
        )
        if value
    ]
    if bundle.window:
        low, high, *ends = bundle.window
        onto = _told_range((ends[0], ends[1]))
        if onto and low < high:
            card = replace(card, intensity_in=Window(low, high), input_range=onto)
            told.append(Fact("input intensities", f"{low:g} to {high:g} onto {onto}", _BUNDLE))
    if bundle.others:
        why = "transforms of the bundle that are not taken over; state what they do"
        told.append(Fact("not taken over", ", ".join(bundle.others), why))
    return replace(found, card=card, told=(*found.told, *told))


_BUNDLE = "written in the bundle"


def _meaningless(choices: NetworkChoices) -> str | None:
    """Return the name of a choice about the network that has no meaning for a graph, or None."""
    said = ("code", "unproven", "direction", "generator")
    return next(iter(choices.said()), None) or next(
        (name for name in said if getattr(choices, name)), None
    )


def _facts(file: OperatorGraph, network: Network, reason: str) -> Iterator[Fact]:
    graph = network.graph
    counts = (f"{kind} x {count}" for kind, count in operators_of(file).items())
    yield Fact("written by", file.producer or "not stated", "the file")
    yield Fact("channels", f"{graph.in_channels} in, {graph.out_channels} out", _FILE)
    yield Fact("operators", ", ".join(counts), _FILE)
    if _adds_input(graph):
        yield Fact("adds its input", "yes", _FILE)
    if graph.patch:
        why = f"{reason}; export it with open extents for others"
        yield Fact("patch", f"exactly {times(graph.patch)}", why)


def _proof(network: Network, reference: ReferencePair) -> Fact:
    patch, expected = reference
    with open_cpu_generator(network) as generator:
        made = generator(patch)
    if made.shape != expected.shape:
        raise CheckpointError("The reference output has another shape than the network makes.")
    error = relative_error(made, expected)
    if error > TOLERANCE:
        raise CheckpointError(
            f"The graph does not compute the reference: it is {error:.2g} away (relative L2), "
            f"where {TOLERANCE:g} is allowed; export the network that computed it, or leave "
            f"{setting('reference')} out."
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


def _told_range(ends: ValueRange) -> NetworkRange | None:
    """Return the range with these ends, up to rounding; None if no range has them."""
    for name, known in _RANGES:
        if all(isclose(a, b, abs_tol=_NEAR) for a, b in zip(ends, known, strict=True)):
            return name
    return None
