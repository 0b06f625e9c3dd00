"""Devices and unset options of a request, resolved before anything opens."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ..engine.devices import Device, choose_devices, why_not_whole_volume
from ..engine.errors import DeviceUnavailableError
from ..engine.model.model_file import Model
from ..engine.network.graph import Graph
from ..engine.network.graph_analysis import held_bytes, largest_patch
from ..engine.network.layers import Triple
from ..engine.options import CudaLimits, Precision, device_name
from ..engine.probe.gpus import CudaDevice
from .errors import SettingsError
from .host.memory import available_memory
from .name_pattern import pattern_of
from .series_description import DescriptionPattern
from .settings import (
    DEFAULTS,
    FEWEST_FLIPS,
    MOST_FLIPS,
    OF_ONE_VOLUME,
    OF_PATCHES,
    WORDS,
    TranslateOptions,
)


def decided(
    model: Model,
    device: str,
    limits: CudaLimits,
    options: TranslateOptions,
    back: Model | None = None,
    gpus: Collection[CudaDevice] = (),
) -> tuple[tuple[Device, ...], TranslateOptions]:
    """Return the devices with a name, and the options, all of them resolved.

    device, limits, gpus: as for `choose_devices`. back: the reverse model, on the same devices.
    Raises PatchShapeError, DeviceUnavailableError or SettingsError if models, devices and options
    do not fit each other.
    """
    devices = choose_devices(_known_device(device), limits, gpus)
    options = with_inference(model, with_precision(options, devices, device))
    check_spread(model, options)
    check_every_volume(options)
    check_model(model, options, devices[0])
    if back:
        from .cycle import reverse_options  # late, as it takes the libraries that read scans

        check_model(back, reverse_options(options, back), devices[0])
    return devices, options


def with_inference(model: Model, options: TranslateOptions) -> TranslateOptions:
    """Return the options with inference, patch and tiling taken from the model where unset.

    Raises SettingsError for settings of patches that would have no effect.
    """
    inference = options.inference or model.inference
    if inference == "volume":
        _check_of_volume(options)
    tiling = model.card.tiling
    shares = tiling.overlap
    usual = shares[0] if len(set(shares)) == 1 else shares
    return replace(
        options,
        inference=inference,
        patch=options.patch or model.card.patch,
        overlap=usual if options.overlap is None else options.overlap,
        blend=options.blend or tiling.blend,
    )


PipelineState: TypeAlias = Literal["proved", "other settings", "unproven"]

_TILED = ("patch", "overlap", "blend")


def pipeline_state(model: Model, options: TranslateOptions) -> PipelineState:
    """Return whether the pipeline was proved with the inference and the patches of the options.

    options: all of them resolved.
    """
    if model.card.pipeline is None:
        return "unproven"
    proved = with_inference(model, TranslateOptions())
    compared = ("inference",) if options.inference == "volume" else ("inference", *_TILED)
    same = all(getattr(proved, name) == getattr(options, name) for name in compared)
    return "proved" if same else "other settings"


def _check_of_volume(options: TranslateOptions) -> None:
    """Raise SettingsError for settings of patches, unless a seam score needs their borders."""
    if options.seam_score:
        return
    for name in OF_PATCHES:
        if getattr(options, name) != getattr(DEFAULTS, name):
            raise SettingsError(
                f"Setting {name} applies to patches, not to whole-volume inference; use setting "
                f"inference=patches, or omit setting {name}.",
                name,
                "inference",
            )


def with_precision(
    options: TranslateOptions, devices: Sequence[Device], name: str
) -> TranslateOptions:
    """Check the values of all options, and return these with a precision of the devices.

    name: name of the devices from the user. Raises DeviceUnavailableError or SettingsError.
    """
    _check_values(options)
    return replace(options, precision=chosen_precision(options.precision, devices, name))


def check_spread(model: Model, options: TranslateOptions) -> None:
    """Raise SettingsError if a TTA spread is requested that no map could show."""
    card = model.card
    outputs = len(card.output_channels)
    if options.spread and outputs > 1:
        raise SettingsError(
            f"Model {card.name} has {outputs} output channels, but setting spread supports only "
            "one; omit it.",
            "spread",
        )


def check_model(model: Model, options: TranslateOptions, device: Device) -> None:
    """Raise PatchShapeError, DeviceUnavailableError or SettingsError if a model cannot be opened
    on a device with these options, of which patch and inference are resolved.
    """
    graph, patch = model.network.graph, options.patch or model.card.patch
    graph.check_patch(patch)
    if options.inference == "volume":
        if reason := why_not_whole_volume(
            graph, device, options.precision or device.default_precision
        ):
            raise DeviceUnavailableError(reason)
    elif device.kind != "cuda":
        check_patch_memory(graph, patch, available_memory())


def _known_device(name: str) -> str:
    try:
        return device_name(name)
    except ValueError as error:
        raise SettingsError(f"Device {error}", "device") from None


def _check_values(options: TranslateOptions) -> None:
    """Raise SettingsError for invalid values that types and declared bounds allow."""
    if options.nan_to is not None and not math.isfinite(options.nan_to):
        raise SettingsError(
            f"Setting nan-to={options.nan_to:g} is not a voxel value; give a number.", "nan_to"
        )
    for name, known in WORDS.items():
        if (said := getattr(options, name)) not in known:
            raise SettingsError(
                f"{said!r} is no {name.replace('_', ' ')}; known are "
                f"{', '.join(filter(None, known))}.",
                name,
            )
    if 0 < options.spread < FEWEST_FLIPS:
        raise SettingsError(
            f"A spread over {options.spread} flips is not possible; use {FEWEST_FLIPS} to "
            f"{MOST_FLIPS}, or 0 for none.",
            "spread",
        )
    _check_names(options)
    if options.patch is not None and (len(options.patch) != 3 or min(options.patch) < 1):
        raise SettingsError(
            f"{options.patch!r} is not a patch (D, H, W) such as (128, 128, 128).", "patch"
        )


def _check_names(options: TranslateOptions) -> None:
    """Raise SettingsError for names that results cannot have, and a layout that rules them out."""
    if options.result_name:
        pattern_of(options.result_name)
    if options.series_description:
        DescriptionPattern.of_setting(options.series_description)
    if options.layout == "bids" and (options.result_name or options.output_format not in _OF_BIDS):
        named = (
            ("result-name", "result_name") if options.result_name else ("format", "output_format")
        )
        raise SettingsError(
            f"Setting layout=bids excludes setting {named[0]}; omit one of them.",
            "layout",
            named[1],
        )


_OF_BIDS = ("same", "nifti")


def check_every_volume(options: TranslateOptions) -> None:
    """Raise SettingsError for settings whose figures and maps apply to one volume, if every volume
    is requested.
    """
    if not options.every_volume:
        return
    if options.volume_index is not None:
        raise SettingsError(
            "Give either one volume or all volumes, not both.",
            "volume_index",
            "every_volume",
        )
    for name in OF_ONE_VOLUME:
        if getattr(options, name):
            setting = name.replace("_", "-")
            raise SettingsError(
                f"Setting {setting} applies to one volume, and setting volume=all translates "
                f"several; give one with setting volume=N, or omit setting {setting}.",
                name,
                "volume_index",
                "every_volume",
            )


def check_patch_memory(graph: Graph, patch: Triple, free: int) -> None:
    """Raise SettingsError for a patch whose tensors alone exceed the free bytes.

    The error names the largest patch that leaves half of these for all else.
    """
    needed = held_bytes(graph, patch)
    if needed <= free:
        return
    fitting = largest_patch(graph, patch, lambda one: held_bytes(graph, one) <= free // 2)
    advice = f"setting patch={','.join(map(str, fitting))} fits" if fitting else "no patch fits"
    raise SettingsError(
        f"Patches of {'x'.join(map(str, patch))} need {_gib(needed)} GiB of memory, and "
        f"{_gib(free)} GiB are free; {advice}.",
        "patch",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def chosen_precision(asked: Precision | None, devices: Sequence[Device], name: str) -> Precision:
    """Return the requested precision, or else the devices' default; name: devices from the user.

    Raises DeviceUnavailableError or SettingsError.
    """
    if asked is None:
        return devices[0].default_precision
    for device in devices:
        if asked not in device.precisions:
            raise _refusal(asked, device, name)
    return asked


def _refusal(asked: Precision, device: Device, name: str) -> DeviceUnavailableError | SettingsError:
    if device.kind == "cuda":
        return SettingsError(
            f"GPU {device.index} supports only {' and '.join(device.precisions)}; {asked} needs "
            "compute capability 8.0. Omit setting precision or choose another device.",
            "precision",
            "device",
        )
    if name == "auto":
        return DeviceUnavailableError(
            f"Precision {asked} needs a CUDA device, and {device.note}; omit setting precision."
        )
    on = "The CPU" if device.kind == "cpu" else f"Device {device.name}"
    known = " and ".join(device.precisions)
    return SettingsError(
        f"{on} computes only in {known}, not in {asked}; omit setting precision or choose a CUDA "
        "device.",
        "precision",
        "device",
    )
