"""A MONAI bundle: its network definition and weights as a graph of ONNX's operators.

Expressions of the configuration ("$...") are never evaluated; references ("@name") are followed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...decoding import Json
from ...errors import CheckpointError, naming, quoted
from ..checkpoint_file import Checkpoint, CheckpointEntry, read_checkpoint
from ..operators.operator_graph import OperatorGraph
from ..torch_files import StoredTensor
from .monai_config import BundleConfig
from .monai_networks import DEFINITIONS, Arguments
from .network_writer import NetworkWriter, weights

_CONFIG, _WEIGHTS = Path("configs", "inference.json"), Path("models", "model.pt")
_COUNTER = ".num_batches_tracked"
_TRAINING_ONLY = ("skip_layers.", "deep_supervision_heads.")
"""Tensors of DynUNet that are others of it under a second name, or that training alone uses."""


@dataclass(frozen=True, slots=True)
class MonaiBundle:
    """Contents of a bundle. graph: its network. config: what it states about scans and patches."""

    graph: OperatorGraph
    config: BundleConfig


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle with a configuration for inference in JSON."""
    return (folder / _CONFIG).is_file()


def read_bundle(folder: Path) -> MonaiBundle:
    """Read a bundle; raises CheckpointError, which names the fault."""
    with naming(folder):
        config = BundleConfig.read(folder / _CONFIG)
        name, arguments = _definition(config)
        checkpoint = read_checkpoint(folder / _WEIGHTS)
        return MonaiBundle(_graph(checkpoint, name, arguments), config)


def _definition(config: BundleConfig) -> tuple[str, dict[str, Json]]:
    """Return the name and the arguments of the network."""
    for key in ("network_def", "network", "net"):
        found = config.content.get(key)
        if isinstance(found, dict) and isinstance(target := found.get("_target_"), str):
            break
    else:
        raise CheckpointError(
            "The configuration has no network_def with a _target_, so it does not define its "
            "network in a form that is read; export the network with torch.export."
        )
    name = target.rpartition(".")[2]
    if name not in DEFINITIONS or not (target == name or target.startswith("monai.networks.nets.")):
        raise CheckpointError(
            f"The bundle's network is {quoted(target)}, but only {', '.join(DEFINITIONS)} of MONAI "
            "are read from bundles; export it with torch.export (docs/torch-export.md) and import "
            "that."
        )
    arguments = {key: item for key, item in found.items() if key not in ("_target_", "_desc_")}
    return name, {key: config.resolved(key, item) for key, item in arguments.items()}


def _graph(checkpoint: Checkpoint, name: str, arguments: dict[str, Json]) -> OperatorGraph:
    if arguments.get("spatial_dims", arguments.get("dimensions", 3)) != 3:
        raise CheckpointError("The network is 2-D; only 3-D generators are supported.")
    arguments.pop("dimensions", None)
    channels = arguments.get("in_channels", 1)
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise CheckpointError("The definition's 'in_channels' is not a number of channels.")
    writer = NetworkWriter(weights(_tensors(checkpoint)))
    reader = Arguments(arguments)
    output = DEFINITIONS[name](writer, reader)
    reader.check_read()
    if left := [one for one in writer.unused if not one.startswith(_TRAINING_ONLY)]:
        raise CheckpointError(
            f"The weights hold {quoted(left[0])}, which the network definition does not have; they "
            "are not of the same network."
        )
    return writer.graph(
        *(checkpoint, output),
        channels=channels,
        kind="MONAI bundle",
        layout=f"layers of MONAI's {name}",
        producer="MONAI",
    )


def _tensors(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """Return the weights by name, without the prefix of parallel training."""
    states = list(_states(checkpoint.contents))
    if len(states) != 1:
        raise CheckpointError(
            f"{_WEIGHTS} holds {len(states)} sets of weights, and a bundle's network has one; save "
            "its state_dict alone."
        )
    return {
        name.removeprefix("module."): tensor
        for name, tensor in states[0].items()
        if not name.endswith(_COUNTER)
    }


def _states(contents: Mapping[str, CheckpointEntry]) -> Iterator[dict[str, StoredTensor]]:
    """Yield the mappings that hold tensors."""
    tensors = {name: one for name, one in contents.items() if isinstance(one, StoredTensor)}
    if tensors:
        yield tensors
        return
    for entry in contents.values():
        if isinstance(entry, Mapping):
            yield from _states(entry)
