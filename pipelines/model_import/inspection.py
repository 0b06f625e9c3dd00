"""Inspection of a file: a model with its model card, a training checkpoint, or a graph."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...engine.errors import CheckpointError
from ...engine.importing.checkpoint.evidence import NetworkChoices
from ...engine.importing.checkpoint.recognise import Recognised, networks, recognise
from ...engine.importing.checkpoint_file import Checkpoint, read_checkpoint
from ...engine.model.model_file import Model, is_model_file, load_model
from ...engine.model.reference import reference_extents
from ...engine.network.graph import Network
from ...engine.network.graph_analysis import flops, receptive_field, sees_whole_patch
from ...engine.network.layers import Triple, kind_of
from .file_kinds import FoundNetwork, ImportRequest, kind_of_file


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """One network in a checkpoint; name: its path in the file, empty for the top level.

    dimensions: 2 or 3, of its convolutions. tensors, parameters: their numbers.
    """

    name: str
    dimensions: int
    tensors: int
    parameters: int


@dataclass(frozen=True, slots=True)
class InspectedCheckpoint:
    """Checkpoint, and its generator or the reason why none can be imported.

    checkpoint: the file as read. networks: all of its networks. blocker: that reason.
    """

    checkpoint: Checkpoint
    networks: tuple[StoredNetwork, ...]
    generator: Recognised | None
    blocker: str | None


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Structure and cost of a network.

    layers: count of each kind. receptive_field: voxels along D, H and W that convolutions reach.
    sees_whole_patch: whether norms also make every voxel depend on all others. stride: number of
    voxels of which patches must be multiples. patch: (D, H, W), the patch to which `flops` applies.
    parameters: number of learned parameters.
    """

    layers: dict[str, int]
    receptive_field: Triple
    sees_whole_patch: bool
    stride: Triple
    patch: Triple
    flops: int
    parameters: int


def network_facts(network: Network, patch: Triple | None = None) -> NetworkFacts:
    """Return facts of a network; patch: the one to count FLOPs for, by default a reference's."""
    graph = network.graph
    patch = patch or reference_extents(graph)
    counts = Counter(kind_of(node.layer) for node in graph.nodes)
    return NetworkFacts(
        layers=dict(counts.most_common()),
        receptive_field=receptive_field(graph),
        sees_whole_patch=sees_whole_patch(graph),
        stride=graph.stride,
        patch=patch,
        flops=flops(graph, patch),
        parameters=parameter_count(network),
    )


def inspect(path: Path) -> Model | InspectedCheckpoint | FoundNetwork:
    """Read a file of any kind. Raises ModelFileError or CheckpointError if its kind is unknown."""
    if is_model_file(path):
        return load_model(path)
    if kind := kind_of_file(path):
        return kind.read(ImportRequest(path))
    checkpoint = read_checkpoint(path)
    stored = tuple(
        StoredNetwork(
            name=group.name,
            dimensions=group.rank - 2,
            tensors=len(group.tensors),
            parameters=sum(prod(tensor.shape) for tensor in group.tensors.values()),
        )
        for group in networks(checkpoint)
    )
    try:
        return InspectedCheckpoint(
            checkpoint, stored, recognise(checkpoint, NetworkChoices()), None
        )
    except CheckpointError as error:
        blocker = str(error).removeprefix(f"{path}: ")
        return InspectedCheckpoint(checkpoint, stored, None, blocker)


def parameter_count(network: Network) -> int:
    """Return the number of learned parameters."""
    return sum(array.size for array in network.weights.values())
