"""What a user may choose about a translation; imports nothing heavy, for the command line."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from ..engine.options import Inference, Precision
from ..io.choice import EVERYTHING, FEWEST_SLICES, Choice, OutputFormat, SkipKind
from ..io.links import Links

Blend: TypeAlias = Literal["gaussian", "linear", "constant"]
FolderLayout: TypeAlias = Literal["mirror", "bids"]
"""Of an output folder: as the inputs lie, or a BIDS derivative dataset."""
OutputType: TypeAlias = Literal["same", "int16", "uint16", "float32"]
"""Voxel type of results; "same" is the scan's own, whatever the values are."""

MOST_OVERLAP = 0.9
"""Of tiles: with more, nearly all of the work is done again and again."""

FEWEST_FLIPS, MOST_FLIPS = 2, 8
"""Ways to mirror patches over which a spread is measured; to leave them as they are is one."""

METHOD = 1
"""Raised whenever the program begins to make other voxels from equal settings."""

ADDED: dict[str, int | None] = {
    "keep_private": None,
    "links": 1,
    "verify": 2,
    "any_modality": 3,
    "nan_to": 3,
    "strict_input": 4,
    "cycle_check": 4,
    "spread": 4,
    "resample_channels": 4,
    "inference": 5,
    "result_name": 9,
    "layout": 9,
    "bids_suffix": 9,
    "sidecar": 9,
    "output_type": 9,
    "every_volume": 9,
    "any_contrast": 9,
    "allow_synthetic": 9,
}
"""Options that came later, with the version of the first worker that heeds them.

At their default they are left out of fingerprints, so that results from before stay up to date, and
of jobs, which older workers then take and whose key stays. None: it always stands in jobs.
"""

_BEFORE = {"inference": "patches"}
"""What was done before an option came, where that is not its default."""

_OF_TILES = ("patch", "overlap", "blend")
"""Settings that change no voxel where a volume is translated at once."""


@dataclass(frozen=True, slots=True)
class CycleCheck:
    """That results are translated back. model: file of the generator back. sha256: of that file;
    "" until it was read. has_map: whether the error of each voxel is stored as a map.
    """

    model: str
    sha256: str = ""
    has_map: bool = False


