"""What a user may choose about a translation; imports nothing heavy, for the command line."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from ..engine.options import Inference, Precision
from ..io.choice import EVERYTHING, FEWEST_SLICES, Choice, OutputFormat, SkipKind
from ..io.links import Links
from .option import (
    Effect,
    Option,
    Rules,
    Shown,
    options_in,
    rules_in,
    setting,
    unoffered,
    words_of,
)

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


@dataclass(frozen=True, slots=True)
class CycleCheck:
    """That results are translated back. model: file of the generator back. sha256: of that file;
    "" until it was read. has_map: whether the error of each voxel is stored as a map.
    """

    model: str
    sha256: str = ""
    has_map: bool = False


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """Options of a translation. Each field declares its option, default and rules once; the command
    line, config files, routes, jobs, fingerprints and reports follow from that.

    patch: extents (D, H, W) of a tile; None takes the model's. overlap: share of a tile's edge that
    neighbours share. blend: weights of overlapping tiles. precision: of the network's arithmetic;
    None takes the device's default. volume_index: which volume of a 4-D or multi-frame file; None
    refuses such files. overwrite: make everything anew and replace foreign files, instead of
    keeping what is up to date. output_format, fewest_slices, allow_uneven, links: as in Choice.
    preview, seam_score: what is made besides the results. keep_private: whether private elements of
    a DICOM source go into its result. verify: number of tiles of each study that are computed a
    second time. any_modality: whether scans of another modality than the model's source are
    accepted. nan_to: replacement for NaN in a scan, in its own unit; None refuses such scans.
    strict_input: whether scans unlike the model's calibration set are refused. cycle_check: how
    results are translated back; None if they are not. spread: number of ways of mirroring the
    patches over which a mean and a standard deviation are made; 0 makes none. resample_channels:
    whether scans of a study on other grids than its first are resampled onto that, instead of
    refused. inference: of tiles, or of the volume at once; None takes the model's, and patches if
    nobody decided. output_type: voxel type of results; None takes the scan's if that holds the
    values, else a larger one. every_volume: whether all volumes of a 4-D file are translated, one
    by one. result_name: pattern for the names of results; "" for those of their scans. layout: of
    the output folder. bids_suffix: of each result in a BIDS dataset; none takes those of the
    model's target. sidecar: whether a JSON file is written beside each result, as always in a BIDS
    dataset. any_contrast: whether scans of another contrast or modality, and masks, are accepted.
    allow_synthetic: whether results of this program are accepted as scans.
    """

    patch: tuple[int, int, int] | None = field(
        default=None,
        metadata=setting(
            "Extents of a tile.  [default: the model's]",
            Shown("Speed", 2, "D,H,W"),
            Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_tiles=True),
        ),
    )
    overlap: float = field(
        default=0.25,
        metadata=setting(
            "Share of a tile's edge that neighbours share.",
            Shown("Result", 7, "0..0.9", least=0.0, most=MOST_OVERLAP),
            Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_tiles=True),
        ),
    )
    blend: Blend = field(
        default="gaussian",
        metadata=setting(
            "Weights where tiles overlap.",
            Shown("Result", 5, "gaussian|linear|constant", is_rare=True),
            Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_tiles=True),
        ),
    )
    precision: Precision | None = field(
        default=None,
        metadata=setting(
            "Arithmetic of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
            Shown("Speed", 1, "fp16|bf16|tf32|fp32"),
            Rules(Effect.HARMLESS, of_route=True, changes_result=True),
        ),
    )
    volume_index: int | None = field(
        default=None,
        metadata=setting(
            "Which volume of a 4-D file, counted from 0; all translates each, into a 4-D result.",
            Shown("Input", 1, "N|all", is_rare=True, name="volume"),
            Rules(Effect.HARMLESS, of_route=True, changes_result=True),
        ),
    )
    overwrite: bool = field(
        default=False,
        metadata=setting(
            "Make all results anew, or keep those that are up to date.",
            Shown("Result", 3, off="skip-existing"),
            Rules(Effect.WRITES),
        ),
    )
    output_format: OutputFormat = field(
        default="same",
        metadata=setting(
            "Of the results; a DICOM series becomes a derived series in its study.",
            Shown("Result", 5, "same|nifti|nrrd|mha|dicom", name="format"),
            Rules(Effect.HARMLESS),
        ),
    )
    fewest_slices: int = field(
        default=FEWEST_SLICES,
        metadata=setting(
            "Fewest slices of a DICOM volume.",
            Shown("DICOM", 3, "N", is_rare=True, name="min-slices", least=2),
            Rules(Effect.HARMLESS, of_route=True, of_series=True),
        ),
    )
    allow_uneven: bool = field(
        default=False,
        metadata=setting(
            "Resample tilted, uneven or incomplete DICOM stacks; else refused.",
            Shown("DICOM", 2),
            Rules(Effect.HARMLESS, of_route=True, of_series=True),
        ),
    )
    preview: bool = field(
        default=False,
        metadata=setting(
            "Beside each result, a picture of middle slices.",
            Shown("Result", 4),
            Rules(Effect.HARMLESS),
        ),
    )
    seam_score: bool = field(
        default=False,
        metadata=setting(
            "Measure how visible the tile borders are.",
            Shown("Result", 6, is_rare=True),
            Rules(Effect.HARMLESS, of_route=True, of_one_volume=True),
        ),
    )
    keep_private: bool = field(
        default=False,
        metadata=setting(
            "Copy private elements of a DICOM source to its result; they may hold patient data.",
            Shown("DICOM", 4, is_rare=True, name="keep-private-tags"),
            Rules(
                Effect.WIDENS_PRIVACY, since=0, of_route=True, of_series=True, changes_result=True
            ),
        ),
    )
    links: Links = field(default="inside", metadata=unoffered(Rules(Effect.HARMLESS, since=1)))
    verify: int = field(
        default=0,
        metadata=setting(
            "Compute N tiles of each study again on the CPU, or its volume where that is "
            "translated at once; a study whose result differs fails.",
            Shown("Result", 7, "N", is_rare=True, least=0),
            Rules(Effect.HARMLESS, since=2, of_route=True),
        ),
    )
    any_modality: bool = field(
        default=False,
        metadata=setting(
            "Take series of another modality than the model's source; else passed over.",
            Shown("DICOM", 1, is_rare=True),
            Rules(Effect.UNCHECKS, since=3, of_route=True, of_series=True),
        ),
    )
    nan_to: float | None = field(
        default=None,
        metadata=setting(
            "Take NaN in a scan as this value, in the scan's unit; else refused.",
            Shown("Input", 2, "VALUE", is_rare=True),
            Rules(Effect.HARMLESS, since=3, of_route=True, changes_result=True),
        ),
    )
    strict_input: bool = field(
        default=False,
        metadata=setting(
            "Refuse scans unlike those that the model was calibrated with; else noted.",
            Shown("Input", 7, is_rare=True),
            Rules(Effect.HARMLESS, since=4, of_route=True),
        ),
    )
    cycle_check: CycleCheck | None = field(
        default=None,
        metadata=setting(
            "Translate results back with this model; tell how far they then lie from the scans.",
            Shown("Result", 8, "FILE", is_rare=True),
            Rules(Effect.HARMLESS, since=4, of_route=True, of_one_volume=True),
            Option(
                "With setting cycle-check, store the error of each voxel as a map.",
                Shown("Result", 9, is_rare=True, name="cycle-map"),
                Rules(Effect.HARMLESS, of_route=True),
            ),
        ),
    )
    spread: int = field(
        default=0,
        metadata=setting(
            "Translate with N of the 8 flips; store mean and standard deviation as maps.",
            Shown("Result", 10, "2..8", is_rare=True, least=0, most=MOST_FLIPS),
            Rules(Effect.HARMLESS, since=4, of_one_volume=True),
        ),
    )
    resample_channels: bool = field(
        default=False,
        metadata=setting(
            "Resample scans of a study onto the grid of its first channel; else refused.",
            Shown("Input", 6, is_rare=True),
            Rules(Effect.HARMLESS, since=4, of_route=True, changes_result=True),
        ),
    )
    inference: Inference | None = field(
        default=None,
        metadata=setting(
            "Blend tiles, or run the network over each volume at once.  [default: the model's]",
            Shown("Result", 6, "patches|volume"),
            Rules(Effect.HARMLESS, since=5, before="patches", of_route=True, changes_result=True),
        ),
    )
    output_type: OutputType | None = field(
        default=None,
        metadata=setting(
            "Voxel type of the results.  [default: the scan's if it holds the values]",
            Shown("Result", 4, "same|int16|uint16|float32", is_rare=True),
            Rules(Effect.HARMLESS, since=9, of_route=True, changes_result=True),
        ),
    )
    every_volume: bool = field(
        default=False, metadata=unoffered(Rules(Effect.HARMLESS, since=9, changes_result=True))
    )
    result_name: str = field(
        default="",
        metadata=setting(
            "Names of the results, such as {stem}_{target}synth{ext}; else the scans'.",
            Shown("Result", 1, "PATTERN", is_rare=True, also=("name",)),
            Rules(Effect.WRITES, since=9),
        ),
    )
    layout: FolderLayout = field(
        default="mirror",
        metadata=setting(
            "Of the output folder: as the inputs lie, or a BIDS derivative dataset.",
            Shown("Result", 2, "mirror|bids"),
            Rules(Effect.WRITES, since=9),
        ),
    )
    bids_suffix: tuple[str, ...] = field(
        default=(),
        metadata=setting(
            "Suffix of the results in a BIDS dataset, such as T2w.  [default: by the model's "
            "target]",
            Shown("Result", 2, "SUFFIX", is_rare=True),
            Rules(Effect.HARMLESS, since=9),
        ),
    )
    sidecar: bool = field(
        default=False,
        metadata=setting(
            "Beside each result, a JSON file about how it was made; always in BIDS datasets.",
            Shown("Result", 3, is_rare=True),
            Rules(Effect.HARMLESS, since=9),
        ),
    )
    any_contrast: bool = field(
        default=False,
        metadata=setting(
            "Take masks, and scans of another contrast than the model's source; else passed over.",
            Shown("Input", 3, is_rare=True),
            Rules(Effect.UNCHECKS, since=9, of_route=True),
        ),
    )
    allow_synthetic: bool = field(
        default=False,
        metadata=setting(
            "Take results of this program as scans; else passed over.",
            Shown("Input", 4, is_rare=True),
            Rules(Effect.UNCHECKS, since=9, of_route=True),
        ),
    )

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

    def settings(self) -> "TranslateSettings":
        """What changes a result. Raises ValueError while patch or precision is left open."""
        if self.patch is None or self.precision is None:
            raise ValueError("patch and precision must be chosen first")
        chosen: dict[str, Any] = {name: getattr(self, name) for name in CHANGING_RESULTS}
        chosen["inference"] = self.inference or "patches"
        return TranslateSettings(**chosen)

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

OPTIONS = {option.shown.name: option for _, option in options_in(TranslateOptions)}
"""The options of studies by name."""

_RULES = rules_in(TranslateOptions)

CHANGING_RESULTS = tuple(name for name, rules in _RULES.items() if rules.changes_result)
"""Settings that a fingerprint and a report name."""

OF_TILES = tuple(name for name, rules in _RULES.items() if rules.of_tiles)
"""Settings that change no voxel if a volume is translated at once."""

OF_ONE_VOLUME = tuple(name for name, rules in _RULES.items() if rules.of_one_volume)
"""Settings whose figures and maps are of one volume."""

BEFORE: dict[str, Any] = {
    name: getattr(DEFAULTS, name) if rules.before is None else rules.before
    for name, rules in _RULES.items()
}
"""Behaviour before a setting came, which is its default for most."""

WORDS = {item.name: words for item in fields(TranslateOptions) if (words := words_of(item.type))}
"""Settings that are one of a few words, with these; None among them if it may be left open."""

ADDED = {name: rules.since for name, rules in _RULES.items() if rules.since is not None}
"""Settings that came later, with the version of the first worker that heeds them.

