"""BIDS derivatives: names of results, and files that describe the dataset."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self, cast
from urllib.parse import quote, unquote

from ...engine.model.model_card import ModelCard
from ...io.channels import name_parts, without_channel
from ...io.errors import WriteError
from ...io.files.atomic import whole_file
from ...io.files.regular import read_regular
from ...io.sidecars import DATASET_DESCRIPTION, BidsName, dataset_root, read_sidecar
from ...io.volume import NOTICE, PROGRAM, Blocker, Study
from ..errors import OutputFolderError, SettingsError
from ..name_pattern import in_a_name
from ..program import program_version
from ..settings import TranslateOptions
from .manifest import entries_of

TARGETS = {
    "T1w": ("t1", "t1w"),
    "T2w": ("t2", "t2w"),
    "FLAIR": ("flair", "t2flair", "flairt2"),
    "PDw": ("pd", "pdw"),
    "T2starw": ("t2star", "t2starw"),
    "ct": ("ct",),
    "pet": ("pet",),
}
"""BIDS suffixes by the names of a model's target, in lower case and without words of `_IDLE`."""

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
    key = "".join(word for word in words if word not in _IDLE)
    return next((suffix for suffix, known in TARGETS.items() if key in known), None)


def bids_suffixes(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the suffix of each result of a model; asked: suffixes named by the user, if any.

    Raises SettingsError.
    """
    targets = card.targets
    if asked:
        if len(asked) != len(targets):
            raise SettingsError(
                f"Model {card.name} makes {len(targets)} results of a study, and setting "
                f"bids-suffix has {len(asked)}; name one for each, in the order of its channels.",
                "bids_suffix",
            )
        suffixes = asked
    else:
        suffixes = tuple(map(_known_suffix, targets))
    if len({suffix == "pet" for suffix in suffixes}) > 1:
        raise SettingsError(
            f"The results of model {card.name} would be in two folders of a BIDS dataset, which "
            "separates PET; use setting layout=mirror.",
            "layout",
        )
    return suffixes


def _known_suffix(target: str) -> str:
    if suffix := bids_suffix(target):
        return suffix
    raise SettingsError(
        f"BIDS has no known suffix for the target {target}; give one with setting bids-suffix.",
        "bids_suffix",
    )


def model_label(card: ModelCard) -> str:
    """Return the model's short name as a BIDS label: letters and digits."""
    words = re.findall(r"[A-Za-z0-9]+", in_a_name(card.name))
    return "".join(word[:1].upper() + word[1:] for word in words)[:_LONGEST_LABEL]


def bids_names(study: Study, card: ModelCard, suffixes: Iterable[str], label: str) -> Study:
    """Return the study with BIDS names, or with a blocking error if its scan has no BIDS name.

    label: label of the model if its results must be distinguished from another model's, else empty.
    """
    if study.blocker:
        return study
    base = without_channel(study.name, card.output_channels)
    stem, extension = name_parts(base)
    name = BidsName.parse(stem)
    if name is None or "sub" not in name.entities:
        return replace(study, blocker=_NO_NAME)
    if extension not in (".nii", ".nii.gz"):
        return replace(study, blocker=_NO_FORMAT)
    first, *others = (_placed(name, suffix, label, extension) for suffix in suffixes)
    return replace(study, name=first, other_results=tuple(others), mirrored=study.results)


def _placed(name: BidsName, suffix: str, label: str, extension: str) -> PurePosixPath:
    datatype, keys = ("pet", _OF_PET) if suffix == "pet" else ("anat", _OF_ANAT)
    kept = [f"{key}-{name.entities[key]}" for key in keys.split() if key in name.entities]
    before = name.entities.get("desc", "")
    desc = f"desc-{_DESC}{before[:1].upper()}{before[1:]}{label}"
    folders = [f"{key}-{name.entities[key]}" for key in ("sub", "ses") if key in name.entities]
    return PurePosixPath(*folders, datatype, "_".join((*kept, desc, suffix)) + extension)


_NO_NAME = Blocker(
    "unsupported",
    "its name is not a BIDS name such as sub-01_T1w, which setting layout=bids needs for the "
    "subject; rename or convert it, or use setting layout=mirror",
)
_NO_FORMAT = Blocker(
    "unsupported",
    "BIDS does not allow pairs of .hdr and .img; convert it to .nii.gz, or use setting "
    "layout=mirror",
)


BIDS_VERSION: Final = "1.10.0"
IGNORED: Final = ("*.preview.png", "*.map-*")
"""Patterns of previews and maps, which have no place in BIDS."""

_README = f"""{NOTICE}

All images here were made by cuda-cyclegan from scans of another contrast. The JSON file next to
each image names the model and the scan that it was made from; dataset_description.json states where
the datasets of these scans are.
"""


def check_layout(output: Path, options: TranslateOptions) -> None:
    """Raise OutputFolderError if a folder contains results in another layout than the requested
    one, or is a BIDS dataset that another program made.
    """
    description = output / DATASET_DESCRIPTION
    is_there = os.path.lexists(description)
    is_ours = is_there and _is_ours(read_sidecar(description))
    if options.layout == "mirror":
        if is_ours:
            raise OutputFolderError(
                f"{output} is a BIDS dataset of results; use setting layout=bids, or choose "
                "another output folder."
            )
        return
    if is_there and not is_ours:
        raise OutputFolderError(
            f"{description} describes a dataset that this program did not write; choose another "
            "output folder."
        )
    others = {
        each.output: each.status for each in entries_of(output) if "_desc-" not in each.output
    }
    if other := next((place for place, status in others.items() if status == "written"), None):
        raise OutputFolderError(
            f"{output} contains results without BIDS names, such as {other}; choose "
            "another output folder."
        )


@dataclass(frozen=True, slots=True)
class BidsDataset:
    """Output folder that is a BIDS dataset.

    output: the folder. card: model card of the model whose results go there. suffixes: BIDS
    suffixes of these results.
    """

    output: Path
    card: ModelCard
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, output: Path, card: ModelCard, options: TranslateOptions) -> Self:
        """Return the dataset of a run with layout=bids. Raises SettingsError."""
        return cls(output, card, bids_suffixes(card, options.bids_suffix))

    def describe(self, studies: Iterable[Study], model: str) -> None:
        """Write or extend the description of the dataset if it lacks something.

        studies: studies whose results go there. model: hash of the model. Raises OutputFolderError.
        """
        scans = [scan.files[0] for study in studies for scan in study.channels]
        try:
            self._describe({*map(dataset_root, scans)}, model)
        except (OSError, WriteError) as error:
            raise OutputFolderError(
                f"{self.output} cannot be described as a BIDS dataset: {error}"
            ) from error

    def _describe(self, roots: set[Path], model: str) -> None:
        description = self.output / DATASET_DESCRIPTION
        known = read_sidecar(description)
        fields = self._extended(known, roots, model)
        if fields != known:
            _write(description, json.dumps(fields, indent=2, ensure_ascii=False) + "\n")
        self._ignore()
        if not os.path.lexists(self.output / "README"):
            _write(self.output / "README", _README)

    def _extended(self, known: Mapping[str, Any], roots: set[Path], model: str) -> dict[str, Any]:
        links = self._links(known.get("DatasetLinks"), roots)
        sources = [_source(root, links[link_name(root)]) for root in sorted(roots)]
        return {
            "Name": self.output.name or "Synthetic images",
            "BIDSVersion": BIDS_VERSION,
            "DatasetType": "derivative",
            **known,
            "GeneratedBy": _with(known.get("GeneratedBy"), [generated_by(self.card.words, model)]),
            "SourceDatasets": _with(known.get("SourceDatasets"), sources),
            "DatasetLinks": links,
        }

    def _links(self, known: object, roots: set[Path]) -> dict[str, str]:
        """Return the names of the scans' datasets in BIDS URIs, with their relative paths."""
        links = dict(cast("dict[str, str]", known)) if isinstance(known, dict) else {}
        for root in sorted(roots):
            name = link_name(root)
            if name in links and self._leads_elsewhere(links[name], root):
                raise OutputFolderError(
                    f"{self.output} has results of another dataset named {name}, at "
                    f"{links[name]}; choose another output folder for those of {root}."
                )
            links[name] = _relative(root, self.output)
        return links

    def _leads_elsewhere(self, path: str, root: Path) -> bool:
        """Return whether a link leads to another existing folder; datasets may have been moved."""
        old = self.output / unquote(str(path), errors="surrogateescape")
        return old.is_dir() and not old.samefile(root)

    def _ignore(self) -> None:
        file = self.output / ".bidsignore"
        unknown = [suffix for suffix in self.suffixes if suffix not in SUFFIXES_OF_BIDS]
        wanted = [*IGNORED, *(f"*_{each}.{end}" for each in unknown for end in ("nii*", "json"))]
        there = read_regular(file).decode() if os.path.lexists(file) else ""
        if missing := [line for line in wanted if line not in there.splitlines()]:
            before = there if there.endswith("\n") or not there else f"{there}\n"
            _write(file, before + "".join(f"{line}\n" for line in missing))


