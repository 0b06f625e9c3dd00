"""`cuda-cyclegan model import`: a checkpoint or a network becomes a model file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import Exit, complain, errors_reported
from ..options.model import (
    FORMS,
    STEPS,
    MadeModel,
    ReplacesOutput,
    parsed_axes,
    parsed_crop,
    parsed_extents,
    parsed_grid_window,
    parsed_maps,
    parsed_names,
    parsed_padding,
    parsed_spacing,
    parsed_tiling,
    parsed_training_patch,
)
from ..options.printing import Traceback
from ..render.terminal import columns_of, print_line, print_sentences, spinner
from ..render.text import counted, option
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...engine.importing.checkpoint.evidence import Question
    from ...pipelines.model_import.file_kinds import ImportRequest

EXAMPLE = """\b
Examples:
  cuda-cyclegan model import latest_net_G_A.pth --output t1-to-t2.safetensors
  cuda-cyclegan model import net_G_A.pth --output t1-to-t2.safetensors \\
      --reference reference.npz --source T1 --target T2 --axes RAS \\
      --intensity-in percentile:0,99.5 --intensity-out percentile:0,99.5 \\
      --spacing 1,1,1 --patch 128,128,128

Start with the first example: it lists what the file shows and which options are missing. Weights
alone do not define all that the network computes. A reference proves it; the name of the training
code, if unmodified, implies it; with --unproven your word is accepted and the model is marked.
"""


def import_(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Training checkpoint (.pth, .pt, .ckpt, .pth.tar) or network (.onnx, .pt2, "
            "folder of a MONAI bundle or of nnU-Net).",
        ),
    ],
    output: MadeModel,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz|.pt",
            help="Input patch and the training code's output for it, which prove what the network "
            "computes: .npz or .pt (a dict) with the arrays input and output, [1, C, D, H, W]. See "
            "'model reference-script'.",
        ),
    ] = None,
    reference_scan: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="SCAN OUTPUT",
            help="Whole scan and the training code's own result for it, on the scan's grid or on "
            "the model's, which prove axes, grid, intensities and tiling from file to file. Needs "
            "--reference. If the result differs, the one option that explains it is named.",
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Training repository whose unmodified code wrote the file, such as davidiommi.",
        ),
    ] = None,
    unproven: Annotated[
        bool,
        typer.Option(
            "--unproven",
            help="Import on assumptions and on the options below, from --padding to --upsampling; "
            "all results are marked as unproven. With --reference, these options narrow the search "
            "and the result stays proved.",
        ),
    ] = False,
    padding: Annotated[
        str | None,
        typer.Option(
            metavar="reflect|replicate|zero|constant:VALUE", help="Padding of convolutions."
        ),
    ] = None,
    block_padding: Annotated[
        str | None,
        typer.Option(
            metavar="reflect|replicate|zero|constant:VALUE",
            help="Padding in residual blocks, if different.",
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(metavar="instance|group:N|none", help="Normalisation layers."),
    ] = None,
    norm_statistics: Annotated[
        Literal["patch", "stored"] | None,
        typer.Option(
            metavar="patch|stored",
            help="Statistics for normalisation: of each patch, or stored in training (eval mode).",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Epsilon of the normalisation layers.", min=1e-12, max=1
        ),
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(metavar="relu|leaky:SLOPE|elu", help="Activation of a ResNet."),
    ] = None,
    residual: Annotated[
        Literal["sum", "activated-sum", "none"] | None,
        typer.Option(
            metavar="sum|activated-sum|none",
            help="How a residual block combines its input and output.",
        ),
    ] = None,
    end: Annotated[
        Literal["tanh", "sigmoid", "none"] | None,
        typer.Option(metavar="tanh|sigmoid|none", help="Activation after the last convolution."),
    ] = None,
    concat: Annotated[
        Literal["skip-first", "deeper-first"] | None,
        typer.Option(
            metavar="skip-first|deeper-first",
            help="Channel order of a U-Net's skip concatenations.",
        ),
    ] = None,
    upsampling: Annotated[
        Literal["nearest", "trilinear", "trilinear-corners", "trilinear-zeros"] | None,
        typer.Option(
            metavar="nearest|trilinear|trilinear-corners|trilinear-zeros",
            help="Upsampling mode of a resize-convolution decoder.",
        ),
    ] = None,
    direction: Annotated[
        Literal["AtoB", "BtoA"] | None,
        typer.Option(metavar="AtoB|BtoA", help="Generator to import from a pair."),
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Network to import from several, by its name in the file."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,...]",
            help="Contrast of the input, such as T1, T1ce, T2, FLAIR, MR, CT, CBCT or PET; one "
            "name per channel.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME[,...]", help="Contrast of the output."),
    ] = None,
    intensity_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MAP",
            help=f"Mapping from scan values to the network's range: {FORMS}; or steps of these "
            f"and of {STEPS}. Repeatable: one mapping per channel.",
        ),
    ] = None,
    intensity_out: Annotated[
        list[str] | None,
        typer.Option(metavar="MAP", help="Mapping of target scans, inverted on the result."),
    ] = None,
    input_range: Annotated[
        Literal["-1..1", "0..1", "open"] | None,
        typer.Option(
            metavar="-1..1|0..1|open",
            help="Value range of the network's input; required unless the network ends in a tanh.",
        ),
    ] = None,
    output_range: Annotated[
        Literal["-1..1", "0..1", "open"] | None,
        typer.Option(
            metavar="-1..1|0..1|open",
            help="Value range of its output; required if its last layer is unbounded.",
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="RAS|LPS|SPL|...", help="Anatomical directions of the patch axes D, H and W."
        ),
    ] = None,
    spacing: Annotated[
        str | None,
        typer.Option(metavar="D,H,W|native", help="Voxel size of the training patches in mm."),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="D,H,W|whole",
            help="Extents of the training patches in voxels; whole if training saw whole volumes, "
            "which are then the model's default.",
        ),
    ] = None,
    tiling: Annotated[
        str | None,
        typer.Option(
            metavar="CODE[:OPTIONS]",
            help="Positions and weights of patches as the training's own inference has them: "
            "monai, torchio, nnunet or even, with options such as "
            ":overlap=0.5,blend=gaussian,sigma=0.125.  [default: even, overlap 0.25, gaussian]",
        ),
    ] = None,
    grid_rule: Annotated[
        Literal["cover", "monai", "monai-scan", "torchio", "simpleitk", "nnunet"] | None,
        typer.Option(
            metavar="cover|monai|monai-scan|torchio|simpleitk|nnunet",
            help="Code whose extents and origin a grid of --spacing has.  [default: cover]",
        ),
    ] = None,
    maps_on: Annotated[
        Literal["scan", "grid", "window"] | None,
        typer.Option(
            metavar="scan|grid|window",
            help="Whether intensities are measured and mapped before resampling, after it, or "
            "after --grid-window too.  [default: scan]",
        ),
    ] = None,
    omit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,...]",
            help="Parts of a MONAI bundle that are not reproduced, and that results may lack.",
        ),
    ] = None,
    folds: Annotated[
        str | None,
        typer.Option(
            metavar="N[,...]", help="Folds of an nnU-Net folder, whose outputs are averaged."
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="D,H,W", help="Extents that every scan is resized to, instead of a spacing."
        ),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(
            metavar="VOXELS:FILL[,MARGIN]",
            help="Crop scans to the box around their nonzero, positive or above-mean voxels. FILL "
            "is the value of results outside of it, in their unit; A/B/... for each of several.",
        ),
    ] = None,
    grid_window: Annotated[
        str | None,
        typer.Option(
            metavar="RULE:VOXELS[+...]",
            help="Crop or pad scans after resampling: extents, at-least, at-most, multiple, "
            "before, after, positive or positive-padded, with voxels along D/H/W, and perhaps "
            ",padding=VALUE and ,fill=VALUE, such as extents:96/96/64,padding=edge.",
        ),
    ] = None,
    small_volume_padding: Annotated[
        str | None,
        typer.Option(
            metavar="edge|reflect|minimum|VALUE",
            help="Padding of scans smaller than a patch; a number is the network's input there.  "
            "[default: edge]",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Name of the model in reports.  [default: SOURCE to TARGET]"
        ),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Licence of the weights.")
    ] = None,
    force: ReplacesOutput = False,
    verbose: Traceback = False,
) -> None:
    """Convert a checkpoint or network file to a model file.

    No code in the file is run. ONNX files, torch.export archives and MONAI bundles describe a
    network completely; weights alone do not.

    Exit status: 0 written; 2 options are missing, or the checkpoint is rejected.
    """
    maps_in = parsed_maps(intensity_in, "--intensity-in")
    maps_out = parsed_maps(intensity_out, "--intensity-out")
    extents, sees_whole = parsed_training_patch(patch)
    tiled = parsed_tiling(tiling)
    sources, targets = parsed_names(source, "--source"), parsed_names(target, "--target")
    directions, voxel_size = parsed_axes(axes), parsed_spacing(spacing)
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.importing.checkpoint.evidence import NetworkChoices
        from ...pipelines.model_import.card_draft import CardDraft
        from ...pipelines.model_import.file_kinds import ImportRequest

        choices = NetworkChoices(
            code=code,
            unproven=unproven,
            padding=padding,
            block_padding=block_padding,
            norm=norm,
            norm_statistics=norm_statistics,
            epsilon=epsilon,
            activation=activation,
            residual=residual,
            end=end,
            concat=concat,
            upsampling=upsampling,
            direction=direction,
            generator=generator,
        )
        draft = CardDraft(
            source=sources,
            target=targets,
            intensity_in=maps_in,
            intensity_out=maps_out,
            axes=directions,
            spacing=voxel_size,
            patch=extents,
            small_volume_padding=parsed_padding(small_volume_padding),
            name=name,
            licence=licence,
            input_range=input_range,
            output_range=output_range,
            crop=parsed_crop(crop),
            grid_window=parsed_grid_window(grid_window),
            grid=parsed_extents(grid, "--grid"),
            tiling=tiled,
            grid_rule=grid_rule,
            maps_on=maps_on,
            inference="volume" if sees_whole else "patches" if tiled else None,
        )
        request = ImportRequest(
            checkpoint,
            choices,
            draft,
            reference,
            parsed_names(folds, "--folds") or (),
            parsed_names(omit, "--omit") or (),
            reference_scan,
        )
        raise typer.Exit(_import(request, output, force))


def _import(request: "ImportRequest", output: Path, force: bool) -> Exit:
    from ...engine.model.reference import TOLERANCE
    from ...io.files.documents import write_document
    from ...pipelines.model_import.importing import make_model, survey, with_proof
    from ...pipelines.results.output_file import check_free
    from ..render.models import imported_lines, mismatch_lines, survey_lines

    given = request.checkpoint, request.reference, *(request.reference_scan or ())
    sources = tuple(filter(None, given))
    check_free(output, replace=force, sources=sources)
    with spinner("Reading the checkpoint") as rename:

        def show(tried: int, closest: float, now: str) -> None:
            nearest = f"the closest {closest:.2g} away, " if tried else ""
            what = (
                "Found; checking that no other network fits"
                if closest <= TOLERANCE
                else "Comparing with the reference"
            )
            rename(f"{what}: {tried} tried, {nearest}now {now}")

        found = survey(request, show)
    for line in survey_lines(found, columns_of(sys.stdout)):
        print_line(line, sys.stdout)
    if found.undecided:
        complain(_open_questions(found.undecided))
        return Exit.USAGE
    with spinner("Building the model"):
        imported = make_model(found)
    if request.reference_scan:
        from ...pipelines.model_import.pipeline_proof import Mismatch, prove_pipeline

        with spinner("Translating the reference scan") as rename:
            proof = prove_pipeline(
                imported.model,
                *request.reference_scan,
                lambda tried, count: rename(f"It differs; change {tried + 1} of {count}"),
            )
        if isinstance(proof, Mismatch):
            print_sentences(mismatch_lines(proof), sys.stderr)
            return Exit.USAGE
        imported = with_proof(imported, proof)
    write_document(output, imported.content)
    print_sentences(imported_lines(imported, output), sys.stdout)
    return Exit.DONE


def _open_questions(questions: "tuple[Question, ...]") -> str:
    flags = ", ".join(option(question.field) for question in questions)
    missing = counted(len(questions), "answer is", "answers are")
    return f"Nothing was written; {missing} missing, listed above: {flags}."
