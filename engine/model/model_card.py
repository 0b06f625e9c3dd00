"""The model card: what a scan needs to pass through a network and back; its rules and its JSON."""

import json
import math
import re
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias, TypeVar

from ..decoding import FieldError, Json, decode_known, encode, encode_stated, parse
from ..errors import ModelFileError, PatchShapeError
from ..network.architectures import Architecture, build, out_of_bounds
from ..network.layers import Triple
from ..options import Inference
from ..patch_grid import PatchPadding
from .architecture_json import architecture_from_json, architecture_to_json
from .calibration import (
    CycleReference,
    Expectations,
    ResultReference,
    ScanProfiles,
    check_calibration,
)
from .grid_window import GridWindow, invalid_window
from .intensity_maps import (
    USUAL_RANGE,
    ChannelMaps,
    IntensityMap,
    NetworkRange,
    Voxels,
    invalid_numbers,
    is_bent,
)
from .tiling import EARLIER_NNUNET, EVEN, Tiling, invalid_tiling

Each = TypeVar("Each", IntensityMap, float)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of the weights.

    source: name of the checkpoint file. sha256: its hash. layout: the key naming that was matched.
    notes: what was stated or assumed at import. licence: of the weights; empty if not stated.
    importer: this program and its version.
    """

    source: str
    sha256: str
    layout: str
    importer: str
    notes: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference patch and the training code's output for it; both are stored in the model file.

    made_by: "training code", or "cuda-cyclegan" if no output of the training code was given: then
    it only proves that the file computes today what it computed at import. input_sha256,
    output_sha256: hashes of the two arrays' bytes.
    """

    input_sha256: str
    output_sha256: str
    made_by: Literal["training code", "cuda-cyclegan"]


@dataclass(frozen=True, slots=True)
class Established:
    """Evidence of how the network computes with its weights.

    by: "reference", a patch computed by the training code, which only this reading reproduces;
    "code", the training repository named in `code`; "graph", the network was given as layers;
    "unproven", assumptions of the user; "not recorded", the file states none.
    """

    by: Literal["reference", "code", "graph", "unproven", "not recorded"]
    code: str = ""

    @property
    def in_words(self) -> str:
        """Short form for reports."""
        return f"code {self.code}" if self.by == "code" else self.by


NOT_RECORDED = Established("not recorded")


@dataclass(frozen=True, slots=True)
class ScanCrop:
    """Cropping of scans to the smallest box around some of their voxels, before statistics are
    measured.

    around: those voxels, of any scan of the study. margin: voxels added on each side, as far as the
    scan reaches. fill: value of results outside the box, in their unit; one for all channels, or
    one for each of several.
    """

    around: Voxels
    margin: int
    fill: float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PipelineProof:
    """Comparison of the whole pipeline, from file to file, with the training code's own result.

    scan_sha256, output_sha256: hashes of the files of the scan and of that result. difference:
    largest one, as a share of the result's range. allowed: limit of it, as such a share.
    """

    scan_sha256: str
    output_sha256: str
    difference: float
    allowed: float


MapsOn: TypeAlias = Literal["scan", "grid", "window"]
"""Voxels that intensity maps measure and change."""