def generated_by(
    words: tuple[str, str, str], model: str, program: str | None = None
) -> dict[str, str]:
    """Return an entry of the BIDS field GeneratedBy for this program and a model.

    words: labels of the model from its model card. model: SHA-256 of its file. program: another
    version than this one.
    """
    name, source, target = words
    fields = {
        "Name": PROGRAM,
        "Version": program or program_version(),
        "Description": f"Model {name} ({source} to {target}), SHA-256 {model[:12]}",
    }
    return {**fields, "CodeURL": url} if (url := _code_url()) else fields


@cache
def _code_url() -> str:
    """Return the URL of the program's source code, or "" if its package names none."""
    from importlib.metadata import metadata  # late: few batches need it

    urls = metadata(PROGRAM).get_all("Project-URL") or []
    named = (url.partition(", ") for url in urls)
    return next((url for label, _, url in named if label in ("Source", "Repository")), "")


def link_name(root: Path) -> str:
    """Return the name of the dataset in a folder for BIDS URIs of another dataset."""
    return re.sub(r"[^A-Za-z0-9]+", "", root.name) or "source"


def bids_uri(scan: Path) -> str:
    """Return the BIDS URI of a scan in its dataset, or only its name if it is in none."""
    if BidsName.of_scan(scan) is None:
        return scan.name
    root = dataset_root(scan)
    return f"bids:{link_name(root)}:{quote(os.fsencode(scan.relative_to(root).as_posix()))}"


def _is_ours(description: Mapping[str, Any]) -> bool:
    generators: list[object] = _list(description.get("GeneratedBy"))
    return any(
        isinstance(each, dict) and cast("dict[str, Any]", each).get("Name") == PROGRAM
        for each in generators
    )


def _relative(root: Path, output: Path) -> str:
    """Return the path of a dataset relative to the output folder, as a URI."""
    try:
        path = os.path.relpath(os.path.realpath(root), os.path.realpath(output))
    except ValueError:  # on another drive of Windows
        return root.absolute().as_uri()
    return quote(os.fsencode(Path(path).as_posix()))


def _source(root: Path, link: str) -> dict[str, str]:
    doi = read_sidecar(root / DATASET_DESCRIPTION).get("DatasetDOI")
    return {"URL": link, **({"DOI": doi} if isinstance(doi, str) and doi.isprintable() else {})}


def _with(known: object, added: Iterable[dict[str, str]]) -> list[Any]:
    there = _list(known)
    return there + [each for each in added if each not in there]


def _list(value: object) -> list[Any]:
    return [*cast("list[Any]", value)] if isinstance(value, list) else []


def _write(file: Path, text: str) -> None:
    with whole_file(file) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # of bytes in names
