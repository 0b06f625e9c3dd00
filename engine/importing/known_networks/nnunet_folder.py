"""A model folder of nnU-Net v2: plans.json, dataset.json and fold_X/checkpoint_final.pth."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ....io.files.regular import read_regular
from ...decoding import FieldError, decode, parse
from ...errors import CheckpointError, quoted
from ...network.layers import Triple
from ..checkpoint_file import Checkpoint, read_checkpoint
from ..operators.operator_graph import OperatorGraph
from ..torch_files import StoredTensor
from .network_writer import NetworkWriter, weights
from .nnunet_networks import (
    PLAIN,
    RESIDUAL,
    NetworkArguments,
    check_arguments,
    last_layer,
    write_network,
)

_PLANS, _DATASET, _CHECKPOINT = "plans.json", "dataset.json", "checkpoint_final.pth"
_LARGEST_JSON = 64 << 20
_HEADS = "decoder.seg_layers."

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Architecture:
    """network_class_name, arch_kwargs: the network's class, and its arguments."""

    network_class_name: str
    arch_kwargs: NetworkArguments


@dataclass(frozen=True, slots=True)
class Configuration:
    """The plans of one configuration, such as 3d_fullres; field names are nnU-Net's.

    patch_size: of the training, along the axes as transposed. spacing: of the model's grid, in mm,
    likewise. normalization_schemes: of each channel, by class name. use_mask_for_norm: whether a
    channel's statistics are those of non-zero voxels. resampling_fn_data,
    resampling_fn_probabilities: functions that resample scans and outputs, with arguments in
    resampling_fn_data_kwargs and resampling_fn_probabilities_kwargs. architecture: the network.
    previous_stage: configuration whose output is another input; None for none.
    """

    patch_size: Triple
    spacing: tuple[float, float, float]
    normalization_schemes: tuple[str, ...]
    use_mask_for_norm: tuple[bool, ...]
    resampling_fn_data: str
    resampling_fn_data_kwargs: dict[str, Any]
    resampling_fn_probabilities: str
    resampling_fn_probabilities_kwargs: dict[str, Any]
    architecture: _Architecture
    previous_stage: str | None = None


@dataclass(frozen=True, slots=True)
class Intensity:
    """Intensities of a channel over the foreground of the training set; names are nnU-Net's.

    mean, std: mean and standard deviation. percentile_00_5, percentile_99_5: percentiles 0.5 and
    99.5.
    """

    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float


