"""Names, descriptions and sidecars of public datasets: which models take them, and with what note.

The confusion table per source is printed by `python tests/pipelines/study/test_scan_names.py`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from cuda_cyclegan.io.contrast.fields import HeaderFields
from cuda_cyclegan.io.contrast.names import read_name
from cuda_cyclegan.io.contrast.statement import Statement
from cuda_cyclegan.io.contrast.weighing import kinds_taken, weigh
from cuda_cyclegan.io.formats.registry import scan_stem

NAMES = Path(__file__).parents[2] / "fixtures" / "scan_names"
MISSING = NAMES / "scans"
"""Folder that does not exist, so that names alone count."""
RIGHT = {
    "T1": {"T1"},
    "T1ce": {"T1ce"},
    "T2": {"T2"},
    "FLAIR": {"FLAIR"},
    "CT": {"CT"},
    "CBCT": {"CBCT"},
    "PET": {"PET"},
    "MR": {"T1", "T1ce", "T2", "FLAIR", "PD", "PDT2", "T2*", "STIR", "DIR", "SWI", "swi", "MR"},
}
"""Kinds that a model of each source translates."""
EITHER = {"unk", "template", "UNIT1", "T1gre", "inv"}
"""Kinds that a model may take or not: what states nothing, and what is nearly the source."""
FILES = ("dataset_names.tsv", "further_names.tsv")
OPEN = {
    # Names that other programs use for the scan itself, or whose words have two meanings.
    *("T1_IR", "Hipp", "pd+t2", "PD-T2", "PD_T2", "real"),
}
"""Parts of names that a model may take with a note, although the scan is of another kind."""


def rows(name: str) -> Iterator[list[str]]:
    """Lines of a table, without its head."""
    for line in (NAMES / name).read_text().splitlines()[1:]:
        yield line.split("\t")


@cache
def statements_of_names(table: str) -> Sequence[tuple[str, str, tuple[Statement, ...]]]:
    """Return what each name is, the name, and what it states."""
    found: list[tuple[str, str, tuple[Statement, ...]]] = []
    for kind, name, _ in rows(table):
        file = MISSING / name
        found.append((kind, name, tuple(read_name(file, scan_stem(file)))))
    return found


def outcome(stated: Sequence[Statement], source: str) -> str:
    """Whether a model of a source takes a scan in silence, with a note, or not."""
    weighed = weigh(stated, kinds_taken(source))
    if weighed.against:
        return "skipped"
    return "silent" if weighed.is_shown and not weighed.doubts else "noted"


def table(cases: Sequence[tuple[str, str, Sequence[Statement]]], source: str) -> Counter[str]:
    """Count outcomes of a source, as "silent wrong"."""
    counts: Counter[str] = Counter()
    for kind, _, stated in cases:
        truth = "right" if kind in RIGHT[source] else "either" if kind in EITHER else "wrong"
        counts[f"{outcome(stated, source)} {truth}"] += 1
    return counts


@pytest.mark.parametrize("source", RIGHT)
@pytest.mark.parametrize("file", FILES)
def test_no_name_of_another_kind_is_taken_in_silence_and_none_of_the_source_is_skipped(
    file: str, source: str
) -> None:
    for kind, name, stated in statements_of_names(file):
        is_right, got = kind in RIGHT[source], outcome(stated, source)
        if kind in EITHER:
            continue
        assert got != ("skipped" if is_right else "silent"), (name, kind, stated)


@pytest.mark.parametrize("source", RIGHT)
@pytest.mark.parametrize("file", FILES)
def test_a_name_of_another_kind_gets_a_note_only_if_it_states_nothing_clear(
    file: str, source: str
) -> None:
    for kind, name, stated in statements_of_names(file):
        if kind in EITHER or kind in RIGHT[source] or any(part in name for part in OPEN):
            continue
        if outcome(stated, source) == "noted":
            assert all(each.is_coarse or each.is_open for each in stated), (name, stated)


@pytest.mark.parametrize("source", RIGHT)
def test_series_descriptions_are_weighed_with_the_modality(source: str) -> None:
    for kind, modality, description, _ in rows("series.tsv"):
        fields = HeaderFields("its header", modality=modality, texts=(description,))
        got = outcome(tuple(fields.statements()), source)
        if kind not in EITHER:
            assert got != ("skipped" if kind in RIGHT[source] else "silent"), (description, kind)


@pytest.mark.parametrize("source", RIGHT)
def test_sidecars_of_dcm2niix_are_weighed_alone_and_with_their_names(source: str) -> None:
    for row in json.loads((NAMES / "sidecars.json").read_text()):
        kind = row["is"]
        stated = [*HeaderFields.of_sidecar(row["fields"]).statements()]
        named = [*stated, *read_name(MISSING / f"{row['name']}.nii", row["name"])]
        for each in (stated, named):
            got = outcome(each, source)
            assert got != ("skipped" if kind in RIGHT[source] else "silent"), (row["name"], each)


if __name__ == "__main__":
    for file in FILES:
        for source in RIGHT:
            print(file, source, dict(table(statements_of_names(file), source)))
