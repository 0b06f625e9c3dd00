"""Concurrent evaluation of pairs, with one row per pair whatever its outcome."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from heapq import heappush, heappushpop
from io import BytesIO
from math import ceil, floor, prod
from time import monotonic
from traceback import format_exception

import numpy as np

from ...engine.cores import usable_cores
from ...io.dicom.series import Series
from ...io.errors import SeveralVolumesError
from ...io.reading import read, read_file_header
from ...io.volume import DoubleArray, Study, Volume
from ..errors import ComparisonError
from ..host.memory import available_memory
from ..report.previews import small_webp
from ..report.report import failure_of
from ..results.earlier_results import is_synthetic
from ..run.concurrency import StoppedError, WeightedSemaphore
from ..study.geometry import slices_through
from ..study.grids import grid_difference
from ..study.preview import OUTLIERS, Column, difference_shades, drawn, grey_shades
from ..study.statistics import Range
from .images import BLOCK_VOXELS, Flags, Images, StoredImage
from .label_overlap import LabelOverlap, label_overlaps, overlap_notes
from .pairs import ScanPair
from .protocols import MeasuredPair, Protocol, measure
from .report import Evaluation, PairRow
from .truth_check import TruthCheck

BYTES_A_VOXEL = 16
"""Memory per voxel: truth, result and mask as stored, the mask's flags, and both images at half the
resolution.
"""

SEGMENTATION_BYTES_A_VOXEL = 40
"""Further memory per voxel for segmentations: both as stored and as labels, and for a label that
fills the volume the flags, surfaces and distances of both.
"""

BLOCK_BYTES = 96 * 8 * BLOCK_VOXELS
"""Largest memory of a study in addition to its volumes."""


def evaluate(
    pairs: Sequence[ScanPair],
    protocol: Protocol,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    pictures: int = 0,
    any_truth: bool = False,
) -> Evaluation:
    """Compare all results with their truths, as many at a time as cores and memory allow.

    on_progress: called with the numbers of finished and all studies. pictures: number of the worst
    studies to draw. any_truth: whether results and scans of the batch may be truths. The figures of
    a study depend only on its own files. Ctrl-C leaves rows that are not done yet "stopped".
    """
    begun, rows = monotonic(), {pair.name: _opening_row(pair) for pair in pairs}
    due = [pair for pair in pairs if not pair.missing]
    check = None if any_truth else TruthCheck.of(pair.result for pair in due if pair.result)
    memory, worst = WeightedSemaphore(available_memory() // 2), _Worst(pictures)
    pool = ThreadPoolExecutor(max(min(usable_cores(), len(due)), 1), "evaluation")
    interrupted = False
    try:
        work = [
            pool.submit(_evaluated, pair, protocol, check, memory, draws=pictures > 0)
            for pair in due
        ]
        _collect(work, rows, worst, on_progress)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        memory.close()
        pool.shutdown(wait=False, cancel_futures=True)
    ended = tuple(worst.pictured(rows[pair.name]) for pair in pairs)
    return Evaluation(protocol, ended, monotonic() - begun, interrupted)


def _collect(
    work: "Sequence[Future[PairRow]]",
    rows: dict[str, PairRow],
    worst: "_Worst",
    on_progress: Callable[[int, int], None],
) -> None:
    on_progress(0, len(work))
    for done, future in enumerate(as_completed(work), 1):
        row = future.result()
        rows[row.name] = replace(row, picture=None)
        worst.take(row)
        on_progress(done, len(work))


class _Worst:
    """Pictures of the rows with the largest mean absolute error, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, str, bytes]] = []

    def take(self, row: PairRow) -> None:
        """Keep the row's picture if it is among the worst."""
        if not row.figures or not row.picture or not self._most:
            return
        entry = row.figures.mae, row.name, row.picture
        if len(self._kept) < self._most:
            heappush(self._kept, entry)
        else:
            heappushpop(self._kept, entry)

    def pictured(self, row: PairRow) -> PairRow:
        """Return the row with its picture, if that was kept."""
        picture = next((picture for _, name, picture in self._kept if name == row.name), None)
        return replace(row, picture=picture)


def _opening_row(pair: ScanPair) -> PairRow:
    result, truth, mask = (
        each.files[0] if each else None for each in (pair.result, pair.truth, pair.mask)
    )
    row = PairRow(name=pair.name, result=result, truth=truth, mask=mask, status="stopped")
    return replace(row, status="missing", reason=pair.missing) if pair.missing else row


