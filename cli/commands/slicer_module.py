"""`cuda-cyclegan slicer-module`: `translate` as a module of 3D Slicer."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.option import Effect
from ..descriptors.slicer import launcher, module_xml
from ..errors import errors_reported
from ..options.help_panels import example
from ..options.values import wrong_value
from ..render.documents import written
from ..render.terminal import print_line

if TYPE_CHECKING:
    from typer.core import TyperGroup

EXAMPLE = example("slicer-module ~/slicer-modules")
_NAME = "CudaCycleGAN"


def slicer_module(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the module; created if missing.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files."), Effect.WRITES
    ] = False,
) -> None:
    """Write a module for 3D Slicer that translates a volume.

    The module is a description, made from the options of 'translate', and a small program that
    starts this installation. In Slicer, add FOLDER to the additional module paths (Edit,
    Application Settings, Modules), and restart it.

    \b
    Exit status: 0 written; 2 a file exists already or cannot be written
    """
    from ...io.files.documents import write_document

    suffix, program = launcher()
    files = {f"{_NAME}.xml": module_xml(_translate(context)), f"{_NAME}{suffix}": program}
    with errors_reported(verbose=False):
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder / name for name in files):
            if os.path.lexists(place) and not force:
                raise wrong_value("FOLDER", f"{str(place)!r} exists already; give --force.")
        for name, text in files.items():
            write_document(folder / name, text.encode())
            print_line(written(folder / name, len(text.encode())), sys.stdout)
        (folder / f"{_NAME}{suffix}").chmod(0o755)


def _translate(context: typer.Context) -> object:
    assert context.parent
    group: TyperGroup = context.parent.command  # pyright: ignore[reportAssignmentType]
    return group.commands["translate"]
