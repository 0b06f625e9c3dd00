"""Options of a translation for the user; imports nothing heavy, for the command line."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, cast

from ..engine.options import Blend, Inference, Precision
from ..io.choice import EVERYTHING, FEWEST_SLICES, Choice, OutputFormat, SkipKind
from ..io.links import Links
from .errors import SettingsError
from .name_pattern import pattern_of
from .option import (
    Effect,
    Option,
    Rules,
    Shown,
    check_bounds,
    options_in,
    rules_in,
    setting,
    unoffered,
)
from .series_description import DescriptionPattern

Overlap: TypeAlias = float | tuple[float, float, float]
"""Share of a patch's edge that neighbours share, on all axes or along D, H and W."""
FolderLayout: TypeAlias = Literal["mirror", "bids"]
"""Layout of an output folder: that of the inputs, or a BIDS derivative dataset."""
OutputType: TypeAlias = Literal["same", "int16", "uint16", "float32"]
"""Voxel type of results; "same" is the scan's type, whatever the values are."""

USUAL_OVERLAP: float = 0.25
_USUAL_BLEND: Blend = "gaussian"
"""Overlap and weights of a model whose card states none."""

MOST_OVERLAP = 0.9
"""Largest overlap of patches; with more, nearly all of the work is repeated."""

FEWEST_FLIPS, MOST_FLIPS = 2, 8
"""Number of ways to mirror patches for a TTA spread; the unmirrored patch is one of them."""

_LARGEST_VALUE = 3.4e38
"""Largest voxel value that float32 holds."""

METHOD = 1
"""Version of the method, raised whenever equal settings start to give other voxels."""


