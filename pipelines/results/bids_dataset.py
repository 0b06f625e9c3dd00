"""Files that make an output folder a BIDS derivative dataset: its description and .bidsignore."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import quote, unquote

from ...engine.model.model_card import ModelCard
from ...io.errors import WriteError
from ...io.files.atomic import whole_file
from ...io.files.regular import read_regular
from ...io.sidecars import DATASET_DESCRIPTION, BidsName, dataset_root, read_sidecar
from ...io.volume import NOTICE, PROGRAM, Study
from ..errors import OutputFolderError
from ..program import program_version
from ..settings import TranslateOptions
from .bids_names import SUFFIXES_OF_BIDS, bids_suffixes
from .manifest import load

BIDS_VERSION: Final = "1.10.0"
IGNORED: Final = ("*.preview.png", "*.map-*")
"""Patterns of previews and maps, which have no place in BIDS."""

_README = f"""{NOTICE}

All images here were made by cuda-cyclegan from scans of another contrast. The JSON file beside each
image names the model and the scan that it was made from; dataset_description.json says where the
datasets of these scans are.
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
            f"{description} describes a dataset that this program did not make; choose another "
            "output folder."
        )
    stands = (place for place, entry in load(output).items() if entry.status == "written")
    if other := next((place for place in stands if "_desc-" not in place), None):
        raise OutputFolderError(
            f"{output} holds results that are not named as BIDS has it, such as {other}; choose "
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

    def _leads_elsewhere(self, way: str, root: Path) -> bool:
        """Return whether a link leads to another existing folder; datasets may have been moved."""
        old = self.output / unquote(str(way))
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
    made = {
        "Name": PROGRAM,
        "Version": program or program_version(),
        "Description": f"Model {name} ({source} to {target}), SHA-256 {model[:12]}",
    }
    return {**made, "CodeURL": url} if (url := _code_url()) else made


@cache
def _code_url() -> str:
    """Return the URL of the program's source code, or "" if its package names none."""
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
    return f"bids:{link_name(root)}:{quote(scan.relative_to(root).as_posix())}"


def _is_ours(description: Mapping[str, Any]) -> bool:
    made: list[object] = _list(description.get("GeneratedBy"))
    return any(
        isinstance(each, dict) and cast("dict[str, Any]", each).get("Name") == PROGRAM
        for each in made
    )


def _relative(root: Path, output: Path) -> str:
    """Return the path of a dataset relative to the output folder, as a URI."""
    try:
        way = os.path.relpath(os.path.realpath(root), os.path.realpath(output))
    except ValueError:  # on another drive of Windows
        return root.absolute().as_uri()
    return quote(Path(way).as_posix())


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
        part.write_text(text, encoding="utf-8")