GridRule: TypeAlias = Literal["cover", "monai", "monai-scan", "torchio", "simpleitk", "nnunet"]
"""Code whose grid of a spacing is followed: its extents, its step and its origin.

cover: this program's own, which covers the whole field of view around the same centre. monai,
monai-scan: MONAI's Spacing after, or before, the axes are turned. The others are named after the
code. nnunet also interpolates by cubic splines, and linear ones back.
"""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Metadata of a model: what the network was trained for.

    name: of the model. architecture: from which the graph is built. source, target: contrasts
    ("T1", "CT"); the direction is source to target. input_channels, output_channels: names, in the
    network's order. axes: anatomical direction of the patch's D, H and W axes, as in nibabel
    ("RAS", "SPL"). spacing: millimetres along D, H and W; None takes every scan at its own spacing.
    patch: training patch (D, H, W), the default for translation. intensity_in, intensity_out: maps
    between a scan's values and the network's. small_volume_padding: of scans smaller than
    a patch; a number is the network intensity there.
    provenance: of the weights. reference: what the network must compute. established: evidence that
    it does. rewritten_from: SHA-256 of the files that hold the same network with other metadata.
    expected, profiles, cycle, results: properties of a reference set, distribution of its
    foreground, its cycle error and measures of its results; None if not measured.
    inference: default inference mode; None leaves it to the norms. input_range, output_range: of
    the network's values. crop: of scans; None for none. grid: extents that every scan is resized
    to, instead of a spacing. tiling: of patches. grid_rule: of grids of a spacing. maps_on: voxels
    that intensity maps measure and change, those of the scan, of the model's grid, or of the window
    on it. grid_window: of scans on the model's grid; None for none. pipeline: proof of these fields
    by a whole scan; None if there is none. disagreement: number of networks whose disagreement is
    one more channel that the network computes, after those of `output_channels`: the mean absolute
    deviation from their mean; 0 if there is none.
    """

    name: str
    architecture: Architecture
    source: str
    target: str
    input_channels: tuple[str, ...]
    output_channels: tuple[str, ...]
    axes: str
    spacing: tuple[float, float, float] | None
    patch: Triple
    intensity_in: ChannelMaps
    intensity_out: ChannelMaps
    small_volume_padding: PatchPadding
    provenance: Provenance
    reference: Reference
    established: Established = NOT_RECORDED
    rewritten_from: tuple[str, ...] = ()
    expected: Expectations | None = None
    cycle: CycleReference | None = None
    inference: Inference | None = None
    input_range: NetworkRange = USUAL_RANGE
    output_range: NetworkRange = USUAL_RANGE
    crop: ScanCrop | None = None
    grid: Triple | None = None
    tiling: Tiling = EVEN
    grid_rule: GridRule = "cover"
    maps_on: MapsOn = "scan"
    pipeline: PipelineProof | None = None
    results: ResultReference | None = None
    disagreement: int = 0
    grid_window: GridWindow | None = None
    profiles: ScanProfiles | None = None

    @property
    def padding(self) -> PatchPadding:
        """Padding of patches beyond a scan; nnU-Net's is 0, whatever older cards state."""
        return 0.0 if self.tiling.code == "nnunet" else self.small_volume_padding

    @property
    def words(self) -> tuple[str, str, str]:
        """Name, source and target as written into results; an unproven model's name is marked."""
        is_unproven = self.established.by == "unproven"
        return f"{self.name} (unproven)" if is_unproven else self.name, self.source, self.target

    @property
    def is_one_to_one(self) -> bool:
        """Whether the model has one input and one output channel."""
        return len(self.input_channels) == len(self.output_channels) == 1

    @property
    def maps_in(self) -> tuple[IntensityMap, ...]:
        """Intensity map of each input channel."""
        return _each(self.intensity_in, len(self.input_channels))

    @property
    def maps_out(self) -> tuple[IntensityMap, ...]:
        """Intensity map of each output channel."""
        return _each(self.intensity_out, len(self.output_channels))

    @property
    def fills(self) -> tuple[float, ...]:
        """Value of each output channel outside the crop; 0 if scans are not cropped."""
        return _each(self.crop.fill if self.crop else 0.0, len(self.output_channels))

    @property
    def is_cropped_by_values(self) -> bool:
        """Whether a scan's extents in the network depend on its values."""
        window = self.grid_window
        return self.crop is not None or (window is not None and window.is_measured)

    @property
    def targets(self) -> tuple[str, ...]:
        """The contrast of each channel that comes out, in words: its name, if there are several."""
        names = self.output_channels
        return names if len(names) > 1 else (self.target,)

    def keeps_unit(self, channel: int = 0) -> bool:
        """Return whether an output channel is in the unit of the first scan."""
        return self.maps_out[channel] == self.maps_in[0]

    def maps_alike(self, channel: int = 0) -> bool:
        """Return whether an output channel has the same map and range as the first scan."""
        return self.keeps_unit(channel) and self.input_range == self.output_range


def _each(stated: Each | tuple[Each, ...], channels: int) -> tuple[Each, ...]:
    return stated if isinstance(stated, tuple) else (stated,) * channels