@dataclass(frozen=True, slots=True)
class CycleCheck:
    """Cycle check of results. model: file of the reverse model. sha256: hash of that file; "" until
    it was read. has_map: whether the error of each voxel is stored as a map.
    """

    model: str
    sha256: str = ""
    has_map: bool = False


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """Options of a translation. Each field declares its option, default and rules once; the command
    line, config files, routes, jobs, fingerprints and reports follow from that.

    patch: extents (D, H, W) of a patch; None takes the model's. overlap: share of its edge that
    neighbours share, and blend: weights of overlapping patches; None takes the model's. precision:
    precision of the network's arithmetic; None takes the device's default. volume_index: volume of
    a 4-D or multi-frame file; None refuses such files. overwrite: make everything again and replace
    foreign files, instead of keeping up-to-date results. output_format, fewest_slices,
    allow_uneven, links: as in Choice. preview, seam_score: outputs besides the results.
    keep_private: whether private elements of a DICOM source go into its result. verify: number of
    patches of each study that are computed a second time. any_modality: whether scans of another
    modality than the model's source are accepted. nan_to: replacement for NaN in a scan, in its own
    unit; None refuses such scans. strict_input: whether scans unlike the model's calibration set
    are refused. cycle_check: cycle check of results; None for none. spread: number of ways of
    mirroring the patches over which mean and standard deviation are computed (TTA); 0 for none.
    resample_channels: whether scans of a study on other grids than its first are resampled onto
    that, instead of refused. inference: inference on patches or on the whole volume; None takes the
    model's, and patches if it has none. output_type: voxel type of results; None takes the scan's
    if it can represent the values, else a larger one. every_volume: whether all volumes of a 4-D
    file are translated, one by one. result_name: pattern for the names of results; "" for those of
    their scans. layout: layout of the output folder. bids_suffix: suffix of each result in a BIDS
    dataset; none takes those of the model's target. sidecar: whether a JSON file is written next to
    each result, as always in a BIDS dataset. any_contrast: whether scans of another contrast or
    modality, and masks, are accepted. allow_synthetic: whether results of this program are accepted
    as scans. series_description: pattern for the SeriesDescription of DICOM results; "" describes
    them by target and model.
    """

    patch: tuple[int, int, int] | None = setting(
        "Extents of a patch in voxels.  [default: the model's]",
        Shown("Speed", 2, "D,H,W"),
        Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_patches=True),
        default=None,
    )
    overlap: Overlap | None = setting(
        "Fraction of a patch's edge that overlaps its neighbour, or a percentage such as 50%.  "
        "[default: the model's, mostly 0.25]",
        Shown("Result", 7, "0..0.9|N%", least=0, most=MOST_OVERLAP),
        Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_patches=True),
        default=None,
    )
    blend: Blend | None = setting(
        "Weighting where patches overlap.  [default: the model's, mostly gaussian]",
        Shown("Result", 5, "gaussian|linear|constant|hann|crop", is_rare=True),
        Rules(Effect.HARMLESS, of_route=True, changes_result=True, of_patches=True),
        default=None,
    )
    precision: Precision | None = setting(
        "Numerical precision of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
        Shown("Speed", 1, "fp16|bf16|tf32|fp32"),
        Rules(Effect.HARMLESS, of_route=True, changes_result=True),
        default=None,
    )
    volume_index: int | None = setting(
        "Volume of a 4D file to translate, from 0; all translates each of them into a 4D result.",
        Shown("Input", 1, "N|all", is_rare=True, name="volume"),
        Rules(Effect.HARMLESS, of_route=True, changes_result=True),
        default=None,
    )
    overwrite: bool = setting(
        "Recompute all results, or keep those that are up to date.",
        Shown("Result", 3, off="skip-existing"),
        Rules(Effect.WRITES),
        default=False,
    )
    output_format: OutputFormat = setting(
        "Format of the results; with dicom, a derived series in the study of its source.",
        Shown("Result", 5, "same|nifti|nrrd|mha|dicom", name="format"),
        Rules(Effect.HARMLESS),
        default="same",
    )
    fewest_slices: int = setting(
        "Minimum number of slices of a DICOM volume.",
        Shown("DICOM", 3, "N", is_rare=True, name="min-slices", least=2),
        Rules(Effect.HARMLESS, of_route=True, of_series=True),
        default=FEWEST_SLICES,
    )
    allow_uneven: bool = setting(
        "Resample tilted, uneven or incomplete DICOM stacks instead of rejecting them.",
        Shown("DICOM", 2),
        Rules(Effect.HARMLESS, of_route=True, of_series=True),
        default=False,
    )
    preview: bool = setting(
        "Write a preview image of the middle slices next to each result.",
        Shown("Result", 4),
        Rules(Effect.HARMLESS),
        default=False,
    )
    seam_score: bool = setting(
        "Measure how visible the patch borders are.",
        Shown("Result", 6, is_rare=True),
        Rules(Effect.HARMLESS, of_route=True, of_one_volume=True),
        default=False,
    )
    keep_private: bool = setting(
        "Copy private elements of a DICOM source to its result; they may contain patient data.",
        Shown("DICOM", 4, is_rare=True, name="keep-private-tags"),
        Rules(
            Effect.WIDENS_PRIVACY,
            omitted=True,
            of_route=True,
            of_series=True,
            changes_result=True,
        ),
        default=False,
    )
    links: Links = unoffered(Rules(Effect.HARMLESS, omitted=True), default="inside")
    verify: int = setting(
        "Compute N patches of each study again on the CPU (the volume with whole-volume "
        "inference); a study whose result differs fails.",
        Shown("Result", 7, "N", is_rare=True, least=0),
        Rules(Effect.HARMLESS, omitted=True, of_route=True),
        default=0,
    )
    any_modality: bool = setting(
        "Accept series of a modality other than the model's source instead of skipping them.",
        Shown("DICOM", 1, is_rare=True),
        Rules(Effect.UNCHECKS, omitted=True, of_route=True, of_series=True),
        default=False,
    )
    nan_to: float | None = setting(
        "Replace NaN in a scan by this value in the scan's unit instead of rejecting the scan.",
        Shown("Input", 2, "VALUE", is_rare=True),
        Rules(Effect.HARMLESS, omitted=True, of_route=True, changes_result=True),
        default=None,
    )
    strict_input: bool = setting(
        "Reject scans unlike the model's calibration set instead of noting them.",
        Shown("Input", 7, is_rare=True),
        Rules(Effect.HARMLESS, omitted=True, of_route=True),
        default=False,
    )
    cycle_check: CycleCheck | None = setting(
        "Reverse model: translate results back and report their difference from the scans.",
        Shown("Result", 8, "FILE", is_rare=True),
        Rules(Effect.HARMLESS, omitted=True, of_route=True, of_one_volume=True),
        Option(
            "With setting cycle-check: store the error of each voxel as a map.",
            Shown("Result", 9, is_rare=True, name="cycle-map"),
            Rules(Effect.HARMLESS, of_route=True),
        ),
        default=None,
    )
    spread: int = setting(
        "Test-time augmentation: translate with N of the 8 flips; store mean and standard "
        "deviation as maps.",
        Shown("Result", 10, "2..8", is_rare=True, least=0, most=MOST_FLIPS),
        Rules(Effect.HARMLESS, omitted=True, of_one_volume=True),
        default=0,
    )
    resample_channels: bool = setting(
        "Resample scans of a study onto the grid of its first channel instead of rejecting "
        "the study.",
        Shown("Input", 6, is_rare=True),
        Rules(Effect.HARMLESS, omitted=True, of_route=True, changes_result=True),
        default=False,
    )
    inference: Inference | None = setting(
        "Patch inference with blending, or whole-volume inference.  [default: the model's]",
        Shown("Result", 6, "patches|volume"),
        Rules(Effect.HARMLESS, omitted=True, before="patches", of_route=True, changes_result=True),
        default=None,
    )
    output_type: OutputType | None = setting(
        "Voxel type of the results.  [default: the scan's if it can represent the values]",
        Shown("Result", 4, "same|int16|uint16|float32", is_rare=True),
        Rules(Effect.HARMLESS, omitted=True, of_route=True, changes_result=True),
        default=None,
    )
    every_volume: bool = unoffered(
        Rules(Effect.HARMLESS, omitted=True, changes_result=True), default=False
    )
    result_name: str = setting(
        "Name pattern of the results, such as {stem}_{target}synth{ext}.  [default: the "
        "scans' names]",
        Shown("Result", 1, "PATTERN", is_rare=True, also=("name",)),
        Rules(Effect.WRITES, omitted=True),
        default="",
    )
    layout: FolderLayout = setting(
        "Layout of the output folder: that of the inputs, or a BIDS derivative dataset.",
        Shown("Result", 2, "mirror|bids"),
        Rules(Effect.WRITES, omitted=True),
        default="mirror",
    )
    bids_suffix: tuple[str, ...] = setting(
        "Suffix of the results in a BIDS dataset, such as T2w.  [default: from the model's target]",
        Shown("Result", 2, "SUFFIX", is_rare=True),
        Rules(Effect.HARMLESS, omitted=True),
        default=(),
    )
    sidecar: bool = setting(
        "Write a JSON sidecar with provenance next to each result; always on in BIDS datasets.",
        Shown("Result", 3, is_rare=True),
        Rules(Effect.HARMLESS, omitted=True),
        default=False,
    )
    any_contrast: bool = setting(
        "Accept masks and scans of a contrast other than the model's source instead of "
        "skipping them.",
        Shown("Input", 3, is_rare=True),
        Rules(Effect.UNCHECKS, omitted=True, of_route=True),
        default=False,
    )
    allow_synthetic: bool = setting(
        "Accept results of this program as scans instead of skipping them.",
        Shown("Input", 4, is_rare=True),
        Rules(Effect.UNCHECKS, omitted=True, of_route=True),
        default=False,
    )
    series_description: str = setting(
        "SeriesDescription of DICOM results, such as 'sCT {model}'; it begins with Synthetic "
        "in any case.  [default: Synthetic {target} ({model}), not for diagnosis]",
        Shown("DICOM", 5, "TEXT", is_rare=True),
        Rules(
            Effect.HARMLESS,
            omitted=True,
            of_route=True,
            of_series=True,
            changes_result=True,
        ),
        default="",
    )

    @property
    def has_sidecars(self) -> bool:
        """Whether a JSON file is written next to each result."""
        return self.sidecar or self.layout == "bids"

    def __post_init__(self) -> None:
        """Raise SettingsError for a value outside its bounds; values of other types are left to the
        check of types.
        """
        check_bounds(self, TranslateOptions)
        self._check_numbers()
        if self.result_name:
            pattern_of(self.result_name)
        if self.series_description:
            DescriptionPattern.of_setting(self.series_description)

    def _check_numbers(self) -> None:
        extents: object = self.patch
        if isinstance(extents, tuple) and not _is_patch(cast("tuple[object, ...]", extents)):
            raise SettingsError(
                f"{extents!r} is not a patch (D, H, W) such as (128, 128, 128).", "patch"
            )
        if self.spread == 1:
            raise SettingsError(
                f"The spread of 1 is always 0; use {FEWEST_FLIPS} to {MOST_FLIPS}, or 0 for none.",
                "spread",
            )
        value: object = self.nan_to
        if isinstance(value, int | float) and not abs(value) <= _LARGEST_VALUE:
            raise SettingsError(
                f"Setting nan-to={value:g} is not a voxel value; give a number.", "nan_to"
            )

    def check_together(self) -> None:
        """Raise SettingsError for options of results' names and formats that exclude each other."""
        if self.layout != "bids":
            if self.bids_suffix:
                raise SettingsError(
                    "Setting bids-suffix needs setting layout=bids.", "bids_suffix", "layout"
                )
        elif self.result_name:
            raise SettingsError(
                "Setting layout=bids defines the result names; omit setting result-name.",
                "result_name",
                "layout",
            )
        elif self.output_format not in ("same", "nifti"):
            raise SettingsError(
                f"Setting layout=bids always writes NIfTI files; omit setting "
                f"format={self.output_format}.",
                "output_format",
                "layout",
            )

    @property
    def takes(self) -> frozenset[SkipKind]:
        """Kinds of scans that are accepted although they are skipped by default."""
        kinds: dict[SkipKind, bool] = {
            "synthetic": self.allow_synthetic,
            "mask": self.any_contrast,
            "contrast": self.any_contrast,
            "modality": self.any_contrast or self.any_modality,
        }
        return frozenset(kind for kind, is_taken in kinds.items() if is_taken)

    @property
    def passes(self) -> int:
        """Number of times each patch of a study, or the volume, is translated."""
        return max(self.spread, 1)

    def resolved(self) -> "ResolvedOptions":
        """Return the options as resolved ones. Raises ValueError without patch or precision."""
        if self.patch is None or self.precision is None:
            raise ValueError("patch and precision must be chosen first")
        chosen: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        chosen["inference"] = self.inference or "patches"
        chosen["overlap"] = USUAL_OVERLAP if self.overlap is None else self.overlap
        chosen["blend"] = self.blend or _USUAL_BLEND
        return ResolvedOptions(**chosen)

    def choice(self, filters: Choice = EVERYTHING) -> Choice:
        """Return the choice for a search. filters: filters of series; a job, whose files are fixed,
        needs none.
        """
        return replace(
            filters,
            fewest_slices=self.fewest_slices,
            allow_uneven=self.allow_uneven,
            format="nifti" if self.layout == "bids" else self.output_format,
            keep_private=self.keep_private,
            links=self.links,
            takes=self.takes,
        )


