"""Settings that texts from below the command line speak of, spelled as its options."""

import re

from ....pipelines.settings import OPTIONS

SETTINGS = (
    *OPTIONS,
    *("activation", "address", "axes", "block-padding", "channel", "code", "concat"),
    *("config", "data-range", "device", "direction", "end", "epsilon", "exclude", "folder"),
    *("force", "generator", "include", "input-range", "intensity-in", "intensity-out"),
    *("licence", "modality", "name", "norm", "norm-statistics", "output", "output-range"),
    *("padding", "pairs", "port", "queue", "reference", "report", "residual", "series"),
    *("small-volume-padding", "source", "spacing", "target", "tls-certificate", "tls-key"),
    *("tls-trusted", "unproven", "upsampling", "verbose", "vram-limit", "yield-to-others"),
)
"""Options that texts of the engine and the pipelines speak of, as "setting name" or "setting
name=value"; they know what a user may set, but not how a command line spells it."""

_SETTING = re.compile(rf"\b[Ss]etting ({'|'.join(SETTINGS)})(?:=([\w:.,-]*\w))?(?![\w-])")


def flagged(text: str) -> str:
    """A text from below with the settings that it speaks of as options of the command line."""
    return _SETTING.sub(lambda found: f"{option(found[1])} {found[2] or ''}".rstrip(), text)


def option(setting: str) -> str:
    """The command line's spelling of a setting, or of the field that holds it."""
    return "--" + setting.replace("_", "-")
