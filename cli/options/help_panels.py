"""Help of a command with many options, in panels, with rarely used options last."""

import re
from typing import Any, get_args

from ...pipelines.option import Effect, Option, Panel, Rules, Shown
from .missing_options import FullCommand
from .spelling import declared_of

QUEUE, REPORTS = "Queue", "Reports"
_OTHERS = "Other options"
_PLAIN = Option("", Shown(""), Rules(Effect.HARMLESS))


def example(words: str) -> str:
    """Return the end of a command's help. words: those of a command line after the program's."""
    return f"\b\nExample:\n  cuda-cyclegan {words}"


class PanelledCommand(FullCommand):
    """Shows each option in the panel that its declaration names; those without one come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then panel after panel."""
        arguments: list[Any] = []
        declared = declared_of(self)
        panels: dict[str, list[tuple[bool, int, Any]]] = {
            name or _OTHERS: [] for name in get_args(Panel)
        }
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is None:
                continue
            shown = _without_repeated_range(*shown)
            if parameter.param_type_name == "argument":
                arguments.append(shown)
                continue
            panel: str = getattr(parameter, "rich_help_panel", None) or _OTHERS
            shown_as = declared.get(parameter.name or "", _PLAIN).shown
            panels[panel].append((shown_as.is_rare, shown_as.line, shown))
        _section(formatter, "Arguments", arguments)
        for name, options in panels.items():
            ordered = sorted(options, key=lambda option: option[:2])
            _section(formatter, name, [shown for *_, shown in ordered])


def _without_repeated_range(names: str, text: str) -> tuple[str, str]:
    """Omit the range that typer appends to the help, if the value's name states it: `0..0.9`."""
    return names, _RANGE.sub("", text) if ".." in names else text


_RANGE = re.compile(r"; [\d.]+<=x<=[\d.]+(?=\])")


def _section(formatter: Any, name: str, rows: list[Any]) -> None:
    if rows:
        with formatter.section(name):
            formatter.write_dl(rows)
