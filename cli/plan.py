"""`cuda-cyclegan plan`: what `translate` would do with the same options."""

from ..engine.tuning import TUNING_SECONDS
from ..io.choice import FEWEST_SLICES
from .filters import AllowUneven, MinSlices, Modality, SeriesPattern, ShowPhi
from .translate import translate
from .translate_options import (
    Arithmetic,
    BatchSize,
    Blending,
    DeviceName,
    Inputs,
    ModelFile,
    Output,
    Overlap,
    Overwrite,
    Patch,
    Preview,
    ResultFormat,
    Tune,
    TuneSeconds,
    Verbose,
    VolumeIndex,
    VramLimit,
)

EXAMPLE = "Example: cuda-cyclegan plan scans/ --model t1-to-t2.safetensors --output results/"


def plan(
    inputs: Inputs,
    model: ModelFile,
    output: Output,
    device: DeviceName = "auto",
    precision: Arithmetic = None,
    vram_limit: VramLimit = None,
    batch: BatchSize = "auto",
    tune: Tune = "full",
    tune_seconds: TuneSeconds = TUNING_SECONDS,
    patch: Patch = None,
    overlap: Overlap = 0.25,
    blend: Blending = "gaussian",
    volume: VolumeIndex = None,
    modality: Modality = "",
    series: SeriesPattern = "",
    min_slices: MinSlices = FEWEST_SLICES,
    allow_uneven: AllowUneven = False,
    show_phi: ShowPhi = False,
    output_format: ResultFormat = "same",
    overwrite: Overwrite = False,
    preview: Preview = False,
    verbose: Verbose = False,
) -> None:
    """List what translating would do, take and cost; write nothing.

    Reads and prepares every scan that is due, so whatever is wrong with one shows now. Exit
    status: 0 all would be translated or are up to date; 1 some study would fail; 2 wrong usage;
    3 no study found; 4 the device or a library is missing.
    """
    translate(
        inputs,
        model,
        output,
        device=device,
        precision=precision,
        vram_limit=vram_limit,
        batch=batch,
        tune=tune,
        tune_seconds=tune_seconds,
        patch=patch,
        overlap=overlap,
        blend=blend,
        volume=volume,
        modality=modality,
        series=series,
        min_slices=min_slices,
        allow_uneven=allow_uneven,
        show_phi=show_phi,
        output_format=output_format,
        overwrite=overwrite,
        preview=preview,
        dry_run=True,
        verbose=verbose,
    )
