"""A model folder of nnU-Net v2: plans.json, dataset.json and fold_X/checkpoint_final.pth."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ...engine.decoding import FieldError, decode, parse
from ...engine.errors import CheckpointError, quoted
from ...engine.importing.checkpoint.evidence import Fact, setting
from ...engine.importing.checkpoint_file import Checkpoint, read_checkpoint
from ...engine.importing.nnunet_network import PLAIN, RESIDUAL, NetworkArguments, nnunet_network
from ...engine.importing.torch_files import StoredTensor
from ...engine.model.intensity_maps import (
    ClipValues,
    Identity,
    IntensityMap,
    MinMax,
    NetworkRange,
    Standard,
    Steps,
    ZScore,
)
from ...engine.model.model_card import Established, ScanCrop
from ...engine.model.tiling import Tiling
from ...engine.network.graph import Network
from ...engine.network.layers import Triple
from ...io.files.regular import read_regular
from .card_draft import CardDraft

CODE = "nnunetv2"
_ABSENT = -30.0
"""Output of an absent class: its sigmoid, and its softmax next to a background of 0, is 1e-13."""

_PLANS, _DATASET, _CHECKPOINT = "plans.json", "dataset.json", "checkpoint_final.pth"
_LARGEST_JSON = 64 << 20
_AXES_OF_READER = {"NibabelIOWithReorient": "SAR"}
"""Axes of arrays that a reader of nnU-Net turns to one orientation; the others keep the files'."""

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Architecture:
    """network_class_name, arch_kwargs: the network's class, and its arguments."""

    network_class_name: str
    arch_kwargs: NetworkArguments


@dataclass(frozen=True, slots=True)
class _Configuration:
    """The plans of one configuration, such as 3d_fullres; field names are nnU-Net's."""

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
class _Intensity:
    """Intensities of a channel over the foreground of the training set; names are nnU-Net's."""

    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float


@dataclass(frozen=True, slots=True)
class _Plans:
    """Content of plans.json for all configurations; field names are nnU-Net's."""

    configurations: dict[str, dict[str, Any]]
    transpose_forward: Triple
    foreground_intensity_properties_per_channel: dict[str, _Intensity]
    image_reader_writer: str = ""


@dataclass(frozen=True, slots=True)
class _Dataset:
    """Content of dataset.json; field names are nnU-Net's."""

    channel_names: dict[str, str]
    labels: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class NnunetFolder:
    """A model folder, read and never executed.

    checkpoints: of the folds, in order. network: of all folds. draft: what plans.json and
    dataset.json say about scans. kind: class of the network. facts: for the user.
    """

    checkpoints: tuple[Checkpoint, ...]
    network: Network
    draft: CardDraft
    kind: str
    facts: tuple[Fact, ...]

    @property
    def sha256(self) -> str:
        """Hash of the checkpoint, or of the hashes of several."""
        hashes = [each.sha256 for each in self.checkpoints]
        if len(hashes) == 1:
            return hashes[0]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    @property
    def established(self) -> Established:
        """Evidence of how the network computes: the code that the plans are written for."""
        return Established("code", CODE)


def is_nnunet_folder(path: Path) -> bool:
    """Return whether a folder holds plans.json and dataset.json."""
    return (path / _PLANS).is_file() and (path / _DATASET).is_file()


def read_nnunet(folder: Path, folds: Sequence[str], axes: str | None) -> NnunetFolder:
    """Read a model folder.

    folds: of which the mean is taken; none takes the only one. axes: anatomical directions of the
    arrays that nnU-Net read, before its transposition. Raises CheckpointError for anything that
    cannot be computed as nnU-Net does.
    """
    plans, dataset = _read(folder / _PLANS, _Plans), _read(folder / _DATASET, _Dataset)
    checkpoints = tuple(read_checkpoint(path) for path in _checkpoints(folder, folds))
    name = _configuration_name(folder, checkpoints[0])
    configuration = _configuration(plans, name)
    _check(configuration)
    kind = configuration.architecture.network_class_name.rpartition(".")[-1]
    network = nnunet_network(
        kind, configuration.architecture.arch_kwargs, [*map(_weights, checkpoints)]
    )
    sources = tuple(dataset.channel_names[key] for key in sorted(dataset.channel_names, key=_order))
    axes = axes or _AXES_OF_READER.get(plans.image_reader_writer)
    if sorted(plans.transpose_forward) != [0, 1, 2]:
        raise _refusal("transposes axes in an order that does not exist")
    maps, onto = _maps(configuration, plans)
    target = _targets(dataset, network.graph.out_channels)
    draft = CardDraft(
        source=sources,
        target=target,
        intensity_in=maps[0] if len(set(maps)) == 1 else maps,
        intensity_out=Identity(),
        input_range=onto,
        output_range="open",
        axes="".join(axes[at] for at in plans.transpose_forward) if axes else None,
        spacing=configuration.spacing,
        patch=configuration.patch_size,
        small_volume_padding=0.0,
        crop=ScanCrop("nonzero", 0, _fill(dataset, target)),
        tiling=Tiling("nnunet", (0.5, 0.5, 0.5)),
        grid_rule="nnunet",
    )
    facts = (
        Fact("configuration", name, _PLANS),
        Fact(
            "folds",
            ", ".join(each.path.parent.name.removeprefix("fold_") for each in checkpoints),
            f"stated with {setting('folds')}" if folds else "the only one",
        ),
        Fact("network", kind, _PLANS),
        Fact("mirroring", "not done", "Setting spread=8 writes the mean over all mirrored patches"),
        Fact("overlap", "0.5 by default", "nnU-Net's own"),
    )
    return NnunetFolder(checkpoints, network, draft, kind, facts)


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
    found = sorted(
        path.parent.name.removeprefix("fold_") for path in folder.glob(f"fold_*/{_CHECKPOINT}")
    )
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