def _evaluated(
    pair: ScanPair,
    protocol: Protocol,
    check: TruthCheck | None,
    memory: WeightedSemaphore,
    *,
    draws: bool,
) -> PairRow:
    """Return the row of a pair, also if it fails. Raises StoppedError once the memory is closed."""
    row, needed = _opening_row(pair), _memory_of(pair)
    if not memory.acquire(needed):
        raise StoppedError
    begun = monotonic()
    try:
        if check:
            check.check(pair)
            row = replace(row, notes=tuple(check.notes()))
        row = _compared(pair, protocol, row, draws=draws)
    except ComparisonError as error:
        row = replace(row, status="failed", reason=str(error))
    except SeveralVolumesError as error:
        row = replace(row, status="failed", reason=error.where_fixed)
    except Exception as error:
        trace = "".join(format_exception(error))
        row = replace(row, status="failed", reason=failure_of(error, None).reason, trace=trace)
    finally:
        memory.release(needed)
    return replace(row, seconds=monotonic() - begun)


def _memory_of(pair: ScanPair) -> int:
    """Return the bytes that a pair needs by its header; a bad header is reported on reading."""
    assert pair.truth
    series = pair.truth.series
    extents = series.extents if isinstance(series, Series) else None
    each = BYTES_A_VOXEL + (SEGMENTATION_BYTES_A_VOXEL if pair.segmentations else 0)
    return prod(extents or read_file_header(pair.truth).extents) * each + BLOCK_BYTES


def _compared(pair: ScanPair, protocol: Protocol, row: PairRow, *, draws: bool) -> PairRow:
    assert pair.result
    assert pair.truth
    modality = pair.truth.series.modality if isinstance(pair.truth.series, Series) else None
    _check_modality(modality, protocol)
    truth = read(pair.truth)
    result = _on_grid_of(truth, pair.result, "result")
    mask = _on_grid_of(truth, pair.mask, "mask") if pair.mask else None
    inside = _inside(mask) if mask else None
    images = Images(StoredImage.of(truth), StoredImage.of(result), inside)
    measured = measure(images, protocol, modality)
    labels = _overlaps(pair, truth)
    notes = (
        *row.notes,
        *([SYNTHETIC_TRUTH] if is_synthetic(pair.truth) else []),
        *_notes("result", pair.result, result),
        *_notes("truth", pair.truth, truth),
        *_reservations(measured),
        *_doubts(measured),
        *overlap_notes(labels),
    )
    return replace(
        row,
        status="evaluated",
        figures=replace(measured.figures, labels=labels),
        data_range=measured.data_range,
        voxels=measured.voxels,
        outside=measured.outside,
        notes=notes,
        picture=_draw(truth, result, measured.inside, measured.at) if draws else None,
    )


def _overlaps(pair: ScanPair, truth: Volume) -> tuple[LabelOverlap, ...]:
    if pair.segmentations is None:
        return ()
    of_result, of_truth = (
        _on_grid_of(truth, study, f"segmentation of the {kind}")
        for study, kind in zip(pair.segmentations, ("result", "truth"), strict=True)
    )
    return label_overlaps(of_truth, of_result)


SYNTHETIC_TRUTH = (
    "the truth is marked as a synthetic image, so the figures show how far two results agree"
)
"""Note on a truth that this program or another version of it wrote."""


def _check_modality(modality: str | None, protocol: Protocol) -> None:
    if modality is not None and protocol.is_of_ct and modality != "CT":
        raise ComparisonError(
            f"The truth is of modality {modality or 'unknown'}, and protocol "
            f"{protocol.name} compares only CT."
        )


def _on_grid_of(truth: Volume, study: Study, kind: str) -> Volume:
    volume = read(study)
    if difference := grid_difference(volume, truth):
        raise ComparisonError(
            f"The grids of {kind} and truth differ: {difference}; nothing is resampled here, so "
            "bring both onto one grid."
        )
    return volume


def _inside(mask: Volume) -> Flags:
    """Return the voxels [k, j, i] of a mask that are above 0; NaN, which SPM uses for 0, is not."""
    stored, zero = mask.voxels.T, -mask.intercept / mask.slope
    if stored.dtype.kind != "f":
        # nibabel scales floats so that a stored integer is 0 only to rounding
        zero = floor(zero + _ROUNDING) if mask.slope > 0 else ceil(zero - _ROUNDING)
    return stored > zero if mask.slope > 0 else stored < zero


