"""Division of a volume into patches as a model's training code does it, as a model card states it.

What the words mean, axis by axis, is the table in pipelines/study/tilings.py.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..options import Blend

TilingCode: TypeAlias = Literal["even", "monai", "torchio", "nnunet"]
"""Code whose patch positions and Gaussian are followed; even: this program's own, evenly spread."""

Shares: TypeAlias = tuple[float, float, float]
"""A share of a patch's edge along D, H and W."""

_USUAL_OVERLAP, _USUAL_SIGMA = (0.25, 0.25, 0.25), (0.125, 0.125, 0.125)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Positions and weights of patches.

    code: rule of the positions. overlap: share of a patch's edge that neighbours share, and blend:
    weights where they do, unless the user states others. sigma: standard deviation of the Gaussian
    as a share of the edge. border: whether half the overlap is padded around the volume, and cut
    off afterwards.
    """

    code: TilingCode = "even"
    overlap: Shares = _USUAL_OVERLAP
    blend: Blend = "gaussian"
    sigma: Shares = _USUAL_SIGMA
    border: bool = False


EVEN = Tiling()
"""Tiling of model cards that state none."""

EARLIER_NNUNET = Tiling("nnunet")
"""Tiling of nnU-Net models that were imported before cards stated one, at half its own overlap."""

_WIDEST_SIGMA = 100.0


def invalid_tiling(tiling: Tiling) -> tuple[str, str] | None:
    """Return the field and the reason why no volume can be divided like this, or None."""
    if not all(0 <= share < 1 for share in tiling.overlap):
        return "overlap", "must be three shares from 0 to below 1"
    if not all(0 < share <= _WIDEST_SIGMA for share in tiling.sigma):
        return "sigma", f"must be three shares above 0, at most {_WIDEST_SIGMA:g}"
    return None


OWN: dict[TilingCode, Tiling] = {
    "even": EVEN,
    "monai": Tiling("monai", blend="constant"),
    "torchio": Tiling("torchio", (0.0, 0.0, 0.0), "crop"),
    "nnunet": Tiling("nnunet", (0.5, 0.5, 0.5)),
}
"""Tiling of each code with its own defaults."""
