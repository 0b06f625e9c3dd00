"""Options of a BIDS App: a dataset, the participants of it, and a folder of derivatives."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...io.links import LinkRule, Links
from ...pipelines.option import Effect, Option, Rules, Shown
from ...pipelines.settings import OPTIONS, TranslateOptions
from ...pipelines.shard import Shard
from ..render.terminal import print_sentences
from ..render.text import printable
from .groups import DeviceOptions
from .spelling import TypedAs
from .study import PARAMETERS, StudyOptions, typed_options
from .translate import ChannelPatterns, ExcludeGlobs
from .values import wrong_value

if TYPE_CHECKING:
    from ...pipelines.request import Request

_FIXED = ("layout", "format", "result-name", "sidecar", "volume")
"""Options that the layout of a BIDS dataset decides."""


_OFFERED = {
    name: parameter
    for name, parameter in PARAMETERS.items()
    if (option := name.replace("_", "-")) not in _FIXED and not OPTIONS[option].rules.of_series
}


def _typed_options(values: Mapping[str, Any]) -> TranslateOptions:
    return typed_options({**values, "layout": "bids"})


@dataclass(frozen=True, slots=True)
class _DatasetStudies(StudyOptions):
    """Options of studies in a dataset, whose links may lead anywhere in it, as DataLad's do."""

    dataset: Path = Path()

    def request(
        self,
        inputs: Sequence[Path],
        on: DeviceOptions | None = None,
        *,
        show_phi: bool = False,
        links: Links = "inside",
        shard: Shard | None = None,
    ) -> "Request":
        """Return the request. Raises BadParameter."""
        asked = StudyOptions.request(self, inputs, on, show_phi=show_phi, links=links, shard=shard)
        return replace(asked, filters=replace(asked.filters, datasets=(self.dataset,)))


@dataclass(frozen=True, slots=True)
class BidsOptions:
    """Arguments of a BIDS App, the labels in a dataset, and the options of its studies."""

    bids_dir: Annotated[
        Path, typer.Argument(metavar="BIDS_DIR", help="Dataset whose scans are translated.")
    ]
    output_dir: Annotated[
        Path, typer.Argument(metavar="OUTPUT_DIR", help="Folder for the derivative dataset.")
    ]
    analysis_level: Annotated[
        Literal["participant"],
        typer.Argument(
            metavar="participant", help="Level of analysis; participant is the only one."
        ),
    ]
    model: Annotated[
        Path,
        Option(
            "Model file written by 'model import'.",
            Shown("Input", 1, "FILE", short="m"),
            Rules(Effect.HARMLESS),
        ),
    ]
    options: Annotated[TranslateOptions, TypedAs(_OFFERED, _typed_options)]
    participant_label: Annotated[
        list[str] | None,
        Option(
            "Only these participants, with or without 'sub-'.",
            Shown("Input", 2, "LABEL...", also=("participant_label",)),
            Rules(Effect.HARMLESS),
        ),
    ] = None
    session_label: Annotated[
        list[str] | None,
        Option(
            "Only these sessions, with or without 'ses-'.",
            Shown("Input", 3, "LABEL...", also=("session_label",)),
            Rules(Effect.HARMLESS),
        ),
    ] = None
    skip_bids_validation: Annotated[
        bool,
        Option(
            "Do not check that BIDS_DIR has a valid dataset_description.json.",
            Shown("Input", also=("skip_bids_validation", "skip-bids-validator")),
            Rules(Effect.HARMLESS),
        ),
    ] = False
    exclude: ExcludeGlobs = None
    channel: ChannelPatterns = None

    def study(self) -> StudyOptions:
        """Return the options of `translate` for the derivative dataset."""
        return _DatasetStudies(
            self.model,
            self.output_dir,
            self.options,
            exclude=self.exclude,
            channel=self.channel,
            dataset=self.bids_dir,
        )

    def folders(self, links: Links) -> list[Path]:
        """Return the folders of the participants, or of their sessions. Raises BadParameter."""
        if not self.bids_dir.is_dir():
            raise wrong_value("BIDS_DIR", f"{str(self.bids_dir)!r} is not a folder.")
        if not self.skip_bids_validation:
            _check_description(self.bids_dir / "dataset_description.json")
        labels, sessions = self.participant_label, self.session_label
        chosen = _chosen([self.bids_dir], "sub", labels, "--participant-label")
        if sessions:
            chosen = _chosen(chosen, "ses", sessions, "--session-label")
        rule = LinkRule.among(links, [self.bids_dir])
        for folder in chosen:
            if reason := rule.refusal(folder):
                raise wrong_value("BIDS_DIR", f"{str(folder)!r}: {reason}; give --follow-links.")
        return chosen


def _chosen(
    folders: Sequence[Path], key: str, labels: Sequence[str] | None, option: str
) -> list[Path]:
    """Return the folders within others that are named after an entity.

    key: of the entity. labels: its values; all if there are none. option: that gave them, for
    errors. A folder that has none of them is noted. Raises BadParameter for a label that no folder
    has, and if nothing is found.
    """
    asked = {f"{key}-{label.removeprefix(f'{key}-')}" for label in labels or ()}
    found = {folder: _entity_folders(folder, key) for folder in folders}
    names = {inner.name for inners in found.values() for inner in inners}
    if missing := sorted(asked - names):
        raise wrong_value(option, f"the dataset has no folder {', '.join(missing)}.")
    if not names:
        raise wrong_value("BIDS_DIR", f"{str(folders[0])!r} contains no folder {key}-LABEL.")
    if asked:
        found = {
            folder: [inner for inner in inners if inner.name in asked]
            for folder, inners in found.items()
        }
    for folder in (folder for folder, inners in found.items() if not inners):
        note = f"note: {folder.name} has no folder {' or '.join(sorted(asked))} and is skipped"
        print_sentences([printable(note)], sys.stderr)
    return [inner for inners in found.values() for inner in inners]


def _entity_folders(folder: Path, key: str) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(one.name for one in entries if one.is_dir())
    return [folder / name for name in names if name.startswith(f"{key}-")]


def _check_description(file: Path) -> None:
    """Raise BadParameter if a file does not describe a BIDS dataset."""
    from ...io.sidecars import read_sidecar  # late: it loads libraries

    fields = read_sidecar(file)
    if not all(isinstance(fields.get(name), str) for name in ("Name", "BIDSVersion")):
        raise wrong_value(
            "BIDS_DIR",
            f"{str(file)!r} is missing, a link, or JSON without Name and BIDSVersion; correct it, "
            "or give --skip-bids-validation.",
        )
