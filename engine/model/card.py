"""The model card: all that a scan needs to know to pass through a network and come back; its
rules, and its JSON.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..decoding import FieldError, Json, Tagged, decode_known, encode, parse
from ..errors import ModelFileError, PatchShapeError
from ..network.architectures import Architecture, build, out_of_bounds
from ..network.layers import Triple
from ..options import Inference
from ..sliding_window import SmallVolumePadding
from .architecture_json import architecture_from_json, architecture_to_json
from .calibration import CycleReference, Expectations, check_calibration

NetworkRange: TypeAlias = Literal["-1..1", "0..1", "open"]
"""Values that a network takes or makes: onto them a map is linear, and beyond them it is clipped.

"-1..1" and "0..1" end there, as tanh and sigmoid do; "open" has no ends, and maps have theirs at -1
and 1 without clipping.
"""

USUAL_RANGE: NetworkRange = "-1..1"


class Window(Tagged, frozen=True, tag="window"):
    """Linear from [low, high] of the scan's own unit (HU, say) onto the network's range."""

    low: float
    high: float


class Percentiles(Tagged, frozen=True, tag="percentiles"):
    """Linear from the study's own percentiles (0..100) onto the network's range."""

    low: float
    high: float


class MinMax(Tagged, frozen=True, tag="minmax"):
    """Linear from the study's own minimum and maximum onto the network's range."""


class ZScore(Tagged, frozen=True, tag="zscore"):
    """(value - mean) / standard deviation of the study, divided by `spread` deviations."""

    spread: float = 1.0


class Identity(Tagged, frozen=True, tag="identity"):
    """Values pass as they are."""


IntensityMap: TypeAlias = Window | Percentiles | MinMax | ZScore | Identity
"""Scan value to network value. As an output map its inverse is applied; Percentiles, MinMax and
ZScore then use what was measured on the input study, of several scans the first."""

ChannelMaps: TypeAlias = IntensityMap | tuple[IntensityMap, ...]
"""One for all channels, or one for each of several, in the network's order."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from.

    source: name of the checkpoint file. sha256: its hash. layout: the key naming that was matched.
    notes: what was said or assumed at import. licence: of the weights, empty where nobody said.
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
    """One stored patch and what the training code made of it; both lie in the model file.

    made_by: "training code", or "cuda-cyclegan" when nobody supplied the former: then it only
    proves that the file computes today what it computed at import. input_sha256, output_sha256: of
    the two arrays' bytes.
    """

    input_sha256: str
    output_sha256: str
    made_by: Literal["training code", "cuda-cyclegan"]


@dataclass(frozen=True, slots=True)
class Established:
    """By what it is known how the network computes with its weights.

    by: "reference", a patch that the training code computed, which only this reading computes too;
    "code", the training repository named in `code`; "graph", the network itself was given, as
    layers; "unproven", assumptions of the user; "not recorded", as in files of version 0.1.
    """

    by: Literal["reference", "code", "graph", "unproven", "not recorded"]
    code: str = ""

    @property
    def in_words(self) -> str:
        """A few words for reports."""
        return f"code {self.code}" if self.by == "code" else self.by


NOT_RECORDED = Established("not recorded")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a network was trained for.

    source, target: contrasts in words ("T1", "CT"); the direction is source to target. axes:
    anatomical direction of the patch's D, H and W axes, as in nibabel ("RAS", "SPL"). spacing:
    millimetres along D, H and W; None takes every scan at its own spacing. patch: training patch
    (D, H, W); the default for tiling. name: of the model. architecture: from which the graph is
    built. input_channels, output_channels: names, in the network's order. intensity_in,
    intensity_out: between a scan's values and the network's. small_volume_padding: of scans smaller
    than a patch. provenance: of the weights. reference: what the network must compute. established:
    by what it is known that it does. rewritten_from: SHA-256 of the files of which this one has the
    network, with other words. input_range, output_range: of the network's own values. expected,
    cycle: what a reference set was like, and its cycle error; None where nobody measured it.
    inference: how volumes are translated unless a user says otherwise; None leaves it to the norms.
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
    small_volume_padding: SmallVolumePadding
    provenance: Provenance
    reference: Reference
    established: Established = NOT_RECORDED
    rewritten_from: tuple[str, ...] = ()
    input_range: NetworkRange = USUAL_RANGE
    output_range: NetworkRange = USUAL_RANGE
    expected: Expectations | None = None
    cycle: CycleReference | None = None
    inference: Inference | None = None

    @property
    def words(self) -> tuple[str, str, str]:
        """Name, source and target, as results tell them: a name that is unproven says so."""
        is_unproven = self.established.by == "unproven"
        return f"{self.name} (unproven)" if is_unproven else self.name, self.source, self.target

    @property
    def is_one_to_one(self) -> bool:
        """Whether the model makes one channel from one."""
        return len(self.input_channels) == len(self.output_channels) == 1

    @property
    def maps_in(self) -> tuple[IntensityMap, ...]:
        """The map of each channel that goes in."""
        return _each(self.intensity_in, len(self.input_channels))

    @property
    def maps_out(self) -> tuple[IntensityMap, ...]:
        """The map of each channel that comes out."""
        return _each(self.intensity_out, len(self.output_channels))

    @property
    def targets(self) -> tuple[str, ...]:
        """The contrast of each channel that comes out, in words: its name, if there are several."""
        names = self.output_channels
        return names if len(names) > 1 else (self.target,)

    def keeps_unit(self, channel: int = 0) -> bool:
        """Whether values of a channel that comes out are in the unit of the first scan."""
        return self.maps_out[channel] == self.maps_in[0]

    def maps_alike(self, channel: int = 0) -> bool:
        """Whether a channel comes out of network values as the first scan goes in."""
        return self.keeps_unit(channel) and self.input_range == self.output_range