_ROUNDING = 1e-3
"""Share of a stored step by which a mask's 0 may be off."""


def _notes(kind: str, study: Study, volume: Volume) -> list[str]:
    return [f"{kind}: {note}" for note in (*study.notes, *volume.notes)]


UNLIKELY = 0.01
"""Least share of the data range that a truth should use, and largest share of its voxels that
should lie outside.
"""


def _doubts(measured: MeasuredPair) -> Iterator[str]:
    """Yield a doubt if the data range does not suit the truth, as PSNR and SSIM depend on it."""
    truth, asked = measured.truth, measured.data_range
    reaches = f"the truth reaches from {truth.low:g} to {truth.high:g}, and"
    data_range = f"the data range {asked.low:g} to {asked.high:g}, which sets PSNR and SSIM"
    if measured.beyond > UNLIKELY * measured.voxels:
        share = 100 * measured.beyond / measured.voxels
        yield f"{reaches} {share:.3g} % of its voxels lie outside {data_range}"
    elif truth.high - truth.low < UNLIKELY * (asked.high - asked.low):
        yield f"{reaches} uses less than {100 * UNLIKELY:g} % of {data_range}"


def _reservations(measured: MeasuredPair) -> list[str]:
    """Return the reasons for missing figures, and voxels that do not count."""
    figures = measured.figures
    few = "as no voxel of the mask is {} voxels away from every border"
    reasons = {
        "PSNR has no bound, as result and truth are equal": figures.psnr is None,
        "MS-SSIM is not defined, as the mask is too small for the coarsest scale": (
            figures.ms_ssim is None
        ),
        f"SSIM is not defined, {few.format(3)}": figures.ssim is None,
        f"Gaussian SSIM is not defined, {few.format(5)}": figures.gaussian_ssim is None,
        "Pearson's r is not defined, as result or truth has one value everywhere": (
            figures.r is None
        ),
        f"{measured.outside} voxels outside the truth's field of view do not count": (
            measured.outside > 0
        ),
    }
    return [words for words, applies in reasons.items() if applies]


_SAMPLED_VOXELS = 1 << 18


def _draw(
    truth: Volume, result: Volume, inside: Flags | None, at: tuple[int, int, int]
) -> bytes | None:
    """Draw a WebP of three planes of each, both in the truth's grey window.

    inside: [k, j, i], the voxels that count; the difference is 0 elsewhere. at: plane k, row j and
    column i of the drawn planes. Raises PreparationError if the affine is unusable.
    """
    voxel = at[2], at[1], at[0]
    window = _grey_window(StoredImage.of(truth), inside)
    true, synthetic = slices_through(truth, voxel), slices_through(result, voxel)
    before, after = (
        [_finite(plane.values, window) for plane in each] for each in (true, synthetic)
    )
    changes = [b - a for a, b in zip(before, after, strict=True)]
    if inside is not None:
        counted = slices_through(truth.with_voxels(inside.T), voxel)
        pairs = zip(changes, counted, strict=True)
        changes = [np.where(flags.values > 0, change, 0.0) for change, flags in pairs]
    grey = grey_shades(before, window)
    columns = [
        Column("truth", before, grey),
        Column("result", after, grey),
        Column("result - truth", changes, difference_shades(changes)),
    ]
    return small_webp(BytesIO(drawn(true, columns)))


def _grey_window(truth: StoredImage, inside: Flags | None) -> Range:
    """Return the range of the truth's voxels that count, without outliers, from a sample."""
    step = ceil((truth.voxels.size / _SAMPLED_VOXELS) ** (1 / 3))
    thinned = (slice(None, None, step),) * 3
    values = replace(truth, voxels=truth.voxels[thinned]).values(slice(None))
    flags = np.isfinite(values)
    if inside is not None:
        flags &= inside[thinned]
    if not flags.any():
        return Range(0.0, 1.0)
    low, high = np.percentile(values[flags], [OUTLIERS, 100 - OUTLIERS])
    return Range(float(low), float(high)) if low < high else Range(float(low), float(low) + 1.0)


def _finite(values: DoubleArray, window: Range) -> DoubleArray:
    return np.nan_to_num(values, nan=window.low, posinf=window.high, neginf=window.low)
