"""Fields of a model card by plans.json and dataset.json of an nnU-Net folder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from ...engine.errors import CheckpointError, quoted
from ...engine.importing.checkpoint.evidence import Fact, setting
from ...engine.importing.known_networks.nnunet_folder import (
    Configuration,
    Dataset,
    Intensity,
    NnunetFolder,
    Plans,
    refusal,
)
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
from .card_draft import CardDraft

CODE = "nnunetv2"
NNUNET_CODE = Established("code", CODE)
"""Evidence of how a network computes: the code that the plans are written for."""

_ABSENT = -30.0
"""Output of an absent class: its sigmoid, and its softmax next to a background of 0, is 1e-13."""

_AXES_OF_READER = {"NibabelIOWithReorient": "SAR"}
"""Axes of arrays that a reader of nnU-Net turns to one orientation; the others keep the files'."""


def nnunet_card(folder: NnunetFolder, heads: int, axes: str | None) -> CardDraft:
    """Return what a folder says about scans.

    heads: outputs of the network. axes: anatomical directions of the arrays that nnU-Net read,
    before its transposition. Raises CheckpointError for anything that cannot be computed as nnU-Net
    does.
    """
    configuration, plans, dataset = folder.configuration, folder.plans, folder.dataset
    sources = tuple(dataset.channel_names[key] for key in sorted(dataset.channel_names, key=_order))
    axes = axes or _AXES_OF_READER.get(plans.image_reader_writer)
    if sorted(plans.transpose_forward) != [0, 1, 2]:
        raise refusal("transposes axes in an order that does not exist")
    maps, onto = _maps(configuration, plans)
    target = _targets(dataset, heads)
    return CardDraft(
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


def nnunet_facts(folder: NnunetFolder, named: Sequence[str]) -> Iterator[Fact]:
    """Yield facts for the user. named: folds that the user names."""
    why = f"stated with {setting('folds')}" if named else "the only one"
    yield Fact("configuration", folder.name, "plans.json")
    yield Fact("folds", ", ".join(folder.folds), why)
    yield Fact("network", folder.kind, "plans.json")
    yield Fact(
        "mirroring", "not done", "Setting spread=8 writes the mean over all mirrored patches"
    )
    yield Fact("overlap", "0.5 by default", "nnU-Net's own")


def _order(key: str) -> tuple[int, str]:
    return (int(key), "") if key.isdecimal() and len(key) < 9 else (1 << 30, key)


def _maps(
    configuration: Configuration, plans: Plans
) -> tuple[tuple[IntensityMap, ...], NetworkRange]:
    """Return the map of each channel, and the network's range."""
    schemes, masks = configuration.normalization_schemes, configuration.use_mask_for_norm
    if len(schemes) != len(masks) or not schemes:
        raise CheckpointError("The lists of normalisation in plans.json differ in length.")
    if any(scheme == "RescaleTo01Normalization" for scheme in schemes) and len(set(schemes)) > 1:
        raise refusal("maps one channel to 0..1 and others to no range")
    figures = plans.foreground_intensity_properties_per_channel
    maps = tuple(
        _map(scheme, is_masked=mask, figures=figures.get(str(channel)))
        for channel, (scheme, mask) in enumerate(zip(schemes, masks, strict=True))
    )
    return maps, "0..1" if maps[0] == MinMax() else "open"


def _map(scheme: str, *, is_masked: bool, figures: Intensity | None) -> IntensityMap:
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
            raise refusal(f"normalises by {quoted(scheme)}")


def _targets(dataset: Dataset, heads: int) -> tuple[str, ...] | None:
    """Return the labels if there is one for each output; None leaves it to the user."""
    left_out = {"ignore", "background"} if _has_regions(dataset) else {"ignore"}
    names = tuple(name for name in dataset.labels if name not in left_out)
    return names if len(names) == heads else None


def _has_regions(dataset: Dataset) -> bool:
    """Return whether outputs are regions of several labels, each with a sigmoid of its own."""
    lists = [
        cast("list[object]", each) for each in dataset.labels.values() if isinstance(each, list)
    ]
    return any(len(each) > 1 for each in lists)


def _fill(dataset: Dataset, target: tuple[str, ...] | None) -> float | tuple[float, ...]:
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
