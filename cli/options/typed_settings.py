"""Values of the options that `TranslateOptions` declares, as they are typed."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ...io.links import Links
from ...pipelines.option import options_in
from ...pipelines.settings import CycleCheck, TranslateOptions
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


@dataclass(frozen=True, slots=True)
class Typed:
    """The parameter of an option. annotation: as typer reads it, with the declared option. default:
    of what is typed.
    """

    annotation: Any
    default: Any


_UNLIKE_FIELD = {
    "volume": Typed(Annotated[VolumeChoice | None, parsed_volume], None),
    "patch": Typed(str | None, None),
    "bids_suffix": Typed(str, ""),
    "cycle_check": Typed(Path | None, None),
    "cycle_map": Typed(bool, False),
}
"""Parameters whose typed value is not what their field holds; `TypedSettings` converts it."""


def _typed() -> dict[str, Typed]:
    held = {field.name: Typed(field.type, field.default) for field in fields(TranslateOptions)}
    typed: dict[str, Typed] = {}
    for field, option in options_in(TranslateOptions):
        name = option.name.replace("-", "_")
        kind = _UNLIKE_FIELD.get(name, held[field])
        typed[name] = Typed(Annotated[kind.annotation, option], kind.default)
    return typed


TYPED = _typed()
"""Parameters of the options by name."""

_FIELDS = {option.name.replace("-", "_"): field for field, option in options_in(TranslateOptions)}


class TypedSettings(dict[str, Any]):
    """What was typed, by parameter; an option that is missing has its default."""

    def options(self, links: Links) -> TranslateOptions:
        """What it asks for. Raises BadParameter."""
        typed = {name: self.get(name, parameter.default) for name, parameter in TYPED.items()}
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
            raise wrong_value("--result-name", "--layout bids names the results.")
        if options.output_format not in ("same", "nifti"):
            raise wrong_value("--format", "--layout bids makes NIfTI files.")
    elif options.bids_suffix:
        raise wrong_value("--bids-suffix", "needs --layout bids.")