_LARGEST_EXTENT = 4096
_MOST_VOXELS = 1 << 32
_LONGEST_WORDS = 1000
_SPACINGS = (1e-6, 1e3)
"""Millimetres: from electron microscopy to far beyond any scanner."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_card(card: ModelCard) -> None:
    """Raise ModelFileError, which names the field, if a value is invalid."""
    _check_architecture(card.architecture)
    if card.disagreement:
        _check_disagreement(card)
    _check_words(card)
    _check_geometry(card)
    _check_counts(card)
    check_numbers(card.intensity_in, card.intensity_out, card.spacing)
    _check_grid(card)
    check_calibration(card.expected, card.cycle, card.results, card.profiles)
    for path, digest in (
        ("provenance.sha256", card.provenance.sha256),
        ("reference.input_sha256", card.reference.input_sha256),
        ("reference.output_sha256", card.reference.output_sha256),
        *((f"rewritten_from[{at}]", digest) for at, digest in enumerate(card.rewritten_from)),
        *([("cycle.back", card.cycle.back)] if card.cycle else []),
        *([("pipeline.scan_sha256", card.pipeline.scan_sha256)] if card.pipeline else []),
        *([("pipeline.output_sha256", card.pipeline.output_sha256)] if card.pipeline else []),
    ):
        if not _SHA256.fullmatch(digest):
            raise refusal(path, "must be a SHA-256 of 64 hexadecimal digits")
    if card.pipeline and not 0 <= card.pipeline.difference <= card.pipeline.allowed:
        raise refusal("pipeline.difference", "must lie from 0 to what is allowed")
    if (card.established.by == "code") != bool(card.established.code.strip()):
        raise refusal("established.code", "must name the training code, if there was one")


def check_numbers(
    intensity_in: ChannelMaps | None,
    intensity_out: ChannelMaps | None,
    spacing: tuple[float, float, float] | None,
) -> None:
    """Raise ModelFileError, which names the field, if no scan can have a number.

    None: not known yet, or taken from the scan.
    """
    for name, maps in (("intensity_in", intensity_in), ("intensity_out", intensity_out)):
        if isinstance(maps, tuple):
            for channel, intensity in enumerate(maps):
                _check_intensity(f"{name}[{channel}]", intensity)
        elif maps is not None:
            _check_intensity(name, maps)
    low, high = _SPACINGS
    if spacing is not None and not all(low <= edge <= high for edge in spacing):
        raise refusal("spacing", f"must be three distances from {low:g} to {high:g} mm, or null")


def refusal(path: str, reason: str) -> ModelFileError:
    """Return the error of one field of the card; path: empty for the card as a whole."""
    return ModelFileError(f"The model card's field {path or '(whole card)'!r} {reason}.")


def _check_architecture(architecture: Architecture) -> None:
    for name, reason in out_of_bounds(architecture):
        raise refusal(f"architecture.{name}", reason)


def _check_words(card: ModelCard) -> None:
    for name in ("name", "source", "target"):
        words = getattr(card, name)
        if not words.strip():
            raise refusal(name, "must not be empty")
        if len(words) > _LONGEST_WORDS:
            raise refusal(name, f"must have no more than {_LONGEST_WORDS} characters")
    spec = card.architecture
    for name, channels, count in (
        ("input_channels", card.input_channels, spec.in_channels),
        ("output_channels", card.output_channels, spec.out_channels - bool(card.disagreement)),
    ):
        if len(channels) != count:
            raise refusal(name, f"must name {count} of the network's channels, not {len(channels)}")
        if not all(channel.strip() for channel in channels) or len(set(channels)) != count:
            raise refusal(name, "must give each channel a different name")


def _check_geometry(card: ModelCard) -> None:
    if not is_axes_code(card.axes):
        raise refusal(
            "axes", "must contain one each of R or L, A or P, and S or I, for D, H and W ('RAS')"
        )
    if not all(1 <= extent <= _LARGEST_EXTENT for extent in card.patch):
        raise refusal("patch", f"must have extents from 1 to {_LARGEST_EXTENT}")
    try:
        build(card.architecture).check_patch(card.patch)
    except PatchShapeError as error:
        raise refusal("patch", f"does not fit the network: {str(error).rstrip('.')}") from error


def _check_grid(card: ModelCard) -> None:
    if card.grid is not None:
        if card.spacing is not None:
            raise refusal("grid", "must not be given together with 'spacing'")
        if not all(2 <= extent <= _LARGEST_EXTENT for extent in card.grid):
            raise refusal("grid", f"must have extents from 2 to {_LARGEST_EXTENT}")
        if prod(card.grid) > _MOST_VOXELS:
            raise refusal("grid", f"must have no more than {_MOST_VOXELS} voxels")
    if card.crop is not None:
        if card.crop.around == "all":
            raise refusal("crop.around", "must not be 'all'")
        if not 0 <= card.crop.margin <= _LARGEST_EXTENT:
            raise refusal("crop.margin", f"must lie from 0 to {_LARGEST_EXTENT}")
    if card.grid_window and (wrong := invalid_window(card.grid_window)):
        raise refusal(f"grid_window.{wrong[0]}", wrong[1])
    if card.maps_on == "window" and card.grid_window is None:
        raise refusal("maps_on", "must not be 'window' without a 'grid_window'")
    if wrong := invalid_tiling(card.tiling):
        raise refusal(f"tiling.{wrong[0]}", wrong[1])
    if card.tiling.code == "nnunet" and card.inference == "volume":
        raise refusal("inference", "must be 'patches' where the tiling is nnU-Net's")


def _check_counts(card: ModelCard) -> None:
    for name, maps, channels in (
        ("intensity_in", card.intensity_in, card.input_channels),
        ("intensity_out", card.intensity_out, card.output_channels),
    ):
        if isinstance(maps, tuple) and not 1 < len(maps) == len(channels):
            raise refusal(name, "must be one mapping, or one for each of several channels")
    fill = card.crop.fill if card.crop else 0.0
    if isinstance(fill, tuple) and not 1 < len(fill) == len(card.output_channels):
        raise refusal("crop.fill", "must be one value, or one for each of several output channels")


def _check_disagreement(card: ModelCard) -> None:
    if card.disagreement < 2:
        raise refusal("disagreement", "must be 0, or a number of networks from 2 on")
    if len(card.output_channels) > 1:
        raise refusal("disagreement", "must be 0 if there are several output channels")
    if card.architecture.out_channels != len(card.output_channels) + 1:
        raise refusal("disagreement", "must be 0 unless the network has one more output channel")
    if is_bent(card.maps_out[0]):
        raise refusal(
            "disagreement", "must be 0 if 'intensity_out' has a logarithm or a gamma curve"
        )


def is_axes_code(text: str) -> bool:
    """Return whether three letters name each anatomical axis once, as nibabel's axcodes do."""
    pairs = ("RL", "AP", "SI")
    return len(text) == 3 and all(sum(c in pair for c in text) == 1 for pair in pairs)