def _order(key: str) -> tuple[int, str]:
    return (int(key), "") if key.isdecimal() and len(key) < 9 else (1 << 30, key)


def _configuration_name(folder: Path, checkpoint: Checkpoint) -> str:
    configuration = checkpoint.contents.get("init_args")
    name = configuration.get("configuration") if isinstance(configuration, Mapping) else None
    return name if isinstance(name, str) else folder.resolve().name.rpartition("__")[-1]


def _configuration(plans: _Plans, name: str) -> _Configuration:
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
        return decode(_Configuration, configuration)
    except FieldError as error:
        raise CheckpointError(
            f"plans.json cannot be used for configuration {quoted(name)}: {error}; only 3D "
            "networks of nnU-Net v2.3 or later can."
        ) from error


def _refusal(what: str) -> CheckpointError:
    return CheckpointError(
        f"The nnU-Net model {what}, which is not supported; run it with nnU-Net's own predictor."
    )


def _check(configuration: _Configuration) -> None:
    """Raise CheckpointError for anything that is not computed as nnU-Net does."""
    class_name = configuration.architecture.network_class_name
    if class_name.rpartition(".")[-1] not in (PLAIN, RESIDUAL):
        raise CheckpointError(
            f"The network is a {quoted(class_name)}, not a {PLAIN} or {RESIDUAL}; export it as "
            "ONNX and import that."
        )
    if configuration.previous_stage:
        raise _refusal("is a cascade, which needs the result of another network")
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
            raise _refusal(f"resamples by {quoted(name)} with {stated}")


def _maps(
    configuration: _Configuration, plans: _Plans
) -> tuple[tuple[IntensityMap, ...], NetworkRange]:
    """Return the map of each channel, and the network's range."""
    schemes, masks = configuration.normalization_schemes, configuration.use_mask_for_norm
    if len(schemes) != len(masks) or not schemes:
        raise CheckpointError("The lists of normalisation in plans.json differ in length.")
    if any(scheme == "RescaleTo01Normalization" for scheme in schemes) and len(set(schemes)) > 1:
        raise _refusal("maps one channel to 0..1 and others to no range")
    figures = plans.foreground_intensity_properties_per_channel
    maps = tuple(
        _map(scheme, is_masked=mask, figures=figures.get(str(channel)))
        for channel, (scheme, mask) in enumerate(zip(schemes, masks, strict=True))
    )
    return maps, "0..1" if maps[0] == MinMax() else "open"


def _map(scheme: str, *, is_masked: bool, figures: _Intensity | None) -> IntensityMap:
    match scheme:
        case "ZScoreNormalization":
            return Steps((ZScore(),), "filled", "zero") if is_masked else ZScore()
        case "CTNormalization" if figures:
            clip = ClipValues(figures.percentile_00_5, figures.percentile_99_5)
            return Steps((clip, Standard(figures.mean, max(figures.std, 1e-8))))
        case "RescaleTo01Normalization":
            return MinMax()
        case "RGBTo01Normalization":
            return Standard(0.0, 255.0)
        case "NoNormalization":
            return Identity()
        case _:
            raise _refusal(f"normalises by {quoted(scheme)}")


def _weights(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    held = checkpoint.contents.get("network_weights")
    if not isinstance(held, Mapping):
        raise CheckpointError(f"{checkpoint.path} has no network_weights, as nnU-Net writes them.")
    return {
        name.removeprefix("_orig_mod.").removeprefix("module."): item
        for name, item in held.items()
        if isinstance(item, StoredTensor)
    }


def _targets(dataset: _Dataset, heads: int) -> tuple[str, ...] | None:
    """Return the labels if there is one for each output; None leaves it to the user."""
    left_out = {"ignore", "background"} if _has_regions(dataset) else {"ignore"}
    names = tuple(name for name in dataset.labels if name not in left_out)
    return names if len(names) == heads else None


def _has_regions(dataset: _Dataset) -> bool:
    """Return whether outputs are regions of several labels, each with a sigmoid of its own."""
    lists = [
        cast("list[object]", each) for each in dataset.labels.values() if isinstance(each, list)
    ]
    return any(len(each) > 1 for each in lists)


def _fill(dataset: _Dataset, target: tuple[str, ...] | None) -> float | tuple[float, ...]:
    """Return each raw output outside the crop box, where nnU-Net's probability is 1 for the
    background and 0 for all else (`LabelManager.revert_cropping_on_probabilities`); 0 if the
    outputs are no classes.
    """
    if target is None:
        return 0.0
    if _has_regions(dataset):
        return _ABSENT
    return (0.0, *(_ABSENT,) * (len(target) - 1)) if len(target) > 1 else 0.0


def with_facts(draft: CardDraft, found: CardDraft) -> CardDraft:
    """Return a draft completed with what a folder says; what the user says comes first."""
    names = ("source", "target", "intensity_in", "intensity_out", "input_range", "output_range")
    more = ("axes", "spacing", "patch", "crop", "small_volume_padding", "tiling", "grid_rule")
    last = ("maps_on", "inference", "grid", "grid_window")
    known = {
        name: getattr(draft, name) if getattr(draft, name) is not None else getattr(found, name)
        for name in (*names, *more, *last)
    }
    if draft.crop is None and found.crop and draft.intensity_out:  # values in a unit, no classes
        known["crop"] = replace(found.crop, fill=0.0)
    return replace(draft, **{**known, "axes": found.axes or draft.axes})
