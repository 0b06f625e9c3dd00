"""What the values of a model card must satisfy beyond their types."""

import re
from dataclasses import asdict

from .architectures import Spec, build
from .card import IntensityMap, ModelCard, Percentiles, Window, ZScore
from .errors import PatchShapeError
from .records import refusal

_BOUNDS = {
    "in_channels": (1, 64),
    "out_channels": (1, 64),
    "width": (1, 1024),
    "blocks": (0, 64),
    "downsamplings": (0, 6),
    "levels": (1, 10),
    "first_kernel": (1, 31),
    "last_kernel": (1, 31),
}
"""Far beyond any trained generator; they keep a hostile card from asking for endless layers."""

_LARGEST_EXTENT = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_card(card: ModelCard) -> None:
    """Raise ModelFileError, which names the field, if a value makes no sense."""
    _check_architecture(card.architecture)
    _check_words(card)
    _check_geometry(card)
    _check_intensity("intensity_in", card.intensity_in)
    _check_intensity("intensity_out", card.intensity_out)
    for path, digest in (
        ("provenance.sha256", card.provenance.sha256),
        ("reference.input_sha256", card.reference.input_sha256),
        ("reference.output_sha256", card.reference.output_sha256),
    ):
        if not _SHA256.fullmatch(digest):
            raise refusal(path, "must be a SHA-256 of 64 hexadecimal digits")


def _check_architecture(spec: Spec) -> None:
    for name, value in asdict(spec).items():
        low, high = _BOUNDS.get(name, (value, value))
        if not low <= value <= high:
            raise refusal(f"architecture.{name}", f"must lie from {low} to {high}, not at {value}")


def _check_words(card: ModelCard) -> None:
    for name in ("name", "source", "target"):
        if not getattr(card, name).strip():
            raise refusal(name, "must not be empty")
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
    if card.spacing is not None and min(card.spacing) <= 0:
        raise refusal("spacing", "must be three distances in millimetres above zero, or null")
    if not all(1 <= extent <= _LARGEST_EXTENT for extent in card.patch):
        raise refusal("patch", f"must have extents from 1 to {_LARGEST_EXTENT}")
    try:
        build(card.architecture).check_patch(card.patch)
    except PatchShapeError as error:
        raise refusal("patch", f"does not fit the network: {str(error).rstrip('.')}") from error


def is_axes_code(text: str) -> bool:
    """Whether three letters name each anatomical axis once, as nibabel's axcodes do."""
    pairs = ("RL", "AP", "SI")
    return len(text) == 3 and all(sum(c in pair for c in text) == 1 for pair in pairs)


def _check_intensity(name: str, intensity: IntensityMap) -> None:
    match intensity:
        case Window(low, high) | Percentiles(low, high) if low >= high:
            raise refusal(f"{name}.low", f"must lie below 'high', but {low:g} >= {high:g}")
        case Percentiles(low, high) if low < 0 or high > 100:
            raise refusal(name, "must have percentiles from 0 to 100")
        case ZScore(spread) if spread <= 0:
            raise refusal(f"{name}.spread", "must be above zero")
        case _:
            pass