def _check_intensity(name: str, intensity: IntensityMap) -> None:
    for field, reason in invalid_numbers(intensity):
        raise refusal(f"{name}{field}", reason)


def card_to_json(card: ModelCard) -> str:
    """Return the JSON text, equal for equal cards; raises ModelFileError for an invalid card."""
    checked = _card(card_as_json(card))
    return json.dumps(card_as_json(checked), ensure_ascii=False, separators=(",", ":"))


def card_as_json(card: ModelCard) -> Json:
    """Return a card as plain values, as in its JSON."""
    plain = {**encode_stated(card), "architecture": architecture_to_json(card.architecture)}
    if (card.tiling, card.grid_rule) == (EARLIER_NNUNET, "nnunet"):
        del plain["tiling"], plain["grid_rule"]
        plain["scheme"] = "nnunet"
    return plain


def stated_grids(card: ModelCard) -> dict[str, Json]:
    """Return fields about grids and patches that differ from the default."""
    plain = card_as_json(card)
    assert isinstance(plain, dict)
    names = ("crop", "grid", "scheme", "tiling", "grid_rule", "maps_on", "grid_window")
    return {name: plain[name] for name in names if name in plain}


def stated_ranges(card: ModelCard) -> dict[str, Json]:
    """Return the network's ranges that differ from the default."""
    ranges = {"input_range": card.input_range, "output_range": card.output_range}
    return {name: value for name, value in ranges.items() if value != USUAL_RANGE}


def card_from_json(text: str) -> ModelCard:
    """Parse a card; raises ModelFileError, which names the invalid field."""
    return _card(strict_json(text, "model card"))


def strict_json(text: str | bytes, what: str) -> Json:
    """Parse JSON without repeated keys; raises ModelFileError naming `what`."""
    try:
        return parse(text)
    except FieldError as error:
        raise ModelFileError(f"The {what} {error.reason}.") from error


def _card(value: Json) -> ModelCard:
    try:
        card = decode_known(ModelCard, _migrated(value))
        _check_written_out(value, card_as_json(card), "")
    except FieldError as error:
        raise refusal(error.path, error.reason) from None
    check_card(card)
    return card


def _migrated(value: Json) -> Json:
    if not isinstance(value, dict) or "architecture" not in value:
        return value
    migrated = {**value, "architecture": architecture_from_json(value["architecture"])}
    match migrated.pop("scheme", None):
        case "nnunet":  # the word for both, before cards had a field for each
            migrated |= {"tiling": encode(EARLIER_NNUNET), "grid_rule": "nnunet"}
        case None | "monai":
            pass
        case other:
            raise FieldError("scheme", f"must be 'nnunet', not {other!r}")
    return migrated


def _check_written_out(stated: Json, parsed: Json, path: str) -> None:
    """Raise FieldError unless every field is stated, numbers are finite and texts fit on a line."""
    if isinstance(stated, dict) and isinstance(parsed, dict):
        for name, value in parsed.items():
            inner = f"{path}.{name}" if path else name
            if name not in stated:
                raise FieldError(inner, "is missing")
            _check_written_out(stated[name], value, inner)
    elif isinstance(stated, list) and isinstance(parsed, tuple):
        for index, pair in enumerate(zip(stated, parsed, strict=True)):
            _check_written_out(*pair, f"{path}[{index}]")
    elif isinstance(parsed, float) and not math.isfinite(parsed):
        raise FieldError(path, "must be a finite number")
    elif isinstance(parsed, str) and not parsed.isprintable():
        raise FieldError(path, "must not contain control characters or line breaks")