@dataclass(frozen=True, slots=True)
class TranslateSettings:
    """Everything besides model and scan that changes a result, and nothing that does not.

    patch: extents (D, H, W) of a tile. overlap: share of a tile's edge that neighbours share.
    volume_index: which volume of a 4-D or multi-frame file; None refuses such files.
    every_volume: whether all volumes of a 4-D file are translated, one by one. keep_private:
    whether private elements of a DICOM source go into its result. blend: weights of overlapping
    tiles. precision: of the network's arithmetic. nan_to: what stands for NaN in a scan, in its own
    unit; None refuses such scans. resample_channels: whether scans of a study that lie on other
    grids than its first are resampled onto that, instead of refused. inference: of tiles, or of the
    volume at once, where tiles are only where a seam score looks for their borders. output_type:
    voxel type of results; None takes the scan's if that holds the values, else a larger one.
    """

    patch: tuple[int, int, int]
    overlap: float = 0.25
    blend: Blend = "gaussian"
    precision: Precision = "fp32"
    volume_index: int | None = None
    keep_private: bool = False
    nan_to: float | None = None
    resample_channels: bool = False
    inference: Inference = "patches"
    output_type: OutputType | None = None
    every_volume: bool = False

    @property
    def opened_for(self) -> tuple[int, int, int] | None:
        """Extents of the tiles for which a network is opened; None for volumes at once."""
        return self.patch if self.inference == "patches" else None

    def sha256(self) -> str:
        """A name for these settings that stays the same on every machine and in every version."""
        choices = {**asdict(self), "overlap": float(self.overlap), "method": METHOD}
        if self.nan_to is not None:
            choices["nan_to"] = self.nan_to + 0.0  # so that 0, 0.0 and -0.0 are one
        unused = {*added_at_default(choices), *(_OF_TILES if self.inference == "volume" else ())}
        named = {name: choices[name] for name in choices.keys() - unused}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """What was asked for about each study, from the command line through the queue to the report.

    patch: None takes the model's. inference: None takes the model's, too; where nobody decided, it
    is patches. precision: None takes the device's default. overwrite: make
    everything anew and replace foreign files, instead of keeping what is up to date. preview,
    seam_score: what is made besides the results. verify: tiles of each study that are computed a
    second time. any_modality: whether a scan of another modality than the model's source is taken.
    any_contrast: the same of one of another contrast or modality, and of masks. allow_synthetic:
    whether results of this program are. strict_input: whether a scan that is unlike the model's
    calibration set is refused. cycle_check: by which model results are translated back; None if
    they are not. spread: over how many ways of mirroring the patches a mean and a standard
    deviation are made; 0 makes none. result_name: pattern for the names of results; "" for those of
    their scans. layout: of the output folder. bids_suffix: of each result in a BIDS dataset; none
    takes those of the model's target. sidecar: whether a JSON file is written beside each result,
    as always in a BIDS dataset.
    All others mean what they do in TranslateSettings and Choice, which are made from them. overlap,
    blend, volume_index, keep_private, nan_to, resample_channels, output_type,
    every_volume: as in TranslateSettings.
    output_format, fewest_slices, allow_uneven, links: as in Choice.
    """

    patch: tuple[int, int, int] | None = None
    overlap: float = 0.25
    blend: Blend = "gaussian"
    precision: Precision | None = None
    volume_index: int | None = None
    overwrite: bool = False
    output_format: OutputFormat = "same"
    fewest_slices: int = FEWEST_SLICES
    allow_uneven: bool = False
    preview: bool = False
    seam_score: bool = False
    keep_private: bool = False
    links: Links = "inside"
    verify: int = 0
    any_modality: bool = False
    nan_to: float | None = None
    strict_input: bool = False
    cycle_check: CycleCheck | None = None
    spread: int = 0
    resample_channels: bool = False
    inference: Inference | None = None
    output_type: OutputType | None = None
    every_volume: bool = False
    result_name: str = ""
    layout: FolderLayout = "mirror"
    bids_suffix: tuple[str, ...] = ()
    sidecar: bool = False
    any_contrast: bool = False
    allow_synthetic: bool = False

    @property
    def has_sidecars(self) -> bool:
        """Whether a JSON file is written beside each result."""
        return self.sidecar or self.layout == "bids"

    @property
    def takes(self) -> frozenset[SkipKind]:
        """Kinds of scans that are taken although they are passed over otherwise."""
        kinds: dict[SkipKind, bool] = {
            "synthetic": self.allow_synthetic,
            "mask": self.any_contrast,
            "contrast": self.any_contrast,
            "modality": self.any_contrast or self.any_modality,
        }
        return frozenset(kind for kind, is_taken in kinds.items() if is_taken)

    @property
    def passes(self) -> int:
        """How many times each tile of a study, or the volume, is translated."""
        return max(self.spread, 1)

    def settings(self) -> TranslateSettings:
        """What changes a result. Raises ValueError while patch or precision is left open."""
        if self.patch is None or self.precision is None:
            raise ValueError("patch and precision must be chosen first")
        return TranslateSettings(
            patch=self.patch,
            overlap=self.overlap,
            blend=self.blend,
            precision=self.precision,
            volume_index=self.volume_index,
            keep_private=self.keep_private,
            nan_to=self.nan_to,
            resample_channels=self.resample_channels,
            inference=self.inference or "patches",
            output_type=self.output_type,
            every_volume=self.every_volume,
        )

    def choice(self, filters: Choice = EVERYTHING) -> Choice:
        """How studies are looked for. filters: of series; a job needs none, as it knows its own."""
        return replace(
            filters,
            fewest_slices=self.fewest_slices,
            allow_uneven=self.allow_uneven,
            format="nifti" if self.layout == "bids" else self.output_format,
            keep_private=self.keep_private,
            links=self.links,
            takes=self.takes,
        )


DEFAULTS = TranslateOptions()


def added_at_default(choices: Mapping[str, object]) -> set[str]:
    """Those among the options by name that came later and say nothing but their default."""
    return {name for name in ADDED if name in choices and choices[name] in _meaning_nothing(name)}


def _meaning_nothing(name: str) -> tuple[object, ...]:
    default = getattr(DEFAULTS, name)
    return default, _BEFORE.get(name, default)