def _each(maps: ChannelMaps, channels: int) -> tuple[IntensityMap, ...]:
    return maps if isinstance(maps, tuple) else (maps,) * channels


_LARGEST_EXTENT = 4096
_LONGEST_WORDS = 1000
_SPACINGS = (1e-6, 1e3)
"""Millimetres: from electron microscopy to far beyond any scanner."""

_LARGEST_VALUE, _SMALLEST_STEP = 1e20, 1e-20
"""Of scan values in any unit; between them float32 neither overflows nor loses digits."""

_SPREADS = (1e-3, 1e3)
_NARROWEST_PERCENTILES = 0.01
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_card(card: ModelCard) -> None:
    """Raise ModelFileError, which names the field, if a value makes no sense."""
    _check_architecture(card.architecture)
    _check_words(card)
    _check_geometry(card)
    _check_counts(card)
    check_numbers(card.intensity_in, card.intensity_out, card.spacing)
    check_calibration(card.expected, card.cycle)
    for path, digest in (
        ("provenance.sha256", card.provenance.sha256),
        ("reference.input_sha256", card.reference.input_sha256),
        ("reference.output_sha256", card.reference.output_sha256),
        *((f"rewritten_from[{at}]", digest) for at, digest in enumerate(card.rewritten_from)),
        *([("cycle.back", card.cycle.back)] if card.cycle else []),
    ):
        if not _SHA256.fullmatch(digest):
            raise refusal(path, "must be a SHA-256 of 64 hexadecimal digits")
    if (card.established.by == "code") != bool(card.established.code.strip()):
        raise refusal("established.code", "must name the training code, and only where it was one")


def check_numbers(
    intensity_in: ChannelMaps | None,
    intensity_out: ChannelMaps | None,
    spacing: tuple[float, float, float] | None,
) -> None:
    """Raise ModelFileError, which names the field, if a number is none that scans can have.

    None: is not known yet, or is left to the scan.
    """
    for name, maps in (("intensity_in", intensity_in), ("intensity_out", intensity_out)):
        if isinstance(maps, tuple):
            for channel, intensity in enumerate(maps):
                _check_intensity(f"{name}[{channel}]", intensity)
        else:
            _check_intensity(name, maps)
    low, high = _SPACINGS
    if spacing is not None and not all(low <= edge <= high for edge in spacing):
        raise refusal("spacing", f"must be three distances from {low:g} to {high:g} mm, or null")


def refusal(path: str, reason: str) -> ModelFileError:
    """The error of one field of the card; path: empty for the card as a whole."""
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
        ("output_channels", card.output_channels, spec.out_channels),
    ):
        if len(channels) != count:
            raise refusal(name, f"must name {count} of the network's channels, not {len(channels)}")
        if not all(channel.strip() for channel in channels) or len(set(channels)) != count:
            raise refusal(name, "must give each channel a name of its own")


def _check_geometry(card: ModelCard) -> None:
    if not is_axes_code(card.axes):
        raise refusal(
            "axes", "must hold one of each of R or L, A or P, and S or I, for D, H and W ('RAS')"
        )
    if not all(1 <= extent <= _LARGEST_EXTENT for extent in card.patch):
        raise refusal("patch", f"must have extents from 1 to {_LARGEST_EXTENT}")
    try:
        build(card.architecture).check_patch(card.patch)
    except PatchShapeError as error:
        raise refusal("patch", f"does not fit the network: {str(error).rstrip('.')}") from error


