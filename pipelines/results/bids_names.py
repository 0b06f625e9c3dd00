"""Names of results in a BIDS derivative dataset."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from ...engine.model.model_card import ModelCard
from ...io.channels import name_parts, without_channel
from ...io.sidecars import BidsName
from ...io.volume import Obstacle, Study
from ..errors import SettingsError
from ..name_pattern import in_a_name

TARGETS = {
    "T1w": ("t1", "t1w"),
    "T2w": ("t2", "t2w"),
    "FLAIR": ("flair", "t2flair", "flairt2"),
    "PDw": ("pd", "pdw"),
    "T2starw": ("t2star", "t2starw"),
    "ct": ("ct",),
    "pet": ("pet",),
}
"""BIDS suffixes with the names of a model's target, in lower case and without words of `_IDLE`."""

_IDLE = {"mr", "mri", "weighted", "synthetic", "image", "scan", "contrast"}

SUFFIXES_OF_BIDS = frozenset(
    {
        *("T1w", "T2w", "PDw", "T2starw", "FLAIR", "inplaneT1", "inplaneT2", "PDT2", "angio"),
        *("T1map", "T2map", "T2starmap", "PDmap", "R1map", "R2map", "R2starmap", "pet"),
    }
)
"""Suffixes of results that BIDS defines; files with other suffixes are listed in .bidsignore."""

_OF_ANAT = "sub ses task acq ce rec run echo part space chunk res"
_OF_PET = "sub ses task trc rec run space res"
_DESC = "synthetic"
_LONGEST_LABEL = 24


def bids_suffix(target: str) -> str | None:
    """Return the BIDS suffix of a contrast described in words; None for an unknown contrast."""
    words = re.findall(r"[a-z0-9]+", target.lower().replace("*", "star"))
    told = "".join(word for word in words if word not in _IDLE)
    return next((suffix for suffix, known in TARGETS.items() if told in known), None)


def bids_suffixes(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the suffix of each result of a model; asked: suffixes named by the user, if any.

    Raises SettingsError.
    """
    targets = card.targets
    if asked:
        if len(asked) != len(targets):
            raise SettingsError(
                f"Model {card.name} makes {len(targets)} results of a study, and setting "
                f"bids-suffix has {len(asked)}; name one for each, in the order of its channels."
            )
        suffixes = asked
    else:
        suffixes = tuple(map(_known_suffix, targets))
    if len({suffix == "pet" for suffix in suffixes}) > 1:
        raise SettingsError(
            f"The results of model {card.name} would be in two folders of a BIDS dataset, as it "
            "keeps PET apart; use setting layout=mirror."
        )
    return suffixes


def _known_suffix(target: str) -> str:
    if suffix := bids_suffix(target):
        return suffix
    raise SettingsError(
        f"BIDS has no known suffix for the target {target}; name one with setting bids-suffix."
    )


def model_label(card: ModelCard) -> str:
    """Return the model's short name as a BIDS label: letters and digits."""
    words = re.findall(r"[A-Za-z0-9]+", in_a_name(card.name))
    return "".join(word[:1].upper() + word[1:] for word in words)[:_LONGEST_LABEL]


def bids_names(study: Study, card: ModelCard, suffixes: Iterable[str], label: str) -> Study:
    """Return the study with BIDS names, or with an obstacle if its scan has no BIDS name.

    label: label of the model if its results must be distinguished from another model's, else empty.
    """
    if study.obstacle:
        return study
    base = without_channel(study.name, card.output_channels)
    stem, extension = name_parts(base)
    name = BidsName.parse(stem)
    if name is None or "sub" not in name.entities:
        return replace(study, obstacle=_NO_NAME)
    if extension not in (".nii", ".nii.gz"):
        return replace(study, obstacle=_NO_FORMAT)
    first, *others = (_placed(name, suffix, label, extension) for suffix in suffixes)
    return replace(study, name=first, other_results=tuple(others), mirrored=study.results)


def _placed(name: BidsName, suffix: str, label: str, extension: str) -> PurePosixPath:
    datatype, keys = ("pet", _OF_PET) if suffix == "pet" else ("anat", _OF_ANAT)
    kept = [f"{key}-{name.entities[key]}" for key in keys.split() if key in name.entities]
    before = name.entities.get("desc", "")
    desc = f"desc-{_DESC}{before[:1].upper()}{before[1:]}{label}"
    folders = [f"{key}-{name.entities[key]}" for key in ("sub", "ses") if key in name.entities]
    return PurePosixPath(*folders, datatype, "_".join((*kept, desc, suffix)) + extension)


_NO_NAME = Obstacle(
    "unsupported",
    "its name is not one of BIDS, such as sub-01_T1w, from which setting layout=bids takes the "
    "subject; rename or convert it, or use setting layout=mirror",
)
_NO_FORMAT = Obstacle(
    "unsupported",
    "BIDS has no place for pairs of .hdr and .img, and setting layout=bids is given; convert it to "
    ".nii.gz",
)
