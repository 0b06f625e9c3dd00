"""What each option of a config file can do, and so whether the file of a folder may set it.

A folder may come from anyone: unpacked, cloned, on a shared disk. What its file may set changes how
scans are translated and what is printed, and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...pipelines.errors import ConfigError

_HARMLESS: Final = ""
_WRITES: Final = "decides which files are written or replaced"
_REDIRECTS: Final = "decides whose jobs are done, and who gets them"
_ROUTES: Final = "decides who may send scans, and where results go"
_LOADS_CODE: Final = "decides which code is loaded"
_OPENS: Final = "decides who can reach this machine, and what of it they may take"
_UNCHECKS: Final = "decides whether synthetic images and scans of another contrast are translated"
_RELEASES: Final = "decides whether studies that lack images are translated"
_WIDENS_PRIVACY: Final = "decides which data of patients is read, shown or kept"

_ALIKE: Final = {
    _HARMLESS: (
        "allow-uneven arch at batch bids-suffix blend blocks channel check cycle-check cycle-map "
        "data-range device dry-run exclude fail-on-error format include inference json levels "
        "min-slices modality model name nan-to ngf only output-type overlap patch patience "
        "precision preview priority protocol quiet resample-channels scan seam-score seconds "
        "series settle sidecar spread threads "
        "status strict strict-input sweep tries tune tune-seconds until-empty verify volume "
        "vram-limit wait window yield-load yield-memory yield-to-others"
    ),
    _WRITES: (
        "csv folder force html layout output overwrite plot report result-name trace write-config"
    ),
    _REDIRECTS: "queue",
    _OPENS: ("address associations inbox-limit port reserve tls-certificate tls-key tls-trusted"),
    _LOADS_CODE: "against cudnn",
    _UNCHECKS: "allow-synthetic any-contrast any-modality",
    _RELEASES: "release",
    _WIDENS_PRIVACY: "follow-links input keep-private-tags mask pairs show-phi truth verbose",
}
EFFECTS: Final[Mapping[str, str]] = {
    **{option: effect for effect, options in _ALIKE.items() for option in options.split()},
    # A file's name, where other commands take no value.
    "bench json": _WRITES,
    "evaluate json": _WRITES,
}
"""What an option of all commands does, or that of one as `command option`."""


def effect_of(command: str, option: str) -> str:
    """What an option does that a stranger should not decide; nothing if there is no such thing."""
    return EFFECTS.get(f"{command} {option}", EFFECTS[option])


def check_harmless(path: Path, tables: Mapping[str, Any]) -> None:
    """Raise ConfigError, which names the key, if a folder's file sets more than it may.

    tables: with known options only.
    """
    for name, effect in (("queue", _REDIRECTS), ("route", _ROUTES)):
        if name in tables:
            raise _refusal(path, name, effect)
    for table, keys in tables.items():
        for key in keys:
            if effect := effect_of(table, key):
                raise _refusal(path, f"[{table}] {key}", effect)


def _refusal(path: Path, key: str, effect: str) -> ConfigError:
    from ...pipelines.config import user_config

    return ConfigError(
        f"./{path}: {key} {effect}, which a folder's file may not; set it in {user_config()}, or "
        "name a file that you trust with --config."
    )