def _check_counts(card: ModelCard) -> None:
    for name, maps, channels in (
        ("intensity_in", card.intensity_in, card.input_channels),
        ("intensity_out", card.intensity_out, card.output_channels),
    ):
        if isinstance(maps, tuple) and not 1 < len(maps) == len(channels):
            raise refusal(name, "must be one map, or one for each of several channels")


def is_axes_code(text: str) -> bool:
    """Whether three letters name each anatomical axis once, as nibabel's axcodes do."""
    pairs = ("RL", "AP", "SI")
    return len(text) == 3 and all(sum(c in pair for c in text) == 1 for pair in pairs)


def _check_intensity(name: str, intensity: IntensityMap | None) -> None:
    match intensity:
        case Window(low, high) | Percentiles(low, high) if low >= high:
            raise refusal(f"{name}.low", f"must lie below 'high', but {low:g} >= {high:g}")
        case Percentiles(low, high) if low < 0 or high > 100:
            raise refusal(name, "must have percentiles from 0 to 100")
        case Percentiles(low, high) if high - low < _NARROWEST_PERCENTILES:
            raise refusal(name, f"must have percentiles at least {_NARROWEST_PERCENTILES:g} apart")
        case Window(low, high) if max(abs(low), abs(high)) > _LARGEST_VALUE:
            raise refusal(name, f"must have values of no more than {_LARGEST_VALUE:g}")
        case Window(low, high) if high - low < _narrowest(low, high):
            raise refusal(
                name, f"must have ends at least {_narrowest(low, high):g} apart, not {high - low:g}"
            )
        case ZScore(spread) if not _SPREADS[0] <= spread <= _SPREADS[1]:
            raise refusal(
                f"{name}.spread",
                f"must lie from {_SPREADS[0]:g} to {_SPREADS[1]:g}, not {spread:g}",
            )
        case _:
            pass


def _narrowest(low: float, high: float) -> float:
    """Window width below which float32 voxels tell nothing apart, or the map overflows."""
    return max(_SMALLEST_STEP, 1e-6 * max(abs(low), abs(high)))


def card_to_json(card: ModelCard) -> str:
    """JSON text, the same for equal cards; raises ModelFileError if it could not be read back."""
    checked = _card(card_as_json(card))
    return json.dumps(card_as_json(checked), ensure_ascii=False, separators=(",", ":"))


def card_as_json(card: ModelCard) -> Json:
    """A card as plain values, as its JSON holds them."""
    plain = encode(card)
    assert isinstance(plain, dict)
    if card.established == NOT_RECORDED:
        del plain["established"]  # version 0.1 wrote no such field
    if not card.rewritten_from:
        del plain["rewritten_from"]
    for name in ("input_range", "output_range"):
        del plain[name]
    for name in ("expected", "cycle", "inference"):
        if plain[name] is None:
            del plain[name]
    architecture = architecture_to_json(card.architecture)
    return {**plain, "architecture": architecture, **stated_ranges(card)}


def stated_ranges(card: ModelCard) -> dict[str, Json]:
    """The network's ranges, where they are not what all networks had before they were told."""
    ranges = {"input_range": card.input_range, "output_range": card.output_range}
    return {name: value for name, value in ranges.items() if value != USUAL_RANGE}


def card_from_json(text: str) -> ModelCard:
    """The card; raises ModelFileError, which names the field that is wrong."""
    return _card(strict_json(text, "model card"))


def strict_json(text: str | bytes, what: str) -> Json:
    """Parsed JSON without repeated keys; raises ModelFileError naming `what`."""
    try:
        return parse(text)
    except FieldError as error:
        raise ModelFileError(f"The {what} {error.reason}.") from error


def _card(value: Json) -> ModelCard:
    try:
        card = decode_known(ModelCard, _in_todays_words(value))
        _check_written_out(value, card_as_json(card), "")
    except FieldError as error:
        raise refusal(error.path, error.reason) from None
    check_card(card)
    return card


def _in_todays_words(value: Json) -> Json:
    if not isinstance(value, dict) or "architecture" not in value:
        return value
    return {**value, "architecture": architecture_from_json(value["architecture"])}


def _check_written_out(given: Json, kept: Json, path: str) -> None:
    """A card leaves nothing to defaults, its numbers are finite and its words fit on a line."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in kept.items():
            inner = f"{path}.{name}" if path else name
            if name not in given:
                raise FieldError(inner, "is missing")
            _check_written_out(given[name], value, inner)
    elif isinstance(given, list) and isinstance(kept, tuple):
        for index, pair in enumerate(zip(given, kept, strict=True)):
            _check_written_out(*pair, f"{path}[{index}]")
    elif isinstance(kept, float) and not math.isfinite(kept):
        raise FieldError(path, "must be a finite number")
    elif isinstance(kept, str) and not kept.isprintable():
        raise FieldError(path, "must not hold control characters or line breaks")
