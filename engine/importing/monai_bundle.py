"""A MONAI bundle: its network definition and weights as a graph of ONNX's operators.

Expressions of the configuration ("$...") are never evaluated; references ("@name") are followed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ...io.files.regular import read_regular
from ..decoding import FieldError, Json, parse
from ..errors import CheckpointError, naming, quoted
from ..network.layers import FloatArray, Triple
from .checkpoint_file import Checkpoint, CheckpointEntry, read_checkpoint
from .monai_networks import DEFINITIONS, INPUT, Arguments, NetworkWriter
from .operators.operator_graph import STATED_OPSET, OperatorGraph
from .torch_files import StoredTensor, check_amount

_CONFIG, _WEIGHTS = Path("configs", "inference.json"), Path("models", "model.pt")
_LARGEST_CONFIG = 1 << 20
_MOST_STEPS = 20
_PLAIN_TRANSFORMS = frozenset(
    ("LoadImage", "EnsureChannelFirst", "EnsureType", "Invert", "SaveImage")
)
"""Transforms that change no number, or only undo others."""
_COUNTER = ".num_batches_tracked"
_TRAINING_ONLY = ("skip_layers.", "deep_supervision_heads.")
"""Tensors of DynUNet that are others of it under a second name, or that training alone uses."""


@dataclass(frozen=True, slots=True)
class MonaiBundle:
    """Contents of a bundle.

    graph: its network. axes: orientation of the patches, such as RAS. spacing: of their voxels in
    mm. patch: extents of the inference's windows. window: lowest and highest intensity, and the
    values that they become; intensities beyond are clipped. others: names of the other transforms.
    None is not stated in a form that is read.
    """

    graph: OperatorGraph
    axes: str | None = None
    spacing: tuple[float, float, float] | None = None
    patch: Triple | None = None
    window: tuple[float, float, float, float] | None = None
    others: tuple[str, ...] = ()


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle with a configuration for inference in JSON."""
    return (folder / _CONFIG).is_file()


def read_bundle(folder: Path) -> MonaiBundle:
    """Read a bundle; raises CheckpointError, which names the fault."""
    with naming(folder):
        config = _config(folder / _CONFIG)
        name, arguments = _definition(config)
        checkpoint = read_checkpoint(folder / _WEIGHTS)
        graph = _graph(checkpoint, name, arguments)
    return _described(MonaiBundle(graph), config)


def _config(path: Path) -> dict[str, Json]:
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise CheckpointError(f"{path.name} is larger than any configuration.")
        config = parse(read_regular(path))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}.") from error
    except (FieldError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path.name} is not a configuration of MONAI.")
    return config


