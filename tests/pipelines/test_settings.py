"""The fingerprint of the settings, and their way through a report."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.reports import BATCH, written

from cuda_cyclegan.pipelines.errors import ReportFileError, SettingsError
from cuda_cyclegan.pipelines.option import Effect, Rules, Shown, check_bounds, options_in, setting
from cuda_cyclegan.pipelines.report.codec import read_report
from cuda_cyclegan.pipelines.settings import (
    CHANGING_RESULTS,
    DEFAULTS,
    OMITTED,
    TranslateOptions,
)

SETTINGS = TranslateOptions((128, 128, 128), precision="fp32").resolved()
OTHERS = {
    "patch": (128, 128, 64),
    "overlap": 0.5,
    "blend": "constant",
    "precision": "fp16",
    "volume_index": 0,
    "keep_private": True,
    "series_description": "sCT",
    "nan_to": 0.0,
    "resample_channels": True,
    "inference": "volume",
    "output_type": "int16",
    "every_volume": True,
}


FINGERPRINTS = {
    "f7f6a388e4573d4591fc6b15c20e124499f7bb9d67c26df8d356a83448ff8455": SETTINGS,
    "a80791e30cbd1e78c93a043dca80e6ad286562499c9b308f7a28c163da6c49a5": replace(
        SETTINGS, keep_private=True
    ),
    "bc1e23b49e9c981e92977cbd8b2f0638afdbe1944a3d428da10fa705c82878eb": replace(
        SETTINGS, nan_to=-0.0
    ),
    "6a5c20c7ade71f5b24184a0cbba4f1906720236c7bc5cd5a7900d5ed676cad35": replace(
        SETTINGS, keep_private=True, nan_to=-1.5
    ),
}


@pytest.mark.parametrize("expected", FINGERPRINTS)
def test_the_fingerprint_is_pinned(expected: str) -> None:
    # Another value makes every result of every user due again: raise METHOD instead, on purpose.
    assert FINGERPRINTS[expected].fingerprint() == expected


def test_an_option_that_came_later_has_one_default() -> None:
    made = replace(DEFAULTS, patch=SETTINGS.patch, precision=SETTINGS.precision).resolved()
    assert made == SETTINGS


def test_the_order_of_the_oldest_settings_stays() -> None:
    # The key of a job is a hash of its JSON, in the order of the fields.
    added = OMITTED - {"keep_private"}
    oldest = [field.name for field in fields(DEFAULTS) if field.name not in added]
    assert oldest == [
        *("patch", "overlap", "blend", "precision", "volume_index", "overwrite", "output_format"),
        *("fewest_slices", "allow_uneven", "preview", "seam_score", "keep_private"),
    ]


@pytest.mark.parametrize("name", CHANGING_RESULTS)
def test_every_field_changes_the_fingerprint(name: str) -> None:
    assert replace(SETTINGS, **{name: OTHERS[name]}).fingerprint() != SETTINGS.fingerprint()


@pytest.mark.parametrize("name", CHANGING_RESULTS)
def test_every_field_comes_back_from_a_report(name: str, tmp_path: Path) -> None:
    options = replace(BATCH.options, **{name: OTHERS[name]})
    stored = read_report(written(replace(BATCH, options=options), tmp_path / "report.json"))
    assert stored.batch.options == options


def test_an_overlap_of_each_axis_comes_back_from_a_report(tmp_path: Path) -> None:
    options = replace(BATCH.options, overlap=(0.5, 0.25, 0.0))
    stored = read_report(written(replace(BATCH, options=options), tmp_path / "report.json"))
    assert stored.batch.options == options
    assert options.resolved().fingerprint() != BATCH.options.resolved().fingerprint()


def bounded() -> list[tuple[str, float]]:
    """Fields whose options declare bounds, each with a number just outside."""
    found: list[tuple[str, float]] = []
    for name, option in options_in(TranslateOptions):
        found += [(name, option.shown.least - 1)] if option.shown.least is not None else []
        found += [(name, option.shown.most + 1)] if option.shown.most is not None else []
    return found


@pytest.mark.parametrize(("name", "number"), [*bounded(), ("overlap", float("nan"))])
def test_declared_bounds_hold_for_the_record(name: str, number: float) -> None:
    stated: dict[str, Any] = {name: number}
    with pytest.raises(SettingsError, match="out of its bounds; use") as raised:
        TranslateOptions(**stated)
    assert raised.value.settings == (name,)
    with pytest.raises(SettingsError):
        replace(DEFAULTS, **stated)


def test_bounds_hold_for_each_axis() -> None:
    with pytest.raises(SettingsError, match="overlap=nan"):
        TranslateOptions(overlap=(0.5, float("nan"), 0.5))


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"patch": (16, 16)}, "patch"),
        ({"patch": (16, 0, 16)}, "patch"),
        ({"spread": 1}, "spread"),
        ({"nan_to": float("inf")}, "nan_to"),
        ({"result_name": "{stm}"}, "result_name"),
        ({"series_description": "\n"}, "series_description"),
    ],
)
def test_values_that_no_batch_can_have_are_refused(stated: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as raised:
        TranslateOptions(**stated)
    assert raised.value.settings[0] == named


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"bids_suffix": ("T2w",)}, ("bids_suffix", "layout")),
        ({"layout": "bids", "result_name": "{stem}{ext}"}, ("result_name", "layout")),
        ({"layout": "bids", "output_format": "dicom"}, ("output_format", "layout")),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    stated: dict[str, Any], named: tuple[str, ...]
) -> None:
    options = TranslateOptions(**stated)  # as a stored job may have them
    with pytest.raises(SettingsError) as raised:
        options.check_together()
    assert raised.value.settings == named


@dataclass(frozen=True)
class Shares:
    """A share, as an option may be added."""

    share: float = setting(
        "A share.", Shown("", least=0, most=1), Rules(Effect.HARMLESS), default=0.5
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.1, 1.1])
def test_no_number_passes_the_bounds_of_a_new_option(number: float) -> None:
    check_bounds(Shares(), Shares)
    with pytest.raises(SettingsError, match="use 0 to 1"):
        check_bounds(Shares(number), Shares)


def test_a_report_with_settings_out_of_bounds_is_damaged(tmp_path: Path) -> None:
    file = written(BATCH, tmp_path / "report.json")
    file.write_text(file.read_text().replace('"overlap": 0.25', '"overlap": 25'))
    with pytest.raises(ReportFileError, match="damaged: Setting overlap=25"):
        read_report(file)
