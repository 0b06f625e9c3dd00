"""Results as pictures and figures: planes for a notebook, and comparison with ground truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from ...io.conversion import AnyPath, AnyScan, as_volume, to_nibabel
from ...io.files.documents import write_document
from ...io.volume import NOTICE, Volume
from ..errors import SettingsError
from ..evaluation.evaluation import evaluate as evaluated
from ..evaluation.pairs import Sources, find_pairs
from ..evaluation.protocols import SYNTHRAD2025, ProtocolName, general
from ..evaluation.report import PairRow, figures_of
from ..study.geometry import Slice, mid_slices
from ..study.grids import grid_difference
from ..study.preview import Column, difference, drawn, grey_shades, inner_range
from .arguments import path_of, typed


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """Picture that a notebook shows. png: its bytes, of a PNG file."""

    png: bytes

    def save(self, path: AnyPath) -> None:
        """Write the PNG. Raises WriteError."""
        write_document(path_of("path", path), self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"Picture({len(self.png)} bytes)"


def preview(result: AnyScan, scan: AnyScan | None = None) -> Picture:
    """Return the middle planes of a result, next to those of its scan and their difference.

    result, scan: volumes, images of nibabel or SimpleITK, or paths. The difference is one of grey
    values if the ranges of the two are unlike. Raises ScanError, and SettingsError if they are on
    different grids.

    >>> with Translator("t1-to-t2.safetensors", device="cpu") as translator:
    ...     made = translator.translate_file("scans/a.nii.gz")
    >>> preview(made, "scans/a.nii.gz").png[1:4]
    b'PNG'
    """
    translated = as_volume(result)
    slices = mid_slices(translated)
    columns = [_grey("synthetic", slices)]
    if scan is not None:
        source = as_volume(scan)
        if unlike := grid_difference(source, translated):
            raise SettingsError(f"Scan and result are on different grids: {unlike}.", "result")
        before, after = _grey("input", mid_slices(source)), columns[0]
        is_in_unit = 0.5 < _width(before) / _width(after) < 2
        columns = [before, after, difference(before, after, is_in_unit=is_in_unit)]
    return Picture(drawn(slices, columns))


def show(result: AnyScan, scan: AnyScan | None = None) -> Any:
    """Return what a notebook shows of a result: planes to scroll through, or else a picture.

    result, scan: as for `preview`. If the package ipyniivue is installed, this is a box whose first
    child is its widget, a `NiiVue`; with a scan, a slider fades from it to the result. The browser
    then holds the whole volumes. Otherwise this is the `Picture` that `preview` returns. Raises as
    that does.

    >>> with Translator("t1-to-t2.safetensors", device="cpu") as translator:
    ...     made = translator.translate_file("scans/a.nii.gz")
    >>> shown = show(made, "scans/a.nii.gz")
    """
    try:
        niivue: Any = import_module("ipyniivue")
    except ImportError:
        return preview(result, scan)
    widgets: Any = import_module("ipywidgets")
    planes: Any = niivue.NiiVue(
        height=420,
        crosshair_width=0.3,
        crosshair_color=(0.48, 0.75, 1.0, 0.75),
        is_radiological_convention=True,
        sagittal_nose_left=True,
        is_corner_orientation_text=True,
        multiplanar_show_render=niivue.ShowRender.NEVER,
    )
    layers = [] if scan is None else [_layer("input", as_volume(scan))]
    planes.load_volumes([*layers, _layer("synthetic", as_volume(result))])
    fading: list[Any] = []
    if scan is not None:
        share: Any = widgets.FloatSlider(1.0, min=0, max=1, step=0.01, readout=False)
        widgets.jslink((share, "value"), (planes.volumes[-1], "opacity"))
        fading = [widgets.HBox([widgets.Label("Input"), share, widgets.Label("Result")])]
    return widgets.VBox([planes, *fading, widgets.Label(NOTICE)])


def _layer(name: str, volume: Volume) -> dict[str, Any]:
    """Return a volume as ipyniivue takes it, with the window of a preview."""
    window = inner_range([plane.values for plane in mid_slices(volume)])
    image: Any = to_nibabel(volume)
    ends = {"cal_min": window.low, "cal_max": window.high}
    return {"name": f"{name}.nii", "data": image.to_bytes(), **ends}


def _grey(title: str, slices: Sequence[Slice]) -> Column:
    planes = [plane.values for plane in slices]
    return Column(title, planes, grey_shades(planes))


def _width(column: Column) -> float:
    return column.shades.window.high - column.shades.window.low


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedStudy:
    """Figures of one result; `pandas.DataFrame` takes a list of them.

    name: of the result. status: "evaluated", "missing" (its partner) or "failed". mae, psnr,
    ms_ssim, ssim, r: mean absolute error in the unit of the truth, peak signal-to-noise ratio in
    decibels, MS-SSIM, SSIM and Pearson's r; None if they are not defined. voxels: number of those
    compared. reason: why there are no figures, or None. me, rmse, gaussian_ssim, nmi: mean of
    result - truth, root mean square error, SSIM in a Gaussian window and normalised mutual
    information. mae_air, mae_lung, mae_fat, mae_soft, mae_bone, me_air, me_lung, me_fat, me_soft,
    me_bone: these errors in HU per tissue of a CT. dice_150, dice_300: Dice
    coefficient of the voxels from so many HU on. dice_labels, hd95_labels: mean Dice coefficient
    and mean 95 % surface distance in millimetres of the labels of the segmentations.
    """

    name: str
    status: str
    mae: float | None
    psnr: float | None
    ms_ssim: float | None
    ssim: float | None
    r: float | None
    voxels: int | None
    reason: str | None
    me: float | None = None
    rmse: float | None = None
    gaussian_ssim: float | None = None
    nmi: float | None = None
    mae_air: float | None = None
    mae_lung: float | None = None
    mae_fat: float | None = None
    mae_soft: float | None = None
    mae_bone: float | None = None
    me_air: float | None = None
    me_lung: float | None = None
    me_fat: float | None = None
    me_soft: float | None = None
    me_bone: float | None = None
    dice_150: float | None = None
    dice_300: float | None = None
    dice_labels: float | None = None
    hd95_labels: float | None = None


def evaluate(
    results: AnyPath,
    truth: AnyPath,
    mask: AnyPath | None = None,
    *,
    protocol: ProtocolName = "general",
    any_truth: bool = False,
    segmentations: tuple[AnyPath, AnyPath] | None = None,
) -> list[EvaluatedStudy]:
    """Compare results with ground truth, as the command does; return a row per study.

    results, truth, mask: each a folder, or a file for one study. protocol: "general" or
    "synthrad2025", which needs a mask. any_truth: whether results and scans of the batch may be
    truths; otherwise they fail. segmentations: folders or files with those of the results and of
    the truth. Raises ScanError for a missing folder, and SettingsError.

    >>> [(row.name, row.mae) for row in evaluate("scans", "scans", any_truth=True)]
    [('a.nii.gz', 0.0), ('b.nii.gz', 0.0)]
    """
    name: str = typed("protocol", cast("type[str]", ProtocolName), protocol)
    masks = None if mask is None else path_of("mask", mask)
    if name == "synthrad2025" and masks is None:
        raise SettingsError("Protocol synthrad2025 needs masks; give argument mask.", "mask")
    rules = SYNTHRAD2025 if name == "synthrad2025" else general(None)
    segmented = segmentations and (
        path_of("segmentations", segmentations[0]),
        path_of("segmentations", segmentations[1]),
    )
    paths = path_of("results", results), path_of("truth", truth), masks
    sources = Sources(*paths, segmentations=segmented)
    found = evaluated(find_pairs(sources).pairs, rules, any_truth=any_truth)
    if found.interrupted:
        raise KeyboardInterrupt
    return [_row(row) for row in found.rows]


def _row(row: PairRow) -> EvaluatedStudy:
    return EvaluatedStudy(
        name=row.name,
        status=row.status,
        **figures_of(row),
        voxels=row.voxels,
        reason=row.reason,
    )
