"""Readings of a network to try: the likely ones, and those that are one change away."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from ...errors import CheckpointError
from ..recognise.codes import CODES
from ..recognise.established import said_reading
from ..recognise.match import Match, ResNetShape
from ..recognise.reading import CONCATS, PLAIN_PADS, RESIDUALS, UPSAMPLINGS, Reading

_PADS = (*PLAIN_PADS, "constant:-1")
_ACTIVATIONS = ("relu", "leaky:0.2", "leaky:0.01", "elu")
_EPSILONS = (1e-5, 1e-3)
_STRIDES = ("2,2,2", "1,2,2", "2,2,1")
_DILATIONS = (1, 2)


def likely_readings(match: Match, code_reading: Reading | None) -> Iterator[Reading]:
    """What known codes and usual networks compute, the most likely first.

    code_reading: of the code that the user names, if any.
    """
    usual = match.shape.usual
    if code_reading:
        yield code_reading
    yield usual
    for code in CODES:
        try:
            generator = code.generator(match)
            yield generator.reading_of(match, None)
        except CheckpointError:
            continue
    norms = match.norms()[:2] if match.is_tracked else match.norms()[:1]
    sampled = isinstance(match.shape, ResNetShape) and match.shape.sampled
    for padding, norm, upsampling, concat in product(
        PLAIN_PADS,
        norms,
        UPSAMPLINGS if sampled else (usual.upsampling,),
        (usual.concat,) if isinstance(match.shape, ResNetShape) else CONCATS,
    ):
        start = replace(usual, norm=norm, upsampling=upsampling, concat=concat)
        if isinstance(match.shape, ResNetShape):
            start = said_reading(match, start, {"padding": padding})
        yield start


def changes(match: Match, reading: Reading) -> list[Reading]:
    """Readings that are one change away; said of all parts at once, or of one."""
    shape = match.shape
    found: list[Reading] = []

    def vary(values: Iterable[object], *fields: str) -> None:
        for value in values:
            changed = replace(reading, **dict.fromkeys(fields, value))
            if changed != reading:
                found.append(changed)

    vary(match.norms(), "norm")
    vary(_EPSILONS, "epsilon")
    vary(_PADS, "padding")
    if isinstance(shape, ResNetShape):
        vary(_ACTIVATIONS, "activation", "block_activation", "up_activation")
        vary(_PADS, "block_padding")
        vary(_PADS, "padding", "block_padding")
        vary(_PADS, "padding", "block_padding", "down_padding", "up_padding")
        vary(RESIDUALS, "residual")
        vary(PLAIN_PADS, "down_padding")
        if shape.sampled:
            vary(PLAIN_PADS, "up_padding")
            vary(UPSAMPLINGS, "upsampling")
        if shape.blur_taps:
            vary(_PADS, "blur_padding")
        for part_of in ("activation", "block_activation", "up_activation"):
            vary(_ACTIVATIONS, part_of)
        vary(_STRIDES, "stride")
        vary(_DILATIONS, "dilation")
    else:
        vary(CONCATS, "concat")
        vary(_ACTIVATIONS, "activation")
        vary(_ACTIVATIONS, "up_activation")
    return list(dict.fromkeys(found))