def _is_patch(extents: tuple[object, ...]) -> bool:
    return len(extents) == 3 and not any(isinstance(each, int) and each < 1 for each in extents)


DEFAULTS = TranslateOptions()

OPTIONS = {option.shown.name: option for _, option in options_in(TranslateOptions)}
"""The options of studies by name."""

FIELDS = {option.shown.name: field for field, option in options_in(TranslateOptions)}
"""The fields of TranslateOptions by the names of their options."""

_RULES = rules_in(TranslateOptions)

CHANGING_RESULTS = tuple(name for name, rules in _RULES.items() if rules.changes_result)
"""Settings that a fingerprint and a report name."""

OF_PATCHES = tuple(name for name, rules in _RULES.items() if rules.of_patches)
"""Settings that change no voxel with whole-volume inference."""

OF_ONE_VOLUME = tuple(name for name, rules in _RULES.items() if rules.of_one_volume)
"""Settings whose figures and maps apply to one volume."""

BEFORE: dict[str, Any] = {
    name: getattr(DEFAULTS, name) if rules.before is None else rules.before
    for name, rules in _RULES.items()
}
"""Behaviour before a setting was added, which is its default for most."""

OMITTED = frozenset(name for name, rules in _RULES.items() if rules.omitted)
"""Settings that are not in fingerprints at their default, so that earlier results stay up to date,
and, but for `keep_private`, not in jobs, whose keys stay.
"""


