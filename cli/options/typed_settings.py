"""Typed values of the options that `TranslateOptions` declares, and their conversion."""

from collections.abc import Iterator
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ...io.links import Links
from ...pipelines.option import options_in
from ...pipelines.settings import OPTIONS, CycleCheck, TranslateOptions
from .values import (
    VolumeChoice,
    checked_flips,
    checked_name,
    checked_value,
    parsed_patch,
    parsed_suffixes,
    parsed_volume,
    wrong_value,
)

_UNLIKE_FIELD: dict[str, tuple[Any, Any]] = {
    "volume": (Annotated[VolumeChoice | None, parsed_volume], None),
    "patch": (str | None, None),
    "bids_suffix": (str, ""),
    "cycle_check": (Path | None, None),
    "cycle_map": (bool, False),
}
"""Type and default of parameters whose typed value is converted to that of their field."""

_FIELDS = {
    option.shown.name.replace("-", "_"): field for field, option in options_in(TranslateOptions)
}


def _parameters() -> Iterator[Parameter]:
    held = {field.name: (field.type, field.default) for field in fields(TranslateOptions)}
    for name, field in _FIELDS.items():
        kind, default = _UNLIKE_FIELD.get(name, held[field])
        annotation = Annotated[kind, OPTIONS[name.replace("_", "-")]]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class TypedSettings(dict[str, Any]):
    """Typed values by parameter; a missing option has its default.

    PARAMETERS: of all options, by name.
    """

    PARAMETERS: ClassVar = {parameter.name: parameter for parameter in _parameters()}

    def options(self, links: Links) -> TranslateOptions:
        """Convert to the record. Raises BadParameter."""
        typed = {name: self.get(name, one.default) for name, one in self.PARAMETERS.items()}
        volume = typed["volume"] or VolumeChoice()
        read: dict[str, Any] = {
            "patch": parsed_patch(typed["patch"]),
            "spread": checked_flips(typed["spread"]),
            "nan_to": checked_value("--nan-to", typed["nan_to"]),
            "cycle_check": _cycle_check(typed["cycle_check"], has_map=typed["cycle_map"]),
            "result_name": checked_name(typed["result_name"]),
            "bids_suffix": parsed_suffixes(typed["bids_suffix"]),
            "volume_index": volume.index,
            "every_volume": volume.every,
            "links": links,
        }
        plain = {field: typed[name] for name, field in _FIELDS.items()}
        options = TranslateOptions(**{**plain, **read})
        _check_names(options)
        return options


def _cycle_check(model: Path | None, *, has_map: bool) -> CycleCheck | None:
    if model:
        return CycleCheck(str(Path(model)), has_map=has_map)
    if has_map:
        raise wrong_value("--cycle-map", "needs --cycle-check.")
    return None


def _check_names(options: TranslateOptions) -> None:
    """Raise BadParameter for names of results that the layout contradicts."""
    if options.layout == "bids":
        if options.result_name:
            raise wrong_value(
                "--result-name", "--layout bids defines the result names; omit the option."
            )
        if options.output_format not in ("same", "nifti"):
            raise wrong_value("--format", "--layout bids always writes NIfTI files.")
    elif options.bids_suffix:
        raise wrong_value("--bids-suffix", "needs --layout bids.")
