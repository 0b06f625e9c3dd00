"""What a file of weights holds: a model with its card, or a training checkpoint."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...engine.checkpoint.read.checkpoint import Checkpoint, read_checkpoint
from ...engine.checkpoint.recognise.layouts import recognise
from ...engine.checkpoint.recognise.networks import networks
from ...engine.checkpoint.recognise.recognised import Recognised
from ...engine.checkpoint.recognise.recognition import Choices
from ...engine.errors import CheckpointError
from ...engine.model.model import Model, is_model_file, load_model


@dataclass(frozen=True, slots=True)
class HeldNetwork:
    """One network in a checkpoint; name: where it lies in the file, empty for the top.

    dimensions: 2 or 3, of its convolutions. tensors, parameters: how many.
    """

    name: str
    dimensions: int
    tensors: int
    parameters: int


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A checkpoint's networks, and its generator or the reason why none can be imported.

    obstacle: that reason.
    """

    checkpoint: Checkpoint
    networks: tuple[HeldNetwork, ...]
    generator: Recognised | None
    obstacle: str | None


def inspect(path: Path) -> Model | HeldCheckpoint:
    """Read either kind of file. Raises ModelFileError or CheckpointError if it is neither."""
    if is_model_file(path):
        return load_model(path)
    checkpoint = read_checkpoint(path)
    held = tuple(
        HeldNetwork(
            name=group.name,
            dimensions=group.rank - 2,
            tensors=len(group.tensors),
            parameters=sum(prod(tensor.shape) for tensor in group.tensors.values()),
        )
        for group in networks(checkpoint)
    )
    try:
        return HeldCheckpoint(checkpoint, held, recognise(checkpoint, Choices()), None)
    except CheckpointError as error:
        obstacle = str(error).removeprefix(f"{path}: ")
        return HeldCheckpoint(checkpoint, held, None, obstacle)


def parameter_count(model: Model) -> int:
    """Numbers that the network learned."""
    return sum(array.size for array in model.network.weights.values())