def _definition(config: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
    """Return the name and the arguments of the network."""
    for key in ("network_def", "network", "net"):
        found = config.get(key)
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
    return name, {key: _resolved(config, key, item) for key, item in arguments.items()}


def _resolved(config: Mapping[str, Json], name: str, value: Json, steps: int = 0) -> Json:
    """Return a value with its references followed."""
    if steps > _MOST_STEPS:
        raise CheckpointError(f"The argument {quoted(name)} of the network refers to itself.")
    match value:
        case str() if value.startswith(("$", "%")):
            raise CheckpointError(
                f"The argument {quoted(name)} of the network is the expression {quoted(value)}, "
                "which is not evaluated; write its value into configs/inference.json."
            )
        case str() if value.startswith("@"):
            found: Json = cast("dict[str, Json]", config)
            for key in value[1:].replace("::", "#").split("#"):
                found = _item(found, key, value)
            return _resolved(config, name, found, steps + 1)
        case dict():
            return {key: _resolved(config, name, one, steps + 1) for key, one in value.items()}
        case str() | int() | float() | None:
            return value
        case _:
            return [_resolved(config, name, one, steps + 1) for one in value]


def _item(holder: Json, key: str, reference: str) -> Json:
    if isinstance(holder, dict) and key in holder:
        return holder[key]
    if isinstance(holder, list) and key.isdecimal() and int(key) < len(holder):
        return holder[int(key)]
    raise CheckpointError(f"The configuration lacks what {quoted(reference)} refers to.")


def _graph(checkpoint: Checkpoint, name: str, arguments: dict[str, Json]) -> OperatorGraph:
    if arguments.get("spatial_dims", arguments.get("dimensions", 3)) != 3:
        raise CheckpointError("The network is 2-D; only 3-D generators are supported.")
    arguments.pop("dimensions", None)
    channels = arguments.get("in_channels", 1)
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise CheckpointError("The definition's 'in_channels' is not a number of channels.")
    writer = NetworkWriter(_tensors(checkpoint))
    reader = Arguments(arguments)
    output = DEFINITIONS[name](writer, reader)
    reader.check_read()
    if left := [one for one in writer.unused if not one.startswith(_TRAINING_ONLY)]:
        raise CheckpointError(
            f"The weights hold {quoted(left[0])}, which the network definition does not have; they "
            "are not of the same network."
        )
    return OperatorGraph(
        path=checkpoint.path,
        sha256=checkpoint.sha256,
        kind="MONAI bundle",
        layout=f"layers of MONAI's {name}",
        opset=STATED_OPSET,
        producer="MONAI",
        input=INPUT,
        output=output,
        dims=(1, channels, None, None, None),
        operators=tuple(writer.operators),
        tensors=writer.tensors,
        kinds=tuple(operator.kind for operator in writer.operators),
    )


def _tensors(checkpoint: Checkpoint) -> dict[str, FloatArray]:
    """Return the weights by name, without the prefix of parallel training."""
    states = list(_states(checkpoint.contents))
    if len(states) != 1:
        raise CheckpointError(
            f"{_WEIGHTS} holds {len(states)} sets of weights, and a bundle's network has one; save "
            "its state_dict alone."
        )
    held = {name: one for name, one in states[0].items() if not name.endswith(_COUNTER)}
    check_amount(held.values())
    return {name.removeprefix("module."): one.read(quoted(name)) for name, one in held.items()}


def _states(contents: Mapping[str, CheckpointEntry]) -> Iterator[dict[str, StoredTensor]]:
    """Yield the mappings that hold tensors."""
    tensors = {name: one for name, one in contents.items() if isinstance(one, StoredTensor)}
    if tensors:
        yield tensors
        return
    for entry in contents.values():
        if isinstance(entry, Mapping):
            yield from _states(entry)


def _described(bundle: MonaiBundle, config: Mapping[str, Json]) -> MonaiBundle:
    """Return the bundle completed with what its transforms and its inferer state about the data."""
    others: list[str] = []
    for name, settings in _transforms(config):
        match name.removesuffix("d"), settings:
            case "Orientation", {"axcodes": str(axes)} if bundle.axes is None and len(axes) == 3:
                bundle = replace(bundle, axes=axes)
            case "Spacing", {"pixdim": [_, _, _] as edges} if bundle.spacing is None:
                spacing = _numbers(*edges)
                if len(spacing) == 3:
                    bundle = replace(bundle, spacing=(spacing[0], spacing[1], spacing[2]))
            case (
                "ScaleIntensityRange",
                {"a_min": low, "a_max": high, "b_min": bottom, "b_max": top, "clip": True},
            ) if bundle.window is None and len(ends := _numbers(low, high, bottom, top)) == 4:
                bundle = replace(bundle, window=(ends[0], ends[1], ends[2], ends[3]))
            case plain, _ if plain in _PLAIN_TRANSFORMS:
                pass
            case _:
                others.append(name)
    match config.get("inferer"):
        case {"roi_size": [int(depth), int(height), int(width)]} if min(depth, height, width) > 0:
            bundle = replace(bundle, patch=(depth, height, width))
        case _:
            pass
    return replace(bundle, others=tuple(others))


def _numbers(*values: Json) -> list[float]:
    """Return those values that are numbers."""
    return [
        float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)
    ]


def _transforms(config: Mapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield names and arguments of the transforms before and after the network.

    Arguments that are expressions stay as they are, and match nothing.
    """
    for key in ("preprocessing", "postprocessing"):
        composed = config.get(key)
        listed = composed.get("transforms") if isinstance(composed, dict) else None
        for one in listed if isinstance(listed, list) else ():
            target = one.get("_target_") if isinstance(one, dict) else None
            if isinstance(one, dict) and isinstance(target, str):
                yield target.rpartition(".")[2][:60], one
