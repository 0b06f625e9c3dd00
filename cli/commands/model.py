"""`cuda-cyclegan model`: import, inspect, verify, combine and export model files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Exit, complain, errors_reported
from ..options.help_panels import example
from ..options.missing_options import FullCommand
from ..options.model import MadeModel, ReplacesOutput, parsed_names
from ..options.printing import AsJson, Traceback
from ..options.spelling import spelled_out
from ..render.documents import written
from ..render.terminal import columns_of, print_line, print_sentences, spinner
from ..render.text import printable
from ..signals import stop_signals
from . import model_calibrate, model_import

if TYPE_CHECKING:
    from ...engine.model.reference import Verification

EXAMPLE = """\b
Examples:
  cuda-cyclegan model import latest_net_G_A.pth --output t1-to-t2.safetensors
  cuda-cyclegan model inspect t1-to-t2.safetensors
"""


app = typer.Typer(
    help="Import, inspect, verify, combine and export model files.",
    epilog=EXAMPLE,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("import", cls=FullCommand, epilog=model_import.EXAMPLE)(model_import.import_)
app.command("calibrate", epilog=model_calibrate.EXAMPLE)(spelled_out(model_calibrate.calibrate))

ModelFile = Annotated[Path, typer.Argument(metavar="FILE", help="Model file.")]


@app.command(epilog=example("model inspect latest_net_G_A.pth --json"))
def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Model file, training checkpoint or network.")
    ],
    json: AsJson = False,
    verbose: Traceback = False,
) -> None:
    """Show what a model or network file contains.

    Exit status: 0 shown; 2 the file is damaged or of an unsupported kind.
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import Model
        from ...pipelines.model_import.inspection import InspectedCheckpoint
        from ...pipelines.model_import.inspection import inspect as look_into
        from ..render import models

        found = look_into(file)
        if json:
            print_line(models.model_json(found, file), sys.stdout)
            return
        width = columns_of(sys.stdout)
        match found:
            case Model():
                lines = models.model_lines(found, width)
            case InspectedCheckpoint():
                lines = models.checkpoint_lines(found, width)
            case network:
                lines = models.network_lines(network, width)
        for line in lines:
            print_line(line, sys.stdout)


@app.command(epilog=example("model verify t1-to-t2.safetensors"))
def verify(file: ModelFile, verbose: Traceback = False) -> None:
    """Verify that a model reproduces its reference.

    The reference is a patch in the model file with the output of the training code for it, or else
    the output of this program at import.

    Exit status: 0 reproduced; 1 not reproduced; 2 the file is damaged or not a model.
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import load_model
        from ...engine.model.reference import verify as compare

        with spinner("Computing the reference"):
            found = compare(load_model(file))
        if not found.passed:
            complain(_disproof(file, found))
            raise typer.Exit(Exit.SOME_FAILED)
        from ..render.models import proof

        print_sentences([f"{printable(str(file))}: {proof(found)}"], sys.stdout)


@app.command(
    "export-onnx", epilog=example("model export-onnx t1-to-t2.safetensors --output t1-to-t2.onnx")
)
def export_onnx(
    file: ModelFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="ONNX file to write.")
    ],
    force: ReplacesOutput = False,
    verbose: Traceback = False,
) -> None:
    """Write a model's network as ONNX.

    The network maps patches [N, C, D, H, W] in its own intensity range. The caller has to apply
    orientation, spacing and intensity mappings; the model card in the file's metadata describes
    them.

    Exit status: 0 written; 2 not written.
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import load_model, onnx_bytes
        from ...io.files.documents import write_document
        from ...pipelines.results.output_file import check_free

        check_free(output, replace=force, sources=(file,))
        content = onnx_bytes(load_model(file))
        write_document(output, content)
        print_line(written(output, len(content)), sys.stdout)


@app.command(epilog=example("model edit old.safetensors --output new.safetensors --name CT"))
def edit(
    file: ModelFile,
    output: MadeModel,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name of the model in reports.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Licence of the weights.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,...]",
            help="Contrast of the input, such as T1, T1ce, T2, FLAIR, MR, CT, CBCT or PET.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME[,...]", help="Contrast of the output.")
    ] = None,
    force: ReplacesOutput = False,
    verbose: Traceback = False,
) -> None:
    """Write a copy of a model with a changed model card.

    The network stays the same, so existing results stay up to date with the new file. DICOM results
    are the exception: they contain the name and the contrasts, and the target sets their modality,
    so they are recomputed if these change.

    Exit status: 0 written; 2 not written.
    """
    names = parsed_names(source, "--source"), parsed_names(target, "--target")
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import load_model
        from ...io.files.documents import write_document
        from ...pipelines.model_import.card_edit import CardEdit, edited_model
        from ...pipelines.results.output_file import check_free

        check_free(output, replace=force, sources=(file,))
        content = edited_model(load_model(file), CardEdit(name, licence, *names))
        write_document(output, content)
        print_line(written(output, len(content)), sys.stdout)


@app.command(epilog=example("model combine a.safetensors b.safetensors -o mean.safetensors"))
def combine(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Model files, two or more.")
    ],
    output: MadeModel,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name of the model in reports.")
    ] = None,
    disagreement: Annotated[
        bool,
        typer.Option(
            "--disagreement",
            help="Store a map and a measure of how far the networks are apart with each result.",
        ),
    ] = False,
    force: ReplacesOutput = False,
    verbose: Traceback = False,
) -> None:
    """Write a model that computes the mean of several.

    The models of an ensemble, such as those of several trainings, become one model file, which is
    used as any other. Each patch or volume passes through all networks, which takes the time of all
    and the memory of one. All fields of the model cards that state how scans and results are
    treated must be equal.

    Exit status: 0 written; 2 not written.
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import load_model
        from ...io.files.documents import write_document
        from ...pipelines.model_import.combining import combined_model
        from ...pipelines.results.output_file import check_free
        from ..render.models import combined_lines

        check_free(output, replace=force, sources=tuple(files))
        with spinner("Combining"):
            models = [load_model(file) for file in files]
            combined = combined_model(models, name, disagreement=disagreement)
        write_document(output, combined.content)
        for line in combined_lines(combined, output):
            print_line(line, sys.stdout)


@app.command("reference-script", epilog=example("model reference-script > make_reference.py"))
def reference_script() -> None:
    """Print a script that computes a reference.

    The script runs in the training environment and writes the file for 'model import --reference'.

    Exit status: 0 printed.
    """
    from ..render.documents import rendered_text

    print_line(rendered_text("make_reference.py.j2").rstrip(), sys.stdout)


def _disproof(file: Path, found: "Verification") -> str:
    from ...engine.model.reference import TOLERANCE

    if not found.hashes_match:
        return (
            f"The reference patch in {file} differs from the one named in its model card; import "
            "the model again."
        )
    return (
        f"{file} does not reproduce its reference: relative error {found.relative_error:.2g}, but "
        f"at most {TOLERANCE:g} is allowed; do not use it, import the checkpoint again."
    )
