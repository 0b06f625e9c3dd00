"""`cuda-cyclegan bench`: how fast a network runs here, layer by layer and against others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from ....engine.options import CudaLimits, Effort
from ....pipelines.option import Effect
from ....pipelines.settings import USUAL_OVERLAP
from ...errors import errors_reported
from ...options.translate import Arithmetic, DeviceName, Verbose, VramLimit
from ...options.values import (
    DURATION_FORM,
    checked_device,
    checked_file,
    checked_output,
    duration_from,
    parsed_overlap,
    parsed_patch,
    parsed_size,
    wrong_value,
)
from ...signals import stop_signals
from .outputs import Outputs

if TYPE_CHECKING:
    from ....engine.network.architectures import Spec

EXAMPLE = "Example: cuda-cyclegan bench --model t1-to-t2.safetensors --against pytorch"

Arch: TypeAlias = Literal["resnet", "unet"]


def bench(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="FILE", help="Model file whose network is measured."),
        Effect.HARMLESS,
    ] = None,
    arch: Annotated[
        Arch | None,
        typer.Option(
            metavar="resnet|unet",
            help="Published architecture to measure instead, untrained.  [default: resnet]",
        ),
        Effect.HARMLESS,
    ] = None,
    ngf: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Channels of --arch after its first layer.  [default: 32]"
        ),
        Effect.HARMLESS,
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Residual blocks of --arch resnet.  [default: 9]"),
        Effect.HARMLESS,
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Downsampling levels of --arch unet.  [default: 5]"),
        Effect.HARMLESS,
    ] = None,
    device: DeviceName = "auto",
    precision: Arithmetic = None,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="D,H,W",
            help="Extents of a patch in voxels.  [default: the model's; or 128 each, 64 on the "
            "CPU]",
        ),
        Effect.HARMLESS,
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Patches per run.  [default: 1]"),
        Effect.HARMLESS,
    ] = None,
    vram_limit: VramLimit = None,
    tune: Annotated[
        Effort | None,
        typer.Option(
            metavar="quick|full|off",
            help="Tuning level: how many tactics a GPU tries per layer.  [default: full; quick "
            "for a sweep]",
        ),
        Effect.HARMLESS,
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration_from(0.01),
            help=f"Time of each measurement, {DURATION_FORM}.",
        ),
        Effect.HARMLESS,
    ] = 2.0,
    against: Annotated[
        Literal["pytorch"] | None,
        typer.Option(
            metavar="pytorch",
            help="Also measure the same network in this library, in each of its modes.",
        ),
        Effect.LOADS_CODE,
    ] = None,
    cudnn: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Folder of another cuDNN library to measure as well; repeatable."
        ),
        Effect.LOADS_CODE,
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration_from(1),
            help=f"Time limit for each of these, including compilation, {DURATION_FORM}.",
        ),
        Effect.HARMLESS,
    ] = 600.0,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Find the fastest patch, batch and precision; options that are set stay fixed.",
        ),
        Effect.HARMLESS,
    ] = False,
    scan: Annotated[
        str,
        typer.Option(metavar="D,H,W", help="With --sweep: extents of the scan in voxels."),
        Effect.HARMLESS,
    ] = "192,256,256",
    overlap: Annotated[
        float,
        typer.Option(
            metavar="0..0.9|N%",
            parser=parsed_overlap,
            help="With --sweep: overlap of neighbouring patches.",
        ),
        Effect.HARMLESS,
    ] = USUAL_OVERLAP,
    write_config: Annotated[
        bool,
        typer.Option(
            "--write-config",
            help="With --sweep: store the fastest setting as default of 'translate' in your "
            "config file.",
        ),
        Effect.WRITES,
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE|-", help="Write the results as JSON; - prints only JSON."
        ),
        Effect.WRITES,
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|.svg", help="Draw a roofline and a bar chart of the layers."
        ),
        Effect.WRITES,
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Measure a network's speed and memory on this machine.

    Shares are relative to the peaks of this device, measured with a large matrix product and a
    large copy.

    Exit status: 0 measured; 2 wrong usage, or too little GPU memory; 4 the device or a library is
    missing.
    """
    if sweep and (against or cudnn or plot):
        option = "--against" if against else "--cudnn" if cudnn else "--plot"
        raise wrong_value(option, "use it without --sweep.")
    if write_config and not sweep:
        raise wrong_value("--write-config", "use it with --sweep.")
    _check_generator(model, arch, {"--ngf": ngf, "--blocks": blocks, "--levels": levels})
    outputs = Outputs(checked_output("--json", json_file), _checked_plot(plot))
    device, patches = checked_device(device), parsed_patch(patch)
    limit, scanned = parsed_size("--vram-limit", vram_limit), _parsed_scan(scan)
    limits = CudaLimits(limit, tune or ("quick" if sweep else "full"))
    with stop_signals(), errors_reported(verbose=verbose):
        from ....engine.benchmark.measurement import Budget
        from ....pipelines.bench.measurement import BenchRequest, Subject, open_bench

        subject = Subject(model or _untrained(arch, ngf, blocks, levels))
        budget = Budget(seconds, layers=not sweep)
        request = BenchRequest(subject, device, limits, precision, patches, batch or 1, budget)
        if not sweep:
            from .run import Rivals, check, run

            rivals = Rivals(against is not None, tuple(cudnn or ()), patience)
            check(outputs, rivals)
            run(*open_bench(request), outputs, rivals)
            return
        from ....pipelines.bench.parameter_sweep import Scan
        from .sweep import SweepRequest, run_sweep

        asked = SweepRequest(outputs, Scan(scanned, overlap), patches, batch, precision)
        fastest = run_sweep(*open_bench(request), asked)
        if write_config:
            from .sweep import write

            outputs.print_sentences([write(context, fastest, vram_limit)])


def _untrained(
    arch: Arch | None, ngf: int | None, blocks: int | None, levels: int | None
) -> "Spec":
    from ....engine.network.architectures import ResNetSpec, UNetSpec

    width = ngf or 32
    if arch == "unet":
        return UNetSpec(1, 1, width, levels or 5)
    return ResNetSpec(1, 1, width, 9 if blocks is None else blocks)


def _check_generator(model: Path | None, arch: str | None, sizes: dict[str, int | None]) -> None:
    size_options = [option for option, value in sizes.items() if value is not None]
    if model and (arch or size_options):
        option = "--arch" if arch else size_options[0]
        raise wrong_value(option, "--model already defines the network; omit the option.")
    other = "--blocks" if arch == "unet" else "--levels"
    if other in size_options:
        raise wrong_value(other, f"--arch {arch or 'resnet'} has no such option.")


def _parsed_scan(text: str) -> tuple[int, int, int]:
    extents = parsed_patch(text, "--scan")
    assert extents is not None  # only None gives None
    return extents


def _checked_plot(path: Path | None) -> Path | None:
    if path and path.suffix.lower() not in (".png", ".svg"):
        raise wrong_value("--plot", f"{str(path)!r} does not end in .png or .svg.")
    return checked_file("--plot", path)
