"""Settings that texts from below the command line speak of, spelled as its options."""

import re
from functools import cache

_OF_COMMANDS = (
    *("activation", "address", "axes", "block-padding", "channel", "code", "concat"),
    *("config", "data-range", "device", "direction", "end", "epsilon", "exclude", "folder"),
    *("force", "generator", "include", "input-range", "intensity-in", "intensity-out"),
    *("licence", "modality", "name", "norm", "norm-statistics", "output", "output-range"),
    *("padding", "pairs", "port", "queue", "reference", "report", "residual", "series"),
    *("small-volume-padding", "source", "spacing", "target", "tls-certificate", "tls-key"),
    *("tls-trusted", "unproven", "upsampling", "verbose", "vram-limit", "yield-to-others"),
)
"""Options of single commands, and of searches and devices, that texts from below speak of."""


@cache
def known_settings() -> frozenset[str]:
    """Options that texts of the engine and the pipelines speak of, as "setting name" or "setting
    name=value"; they know what a user may set, but not how a command line spells it.
    """
    from ....pipelines.settings import OPTIONS

    return frozenset((*OPTIONS, *_OF_COMMANDS))


_SETTING = re.compile(r"\b[Ss]etting ([a-z][a-z-]*[a-z])(?:=([\w:.,-]*\w))?(?![\w-])")


def flagged(text: str) -> str:
    """A text from below with the settings that it speaks of as options of the command line."""
    return _SETTING.sub(_flagged, text)


def _flagged(found: re.Match[str]) -> str:
    if found[1] not in known_settings():
        return found[0]
    return f"{option(found[1])} {found[2] or ''}".rstrip()


def option(setting: str) -> str:
    """The command line's spelling of a setting, or of the field that holds it."""
    return "--" + setting.replace("_", "-")