@dataclass(frozen=True, slots=True)
class ResolvedOptions(TranslateOptions):
    """Options of which none is left to the model or the device; a batch runs with these.

    patch: extents (D, H, W) of a patch. precision: precision of the network's arithmetic.
    inference: on patches or on the whole volume, for which patches only define the borders of a
    seam score. overlap, blend: of patches.
    """

    patch: tuple[int, int, int] = field(kw_only=True)
    overlap: Overlap = field(kw_only=True)
    blend: Blend = field(kw_only=True)
    precision: Precision = field(kw_only=True)
    inference: Inference = field(kw_only=True)

    @property
    def opened_for(self) -> tuple[int, int, int] | None:
        """Extents of the patches for which a network is opened; None for whole volumes."""
        return self.patch if self.inference == "patches" else None

    def chosen(self) -> dict[str, Any]:
        """Return the options that change results, by name."""
        return {name: getattr(self, name) for name in CHANGING_RESULTS}

    def fingerprint(self) -> str:
        """Return a hash of what changes results, the same on all machines and in all versions."""
        shares = self.overlap
        overlap = tuple(map(float, shares)) if isinstance(shares, tuple) else float(shares)
        choices = {**self.chosen(), "overlap": overlap, "method": METHOD}
        if self.nan_to is not None:
            choices["nan_to"] = self.nan_to + 0.0  # so that 0, 0.0 and -0.0 are one
        unused = {*omitted_at_default(choices), *(OF_PATCHES if self.inference == "volume" else ())}
        named = {name: choices[name] for name in choices.keys() - unused}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def omitted_at_default(choices: Mapping[str, object]) -> set[str]:
    """Return the names of options that are omitted at their default and have it."""
    return {
        name
        for name in OMITTED & choices.keys()
        if choices[name] in (getattr(DEFAULTS, name), BEFORE[name])
    }
