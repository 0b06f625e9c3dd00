"""Check for options that have no effect on the scans found, which may be a mistake."""

import typer

from .spelling import declared_of
from .values import wrong_value


def check_applicable(context: typer.Context, *, holds_files_only: bool) -> None:
    """Raise BadParameter for an option of DICOM series that was typed although none was found.

    holds_files_only: whether scans were found, and none of DICOM. A config file may contain options
    meant for other folders.
    """
    declared = declared_of(context.command) if holds_files_only else {}
    for name in (name for name, option in declared.items() if option.rules.of_series):
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise wrong_value(
                option, "it applies to DICOM series, but the inputs contain none; omit it."
            )
