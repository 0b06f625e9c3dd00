"""Boutiques descriptor of a BIDS App, by which platforms offer and run it.

Format: Boutiques schema 0.5, by `bosh validate`. Its `--bids` demands two inputs for the output
folder, of which `bosh exec` then fills in the wrong one.
"""

from typing import Annotated, Any, TypeAlias

import typer

from ...pipelines.option import Effect
from ...pipelines.program import program_version
from ..render.documents import json_text
from .parameters import CommandParameter, parameters_of

_FIRST = ("bids_dir", "output_dir", "analysis_level", "participant_label", "session_label")
"""Parameters whose order on the command line is fixed."""

_WRITTEN = ("output_dir", "report")
"""Parameters for paths that are written."""

ERRORS = {
    1: "A scan failed, an input could not be read, or a link was not followed",
    2: "Wrong usage, or BIDS_DIR is not a BIDS dataset",
    3: "No scan was found",
    4: "The device or a library is missing",
}
"""Exit statuses of the command."""


def boutiques(command: Any) -> dict[str, Any]:
    """Return the descriptor of a command."""
    parameters = sorted(parameters_of(command), key=_place)
    keys = " ".join(_key(each) for each in parameters)
    return {
        "name": "cuda-cyclegan",
        "description": (command.help or "").partition("\n")[0],
        "tool-version": program_version(),
        "schema-version": "0.5",
        "command-line": f"cuda-cyclegan bids-app {keys}",
        "inputs": [_input(each) for each in parameters],
        "output-files": [
            {
                "id": "derivatives",
                "name": "Derivative dataset",
                "description": "BIDS derivative dataset of synthetic images.",
                "path-template": "[OUTPUT_DIR]",
            }
        ],
        "error-codes": [{"code": code, "description": text} for code, text in ERRORS.items()],
        "tags": {"domain": ["neuroinformatics", "mri"], "app-type": "bids"},
    }


def _place(parameter: CommandParameter) -> int:
    return _FIRST.index(parameter.name) if parameter.name in _FIRST else len(_FIRST)


def _key(parameter: CommandParameter) -> str:
    return f"[{parameter.name.upper()}]"


def _input(parameter: CommandParameter) -> dict[str, Any]:
    types = {"flag": "Flag", "whole number": "Number", "number": "Number", "path": "File"}
    found: dict[str, Any] = {
        "id": parameter.name,
        "name": parameter.flag.lstrip("-") or parameter.metavar,
        "type": types.get(parameter.kind, "String"),
        "description": parameter.help,
        "value-key": _key(parameter),
        "optional": not parameter.is_required,
    }
    if parameter.name in _WRITTEN:
        found["type"] = "String"  # a File must exist
    if parameter.flag:
        found["command-line-flag"] = parameter.flag
    if parameter.kind == "whole number":
        found["integer"] = True
    if parameter.words:
        found["value-choices"] = list(parameter.words)
    if parameter.is_list:
        found["list"] = True
    bounds = {"minimum": parameter.least, "maximum": parameter.most}
    return found | {name: bound for name, bound in bounds.items() if bound is not None}


def _print_descriptor(context: typer.Context, asked: bool) -> None:
    if asked:
        print(json_text(boutiques(context.command)))
        raise typer.Exit


Descriptor: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--descriptor",
        callback=_print_descriptor,
        is_eager=True,
        help="Print the Boutiques descriptor of this command and exit.",
    ),
    Effect.HARMLESS,
]