At their default they are left out of fingerprints, so that results from before stay up to date, and
of jobs, which older workers then take and whose key stays. 0: it always stands in jobs.
"""


@dataclass(frozen=True, slots=True)
class TranslateSettings(TranslateOptions):
    """Options that change a result, all decided; the others are at their default.

    patch: extents (D, H, W) of a tile. precision: of the network's arithmetic. inference: of tiles,
    or of the volume at once, where tiles are only where a seam score looks for their borders.
    """

    patch: tuple[int, int, int]  # pyright: ignore[reportGeneralTypeIssues]
    precision: Precision = "fp32"
    inference: Inference = "patches"

    @property
    def opened_for(self) -> tuple[int, int, int] | None:
        """Extents of the tiles for which a network is opened; None for volumes at once."""
        return self.patch if self.inference == "patches" else None

    def chosen(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: getattr(self, name) for name in CHANGING_RESULTS}

    def sha256(self) -> str:
        """A name for these settings that stays the same on every machine and in every version."""
        choices = {**self.chosen(), "overlap": float(self.overlap), "method": METHOD}
        if self.nan_to is not None:
            choices["nan_to"] = self.nan_to + 0.0  # so that 0, 0.0 and -0.0 are one
        unused = {*added_at_default(choices), *(OF_TILES if self.inference == "volume" else ())}
        named = {name: choices[name] for name in choices.keys() - unused}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def added_at_default(choices: Mapping[str, object]) -> set[str]:
    """Those among the options by name that came later and say nothing but their default."""
    return {name for name in ADDED if name in choices and choices[name] in _meaning_nothing(name)}


def _meaning_nothing(name: str) -> tuple[object, ...]:
    return getattr(DEFAULTS, name), BEFORE[name]
