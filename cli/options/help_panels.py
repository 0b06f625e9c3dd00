"""The manual page of a command with many options: in panels, what is rarely used last."""

from typing import Any

from typer.core import TyperCommand

INPUT, RESULT, SPEED, DICOM = "Input", "Result", "Speed", "DICOM"
QUEUE, REPORTS = "Queue", "Reports"
_PANELS = (INPUT, RESULT, SPEED, DICOM, QUEUE, REPORTS)
_OTHERS = "Other options"

_RARE = {
    *("volume", "nan_to", "channel", "resample_channels", "strict_input", "follow_links"),
    *("any_contrast", "allow_synthetic"),
    *("blend", "seam_score", "verify", "cycle_check", "cycle_map", "spread", "vram_limit"),
    *("threads", "batch", "tune", "tune_seconds", "min_slices", "series", "any_modality"),
    *("keep_private_tags", "output_type", "trace", "verbose", "result_name", "bids_suffix"),
    "sidecar",
}
"""Fields of options that few people need; they stand last in their panel."""


class PanelledCommand(TyperCommand):
    """Shows each option in the panel that its declaration names; those without one come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then panel after panel."""
        arguments: list[Any] = []
        panels: dict[str, list[tuple[bool, Any]]] = {name: [] for name in (*_PANELS, _OTHERS)}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(shown)
                continue
            panel: str = getattr(parameter, "rich_help_panel", None) or _OTHERS
            panels[panel].append((parameter.name in _RARE, shown))
        _section(formatter, "Arguments", arguments)
        for name, options in panels.items():
            _section(formatter, name, [shown for _, shown in sorted(options, key=lambda o: o[0])])


def _section(formatter: Any, name: str, rows: list[Any]) -> None:
    if rows:
        with formatter.section(name):
            formatter.write_dl(rows)
