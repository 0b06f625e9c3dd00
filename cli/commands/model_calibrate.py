"""`cuda-cyclegan model calibrate`: records what suitable scans of a model look like."""

import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.options import Inference
from ...io.choice import Choice
from ...pipelines.settings import CycleCheck, TranslateOptions
from ..errors import Exit, complain_of_nothing, errors_reported
from ..options.model import MadeModel, ReplacesOutput
from ..options.printing import Traceback
from ..options.translate import AllowSynthetic, AnyContrast, DeviceName
from ..options.values import checked_device, wrong_value
from ..render.documents import written
from ..render.skipped import skipped_scans, unread_places
from ..render.terminal import SEARCHING, columns_of, counting, print_line, print_sentences, spinner
from ..render.text import counted, printable
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...engine.model.model_file import Model
    from ...io.discovery import Discovery
    from ...pipelines.calibration import Calibration

EXAMPLE = """\b
Examples:
  cuda-cyclegan model calibrate t1-to-t2.safetensors --scans reference \\
      --output calibrated.safetensors
  cuda-cyclegan model calibrate t1-to-t2.safetensors --scans reference \\
      --cycle t2-to-t1.safetensors --mark-beyond 3 --output both.safetensors
  cuda-cyclegan model calibrate t1-to-t2.safetensors --scans reference \\
      --compare-inference --inference volume --output at-once.safetensors
"""


def calibrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Model file.")],
    scans: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="Reference set: scans for which the model is suitable."),
    ],
    output: MadeModel,
    cycle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Reverse model: also record cycle errors."),
    ] = None,
    mark_beyond: Annotated[
        float | None,
        typer.Option(
            metavar="SD",
            help="Mark studies whose cycle error is more than this many standard deviations above "
            "the mean of the set; none by default.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare-inference",
            help="Translate the scans with patch and with whole-volume inference; show seams, "
            "differences and times.",
        ),
    ] = False,
    inference: Annotated[
        Inference | None,
        typer.Option(
            metavar="patches|volume",
            help="Default inference mode of the new model file.",
        ),
    ] = None,
    any_contrast: AnyContrast = False,
    allow_synthetic: AllowSynthetic = False,
    device: DeviceName = "auto",
    force: ReplacesOutput = False,
    verbose: Traceback = False,
) -> None:
    """Record what suitable scans of a model look like.

    The new file has the same weights, and a model card with intensity, extent and spacing of a
    reference set, and the measures of its results. 'translate' then notes scans that differ from
    it, and rejects them with --strict-input; results are compared with those of the set, if it has
    12 scans or more. With --cycle, the mean and standard deviation of the set's cycle errors are
    recorded too; with --mark-beyond, studies far above them are marked. Existing results stay up to
    date with the new file unless --inference changes the mode.

    Exit status: 0 written; 1 written, but some scans were skipped; 2 not written; 3 no scan was
    found.
    """
    _check(mark_beyond, cycle)
    with stop_signals(), errors_reported(verbose=verbose):
        from ...engine.model.model_file import load_model
        from ...io.files.documents import write_document
        from ...pipelines.results.output_file import check_free

        check_free(output, replace=force, sources=(file,))
        model = load_model(file)
        asked = TranslateOptions(any_contrast=any_contrast, allow_synthetic=allow_synthetic)
        found = _found(scans, model, asked.choice())
        measured = _calibrated(model, found, cycle, mark_beyond, device, inference)
        if compare:
            _compare(model, found, device)
        write_document(output, measured.content)
        _show(measured)
        print_line(written(output, len(measured.content)), sys.stdout)
        print_sentences(skipped_scans(found.skipped), sys.stderr)
        print_sentences(unread_places(found.skipped), sys.stderr)
        if measured.failures or any(skip.missed for skip in found.skipped):
            raise typer.Exit(Exit.SOME_FAILED)


def _found(scans: list[Path], model: "Model", choice: Choice) -> "Discovery":
    from ...io.formats.nibabel_alone import import_nibabel_alone

    import_nibabel_alone()
    from ...pipelines.results.earlier_results import discover_scans
    from ...pipelines.study.selection import studies_for

    with spinner(SEARCHING):
        found = discover_scans(scans, None, choice)
        if len(model.card.input_channels) == 1:  # others are refused
            found = studies_for(found, model.card, choice.takes)
    if not found.studies:
        raise typer.Exit(complain_of_nothing(scans, found.skipped))
    return found


def _check(mark_beyond: float | None, cycle: Path | None) -> None:
    """Raise BadParameter for a limit without cycle errors, or one that is not above zero."""
    if mark_beyond is None:
        return
    if cycle is None:
        raise wrong_value(
            "--mark-beyond",
            "it needs cycle errors; give the reverse model with --cycle.",
        )
    if not 0 < mark_beyond < inf:
        raise wrong_value("--mark-beyond", "must be above zero.")


def _calibrated(
    model: "Model",
    found: "Discovery",
    cycle: Path | None,
    mark_beyond: float | None,
    device: str,
    inference: Inference | None,
) -> "Calibration":
    from ...engine.options import NO_LIMITS
    from ...pipelines.calibration import calibrate as learn
    from ...pipelines.calibration import opened_translation
    from ...pipelines.cycle import load_reverse_model
    from ...pipelines.decisions import decided

    asked = TranslateOptions(cycle_check=CycleCheck(str(cycle)) if cycle else None)
    back = load_reverse_model(model, asked)
    devices, options = decided(model, checked_device(device), NO_LIMITS, asked, back)
    with (
        counting("Translating", "studies") as report_done,
        opened_translation(model, back, devices[0], options) as translation,
    ):
        return learn(
            model, found.studies, options, translation, report_done, mark_beyond, inference
        )


def _compare(model: "Model", found: "Discovery", device: str) -> None:
    """Show how results differ between patch and whole-volume inference."""
    from ...engine.options import NO_LIMITS
    from ...pipelines.calibration import compare_inference
    from ...pipelines.decisions import check_model, decided
    from ..render.evaluation import comparison_lines, comparison_reasons

    asked = TranslateOptions(inference="patches")
    devices, options = decided(model, checked_device(device), NO_LIMITS, asked)
    check_model(model, replace(options, inference="volume"), devices[0])
    with counting("Comparing", "studies") as report_done:
        rows = list(compare_inference(model, found.studies, devices[0], options, report_done))
    for line in comparison_lines(rows, columns_of(sys.stdout)):
        print_line(line, sys.stdout)
    print_sentences(comparison_reasons(rows), sys.stderr)


def _show(measured: "Calibration") -> None:
    from ...pipelines.report.result_groups import FEWEST
    from ..render.models import calibration_lines
    from ..render.progress_lines import failure_text

    for line in calibration_lines(measured.card, columns_of(sys.stdout)):
        print_line(line, sys.stdout)
    print_sentences(
        (
            f"skipped: {printable(name)}: {failure_text(failure)}"
            for name, failure in measured.failures.items()
        ),
        sys.stderr,
    )
    expected = measured.card.expected
    if expected:
        print_line(f"Calibrated with {counted(expected.studies, 'scan')}", sys.stdout)
    if measured.card.results is None:
        few = f"fewer than {FEWEST} results could be measured, so later results are not compared"
        print_sentences([f"note: {few} with those of this set"], sys.stderr)
