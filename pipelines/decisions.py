"""Devices and unset options of a request, resolved before anything opens."""

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
from .settings import (
    DEFAULTS,
    OF_ONE_VOLUME,
    OF_PATCHES,
    ResolvedOptions,
    TranslateOptions,
)


def decided(
    model: Model,
    device: str,
    limits: CudaLimits,
    options: TranslateOptions,
    back: Model | None = None,
    gpus: Collection[CudaDevice] = (),
) -> tuple[tuple[Device, ...], ResolvedOptions]:
    """Return the devices with a name, and the options, resolved.

    device, limits, gpus: as for `choose_devices`. back: the reverse model, on the same devices.
    Raises PatchShapeError, DeviceUnavailableError or SettingsError if models, devices and options
    do not fit each other.
    """
    options.check_together()
    devices = choose_devices(_known_device(device), limits, gpus)
    resolved = with_precision(fitted(model, options), devices, device)
    check_model(model, resolved, devices[0])
    if back:
        from .cycle import reverse_options  # late, as it takes the libraries that read scans

        check_model(back, reverse_options(resolved, back), devices[0])
    return devices, resolved


def fitted(model: Model, options: TranslateOptions) -> TranslateOptions:
    """Return the options as `with_inference` does, checked against all that the model states.

    Raises SettingsError.
    """
    _check_spread(model, options)
    _check_every_volume(model, options)
    _check_strict_input(model, options)
    return with_inference(model, options)


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


def pipeline_state(model: Model, options: ResolvedOptions) -> PipelineState:
    """Return whether the pipeline was proved with the inference and the patches of the options."""
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
) -> ResolvedOptions:
    """Return options, of which only the precision may be unset, with one of the devices.

    name: name of the devices from the user. Raises DeviceUnavailableError or SettingsError.
    """
    precision = chosen_precision(options.precision, devices, name)
    return replace(options, precision=precision).resolved()


def _check_spread(model: Model, options: TranslateOptions) -> None:
    """Raise SettingsError if a TTA spread is requested that no map could show."""
    card = model.card
    outputs = len(card.output_channels)
    if options.spread and outputs > 1:
        raise SettingsError(
            f"Model {card.name} has {outputs} output channels, but setting spread supports only "
            "one; omit it.",
            "spread",
        )


def _check_strict_input(model: Model, options: TranslateOptions) -> None:
    """Raise SettingsError if scans are to be compared with a reference set that nobody measured."""
    if options.strict_input and model.card.expected is None:
        raise SettingsError(
            f"Model {model.card.name} was not calibrated, so setting strict-input could reject no "
            "scan; calibrate it with 'cuda-cyclegan model calibrate', or omit setting "
            "strict-input.",
            "strict_input",
        )


def check_model(model: Model, options: ResolvedOptions, device: Device) -> None:
    """Raise PatchShapeError, DeviceUnavailableError or SettingsError if a model cannot be opened
    on a device with these options.
    """
    graph, patch = model.network.graph, options.patch
    graph.check_patch(patch)
    if options.inference == "volume":
        if reason := why_not_whole_volume(graph, device):
            raise DeviceUnavailableError(reason)
    elif device.kind != "cuda":
        check_patch_memory(graph, patch, available_memory())


def _known_device(name: str) -> str:
    try:
        return device_name(name)
    except ValueError as error:
        raise SettingsError(f"Device {error}", "device") from None


def _check_every_volume(model: Model, options: TranslateOptions) -> None:
    """Raise SettingsError for a model or settings whose figures and maps apply to one volume, if
    every volume is requested.
    """
    if not options.every_volume:
        return
    if model.card.disagreement:
        raise SettingsError(
            f"The disagreement that model {model.card.name} computes applies to one volume, and "
            "setting volume=all translates several; give one with setting volume=N, or combine "
            "the networks without disagreement.",
            "volume_index",
            "every_volume",
        )
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