@dataclass(frozen=True, slots=True)
class Plans:
    """Content of plans.json for all configurations; field names are nnU-Net's.

    configurations: the plans of each, by name. transpose_forward: order of the scan's axes in the
    network. foreground_intensity_properties_per_channel: intensities, by channel number.
    image_reader_writer: class that reads scans.
    """

    configurations: dict[str, dict[str, Any]]
    transpose_forward: Triple
    foreground_intensity_properties_per_channel: dict[str, Intensity]
    image_reader_writer: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Content of dataset.json; field names are nnU-Net's.

    channel_names: names of the input channels, by number. labels: numbers of the classes, by name.
    """

    channel_names: dict[str, str]
    labels: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class NnunetFolder:
    """A model folder, read and never executed.

    graphs: networks of the folds, in order. sha256: hash of the checkpoint, or of the hashes of
    several. kind: class of the network. name: of the configuration. configuration, plans, dataset:
    what the folder states about scans.
    """

    graphs: tuple[OperatorGraph, ...]
    sha256: str
    kind: str
    name: str
    configuration: Configuration
    plans: Plans
    dataset: Dataset

    @property
    def folds(self) -> tuple[str, ...]:
        """Names of the folds, usually numbers."""
        return tuple(_fold(graph.path) for graph in self.graphs)


def is_nnunet_folder(path: Path) -> bool:
    """Return whether a folder holds plans.json and dataset.json."""
    return (path / _PLANS).is_file() and (path / _DATASET).is_file()


def read_nnunet(folder: Path, folds: Sequence[str]) -> NnunetFolder:
    """Read a model folder.

    folds: names of those to read; none reads the only one. Raises CheckpointError for a network or
    a resampling that cannot be computed as nnU-Net does.
    """
    plans, dataset = _read(folder / _PLANS, Plans), _read(folder / _DATASET, Dataset)
    checkpoints = [read_checkpoint(path) for path in _checkpoints(folder, folds)]
    name = _configuration_name(folder, checkpoints[0])
    configuration = _configuration(plans, name)
    _check(configuration)
    kind = configuration.architecture.network_class_name.rpartition(".")[-1]
    arguments = configuration.architecture.arch_kwargs
    check_arguments(kind, arguments)
    hashes = [each.sha256 for each in checkpoints]
    joined = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return NnunetFolder(
        graphs=tuple(_graph(checkpoint, kind, arguments) for checkpoint in checkpoints),
        sha256=joined if len(hashes) > 1 else hashes[0],
        kind=kind,
        name=name,
        configuration=configuration,
        plans=plans,
        dataset=dataset,
    )


def _graph(checkpoint: Checkpoint, kind: str, arguments: NetworkArguments) -> OperatorGraph:
    writer = NetworkWriter(weights(_tensors(checkpoint, last_layer(arguments))))
    channels, output = write_network(writer, kind, arguments)
    for name in writer.unused:
        raise CheckpointError(
            f"The checkpoint has {quoted(name)}, which no {kind} has; the trainer changed the "
            "network, so export it as ONNX and import that."
        )
    return writer.graph(
        *(checkpoint, output),
        channels=channels,
        kind="nnU-Net folder",
        layout=f"nnU-Net v2 {kind}",
        producer="nnU-Net",
    )


def _read(path: Path, kind: type[Record]) -> Record:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise CheckpointError(f"{path} is too large for such a file; check the folder.")
        return decode(kind, parse(read_regular(path)))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except FieldError as error:
        raise CheckpointError(f"{path} does not match nnU-Net v2.3 or later: {error}.") from error


def _checkpoints(folder: Path, folds: Sequence[str]) -> list[Path]:
    found = sorted(map(_fold, folder.glob(f"fold_*/{_CHECKPOINT}")))
    if not found:
        raise CheckpointError(
            f"{folder} has no fold_X/{_CHECKPOINT}, which nnU-Net writes at the end of a training; "
            "copy it into the folder."
        )
    if missing := [fold for fold in folds if fold not in found]:
        raise CheckpointError(
            f"{folder} has no fold {quoted(missing[0])}, but {', '.join(found)}; check setting"
            " folds."
        )
    if not folds and len(found) > 1:
        raise CheckpointError(
            f"{folder} has the folds {', '.join(found)}; name those to average with setting "
            f"folds={','.join(found)}, which takes {len(found)} times as long as one."
        )
    return [folder / f"fold_{fold}" / _CHECKPOINT for fold in folds or found]


def _fold(checkpoint: Path) -> str:
    """Return the name of the fold that a checkpoint is of."""
    return checkpoint.parent.name.removeprefix("fold_")


def _configuration_name(folder: Path, checkpoint: Checkpoint) -> str:
    configuration = checkpoint.contents.get("init_args")
    name = configuration.get("configuration") if isinstance(configuration, Mapping) else None
    return name if isinstance(name, str) else folder.resolve().name.rpartition("__")[-1]


def _configuration(plans: Plans, name: str) -> Configuration:
    configuration, wanted, seen = dict[str, Any](), name, set[str]()
    while wanted:
        if wanted in seen or wanted not in plans.configurations:
            raise CheckpointError(
                f"plans.json has no configuration {quoted(wanted)}; keep the folder's name as "
                "nnU-Net gave it, such as nnUNetTrainer__nnUNetPlans__3d_fullres."
            )
        seen.add(wanted)
        configuration = {**plans.configurations[wanted], **configuration}
        parent = plans.configurations[wanted].get("inherits_from")
        wanted = parent if isinstance(parent, str) else ""
    try:
        return decode(Configuration, configuration)
    except FieldError as error:
        raise CheckpointError(
            f"plans.json cannot be used for configuration {quoted(name)}: {error}; only 3D "
            "networks of nnU-Net v2.3 or later can."
        ) from error


def refusal(what: str) -> CheckpointError:
    """Return an error about a model that cannot be computed here; what: its predicate."""
    return CheckpointError(
        f"The nnU-Net model {what}, which is not supported; run it with nnU-Net's own predictor."
    )


def _check(configuration: Configuration) -> None:
    """Raise CheckpointError for anything that is not computed as nnU-Net does."""
    class_name = configuration.architecture.network_class_name
    if class_name.rpartition(".")[-1] not in (PLAIN, RESIDUAL):
        raise CheckpointError(
            f"The network is a {quoted(class_name)}, not a {PLAIN} or {RESIDUAL}; export it as "
            "ONNX and import that."
        )
    if configuration.previous_stage:
        raise refusal("is a cascade, which needs the result of another network")
    for name, stated, order in (
        (configuration.resampling_fn_data, configuration.resampling_fn_data_kwargs, 3),
        (
            configuration.resampling_fn_probabilities,
            configuration.resampling_fn_probabilities_kwargs,
            1,
        ),
    ):
        usual = {"is_seg": False, "order": order, "order_z": 0, "force_separate_z": None}
        if name != "resample_data_or_seg_to_shape" or {**usual, **stated} != usual:
            raise refusal(f"resamples by {quoted(name)} with {stated}")


def _tensors(checkpoint: Checkpoint, last: str) -> dict[str, StoredTensor]:
    """Return the weights by name, without repeated names and outputs for training alone.

    last: name of the last layer.
    """
    held = checkpoint.contents.get("network_weights")
    if not isinstance(held, Mapping):
        raise CheckpointError(f"{checkpoint.path} has no network_weights, as nnU-Net writes them.")
    named = {
        name.removeprefix("_orig_mod.").removeprefix("module."): item
        for name, item in held.items()
        if isinstance(item, StoredTensor)
    }
    return {
        name: item
        for name, item in named.items()
        if name.startswith(f"{last}.")
        or not (".all_modules." in name or name.startswith(("decoder.encoder.", _HEADS)))
    }
