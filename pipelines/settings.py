"""What a user may choose about a translation; imports nothing heavy, for the command line."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from ..engine.options import Precision

Blend: TypeAlias = Literal["gaussian", "linear", "constant"]

METHOD = 1
"""Raised whenever the program begins to make other voxels from equal settings."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What a batch makes besides the results. Nothing here changes a voxel."""

    preview: bool = False
    seam_score: bool = False


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True)
class TranslateSettings:
    """Everything besides model and scan that changes a result, and nothing that does not.

    patch: extents (D, H, W) of a tile. overlap: share of a tile's edge that neighbours share.
    volume_index: which volume of a 4-D or multi-frame file; None refuses such files.
    keep_private: whether private elements of a DICOM source go into its result.
    """

    patch: tuple[int, int, int]
    overlap: float = 0.25
    blend: Blend = "gaussian"
    precision: Precision = "fp32"
    volume_index: int | None = None
    keep_private: bool = False

    def sha256(self) -> str:
        """A name for these settings that stays the same on every machine and in every version."""
        choices = {**asdict(self), "overlap": float(self.overlap), "method": METHOD}
        if not self.keep_private:
            del choices["keep_private"]  # results of versions that had no choice stay up to date
        fields = json.dumps(choices, sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()
